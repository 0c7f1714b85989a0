"""Judged items and scripted judges for the tests of the bench."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from burnish.bench.edits import format_marks, word_count
from burnish.bench.items import Choice, Item, Judged, message, responses_of
from burnish.numbers import sigmoid as probability
from burnish.records import Response, Reward, Status, Task
from burnish.rewards.scorer import Scope
from burnish.seeds import Seeds

DATA = Path(__file__).parents[2] / ".." / "shared" / "data"


def data(*names: str) -> Path:
    """A file of the shared data; the test is skipped where it is not there."""
    path = DATA.joinpath(*names)
    if not path.exists():
        pytest.skip(f"shared data '{'/'.join(names)}' is not here")
    return path


def said(id: str, choice: Choice | None, best: Choice | None = (0,), **more: object) -> Judged:
    """One judged pair."""
    values = (None, None) if choice is None else tuple(float(k in choice) for k in range(2))
    status = Status.OK if choice is not None else Status.PARSE_ERROR
    return Judged(id, "judge", values=values, choice=choice, best=best, status=status, **more)  # type: ignore[arg-type]


class Planted:
    """A pair judge whose log-odds are a known sum of place, length, format and quality."""

    scope = Scope.PAIR
    needs: frozenset[str] = frozenset()

    def __init__(
        self,
        *,
        place: float = 0.0,
        length: float = 0.0,
        format: float = 0.0,
        quality: float = 1.5,
        seed: int = 0,
    ) -> None:
        self.name = "planted"
        self.place, self.length, self.format, self.quality = place, length, format, quality
        self.seeds = Seeds(seed)

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        import math

        a, b = responses
        words = [math.log2(1 + word_count(r.text)) for r in responses]
        marks = [math.log2(1 + format_marks(r.text)) for r in responses]
        quality = [1.0 if "right" in r.text else -1.0 for r in responses]
        odds = self.place + self.length * (words[0] - words[1])
        odds += self.format * (marks[0] - marks[1]) + self.quality * (quality[0] - quality[1]) / 2
        rng = self.seeds.rng("verdict", task.id, a.id, b.id)
        value = 1.0 if rng.random() < probability(odds) else -1.0
        return [Reward(self.name, value), Reward(self.name, -value)]


def pairs(count: int, seed: int = 0) -> list[Item]:
    """Pairs of one right and one wrong answer whose lengths and formats are drawn at random."""
    items = []
    for number in range(count):
        rng = Seeds(seed).rng("pair", number)
        texts = []
        right = rng.randrange(2)
        for place in range(2):
            words = ["right" if place == right else "other"]
            words += ["word"] * int(2 ** rng.uniform(3, 7))
            points = "".join("\n- point" for _ in range(rng.choice([0, 0, 1, 2, 4, 8])))
            texts.append(" ".join(words) + points)
        id = f"pair-{number}"
        items.append(Item(id, message("a question"), responses_of(id, texts), (right,)))
    return items
