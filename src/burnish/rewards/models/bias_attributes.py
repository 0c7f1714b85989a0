"""Attributes of preference pairs that a reward model should not judge by, and how strong they are.

An attribute is any function from a pair to a class; None says that the pair tells nothing, as a tie
does. Texts are looked at whole: after truncation two long responses would look equally long. From DIR
(arXiv 2512.23461). Where we differ: ties are left out instead of counted as "not longer", and the
label of agreement has three classes, because "one of the two agrees" does not say which one.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import msgspec

from burnish.arguments import same_length
from burnish.boundary import NonNegative, Seed, Share, public
from burnish.errors import ArgumentError, UserError
from burnish.numbers import plain
from burnish.rewards.models.term import Pair
from burnish.seeds import derive

Ties = Literal["drop", "zero"]
Lengths = NonNegative | Sequence[NonNegative]

PREFIXES = (
    "Yes, you are right.",
    "I completely agree with you.",
    "That's a great point, and you are absolutely right.",
    "You're right about this.",
)
"""Agreeing prefixes that `contaminate` puts before a response."""
_AGREES = re.compile(
    r"\s*(yes,? )?(you('re| are) (so |absolutely |completely |totally )?right|"
    r"i (completely |totally |fully )?agree|that'?s a (great|good|excellent) (point|question)|"
    r"(great|good|excellent) (point|question)|absolutely right|exactly right)",
    re.IGNORECASE,
)
_MARKDOWN = re.compile(
    r"^\s{0,3}(?:#{1,6}\s|[-*+]\s|\d+[.)]\s|>\s|```)|\*\*[^*\n]+\*\*", re.MULTILINE
)


@dataclass(frozen=True)
class Attribute:
    """A name, a function from a pair to a class (None: nothing to say), and how many classes."""

    name: str
    label: Callable[[Pair], int | None]
    classes: int = 2
    path: str = ""
    """Where a function of your own stands, `my_file.py:function`; named where it fails."""


class AttributeRow(NamedTuple):
    """What an attribute looks like in a set of pairs."""

    name: str
    pairs: int
    shares: tuple[float, ...]
    """Of each class, among the pairs that have one."""
    ties: float
    """Share of pairs without a class."""
    predicts: float | None
    """Accuracy of guessing which response is preferred from the attribute alone; 0.5 is chance."""


class Contaminated(NamedTuple):
    """A pair and which of its responses got an agreeing prefix."""

    pair: Pair
    side: Literal["none", "chosen", "rejected"]


@public
def length_label(len_chosen: Lengths, len_rejected: Lengths, *, ties: Ties = "zero") -> Any:
    """1 where the chosen response is longer, else 0; for lists or tensors a list.

    A tie is 0, as published, or None with `ties="drop"`. Give lengths before truncation.
    """
    if isinstance(len_chosen, int | float) and isinstance(len_rejected, int | float):
        return _larger(len_chosen, len_rejected, ties)
    both = [one if isinstance(one, Sequence) else [] for one in (len_chosen, len_rejected)]
    same_length("len_rejected", both[1], len(both[0]), "chosen responses")
    return [_larger(a, b, ties) for a, b in zip(*both, strict=True)]


def by_count(name: str, count: Callable[[str], float], ties: Ties = "drop") -> Attribute:
    """Class 1 where the chosen response has more of what `count` counts in a text."""
    return Attribute(name, lambda pair: _larger(count(pair.chosen), count(pair.rejected), ties))


def markdown_marks(text: str) -> int:
    """Headings, list items, quotes, code fences and bold passages of a text."""
    return len(_MARKDOWN.findall(text))


def agrees(text: str) -> bool:
    """True if a response begins by agreeing with the user."""
    return _AGREES.match(text) is not None


def _agreement(pair: Pair) -> int:
    chosen, rejected = agrees(pair.chosen), agrees(pair.rejected)
    return 0 if chosen == rejected else 1 if chosen else 2


def swapped(pair: Pair) -> Pair:
    """The same pair with the two responses the other way round."""
    place = pair.task.fields.get("chosen_first")
    fields = pair.task.fields if place is None else {**pair.task.fields, "chosen_first": not place}
    task = msgspec.structs.replace(pair.task, fields=fields)
    return pair._replace(task=task, chosen=pair.rejected, rejected=pair.chosen)


def _position(pair: Pair) -> int | None:
    first = pair.task.fields.get("chosen_first")
    return None if first is None else int(bool(first))


ATTRIBUTES: Mapping[str, Attribute] = {
    "length": by_count("length", len),
    "markdown": by_count("markdown", markdown_marks),
    "agreement": Attribute("agreement", _agreement, classes=3),
    "position": Attribute("position", _position),
}
"""Attributes that ship: characters; markdown marks; who agrees with the user (neither or both,
chosen, rejected); whether the chosen response was shown first (task field `chosen_first`)."""


@public
def attribute_labels(attribute: Attribute, pairs: Sequence[Pair]) -> list[int | None]:
    """The class of each pair, None where there is none; a function that fails is named with its pair."""
    return [_label(attribute, pair) for pair in pairs]


@public
def attribute_report(pairs: Sequence[Pair], attributes: Sequence[Attribute]) -> list[AttributeRow]:
    """Share of each class, of ties, and how far each attribute alone predicts the preference.

    To predict, every pair is looked at both ways round: the best rule says for each class in which
    direction it is more common. An attribute that is the same both ways predicts 0.5. A pair whose
    target is below 0.5 prefers its second response, and one of 0.5 neither.
    """
    rows = []
    for attribute in attributes:
        labels = attribute_labels.plain(attribute, pairs)
        back = attribute_labels.plain(attribute, [swapped(pair) for pair in pairs])
        shares = Counter(label for label in labels if label is not None)
        ahead, behind = Counter[int](), Counter[int]()
        for pair, first, second in zip(pairs, labels, back, strict=True):
            if pair.target != 0.5:
                sides = (first, second) if pair.target > 0.5 else (second, first)
                for counts, label in zip((ahead, behind), sides, strict=True):
                    counts.update([] if label is None else [label])
        known, both = shares.total(), ahead.total() + behind.total()
        best = sum(max(ahead[label], behind[label]) for label in range(attribute.classes))
        rows.append(
            AttributeRow(
                attribute.name,
                len(pairs),
                tuple(shares[k] / known if known else 0.0 for k in range(attribute.classes)),
                1 - known / len(pairs) if pairs else 0.0,
                best / both if both else None,
            )
        )
    return rows


@public
def contaminate(
    pairs: Sequence[Pair],
    *,
    gamma: Share,
    alpha: Share,
    seed: Seed = 0,
) -> list[Contaminated]:
    """Put an agreeing prefix before one response of some pairs.

    `gamma` is the share of pairs, `alpha` the chance that the prefix stands on the chosen side, else
    it stands on the rejected one. Both are required: published defaults contradict each other. Each
    pair draws for itself, from the seed and its place.
    """
    found = []
    for place, pair in enumerate(pairs):
        rng = random.Random(derive(seed, "contaminate", place))
        is_marked, on_chosen = rng.random() < gamma, rng.random() < alpha
        prefix = rng.choice(PREFIXES)
        if not is_marked:
            found.append(Contaminated(pair, "none"))
        elif on_chosen:
            found.append(Contaminated(pair._replace(chosen=f"{prefix} {pair.chosen}"), "chosen"))
        else:
            marked = pair._replace(rejected=f"{prefix} {pair.rejected}")
            found.append(Contaminated(marked, "rejected"))
    return found


def _larger(chosen: float, rejected: float, ties: Ties) -> int | None:
    return None if chosen == rejected and ties == "drop" else int(chosen > rejected)


def _label(attribute: Attribute, pair: Pair) -> int | None:
    named = f"attribute '{attribute.name}'" + f" ({attribute.path})" * bool(attribute.path)
    try:
        label = attribute.label(pair)
    # The boundary to a user's function: whatever it raises is told in one line.
    except Exception as error:
        raise UserError(
            f"{named} failed on pair {pair.task.id}: {type(error).__name__}: "
            f"{' '.join(str(error).split())}; return None where a pair has no label"
        ) from error
    whole = plain(label)
    if whole is not None and whole not in range(attribute.classes):
        raise ArgumentError(
            f"{named}: pair {pair.task.id} got {whole!r}, expected None or a whole "
            f"number from 0 to {attribute.classes - 1}"
        )
    return None if whole is None else int(whole)


# --- what the store keeps of a scored pair, in the `info` of its sample under `pair`


KEY = "pair"
REJECTED = "the rejected answer"
"""Source of the evidence that holds its text: the sample's own text is the preferred one."""

COUNTS: Mapping[str, Callable[[str], float]] = {
    "characters": len,
    "markdown": markdown_marks,
    "agreement": lambda text: int(agrees(text)),
}
"""Attributes of one answer: characters, markdown marks, 1 where it begins by agreeing."""


def text_attributes(chosen: str, rejected: str) -> dict[str, list[float]]:
    """Every attribute of the two texts, the preferred one's first."""
    return {name: [count(chosen), count(rejected)] for name, count in COUNTS.items()}


def pair_record(pair: Pair, tokens: tuple[int, int], *, has_texts: bool = True) -> dict[str, Any]:
    """The record of a pair; without `has_texts` only what is known already, for a training step."""
    texts = text_attributes(pair.chosen, pair.rejected) if has_texts else {}
    attributes = {"tokens": list(tokens), **texts}
    return {"target": pair.target, "margin": pair.margin, "attributes": attributes}
