"""What the judging commands share: the flags that describe a judge, and the judge itself."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from burnish.bench.items import Item
from burnish.bench.judging import version_of
from burnish.cli.console import one_line
from burnish.cli.judge_options import JudgeFlags
from burnish.cli.judge_progress import WatchedBudget
from burnish.errors import UserError, did_you_mean
from burnish.lm.base import LM, Sampling
from burnish.lm.http import Prices
from burnish.lm.jobs import Limits
from burnish.lm.named import open_lm
from burnish.rewards.judges.asking import GREEDY, JudgeModel
from burnish.rewards.judges.build import build_judge
from burnish.rewards.judges.record import RecordLM
from burnish.rewards.scorer import Scope, Scorer


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
