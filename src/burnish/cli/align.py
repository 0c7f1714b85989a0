"""`burnish align`: move a policy file into a model's weights; the command around `burnish.align`."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Annotated, NamedTuple

import msgspec
from typer import Argument, Option

from burnish.cli.console import complain, emit_json, one_line, say
from burnish.cli.shared_options import AsJson, MaxTokens, Seed, takes


class AlignFlags(NamedTuple):
    """Arguments of `burnish.align`."""

    out: Annotated[Path, Option(metavar="FOLDER", help="Where everything is kept.")] = Path(
        "aligned"
    )
    instructions: Annotated[
        Path | None,
        Option(
            metavar="FILE",
            help="Requests of your own (instruction, clause_id, kind violating or benign) instead of "
            "synthesised ones.",
        ),
    ] = None
    steps: Annotated[int, Option(min=1, help="Steps of the training.")] = 100
    generator: Annotated[
        str | None, Option(metavar="MODEL", help="Who writes requests; else MODEL.")
    ] = None
    per_clause: Annotated[int, Option(min=1, help="Violating requests of each clause.")] = 24
    score: Annotated[str, Option(help="kl, first-token, response-distance or guard-flip.")] = "kl"
    keep: Annotated[float, Option(help="Share of each clause's requests that is trained on.")] = 0.5
    keep_truncated: Annotated[
        bool, Option("--keep-truncated", help="Also requests whose answers are cut.")
    ] = False
    teacher: Annotated[str, Option(help="ema, frozen or student.")] = "ema"
    guard: Annotated[str | None, Option(metavar="MODEL", help="A guard model; else rules.")] = None
    evaluate: Annotated[
        Path | None,
        Option(metavar="FILE", help="More prompts for the report, such as XSTest's."),
    ] = None
    max_tokens: MaxTokens = 256
    seed: Seed = 0
    force: Annotated[bool, Option("--force", help="Train although the policy changes nothing.")] = (
        False
    )


@takes(AlignFlags)
def align(
    model: Annotated[
        str, Argument(metavar="MODEL", help="smollm2, tiny, a model's or a run's folder.")
    ],
    policy: Annotated[
        Path,
        Argument(
            metavar="POLICY",
            help="A text file: rules, and worked examples under '## Examples'.",
        ),
    ],
    flags: AlignFlags,
    words: Annotated[
        list[str] | None, Argument(metavar="KEY=VALUE", help="Settings of the training.")
    ] = None,
    as_json: AsJson = False,
) -> int:
    """Move a policy, or any system prompt, from a text file into a model's weights.

    \b
      burnish align smollm2 policy.md --steps 40 --instructions requests.jsonl
      burnish align my_model policy.md --generator http://localhost:8000/v1#writer --out safe
      burnish align my_model policy.md --evaluate xstest.csv optimiser.learning_rate=1e-5
    """
    import burnish

    # Unwrapped: errors in the words of the command line.
    whole = inspect.unwrap(burnish.align)
    tell = (lambda line: None) if as_json else (lambda line: say(one_line(line)))
    try:
        found = whole(model, policy, *(words or ()), **flags._asdict(), show=not as_json, tell=tell)
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
