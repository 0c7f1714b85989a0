"""A judge by its settings: opened, and forecast before it is asked."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from burnish.bench.items import Item
from burnish.bench.judging import rewards_of, version_of
from burnish.errors import UserError, did_you_mean
from burnish.lm.base import LM, Completion, Prompt, Sampling, Scores
from burnish.lm.budget import CHARACTERS_A_TOKEN, Budget, Forecast, forecast as forecast_of
from burnish.lm.http import Prices, Structured
from burnish.lm.jobs import Limits
from burnish.lm.named import open_lm
from burnish.lm.replay import ReplayLM, ScriptedLM
from burnish.lm.wire import MediaLimits
from burnish.records import Message, Task
from burnish.rewards.combine import OrderRule
from burnish.rewards.judges.build import ALONE, build_judge, find_builder
from burnish.rewards.judges.judge_model import GREEDY, JudgeModel
from burnish.rewards.judges.prompting import Media, check_reads_media
from burnish.rewards.scorer import Scorer
from burnish.seeds import digest

MEASURED = 3
"""Items whose questions are counted for a forecast."""
REPLY_TOKENS = 256
"""Length of a reply that a forecast reckons with, where max_tokens allows it."""

NAMED = 5
"""Rows that a judge refuses, by name."""
SHOWS = "show it with --show {name}, or all of them with --oracle"

OF_SERVERS = ("rpm", "tpm", "hedge_after")
OF_MODELS = (
    *OF_SERVERS,
    *("max_tokens", "temperature", "prices", "api_key_env", "budget_calls", "budget_tokens"),
    *("budget_usd", "cache", "record", "retries", "structured", "media", "media_count", "media_mb"),
)
"""Settings that say nothing where no model is asked."""


class JudgeSettings(NamedTuple):
    """What a judge is and what it may spend; the flags of `burnish judge` in the same order."""

    with_: str = "direct"
    model: str = ""
    option: Sequence[str] | None = None
    both_orders: bool = True
    rule: OrderRule | None = None
    """How two orders become one value; None: the method's own rule."""
    anchor: str = ""
    max_tokens: int | None = None
    temperature: float = 0.0
    concurrency: int = 16
    rpm: float | None = None
    tpm: float | None = None
    retries: int = 4
    hedge_after: float | None = None
    structured: Structured = "auto"
    media: Media = "send"
    """Whether the judge is sent images and sounds, or marks for them."""
    media_count: int = 16
    """Most of them in one request."""
    media_mb: float = 20.0
    """Most megabytes that they have together."""
    api_key_env: str = ""
    prices: str = ""
    """`0.15,0.60`: dollars for a million tokens, read and written."""
    budget_calls: int | None = None
    budget_tokens: int | None = None
    budget_usd: float | None = None
    cache: Path | None = None
    record: Path | None = None
    replay: Path | None = None


@dataclass(frozen=True)
class OpenJudge:
    name: str
    """`direct@smollm2`: the method and the model; of a model that answers its name alone."""
    model: JudgeModel
    build: Callable[[JudgeModel], Scorer]
    """The same judge over another model, such as one that only counts questions."""
    scorer: Scorer
    settings: JudgeSettings


def open_judge(
    settings: JudgeSettings, special: Callable[[JudgeModel], Scorer] | None = None
) -> OpenJudge:
    """The judge that the settings describe; a mistake in them is refused before anything is asked.

    `special` builds a judge that has no name of its own.
    """
    read_prices(settings.prices)
    is_alone = False
    if special is None:
        find_builder(settings.with_)
        is_alone = not settings.model and settings.replay is None and settings.with_ in ALONE
    if is_alone:
        _refuse_ignored(settings, OF_MODELS, "is for a model that is asked; name one with --model")
    lm = ScriptedLM({}, name="") if is_alone else _opened(settings)
    limit = settings.max_tokens or GREEDY.max_tokens
    sampling = Sampling(temperature=settings.temperature, max_tokens=limit)
    budget = Budget(
        calls=settings.budget_calls, tokens=settings.budget_tokens, usd=settings.budget_usd
    )
    record, replay = settings.record, settings.replay
    if record is not None and replay is not None and record.absolute() == replay.absolute():
        record = None  # a record that answers hears nothing new
    model = JudgeModel(
        lm,
        sampling=sampling,
        cache=settings.cache,
        budget=budget,
        record=record,
        media=settings.media,
    )
    by_name = partial(
        build_judge,
        settings.with_,
        options=read_options(settings.option or ()),
        both_orders=settings.both_orders,
        rule=settings.rule,
        anchor=settings.anchor or None,
    )
    short = model.name.rstrip("/").rpartition("/")[2] or model.name
    name = "@".join(filter(None, (settings.with_, short)))
    if is_alone:
        alone = by_name(None)
        return OpenJudge(name, model, lambda _: alone, alone, settings)
    build: Callable[[JudgeModel], Scorer] = special or by_name
    return OpenJudge(name, model, build, build(model), settings)


def default_path(bench: str, judge: OpenJudge, *read: Path | None, oracle: bool = False) -> Path:
    """`results/BENCH-JUDGE-FILES-SETTINGS.jsonl`: files at other paths or other settings are another one.

    `read` are the files of items and answers; None for those that ship.
    """
    files = [file for file in read if file is not None]
    parts = [bench, judge.name, *(file.stem[:40] for file in files)]
    if files:
        parts.append(digest(*(str(file.resolve()) for file in files))[:6])
    name = "-".join([*parts, version_of(judge.scorer, oracle=oracle)])
    slug = "".join(c if c.isalnum() or c in "-_." else "-" for c in name)
    return Path("results") / f"{slug}.jsonl"


