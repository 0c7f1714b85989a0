"""A judge at work: opened from its flags, its forecast, its progress, and what it has used.

    judge = open_judge(flags)
    found, judged = await judge_all(judge, items, path)

The progress is a bar on a terminal, lines in a log, nothing when quiet:

    budget = WatchedBudget(calls=500)
    with Progress(len(items), calls, "judging", budget) as step:
        step(judged.is_valid)           # one more row; replies are heard from the budget
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from time import perf_counter
from typing import Any

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
from burnish.bench.judging import ResultFile, judge_items, rewards_of, unasked, version_of
from burnish.cli.console import count, duration, err, one_line, say
from burnish.cli.shared_options import JudgeFlags
from burnish.errors import UserError, did_you_mean
from burnish.lm.base import LM, Completion, Prompt, Sampling, Scores
from burnish.lm.http import Prices
from burnish.lm.jobs import Limits
from burnish.lm.meter import CHARACTERS_A_TOKEN, Cost
from burnish.lm.named import open_lm
from burnish.records import Message
from burnish.rewards.judges.asking import GREEDY, JudgeModel
from burnish.rewards.judges.budget import Budget
from burnish.rewards.judges.build import build_judge
from burnish.rewards.judges.forecast import Forecast
from burnish.rewards.judges.forecast import forecast as forecast_of
from burnish.rewards.judges.record import RecordLM
from burnish.rewards.scorer import Scope, Scorer

MEASURED = 3
"""Items whose questions are counted for a forecast."""
REPLY_TOKENS = 256
"""Length of a reply that a forecast reckons with, where max_tokens allows it."""
EACH_ROW = 20
"""Up to this many rows get a line each in a log; of more, every tenth part does."""
SILENCE_S = 30.0
"""No longer than this, or than one row takes, is a log silent."""


# --- the judge that the flags describe


@dataclass(frozen=True)
class OpenJudge:
    """A judge ready to be asked."""

    name: str
    """`direct@smollm2`: the method and the model; of a model that answers its name alone."""
    model: JudgeModel
    build: Callable[[JudgeModel], Scorer]
    """The same judge over another model, such as one that only counts questions."""
    scorer: Scorer
    flags: JudgeFlags


def open_judge(
    flags: JudgeFlags, special: Callable[[JudgeModel], Scorer] | None = None
) -> OpenJudge:
    """The judge that the flags describe; every mistake in them is told before anything is asked.

    `special` builds a judge that has no name of its own.
    """
    read_prices(flags.prices)
    lm = _open_model(flags)
    limit = flags.max_tokens or GREEDY.max_tokens
    is_usual = flags.max_tokens is None and flags.temperature == 0
    sampling = GREEDY if is_usual else Sampling(temperature=flags.temperature, max_tokens=limit)
    budget = WatchedBudget(
        calls=flags.budget_calls, tokens=flags.budget_tokens, usd=flags.budget_usd
    )
    record = _record_of(flags)
    model = JudgeModel(lm, sampling=sampling, cache=flags.cache, budget=budget, record=record)
    build = special or partial(
        build_judge,
        flags.with_,
        options=read_options(flags.option or ()),
        both_orders=flags.both_orders,
        anchor=flags.anchor or None,
    )
    name = "@".join(part for part in (flags.with_, _short(model.name)) if part)
    return OpenJudge(name, model, build, build(model), flags)


def default_path(bench: str, judge: OpenJudge, *, oracle: bool = False) -> Path:
    """`results/BENCH-JUDGE-SETTINGS.jsonl`: other settings are another file."""
    slug = "".join(c if c.isalnum() or c in "-_." else "-" for c in judge.name)
    version = version_of(judge.scorer, oracle=oracle)
    return Path("results") / f"{bench}-{slug}-{version}.jsonl"


def check_needs(scorer: Scorer, items: Sequence[Item], *, oracle: bool = False) -> None:
    """Say before anything is asked which column a judge needs and does not get."""
    shown = {name for item in items for name in item.shown}
    hidden = {name for item in items for name in item.hidden}
    for name in sorted(scorer.needs - shown):
        if name in hidden and not oracle:
            raise UserError(
                f"judge '{scorer.name}' needs the column '{name}', which is hidden from judges; "
                f"show it with --show {name}, or all of them with --oracle."
            )
        if name not in hidden:
            known = sorted(shown | hidden)
            raise UserError(
                f"judge '{scorer.name}' needs the column '{name}'; the data has "
                f"{', '.join(known) or 'no further column'}.{did_you_mean(name, known)}"
            )


def _open_model(flags: JudgeFlags) -> LM:
    if flags.replay is not None:
        if not flags.replay.is_file():
            raise UserError(f"--replay {flags.replay}: no such file; expected one of --record.")
        return _replayed(flags.replay, flags.model)
    if not flags.model:
        raise UserError(
            "no model to ask; expected --model smollm2, a model folder or http://host:port/v1#model."
        )
    if "://" not in flags.model:
        return open_lm(flags.model)
    limits = Limits(concurrency=flags.concurrency)
    return open_lm(
        flags.model,
        api_key_env=flags.api_key_env or None,
        limits=limits,
        prices=read_prices(flags.prices),
    )


def _replayed(path: Path, model: str) -> LM:
    """The judge on record; the model may be named as it was when it was recorded, or by its name.

    It is then the same judge: its results and those of the recording go to one file.
    """
    if not model:
        return RecordLM(path)
    try:
        live = open_lm(model, late=True) if "://" not in model else open_lm(model)
    except UserError:  # the name alone, or a folder that is not on this machine
        return RecordLM(path, model=model)
    return RecordLM(path, model=live.name, identity=getattr(live, "identity", ""))


def _record_of(flags: JudgeFlags) -> Path | None:
    """Where calls are written; a record that answers hears nothing new."""
    record, replay = flags.record, flags.replay
    is_same = record is not None and replay is not None and record.absolute() == replay.absolute()
    return None if is_same else record


def read_prices(text: str) -> Prices | None:
    """`0.15,0.60`: dollars for a million tokens, read and written; nothing given is None."""
    if not text:
        return None
    try:
        read, written = (float(part) for part in text.split(","))
    except ValueError:
        raise UserError(f"--prices is '{text}'; expected two numbers such as 0.15,0.60.") from None
    if not (0 <= read < float("inf") and 0 <= written < float("inf")):
        raise UserError(f"--prices is '{text}'; expected numbers of at least 0.")
    return Prices(prompt_usd=read, completion_usd=written)


def read_options(words: Sequence[str]) -> dict[str, Any]:
    """`key=value` words; a value is JSON where it can be read as such, else text."""
    options: dict[str, Any] = {}
    for word in words:
        key, mark, value = word.partition("=")
        if not mark or not key.strip():
            raise UserError(f"--option '{word}' is no setting; expected key=value.")
        try:
            options[key.strip()] = json.loads(value)
        except (ValueError, RecursionError):
            options[key.strip()] = value
    return options


def _short(name: str) -> str:
    """A model's own name without the folders before it."""
    return name.rstrip("/").rpartition("/")[2] or name


