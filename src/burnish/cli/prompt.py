"""`burnish prompt optimise`: the command around `burnish.optimise_prompt`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, NamedTuple

import msgspec
from typer import Argument, Option

from burnish.cli.completion import complete_models, complete_words
from burnish.cli.console import emit_json, err, one_line, say
from burnish.cli.shared_options import AsJson, Seed, takes
from burnish.errors import UserError
from burnish.texts import read_text

if TYPE_CHECKING:
    from burnish.agents.prompt import PromptResult

Asked = Annotated[
    list[str],
    Argument(
        metavar="TASK KEY=VALUE",
        help="A recipe (its tasks and rewards) with settings to change, or a file of rows with "
        "--reward.",
        autocompletion=complete_words,
    ),
]
Answering = Annotated[
    str,
    Option(
        metavar="MODEL",
        help="Who answers: smollm2, a folder, http://host:port/v1#model.",
        autocompletion=complete_models,
    ),
]
Proposer = Annotated[
    str,
    Option(
        metavar="MODEL",
        help="Who proposes: a model, or examples (worked examples from solved tasks); the model "
        "itself and examples in turn where left out.",
    ),
]

Rewards = Annotated[
    list[str] | None, Option(metavar="NAME", help="For a file of rows; may be repeated.")
]


class SearchFlags(NamedTuple):
    """Arguments of `burnish.optimise_prompt`."""

    rounds: Annotated[int, Option(min=1, help="Of proposing and trying.")] = 3
    candidates: Annotated[int, Option(min=1, help="Of a round.")] = 4
    shown: Annotated[int, Option(min=1, help="Tasks the proposer sees.")] = 32
    trial: Annotated[int, Option(min=1, help="Tasks of the paired test.")] = 96
    confirm: Annotated[int, Option(min=1, help="Held-out tasks.")] = 96
    alpha: Annotated[float, Option(min=0.0, max=1.0, help="Chance of accepting noise.")] = 0.05
    max_tokens: Annotated[
        int | None, Option(min=1, help="Most tokens of an answer; the recipe's else.")
    ] = None
    part: Annotated[str, Option(metavar="NAME", help="Which reward is the score; the total.")] = ""
    seed: Seed = 0


@takes(SearchFlags)
def optimise(
    words: Asked,
    flags: SearchFlags,
    model: Answering = "smollm2",
    proposer: Proposer = "",
    prompt: Annotated[
        Path | None, Option(metavar="FILE", help="The present prompt; the task's own else.")
    ] = None,
    reward: Rewards = None,
    out: Annotated[
        Path, Option(metavar="FILE", help="The prompt; its report lies beside it.")
    ] = Path("prompt.txt"),
    as_json: AsJson = False,
) -> int:
    """Search a better system prompt for a task: propose, try, accept by a paired test, confirm.

    Called again with the same words after a kill, it goes on where it stopped.

    \b
      burnish prompt optimise quickstart --proposer examples --rounds 2 --out prompt.txt
      burnish prompt optimise rows.jsonl --reward match --out prompt.txt
      burnish prompt optimise my.toml --model http://host:8000/v1#m --proposer http://host:8000/v1#big
    """
    from burnish.api.config import Config
    from burnish.api.prompt import optimise_prompt
    from burnish.tasks.rows import SUFFIXES

    if prompt is not None and prompt.resolve() == out.resolve():
        raise UserError(
            f"--prompt {prompt}: the prompt that is found would overwrite it; choose another file "
            "for that, such as --out better.txt."
        )
    name, *settings = words
    is_rows = bool(reward)
    if is_rows and settings:
        raise UserError(
            f"'{settings[0]}' changes a recipe; {name} with --reward is a file of rows."
        )
    if not is_rows and Path(name).suffix.lower() in SUFFIXES:
        raise UserError(
            f"{name} is a file of rows, and nothing says how its answers are scored; add --reward NAME, "
            "such as --reward match, which compares them with the rows' own, or give a recipe "
            "(my.toml)."
        )
    with err.status("answering and scoring ..."):
        result = optimise_prompt(
            model,
            name if is_rows else Config.load(name, *settings),
            proposer=proposer or None,
            prompt=None if prompt is None else read_text(prompt),
            rewards=list(reward) if reward else None,
            **flags._asdict(),
            out=out,
            tell=lambda line: err.print(one_line(line), soft_wrap=True, markup=False),
        )
    if as_json:
        emit_json({**msgspec.to_builtins(result), "prompt": result.prompt, "file": str(out)})
        return 0
    _print(result, out)
    return 0


def _print(result: PromptResult, out: Path) -> None:
    from burnish.agents.prompt import prompt_diff, verdict_line
    from burnish.api.prompt import beside

    spent = result.spending
    say(verdict_line(result))
    if result.best != result.start:
        say(prompt_diff(result.start, result.best))
    cost = f", {spent.usd:.4f} USD" if spent.usd else ""
    say(f"{len(result.tried)} candidates, {spent.answers} answers, {spent.tokens} tokens{cost}")
    for line in result.problems:
        say(line)
    say(f"prompt: {out}; report: {beside(out, '.report.md')}")