def with_inputs(judge: OpenJudge, items: Sequence[Item]) -> list[Item]:
    """The items with the columns shown that a judge of this kind is made to read, as march's documents."""
    inputs: frozenset[str] = getattr(judge.scorer, "inputs", frozenset())
    return [item.showing(inputs) for item in items]


def check_items(
    judge: OpenJudge, items: Sequence[Item], *, oracle: bool = False, shows: str = SHOWS
) -> None:
    """Say before anything is asked what a judge lacks: a column, rows of it, or eyes for the images.

    `shows` is how a hidden column can be shown. A scorer with a `check_task` names the rows that it
    would refuse.
    """
    scorer = judge.scorer
    shown = {name for item in items for name in item.shown}
    hidden = {name for item in items for name in item.hidden}
    missing = sorted(scorer.needs - (shown | hidden if oracle else shown))
    if missing:
        name, known = missing[0], sorted(shown | hidden)
        lack = f"the data has {', '.join(known) or 'no further column'}.{did_you_mean(name, known)}"
        if name in hidden:
            lack = f"it is hidden from judges; {shows.format(name=name)}."
        raise UserError(f"judge '{scorer.name}' needs the column '{name}'; {lack}")
    refused = _refused_rows(scorer, items, oracle=oracle)
    if refused:
        mend = "Mend these rows or leave them out."
        if not oracle and not _refused_rows(scorer, items, oracle=True):
            mend = "It needs the label, which is hidden from judges: show it with --oracle."
        named = ", ".join(list(refused)[:NAMED]) + ", ..." * (len(refused) > NAMED)
        lost = f"{len(refused)} of {len(items)} rows ({named})"
        first = next(iter(refused.values())).rstrip(".")
        raise UserError(f"judge '{scorer.name}' cannot judge {lost}. The first: {first}. {mend}")
    if getattr(scorer, "shows_media", True):
        media = (part for item in items for m in item.messages for part in m.media)
        check_reads_media([judge.model], media)


def _refused_rows(scorer: Scorer, items: Sequence[Item], *, oracle: bool) -> dict[str, str]:
    check: Callable[[Task], Any] = getattr(scorer, "check_task", lambda task: None)
    refused: dict[str, str] = {}
    for item in items:
        try:
            check(item.task(oracle=oracle))
        except UserError as error:
            refused[item.id] = str(error)
    return refused


def _opened(settings: JudgeSettings) -> LM:
    model, path = settings.model, settings.replay
    if path is not None:
        if not path.is_file():
            raise UserError(f"--replay {path}: no such file; expected one of --record.")
        if not model:
            return ReplayLM(path, by_words=True)
        # Named as it was when it was recorded, or by its name: it is then the same judge, and its
        # results go to one file.
        try:
            live = open_lm(model) if "://" in model else open_lm(model, late=True)
        except UserError:  # the name alone, or a folder that is not on this machine
            return ReplayLM(path, model=model, by_words=True)
        identity = getattr(live, "identity", "")
        return ReplayLM(path, model=live.name, identity=identity, by_words=True)
    if not model:
        raise UserError("no model to ask; expected --model smollm2, a folder or http://host#model")
    if "://" not in model:
        _refuse_ignored(settings, OF_SERVERS, f"limits a server, but --model {model} is local")
        return open_lm(model)
    return open_lm(
        model,
        api_key_env=settings.api_key_env or None,
        limits=Limits(
            concurrency=settings.concurrency,
            requests_per_minute=settings.rpm,
            tokens_per_minute=settings.tpm,
            retries=settings.retries,
            hedge_after_s=settings.hedge_after,
        ),
        prices=read_prices(settings.prices),
        structured=settings.structured,
        media=MediaLimits(count=settings.media_count, megabytes=settings.media_mb),
    )


def _refuse_ignored(settings: JudgeSettings, names: Sequence[str], why: str) -> None:
    usual = JudgeSettings()
    for name in names:
        if getattr(settings, name) != getattr(usual, name):
            raise UserError(f"--{name.replace('_', '-')} {why}.")


def read_prices(text: str) -> Prices | None:
    """`0.15,0.60`: dollars for a million tokens, read and written; nothing given is None."""
    if not text:
        return None
    try:
        read, written = (float(part) for part in text.split(","))
        return Prices(prompt_usd=read, completion_usd=written)
    except ValueError:
        raise UserError(f"--prices is '{text}'; expected two numbers such as 0.15,0.60.") from None


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


class MeasuringLM:
    """Notes what it was asked: how many questions an item takes, and how long.

    It says nothing, or the `usual_reply` of a judge that asks on only after one.
    """

    def __init__(self, name: str) -> None:
        self.name, self.reply = name, ""
        self.characters: list[int] = []

    async def sample(self, prompt: Prompt, sampling: Sampling) -> list[Completion]:
        texts = [part.text for part in prompt if isinstance(part, Message)]
        self.characters.append(sum(map(len, texts)))
        return [Completion(self.reply, model=self.name) for _ in range(sampling.n)]

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
    settings = judge.settings
    lm = MeasuringLM(judge.model.name)
    scorer = judge.build(JudgeModel(lm, sampling=judge.model.sampling, repairs=0))
    lm.reply = getattr(scorer, "usual_reply", "")
    chosen = items[:: max(1, len(items) // MEASURED)][:MEASURED]
    for item in chosen:
        await rewards_of(scorer, item, oracle=oracle)
    asked = len(lm.characters)
    mean = sum(lm.characters) / CHARACTERS_A_TOKEN / asked if asked else 0.0
    return forecast_of(
        round(asked * per_item * len(items) / len(chosen)) if chosen else 0,
        prompt_tokens=mean,
        completion_tokens=min(REPLY_TOKENS, settings.max_tokens or REPLY_TOKENS),
        prices=read_prices(settings.prices),
        concurrency=settings.concurrency,
    )
