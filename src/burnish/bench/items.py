"""What a judge is measured on: items with responses, and a label that the judge never sees.

A choice is a tuple of positions: `(0,)` names the first response, `(0, 1)` is a tie of two. Labels,
verdicts and people's marks all have this one shape, for pairs and for best-of-N alike.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import msgspec
from msgspec import Struct

from burnish.arguments import as_list, plain_number, refused
from burnish.bench.first_wrong import labels_of
from burnish.boundary import public
from burnish.records import Evidence, Message, Response, Reward, Status, Task, Visibility
from burnish.seeds import derive

Choice = tuple[int, ...]
"""Positions of the responses that were found best; all of them: a tie."""


@dataclass(frozen=True)
class Item:
    id: str
    messages: tuple[Message, ...]
    responses: tuple[Response, ...]
    best: Choice | None = None
    """The label; None where people do not agree or there is no right choice."""
    subset: str = ""
    group: str = ""
    """Items of one group come from one row of the file, such as the nine pairs of RM-Bench."""
    authors: tuple[str, ...] = ()
    """Who wrote each response, where that is known; never shown."""
    people: tuple[Choice, ...] = ()
    info: dict[str, str] = field(default_factory=dict)
    """What a report needs to know, such as the styles of the two responses; never shown."""
    shown: dict[str, Any] = field(default_factory=dict)
    """Fields that any judge may see."""
    hidden: dict[str, Any] = field(default_factory=dict)
    """Fields that give the label away, such as the reference answer."""

    def showing(self, names: Collection[str]) -> Item:
        """The item with these of its hidden fields shown: they belong to the question."""
        found = {name: self.hidden[name] for name in names if name in self.hidden}
        if not found:
            return self
        hidden = {name: value for name, value in self.hidden.items() if name not in found}
        return replace(self, shown={**self.shown, **found}, hidden=hidden)

    def task(self, *, oracle: bool = False) -> Task:
        """The task as a judge gets it; with `oracle` the hidden fields come along, as labels."""
        fields = {**self.shown, **self.hidden} if oracle else dict(self.shown)
        labels = tuple(self.hidden) if oracle else ()
        # No source: a subset may be named after the label, as PandaLM's are here.
        return Task(self.id, self.messages, fields, labels)


class Judged(Struct, frozen=True, omit_defaults=True):
    """What one judge said of one item: a line of a result file."""

    id: str
    judge: str
    bench: str = ""
    key: str = ""
    """Digest of what was asked and of whom; equal keys need no second asking."""
    values: tuple[float | None, ...] = ()
    choice: Choice | None = None
    best: Choice | None = None
    status: Status = Status.OK
    reason: str = ""
    subset: str = ""
    group: str = ""
    info: dict[str, str] = msgspec.field(default_factory=dict)
    seconds: float = 0.0
    cost_usd: float = 0.0
    rewards: tuple[Reward, ...] = ()
    """The whole explanation, raw replies included."""
    version: str = ""
    """Digest of the judge's settings; a file holds one version of a judge."""
    prompt: str = ""
    responses: tuple[str, ...] = ()
    """What was judged, in the item's order, so that a reader can judge too."""

    @property
    def is_valid(self) -> bool:
        return self.choice is not None

    @property
    def is_decided(self) -> bool:
        return self.choice is not None and len(self.choice) == 1

    @property
    def credit(self) -> float:
        """1 for the right choice; of more than two responses a tie at the top earns its share."""
        if self.choice is None or not self.best:
            return 0.0
        if self.choice == self.best:
            return 1.0
        if len(self.values) > 2 and len(self.best) == 1 and self.best[0] in self.choice:
            return 1.0 / len(self.choice)
        return 0.0


def message(text: str) -> tuple[Message, ...]:
    """A prompt of one turn."""
    return (Message("user", text),)


def responses_of(id: str, texts: Sequence[str]) -> tuple[Response, ...]:
    """Responses whose ids say nothing but their place."""
    return tuple(Response(f"{id}/{place}", text) for place, text in enumerate(texts))


def shuffled(
    id: str, right: Sequence[str], wrong: Sequence[str]
) -> tuple[list[str], Choice, list[int]]:
    """Right and wrong texts in an order drawn from the id, the right places, and where each came from.

    A file that always names the right one first would hand a judge that likes the first place its
    whole score.
    """
    texts = [*right, *wrong]
    order = sorted(range(len(texts)), key=lambda place: derive("bench order", id, place))
    best = tuple(sorted(order.index(place) for place in range(len(right))))
    return [texts[place] for place in order], best, order


def choice_of(values: Sequence[float | None]) -> Choice | None:
    """The best places by value; None where any response has no value, NaN included."""
    numbers = [plain_number(value) for value in as_list("values", values)]
    known = [number for number in numbers if number is not None and not math.isnan(number)]
    if not known or len(known) < len(numbers):
        return None
    top = max(known)
    return tuple(place for place, value in enumerate(known) if value == top)


def evidence_of(reward: Reward) -> list[Evidence]:
    """All evidence of a reward and of its parts; what stands in both is counted once."""
    found = list(reward.evidence)
    for part in reward.parts:
        found += [one for one in evidence_of(part) if one not in found]
    return found


def oracle_share(judged: Sequence[Judged]) -> float:
    """Share of the verdicts that rest on evidence which contains the label."""
    used = [
        any(e.visibility is Visibility.ORACLE for r in one.rewards for e in evidence_of(r))
        for one in judged
        if one.is_valid
    ]
    return sum(used) / len(used) if used else 0.0


@public
def preference_rows(items: Sequence[Item]) -> list[dict[str, Any]]:
    """Every pair of a better and a worse response of each item; ties as one row marked `tie`.

    Items without a label, where people do not agree, are left out.
    """
    rows: list[dict[str, Any]] = []
    for item in items:
        if not item.best or len(item.responses) < 2:
            continue
        meta = {"id": item.id, "subset": item.subset, **item.info}
        base = {"prompt": [msgspec.to_builtins(one) for one in item.messages], "meta": meta}
        texts = [response.text for response in item.responses]
        is_tie = len(item.best) == len(texts)
        worse = [place for place in range(len(texts)) if place not in item.best]
        for better, other in [(0, 1)] if is_tie else itertools.product(item.best, worse):
            pair = {"chosen": texts[better], "rejected": texts[other], "tie": is_tie}
            rows.append({**base, **pair})
    return rows


@public
def solution_rows(items: Sequence[Item]) -> list[dict[str, Any]]:
    """A row for each solution; steps behind the first wrong one have no label.

    Items without steps, of other benchmarks, are refused.
    """
    rows = []
    for item in items:
        steps, first = item.hidden.get("steps"), item.hidden.get("first_wrong")
        if not isinstance(steps, list):
            raise refused("items", item, "items of a benchmark of solutions")
        rows.append(
            {
                "prompt": [msgspec.to_builtins(one) for one in item.messages],
                "steps": steps,
                "labels": labels_of.plain(first, len(steps)),
                "first_wrong": first,
                "meta": {"id": item.id, "subset": item.subset, **item.info},
            }
        )
    return rows
