"""A judge at work on a terminal: its forecast, its progress, and what it has used.

found, judged = await judge_all(open_flags(flags), items, path)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from burnish.bench.items import Item, Judged
from burnish.bench.judging import ResultFile, judge_items, unasked
from burnish.bench.open_judge import JudgeSettings, OpenJudge, forecast, open_judge
from burnish.cli.console import Reporter, count, emit_json, one_line, say, warn
from burnish.cli.shared_options import JudgeFlags
from burnish.config.schema import Config
from burnish.errors import JudgeError, NoServer
from burnish.lm.base import DIFFUSION
from burnish.lm.budget import Forecast
from burnish.records import Task
from burnish.rewards.judges.judge_model import JudgeModel
from burnish.rewards.scorer import Scope, Scorer
from burnish.texts import duration


def open_flags(
    flags: JudgeFlags, special: Callable[[JudgeModel], Scorer] | None = None
) -> OpenJudge:
    """The judge that the flags describe."""
    if flags.model.startswith(DIFFUSION):
        warn(
            f"'{flags.model}' is a converted model that was never trained to fill masks in: its "
            "verdicts are noise. Train it first: burnish train diffusion"
        )
    return open_judge(JudgeSettings(*flags), special)


def title(judge: OpenJudge) -> str:
    """The judge in one line."""
    orders = ", both orders" if judge.settings.both_orders else ", one order"
    return one_line(f"judge {judge.name}{orders if judge.scorer.scope is Scope.PAIR else ''}")


# --- what it will take, and the work itself


def print_forecast(found: Forecast, judge: OpenJudge) -> None:
    """The forecast, and which limit it will meet."""
    if not judge.model.name:
        say("forecast  no model is asked")
        return
    say(f"forecast  {found}; repairs come on top, steps vary with the replies")
    if warning := found.warning(judge.model.budget):
        say(f"{warning}: the items that are left get no verdict", style="yellow")


async def judge_all(
    judge: OpenJudge,
    items: Sequence[Item],
    path: Path | None,
    *,
    bench: str = "",
    oracle: bool = False,
    quiet: bool = False,
) -> tuple[Forecast, list[Judged]]:
    """Say what it will take, then judge all items; those that `path` holds are not asked again."""
    with nullcontext() if path is None else ResultFile(path) as file:
        left = list(items)
        if file is not None:
            left = unasked(file, judge.scorer, items, judge=judge.name, bench=bench, oracle=oracle)
        found = await forecast(judge, left, oracle=oracle)
        if not quiet:
            if len(left) < len(items):
                say(f"{len(items) - len(left)} of {len(items)} rows are on file already")
            print_forecast(found, judge)
        with JudgeReporter(judge, len(left), "judging", quiet=quiet) as report:

            def done(one: Judged, is_new: bool) -> None:
                if is_new:
                    report.step(one.is_valid)

            judged = await judge_items(
                judge.scorer,
                items,
                judge=judge.name,
                bench=bench,
                file=file,
                oracle=oracle,
                limit=judge.settings.concurrency,
                done=done,
            )
        return found, judged


class JudgeReporter(Reporter):
    """Rows that are done, and how many of them have no verdict."""

    def __init__(self, judge: OpenJudge, rows: int, what: str, *, quiet: bool = False) -> None:
        super().__init__(quiet=quiet or not rows)
        self.judge, self.rows, self.what = judge, rows, what
        self.done = self.failed = 0
        self(what, 0, rows)

    def step(self, is_valid: bool) -> None:
        """One more row is done; stops where the first questions found no server."""
        self.done += 1
        self.failed += not is_valid
        told = f"{self.what}, {self.failed} without a verdict" if self.failed else self.what
        self(told, self.done, self.rows)
        try:
            self.judge.model.reach.check("Start the server, or correct the address of --model")
        except NoServer as error:
            raise JudgeError(str(error)) from None


def print_judge_calls(
    config: Config, tasks: Sequence[Task], base: str | Path, *, as_json: bool = False
) -> None:
    """How often a run will ask its judges; nothing where it has none, or no task to count with."""
    from burnish.bench.judge_calls import all_texts, count_judge_calls, judge_rewards

    if not tasks or not any(True for reward in config.rewards for _ in judge_rewards(reward)):
        return
    found = anyio.run(partial(count_judge_calls, config, tasks[0], base=base))
    if as_json:
        listed = [
            {**one._asdict(), "step": one.step._asdict(), "run": one.run._asdict()} for one in found
        ]
        emit_json({"event": "judge_calls", "judges": listed})
        return
    for line in all_texts(found, config.steps):
        say(one_line(f"judge     {line}"), style="yellow" if "the budget of" in line else "")


def spent_text(judge: OpenJudge, seconds: float) -> str:
    """What was really used."""
    spent = judge.model.spent
    parts = [f"{spent.calls} calls"]
    if spent.cached:
        parts.append(f"{spent.cached} answered without a call")
    if spent.failed:
        parts.append(f"{spent.failed} calls failed")
    guess = "about " if spent.estimated else ""
    parts.append(f"{guess}{count(spent.tokens)} tokens")
    if spent.usd:
        parts.append(f"${spent.usd:.4f}")
    return f"spent     {', '.join(parts)} in {duration(seconds)}"


def spent_record(judge: OpenJudge, seconds: float) -> dict[str, Any]:
    """The same for machines."""
    return {**judge.model.spent._asdict(), "seconds": round(seconds, 3)}
