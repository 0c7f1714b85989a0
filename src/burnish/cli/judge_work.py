"""A judge at work: what it will take, how far it is, and what it has used."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from burnish.bench.items import Item, Judged
from burnish.bench.judging import ResultFile, judge_items, rewards_of, unasked
from burnish.cli.console import count, duration, say
from burnish.cli.judge_progress import Progress
from burnish.cli.judging import OpenJudge, read_prices
from burnish.lm.base import Completion, Prompt, Sampling, Scores
from burnish.lm.meter import CHARACTERS_A_TOKEN
from burnish.records import Message
from burnish.rewards.judges.asking import JudgeModel
from burnish.rewards.judges.forecast import Forecast
from burnish.rewards.judges.forecast import forecast as forecast_of

REHEARSED = 3
"""Items whose questions are counted for a forecast."""
REPLY_TOKENS = 256
"""Length of a reply that a forecast reckons with, where max_tokens allows it."""


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
    chosen = items[:: max(1, len(items) // REHEARSED)][:REHEARSED]
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
