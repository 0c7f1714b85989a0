"""Benchmarks that mark one response by a list of demands: HealthBench and IFEval.

Both are checked against real rows. HealthBench's own files hold prompts and rubrics; the sample with
a recorded judge also holds one response and a mark for each criterion.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

from burnish.arguments import same_length
from burnish.bench.items import Item, message, responses_of
from burnish.bench.loaders.reading import Source, list_of, parsed, read_rows, text_of
from burnish.boundary import public
from burnish.errors import UserError
from burnish.records import Message
from burnish.rewards.judges.rubric.items import tier_of


class Demand(NamedTuple):
    """One criterion of a rubric: points are negative for what must not be there."""

    text: str
    points: float
    tags: tuple[str, ...] = ()


class Marked(NamedTuple):
    item: Item
    demands: tuple[Demand, ...]
    met: tuple[bool, ...]
    recorded: float | None
    """The score that was published beside the marks."""


def load_healthbench(path: Path) -> list[Item]:
    """Conversations with criteria and points, and the same as a rubric of four tiers."""
    return [_health_item(row) for row in _health_rows(path)]


def load_healthbench_marks(path: Path) -> list[Marked]:
    """The same with a recorded judge's mark for each criterion."""
    marked = []
    for row in _health_rows(path):
        if "responses" not in row.values:
            raise UserError(
                f"{row.where}: no column 'responses' with recorded marks; this is HealthBench "
                "without a judge. Give --with and --model instead of --recorded."
            )
        demands = _demands(row)
        replies = list_of(row, "responses")
        if len(replies) != len(demands):
            raise UserError(
                f"{row.where}: {len(replies)} marks for {len(demands)} criteria; expected one each."
            )
        met = tuple(bool(reply["response_dict"]["criteria_met"]) for reply in replies)
        score = row.values.get("score")
        recorded = None if score is None else float(score)
        marked.append(Marked(_health_item(row), demands, met, recorded))
    return marked


@public
def rubric_score(points: Sequence[float], met: Sequence[bool]) -> float | None:
    """Points of the criteria that are met over all positive points; None where none is positive."""
    same_length("met", met, len(points), "points")
    total = sum(value for value in points if value > 0)
    if total == 0:
        return None
    return sum(value for value, is_met in zip(points, met, strict=True) if is_met) / total


def _health_rows(path: Path) -> list[Source]:
    return read_rows(path, "HealthBench", [("prompt", "prompt_id", "rubrics")])


def _demands(row: Source) -> tuple[Demand, ...]:
    demands = []
    for one in list_of(row, "rubrics"):
        if not isinstance(one, dict) or not {"criterion", "points"} <= one.keys():
            raise UserError(
                f"{row.where}: a rubric item lacks 'criterion' or 'points': {one!r:.80}"
            )
        tags = tuple(str(tag) for tag in one.get("tags") or ())
        demands.append(Demand(str(one["criterion"]), float(one["points"]), tags))
    return tuple(demands)


def _health_item(row: Source) -> Item:
    id = text_of(row, "prompt_id")
    tags = [str(tag) for tag in parsed(row, "example_tags") or []]
    theme = next((tag.removeprefix("theme:") for tag in tags if tag.startswith("theme:")), "")
    answer = parsed(row, "prompt_response") if row.values.get("prompt_response") else []
    texts = [str(turn["content"]) for turn in answer][:1]
    demands = _demands(row)
    turns = _turns(row)
    criteria = [{"criterion": d.text, "points": d.points} for d in demands]
    ideal = row.values.get("ideal_completions_data")
    return Item(
        id,
        turns,
        responses_of(id, texts),
        subset=theme,
        shown={"criteria": criteria, "rubric": _tiered(turns[-1].text, demands)},
        hidden={"reference": ideal} if ideal else {},
    )


def _tiered(query: str, demands: Sequence[Demand]) -> dict[str, Any]:
    """The same demands in four tiers by their points, as the judge `rubric` reads them."""
    items = []
    for number, demand in enumerate(demands, start=1):
        is_error = demand.points < 0
        low, middle = ("no such error", "a minor one") if is_error else ("not met", "partly met")
        items.append(
            {
                "id": str(number),
                "title": f"criterion {number}",
                "tier": tier_of(demand.points).value,
                "description": {"0": low, "1": middle, "2": demand.text},
            }
        )
    return {"query": query, "items": items}


def _turns(row: Source) -> tuple[Message, ...]:
    turns = list_of(row, "prompt")
    if not all(isinstance(turn, dict) and {"role", "content"} <= turn.keys() for turn in turns):
        raise UserError(f"{row.where}: 'prompt' is no list of messages with role and content.")
    return tuple(Message(str(turn["role"]), str(turn["content"])) for turn in turns)


def load_ifeval(path: Path) -> list[Item]:
    """Prompts with instructions that a machine can check; responses come from elsewhere."""
    rows = read_rows(path, "IFEval", [("key", "prompt", "instruction_id_list", "kwargs")])
    return [_ifeval(row) for row in rows]


def _ifeval(row: Source) -> Item:
    id = str(row.values["key"])
    names = list_of(row, "instruction_id_list")
    arguments: list[Any] = list_of(row, "kwargs")
    family = str(names[0]).partition(":")[0] if len(names) == 1 else "several"
    shown = {"instruction_id_list": names, "kwargs": arguments}
    return Item(id, message(text_of(row, "prompt")), (), subset=family, shown=shown)