def title(judge: OpenJudge) -> str:
    """The judge in one line."""
    orders = ", both orders" if judge.flags.both_orders else ", one order"
    return one_line(f"judge {judge.name}{orders if judge.scorer.scope is Scope.PAIR else ''}")


# --- what it will take, and the work itself


class _MeasuringLM:
    """Says nothing and notes what it was asked: how many questions an item takes, and how long."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.characters: list[int] = []

    async def sample(self, prompt: Prompt, sampling: Sampling) -> list[Completion]:
        texts = [part.content for part in prompt if isinstance(part, Message)]
        self.characters.append(sum(map(len, texts)))
        return [Completion("", model=self.name) for _ in range(sampling.n)]

    async def score(
        self, prompt_ids: Sequence[int], response_ids: Sequence[int], *, top_k: int = 0
    ) -> Scores:
        raise TypeError("a forecast asks for replies, never for scores")


async def forecast(
    judge: OpenJudge,
    items: Sequence[Item],
    *,
    oracle: bool = False,
    per_item: int = 1,
) -> Forecast:
    """Calls and tokens, measured on a few items with a model that says nothing.

    `per_item` is how often each item is judged. Real replies may take repairs, and a judge that
    goes on or stops by what it was told takes more or fewer steps than here.
    """
    flags = judge.flags
    lm = _MeasuringLM(judge.model.name)
    scorer = judge.build(JudgeModel(lm, sampling=judge.model.sampling, repairs=0))
    chosen = items[:: max(1, len(items) // MEASURED)][:MEASURED]
    for item in chosen:
        await rewards_of(scorer, item, oracle=oracle)
    asked = len(lm.characters)
    mean = sum(lm.characters) / CHARACTERS_A_TOKEN / asked if asked else 0.0
    return forecast_of(
        round(asked * per_item * len(items) / len(chosen)) if chosen else 0,
        prompt_tokens=mean,
        completion_tokens=min(REPLY_TOKENS, flags.max_tokens or REPLY_TOKENS),
        prices=read_prices(flags.prices),
        concurrency=flags.concurrency,
    )


def print_forecast(found: Forecast, judge: OpenJudge) -> None:
    """The forecast, and which limit it will meet."""
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

            judged = await judge_items(
                judge.scorer,
                items,
                judge=judge.name,
                bench=bench,
                file=file,
                oracle=oracle,
                limit=judge.flags.concurrency,
                done=done,
            )
        return found, judged


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


class WatchedBudget(Budget):
    """A budget that tells of every reply as it comes."""

    heard: Callable[[], None] | None = None

    def settle(self, paid: Cost, held: Cost, *, is_estimated: bool = False) -> None:
        super().settle(paid, held, is_estimated=is_estimated)
        if self.heard is not None:
            self.heard()


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
