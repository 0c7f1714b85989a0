"""A judge at work on a terminal: its forecast, its progress, and what it has used.

found, judged = await judge_all(open_flags(flags), items, path)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

import anyio
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.progress import Progress as Bar

from burnish.bench.items import Item, Judged
from burnish.bench.judging import ResultFile, judge_items, unasked
from burnish.bench.open_judge import JudgeSettings, OpenJudge, WatchedBudget, forecast, open_judge
from burnish.cli.console import count, emit_json, err, one_line, say, warn
from burnish.cli.shared_options import JudgeFlags
from burnish.config.schema import Config
from burnish.errors import JudgeError, NoServer
from burnish.lm.base import DIFFUSION
from burnish.lm.budget import Budget, Forecast
from burnish.records import Task
from burnish.rewards.judges.judge_model import JudgeModel
from burnish.rewards.scorer import Scope, Scorer
from burnish.texts import duration

EACH_ROW = 20
"""Up to this many rows get a line each in a log; of more, every tenth part does."""
SILENCE_S = 30.0
"""No longer than this, or than one row takes, is a log silent."""


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
        with Progress(len(left), found.calls, "judging", judge.model.budget, quiet=quiet) as step:

            def done(one: Judged, is_new: bool) -> None:
                if is_new:
                    step(one.is_valid)
                    check_reached(judge)

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


def check_reached(judge: OpenJudge) -> None:
    """Stop where the first questions found no server: the others would not either."""
    try:
        judge.model.reach.check("Start the server, or correct the address of --model")
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


# --- how far it is


class Progress:
    """Rows that are done and calls that were answered, from the moment the asking begins."""

    def __init__(
        self,
        rows: int,
        calls: int,
        what: str,
        budget: Budget,
        *,
        unit: str = "rows",
        quiet: bool = False,
    ) -> None:
        """`calls` is what a forecast expects; repairs of unreadable replies come on top."""
        self.rows, self.calls, self.what, self.unit, self.budget = rows, calls, what, unit, budget
        self.quiet = quiet or not rows
        self.done = self.failed = self.replies = 0
        self.start = self.told = perf_counter()
        self.bar: Bar | None = None

    def __enter__(self) -> Callable[[bool], None]:
        if self.quiet:
            return self.step
        self.start = self.told = perf_counter()
        if isinstance(self.budget, WatchedBudget):
            self.budget.heard = self._reply
        if err.is_terminal:
            self.bar = _bar(self.unit)
            self.bar.start()
            self.bar.add_task(self.what, total=self.rows, calls=self._calls())
        else:
            self._tell(f"{self.what} 0/{self.rows} {self.unit}")
        return self.step

    def __exit__(self, *_: object) -> None:
        if isinstance(self.budget, WatchedBudget):
            self.budget.heard = None
        if self.bar is not None:
            self.bar.stop()

    def step(self, is_valid: bool) -> None:
        """One more row is done."""
        self.done += 1
        self.failed += not is_valid
        if self.bar is not None:
            told = f"{self.what}, {self.failed} without a verdict" if self.failed else self.what
            self.bar.update(self.bar.task_ids[0], advance=1, description=told)
        elif not self.quiet and self._is_due():
            spent_s = perf_counter() - self.start
            left_s = spent_s / self.done * (self.rows - self.done)
            ahead = f", about {duration(left_s)} left" if self.done < self.rows else ""
            self._tell(
                f"{self.what} {self.done}/{self.rows} {self.unit}, {self.failed} without a verdict, "
                f"{self.replies} replies in {duration(spent_s)}{ahead}"
            )

    def _is_due(self) -> bool:
        part = 1 if self.rows <= EACH_ROW else self.rows // 10
        is_late = perf_counter() - self.told > SILENCE_S
        return is_late or self.done % part == 0 or self.done == self.rows

    def _reply(self) -> None:
        self.replies += 1
        if self.bar is not None:
            self.bar.update(self.bar.task_ids[0], calls=self._calls())
        elif self.replies == 1:
            self._tell(
                first_reply(perf_counter() - self.start, self.budget.spent.calls, self.calls)
            )

    def _calls(self) -> str:
        return f"{count(self.replies)} of about {count(max(self.replies, self.calls))} calls"

    def _tell(self, message: str) -> None:
        self.told = perf_counter()
        err.print(message, soft_wrap=True)


def first_reply(seconds: float, sent: int, calls: int) -> str:
    """What the first reply tells of the rest, when `sent` of the forecast's `calls` were sent.

    Calls that were sent together come back together, or nearly: what is left takes as many rounds
    of such calls.
    """
    said = f"first reply after {duration(seconds)}"
    waiting = calls - sent
    if waiting > 0:
        ahead = duration(math.ceil(waiting / max(1, sent)) * seconds)
        rest = f"{calls - 1} calls" if calls > 2 else "call"
        return f"{said}; about {ahead} for the remaining {rest}"
    others = sent - 1
    if others > 0:
        return f"{said}; {others} more {'call is' if others == 1 else 'calls are'} under way"
    return said


def _bar(unit: str) -> Bar:
    columns = (
        SpinnerColumn(),
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn(f"{unit}, {{task.fields[calls]}}"),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    return Bar(*columns, console=err, transient=True)
