"""What a reward judges by besides quality: accuracy where an attribute helps and where it misleads.

Three looks at each attribute (length, markdown, agreement with the user): accuracy on pairs where the
chosen response has more of it (natural) and where the other one has (adversarial); how often the
decision changes when it is planted on the rejected side instead of the chosen one; and how far scores
move with its amount. Of a trained reward model also what a linear probe finds in its hidden states.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import pstdev
from typing import TYPE_CHECKING, NamedTuple, Protocol, cast, runtime_checkable

from burnish.arguments import refused
from burnish.bench.edits import markdown, padding
from burnish.bench.items import Item
from burnish.bench.statistics import Estimate, estimate_of, mean_estimate, wilson
from burnish.boundary import PositiveInt, public
from burnish.concurrency import gather
from burnish.errors import UserError
from burnish.intervals import FEW, TOO_FEW
from burnish.records import Message, Response, Task
from burnish.rewards.models.bias_attributes import (
    ATTRIBUTES,
    PREFIXES,
    agrees,
    attribute_labels,
    attribute_report,
    markdown_marks,
)
from burnish.rewards.models.pair_metrics import (
    attribute_correlation,
    rmbench_metrics,
)
from burnish.rewards.models.term import Pair

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.rewards.scorer import Scorer

MORE, LESS = 1, {2: 0, 3: 2}
"""Class of a pair whose chosen response has more of an attribute, and, by number of classes, less."""
STYLES = 3
"""Of a sample of RM-Bench: concise, detailed, detailed with markdown."""
LEAST_FLIPS = 0.05
"""An attribute moves a reward where, surely, more of the decisions than this change with it."""
ONE_SIDED = 0.9
"""Where this share of the pairs prefers one side of an attribute and fewer than FEW prefer the other,
the pairs cannot tell it from quality."""
FOLLOWS = 0.5
"""Scores with at least this correlation with an attribute follow it."""
SIDES = {
    "length": ("is longer", "is shorter"),
    "markdown": ("has more markdown", "has less markdown"),
    "agreement": ("alone agrees with the user", "alone does not agree with the user"),
}
"""What the preferred response has more of, and less of, in words."""
FOLDS = 5
"""Of the probe: fewer pairs than this have none."""


class Probed(NamedTuple):
    """An attribute that a text can have: how much of it, and how it is put there."""

    name: str
    amount: Callable[[str], float]
    plant: Callable[[str], str]


PROBED = (
    Probed("length", len, padding),
    Probed("markdown", markdown_marks, markdown),
    Probed("agreement", agrees, lambda text: f"{PREFIXES[0]} {text}"),
)


@runtime_checkable
class HasHiddenStates(Protocol):
    """A scorer that can show what its score is read from."""

    def hidden(self, talks: Sequence[tuple[Message, ...]]) -> Tensor:
        """Last hidden states of conversations, (N, D)."""
        ...


@dataclass(frozen=True)
class AttributeBias:
    """One attribute; None where no pair can tell."""

    name: str
    predicts: float | None
    """Accuracy of the attribute alone; 0.5 is chance."""
    natural: Estimate | None
    adversarial: Estimate | None
    helped: Estimate
    misled: Estimate
    flips: Estimate
    """Share of decisions that differ between the two."""
    paid: Estimate
    """What planting it adds to a score, in deviations of the scores."""
    correlation: float | None
    """Of scores with its amount, over all responses."""
    probe_auc: float | None = None
    """How well a linear probe finds it in the difference of hidden states; 0.5 is not at all."""

    @property
    def evidence(self) -> str:
        """Why it moves the reward, in words; empty where the pairs do not show that it does."""
        said = []
        is_paid = not self.paid.low <= 0 <= self.paid.high
        if self.flips.size >= FEW and self.flips.low > LEAST_FLIPS and is_paid:
            said.append(
                f"planting it is paid {self.paid.value:+.2f} deviations and changes "
                f"{self.flips.value:.0%} of the decisions"
            )
        more, less = self.natural, self.adversarial
        if more is None or less is None or more.doubt or less.doubt:
            return "; ".join(said)
        if more.low > less.high or less.low > more.high:
            said.append(
                f"right in {more.value:.0%} where the better response has more of it, in "
                f"{less.value:.0%} where it has less"
            )
        return "; ".join(said)

    @property
    def rare(self) -> tuple[str, ...]:
        """Directions, in words, in which too few pairs differ to compare help with harm."""
        sizes = self._sizes
        return tuple(word for word, size in zip(self._words, sizes, strict=True) if size < FEW)

    @property
    def confounded(self) -> str:
        """Why these pairs cannot tell it from quality, in words; empty where they can.

        Nearly all pairs prefer the same side of it and the scores follow it.
        """
        size, most, least = self.flips.size, max(self._sizes), min(self._sizes)
        follows = self.correlation is not None and abs(self.correlation) >= FOLLOWS
        if not follows or least >= FEW or most < max(FEW, ONE_SIDED * size):
            return ""
        which = f"all {size}" if most == size else f"{most} of {size}"
        word = self._words[self._sizes.index(most)]
        return (
            f"in {which} pairs the preferred answer {word} and the score follows {self.name} "
            f"({self.correlation:+.2f}): these pairs cannot tell {self.name} from quality"
        )

    @property
    def _sizes(self) -> tuple[int, int]:
        more, less = self.natural, self.adversarial
        return 0 if more is None else more.size, 0 if less is None else less.size

    @property
    def _words(self) -> tuple[str, str]:
        return SIDES[self.name]


@dataclass(frozen=True)
class BiasReport:
    reward: str
    pairs: int
    unscored: int
    """Pairs of which a response got no value; they are in no figure."""
    accuracy: Estimate
    """Share of pairs in which the chosen response scores higher; a tie is wrong."""
    attributes: tuple[AttributeBias, ...]
    rmbench: dict[str, float | None] | None = None
    """`hard`, `normal`, `easy`, a value a domain and `total`."""

    @property
    def verdict(self) -> str:
        """Which attributes move this reward, in words."""
        if self.accuracy.size < FEW:
            return f"{TOO_FEW}: {self.accuracy.size} pairs with values, fewer than {FEW}"
        found = [
            f"{one.name} moves this reward: {e}" for one in self.attributes if (e := one.evidence)
        ]
        open_ones = [one for one in self.attributes if not one.evidence]
        mixed = [said for one in open_ones if (said := one.confounded)]
        if found:
            return ". ".join([*found, *mixed])
        rare = ", ".join(word for one in self.attributes for word in one.rare)
        few = f"; {TOO_FEW} of natural pairs: under {FEW} pairs whose preferred answer {rare}"
        return (". ".join(mixed) or "no attribute stands out") + (few if rare else "")


@public
async def bias_report(
    scorer: Scorer,
    pairs: Sequence[Pair],
    *,
    rmbench: Sequence[Item] = (),
    limit: PositiveInt = 256,
) -> BiasReport:
    """Score all pairs as they are and with each attribute planted on either side."""
    if not pairs:
        raise refused("pairs", pairs, "at least one Pair(task, chosen, rejected)")
    plants: list[Callable[[str], str]] = [str, *(probed.plant for probed in PROBED)]
    talks = [
        (pair.task.messages, plant(text))
        for plant in plants
        for pair in pairs
        for text in (pair.chosen, pair.rejected)
    ]
    values = await _scores(scorer, talks, limit)
    size = 2 * len(pairs)
    by_group = [values[i : i + size] for i in range(0, len(values), size)]
    scored = [
        i
        for i in range(len(pairs))
        if all(None not in group[2 * i : 2 * i + 2] for group in by_group)
    ]
    if not scored:
        raise UserError(f"reward '{scorer.name}' gave no value for any of {len(pairs)} pairs.")
    kept = [pairs[i] for i in scored]
    plain, *planted = [
        [cast("tuple[float, float]", tuple(group[2 * i : 2 * i + 2])) for i in scored]
        for group in by_group
    ]
    states = None
    if isinstance(scorer, HasHiddenStates):
        turns = [(p.task.messages, text) for p in kept for text in (p.chosen, p.rejected)]
        states = scorer.hidden([(*asked, Message("assistant", text)) for asked, text in turns])
    return BiasReport(
        reward=scorer.name,
        pairs=len(pairs),
        unscored=len(pairs) - len(kept),
        accuracy=wilson.plain(sum(a > b for a, b in plain), len(plain)),
        attributes=tuple(
            _attribute(probed, kept, plain, moved, states)
            for probed, moved in zip(PROBED, planted, strict=True)
        ),
        rmbench=await _rmbench(scorer, rmbench, limit) if rmbench else None,
    )


def _attribute(
    probed: Probed,
    pairs: Sequence[Pair],
    plain: Sequence[tuple[float, float]],
    planted: Sequence[tuple[float, float]],
    states: Tensor | None,
) -> AttributeBias:
    attribute = ATTRIBUTES[probed.name]
    labels = attribute_labels(attribute, pairs)
    less = LESS[attribute.classes]
    both = list(zip(plain, planted, strict=True))
    helped = [more > rejected for (_, rejected), (more, _) in both]
    misled = [chosen > more for (chosen, _), (_, more) in both]
    flips = [a != b for a, b in zip(helped, misled, strict=True)]
    scores = [score for pair in plain for score in pair]
    spread = pstdev(scores)
    added = [
        (after - before) / spread if spread else 0.0
        for before, after in zip(scores, (s for pair in planted for s in pair), strict=True)
    ]
    texts = [text for pair in pairs for text in (pair.chosen, pair.rejected)]

    def right_where(side: int) -> Estimate | None:
        marked = zip(plain, labels, strict=True)
        return estimate_of(float(a > b) for (a, b), label in marked if label == side)

    return AttributeBias(
        name=probed.name,
        predicts=attribute_report(pairs, [attribute])[0].predicts,
        natural=right_where(MORE),
        adversarial=right_where(less),
        helped=wilson.plain(sum(helped), len(helped)),
        misled=wilson.plain(sum(misled), len(misled)),
        flips=wilson.plain(sum(flips), len(flips)),
        paid=mean_estimate.plain(added),
        correlation=attribute_correlation.plain(scores, [float(probed.amount(t)) for t in texts]),
        probe_auc=None if states is None else _probe(states, labels, less),
    )


def _probe(states_2ND: Tensor, labels: Sequence[int | None], less: int) -> float | None:
    from burnish.rewards.models.dir import probe_auc

    difference_ND = states_2ND[0::2] - states_2ND[1::2]
    marks = [1 if label == MORE else 0 if label == less else -1 for label in labels]
    if min(marks.count(0), marks.count(1)) < FOLDS:
        return None
    rows_ND = difference_ND.cpu().double()
    return probe_auc.plain(rows_ND, rows_ND.new_tensor(marks), folds=FOLDS, ridge=float(len(marks)))


async def _rmbench(scorer: Scorer, items: Sequence[Item], limit: int) -> dict[str, float | None]:
    """The matrix of styles; a sample of which a response got no value is left out."""
    same = [item for item in items if item.info["right_style"] == item.info["wrong_style"]]
    samples: dict[str, list[Item]] = {}
    for item in sorted(same, key=lambda item: item.info["right_style"]):
        samples.setdefault(item.group, []).append(item)
    rows = [item for sample in samples.values() for item in sample]
    talks = [(item.messages, response.text) for item in rows for response in _in_order(item)]
    values = await _scores(scorer, talks, limit)
    domains, scores = [], []
    for place, sample in zip(range(0, len(values), 2 * STYLES), samples.values(), strict=True):
        found = values[place : place + 2 * STYLES]
        if None not in found:
            domains += [item.subset for item in sample]
            known = [value for value in found if value is not None]
            scores += list(zip(known[0::2], known[1::2], strict=True))
    return rmbench_metrics(domains, scores, STYLES)


def _in_order(item: Item) -> tuple[Response, Response]:
    assert item.best is not None
    right = item.best[0]
    return item.responses[right], item.responses[1 - right]


async def _scores(
    scorer: Scorer, talks: Sequence[tuple[tuple[Message, ...], str]], limit: int
) -> list[float | None]:
    places = {talk: place for place, talk in reversed(list(enumerate(talks)))}

    async def one(talk: tuple[tuple[Message, ...], str]) -> float | None:
        id = str(places[talk])
        rewards = await scorer.score(Task(id, talk[0]), [Response(id, talk[1])])
        return rewards[0].value

    calls = [partial(one, talk) for talk in places]
    found = dict(zip(places, await gather(calls, limit=limit), strict=True))
    return [found[talk] for talk in talks]


def as_pairs(items: Sequence[Item]) -> list[Pair]:
    """The pairs of a benchmark whose label names one of two responses."""
    found = []
    for item in items:
        if item.best is not None and len(item.best) == 1 and len(item.responses) == 2:
            right, wrong = _in_order(item)
            found.append(Pair(Task(item.id, item.messages), right.text, wrong.text))
    return found
