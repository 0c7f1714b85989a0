"""`burnish align`: move a policy file into a model's weights; the command around `burnish.align`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec
from typer import Argument, Option

from burnish.cli.console import complain, emit_json, one_line, say
from burnish.cli.shared_options import AsJson, Seed

TrainedModel = Annotated[
    str, Argument(metavar="MODEL", help="smollm2, tiny, a model's or a run's folder.")
]
Policy = Annotated[
    Path,
    Argument(metavar="POLICY", help="A text file: rules, and worked examples under '## Examples'."),
]
Settings = Annotated[
    list[str] | None, Argument(metavar="KEY=VALUE", help="Settings of the training.")
]
Out = Annotated[Path, Option(metavar="FOLDER", help="Where everything is kept.")]
Instructions = Annotated[
    Path | None,
    Option(
        metavar="FILE",
        help="Requests of your own (instruction, clause_id, kind violating or benign) instead of "
        "synthesised ones.",
    ),
]
Steps = Annotated[int, Option(min=1, help="Steps of the training.")]
Generator = Annotated[str, Option(metavar="MODEL", help="Who writes requests; else MODEL.")]
PerClause = Annotated[int, Option(min=1, help="Violating requests of each clause.")]
Score = Annotated[str, Option(help="kl, first-token, response-distance or guard-flip.")]
Keep = Annotated[float, Option(help="Share of each clause's requests that is trained on.")]
KeepTruncated = Annotated[
    bool, Option("--keep-truncated", help="Also requests whose answers are cut.")
]
Teacher = Annotated[str, Option(help="ema, frozen or student.")]
Guard = Annotated[str, Option(metavar="MODEL", help="A guard model; else rules.")]
Evaluate = Annotated[
    Path | None, Option(metavar="FILE", help="More prompts for the report, such as XSTest's.")
]
MaxTokens = Annotated[int, Option(min=1, help="Most tokens of one answer.")]
Force = Annotated[bool, Option("--force", help="Train although the policy changes nothing.")]


def align(
    model: TrainedModel,
    policy: Policy,
    words: Settings = None,
    out: Out = Path("aligned"),
    instructions: Instructions = None,
    steps: Steps = 100,
    generator: Generator = "",
    per_clause: PerClause = 24,
    score: Score = "kl",
    keep: Keep = 0.5,
    keep_truncated: KeepTruncated = False,
    teacher: Teacher = "ema",
    guard: Guard = "",
    evaluate: Evaluate = None,
    max_tokens: MaxTokens = 256,
    seed: Seed = 0,
    force: Force = False,
    as_json: AsJson = False,
) -> int:
    """Move a policy, or any system prompt, from a text file into a model's weights.

    \b
      burnish align smollm2 policy.md --steps 40 --instructions requests.jsonl
      burnish align my_model policy.md --generator http://localhost:8000/v1#writer --out safe
      burnish align my_model policy.md --evaluate xstest.csv optimiser.learning_rate=1e-5
    """
    import inspect

    import burnish

    # Unwrapped: errors in the words of the command line.
    whole = inspect.unwrap(burnish.align)
    try:
        found = whole(
            model,
            policy,
            *(words or ()),
            out=out,
            instructions=instructions,
            steps=steps,
            generator=generator or None,
            per_clause=per_clause,
            score=score,
            keep=keep,
            keep_truncated=keep_truncated,
            teacher=teacher,
            guard=guard or None,
            evaluate=evaluate,
            max_tokens=max_tokens,
            seed=seed,
            force=force,
            show=not as_json,
            tell=(lambda line: None) if as_json else (lambda line: say(one_line(line))),
        )
    except KeyboardInterrupt as stop:
        complain(str(stop).replace("the same call", "the same command") or "stopped.")
        return 130
    if as_json:
        emit_json(
            {"folder": str(found.folder), "weights": str(found.weights)}
            | msgspec.to_builtins(found.report)
        )
        return 0
    say()
    say(str(found.report))
    say(f"model: {found.weights}; report: {found.folder / 'report.md'}")
    return 0
