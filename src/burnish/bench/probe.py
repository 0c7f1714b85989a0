"""What a judge prefers besides quality: the first place, long answers, formatting, its own.

Places, lengths and formats are told apart by one logistic regression of "the response in the first
place wins" on the differences of the two responses (and on the label where it is known), with
errors clustered by pair. Edits are the controlled version: a response against itself with padding,
a heading and so on, in both orders.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from burnish.bench.edits import Edit, format_marks, word_count
from burnish.bench.items import Choice, Item
from burnish.bench.statistics import Z95, Estimate, estimate_of, sign_flip, signed_estimate
from burnish.errors import UserError
from burnish.intervals import FEW, TOO_FEW
from burnish.numbers import sigmoid, solve
from burnish.records import Response, Reward
from burnish.rewards.combine import compare
from burnish.rewards.scorer import Scope, Scorer, checked, gather

ALPHA = 0.05
"""Wins minus losses are a bias where the test's p-value is below this."""

FLIP_RATE = "flip rate"


@dataclass(frozen=True)
class Twice:
    """One pair, asked in both orders; values are the first response's lead, positive if it wins."""

    id: str
    forward: float | None
    backward: float | None
    texts: tuple[str, str]
    label: int = 0
    """+1 where the first response is the right one, -1 for the second, 0 unknown or equal."""
    authors: tuple[str, ...] = ()
    cluster: str = ""
    """Pairs of one cluster are not independent."""
    rewards: tuple[Reward, ...] = ()

    @property
    def is_valid(self) -> bool:
        return self.forward is not None and self.backward is not None


class Finding(NamedTuple):
    """One property of a judge, with a 95 % interval and a sentence that says what it means."""

    name: str
    estimate: Estimate | None
    unit: str
    reading: str
    is_bias: bool | None = None
    """Wins minus losses: by a sign-flip test, which ties do not fool. A slope: the interval leaves
    0 out. None where 0 has no meaning, nothing was measured, or pairs are too few to say."""

    @property
    def is_signed(self) -> bool:
        """Whether 0 means no bias; a share has no such point."""
        return self.name != FLIP_RATE


async def ask_twice(
    pair: Scorer,
    items: Sequence[Item],
    *,
    limit: int = 16,
    done: Callable[[Twice], None] = lambda one: None,
) -> list[Twice]:
    """Ask about every pair of two responses in both orders; a point scorer is asked once.

    `done` hears of each pair as it comes.
    """
    odd = next((item for item in items if len(item.responses) != 2), None)
    if odd is not None:
        raise UserError(f"item '{odd.id}' is no pair: it has {len(odd.responses)} responses.")

    labels: dict[Choice, int] = {(0,): 1, (1,): -1}

    async def one(item: Item) -> Twice:
        task = item.task()
        a, b = item.responses
        if pair.scope is Scope.PAIR:
            first = await compare(pair, task, a, b)
            second = await compare(pair, task, b, a)
            forward, backward = first[0].value, second[1].value
        else:
            first, second = await checked(pair, task, [a, b]), []
            values = first[0].value, first[1].value
            forward = None if values[0] is None or values[1] is None else values[0] - values[1]
            backward = forward
        asked = Twice(
            item.id,
            forward,
            backward,
            (a.text, b.text),
            labels.get(item.best or (), 0),
            item.authors,
            item.group,
            (*first[:1], *second[1:]),
        )
        done(asked)
        return asked

    return await gather([partial(one, item) for item in items], limit=limit)


async def ask_edits(
    pair: Scorer,
    items: Sequence[Item],
    edit: Edit,
    *,
    limit: int = 16,
    done: Callable[[Twice], None] = lambda one: None,
) -> list[Twice]:
    """Each item's first response against itself with an edit, which stands second in the item."""
    return await ask_twice(pair, edited(items, edit), limit=limit, done=done)


def edited(items: Sequence[Item], edit: Edit) -> list[Item]:
    """The items whose first response an edit changes, as pairs of it and its edit."""
    changed = []
    for item in items:
        text = item.responses[0].text
        other = edit.apply(text)
        if other != text:
            both = (item.responses[0], Response(f"{item.id}/{edit.name}", other))
            changed.append(Item(item.id, item.messages, both, shown=item.shown))
    return changed


def pair_findings(asked: Sequence[Twice], *, own: str = "") -> list[Finding]:
    """Flip rate, place, length, format and, where `own` names the judge's author, self-preference."""
    decided = [one for one in asked if one.forward and one.backward]
    share = estimate_of(float(_sign(one.forward) != _sign(one.backward)) for one in decided)
    reading = "no pair has a winner in both orders"
    if share is not None:
        reading = f"exchanging the responses changes the winner of {share.value:.0%} of the pairs"
    place = _finding(
        "first place",
        [(_sign(o.forward) - _sign(o.backward)) / 2 for o in asked if o.is_valid],
        "wins minus losses of the first place",
        "the first place wins {:+.0%} more often than it loses",
    )
    flips = Finding(FLIP_RATE, share, "share of the pairs decided in both orders", reading)
    found = [flips, place, *_slopes(asked)]
    return [*found, _self_preference(asked, own)] if own else found


def edit_findings(changed: Mapping[str, Sequence[Twice]]) -> list[Finding]:
    """How often each edit wins more than it loses against the text it was made from."""
    return [
        _finding(
            f"edit: {name}",
            [-_votes(one) for one in pairs if one.is_valid],
            "wins minus losses of the edited text",
            "the edited text wins {:+.0%} more often than it loses",
        )
        for name, pairs in changed.items()
    ]


def probe_verdict(findings: Sequence[Finding]) -> str:
    """What findings say together, in words; those of too few pairs say nothing.

    >>> few = [Twice(str(n), 1.0, -1.0, ("x", "y")) for n in range(6)]
    >>> probe_verdict(pair_findings(few))
    'too few to say: fewer than 10 pairs with verdicts'
    """
    measured = [one for one in findings if one.is_signed and one.estimate is not None]
    if not measured:
        return "nothing could be measured"
    few = [one.name for one in measured if one.is_bias is None]
    if len(few) == len(measured):
        return f"{TOO_FEW}: fewer than {FEW} pairs with verdicts"
    biased = [one.name for one in measured if one.is_bias]
    verdict = f"biased by: {', '.join(biased)}" if biased else "no bias found"
    return verdict + (f"; {TOO_FEW} of: {', '.join(few)}" if few else "")


def _slopes(asked: Sequence[Twice]) -> list[Finding]:
    """Place, length and format from one regression; what never varies has no slope."""
    names = ("place", "length", "format", "label")
    rows: list[list[float]] = []
    targets: list[float] = []
    clusters: list[str] = []
    for one in asked:
        words, marks = (
            [math.log2(1 + count(text)) for text in one.texts]
            for count in (word_count, format_marks)
        )
        features = words[0] - words[1], marks[0] - marks[1], float(one.label)
        for sign, lead in ((1, one.forward), (-1, one.backward)):
            if lead is not None:
                rows.append([1.0, *(sign * x for x in features)])
                targets.append((1 + sign * _sign(lead)) / 2)
                clusters.append(one.cluster or one.id)
    used = [0, *(k for k in (1, 2, 3) if any(row[k] for row in rows))]
    fitted = logistic([[row[k] for k in used] for row in rows], targets, clusters)
    slopes = {names[k]: fitted[place] for place, k in enumerate(used)} if fitted else {}
    kinds = (
        ("place", "log-odds of the first place", "in the first place"),
        ("length", "log-odds a doubling of words", "twice as long"),
        ("format", "log-odds a doubling of marks", "with twice the marks"),
    )
    found = []
    for name, unit, what in kinds:
        slope, is_bias = slopes.get(name), None
        reading = "the two responses of a pair never differ in this, or nothing was decided"
        if slope is not None:
            wins = sigmoid(slope.value)
            reading = f"a response {what}, otherwise equal, wins {wins:.0%} of its pairs"
            is_bias = None if slope.size < FEW else (not slope.low <= 0 <= slope.high)
        found.append(Finding(f"{name} slope", slope, unit, reading, is_bias))
    return found


def _self_preference(asked: Sequence[Twice], own: str) -> Finding:
    """How much more the judge likes its own model's answers than the label does."""
    excess = []
    is_labelled = True
    for one in asked:
        mine = [author == own for author in one.authors]
        if not one.is_valid or sum(mine) != 1:
            continue
        side = 1 if mine[0] else -1
        is_labelled = is_labelled and one.label != 0
        excess.append(side * (_votes(one) - one.label))
    beyond = "beyond what the labels give them" if is_labelled else "without labels to compare with"
    if not excess:
        reading = f"no pair has exactly one response by '{own}'"
        return Finding("self-preference", None, "wins minus losses of its own", reading)
    return _finding(
        "self-preference",
        excess,
        "wins minus losses of its own answers",
        "its own answers win {:+.0%} more often than they lose, " + beyond,
    )


def _finding(name: str, leads: Sequence[float], unit: str, reading: str) -> Finding:
    if not leads:
        return Finding(name, None, unit, "no pair has a verdict in both orders")
    estimate = signed_estimate.plain(leads)
    is_bias = None if estimate.size < FEW else sign_flip.plain(leads) < ALPHA
    return Finding(name, estimate, unit, reading.format(estimate.value), is_bias)


def _votes(one: Twice) -> float:
    return (_sign(one.forward) + _sign(one.backward)) / 2


def _sign(value: float | None) -> int:
    return 0 if not value else 1 if value > 0 else -1


PRIOR_DEVIATION = 10.0
ROUNDS = 100

Matrix = list[list[float]]


def logistic(
    rows: Sequence[Sequence[float]], targets: Sequence[float], clusters: Sequence[Hashable]
) -> list[Estimate]:
    """Coefficients with 95 % intervals, in the columns' order; no rows give no coefficients."""
    if not rows:
        return []
    weights = _maximum(rows, targets)
    inverse = _inverse(_information(rows, weights))
    spread = _clustered(rows, targets, clusters, weights, inverse)
    found = []
    for place, value in enumerate(weights):
        error = math.sqrt(max(inverse[place][place], spread[place][place], 0.0))
        found.append(Estimate(value, value - Z95 * error, value + Z95 * error, len(set(clusters))))
    return found


def _maximum(rows: Sequence[Sequence[float]], targets: Sequence[float]) -> list[float]:
    """Newton's method on the penalised likelihood, which is concave; halved where it overshoots."""
    weights = [0.0] * len(rows[0])
    best = _likelihood(rows, targets, weights)
    for _ in range(ROUNDS):
        slope = [-w / PRIOR_DEVIATION**2 for w in weights]
        for row, target in zip(rows, targets, strict=True):
            residual = target - sigmoid(_dot(row, weights))
            for place, x in enumerate(row):
                slope[place] += residual * x
        inverse = _inverse(_information(rows, weights))
        step = [_dot(line, slope) for line in inverse]
        scale = 1.0
        while scale > 1e-6:
            moved = [w + scale * s for w, s in zip(weights, step, strict=True)]
            value = _likelihood(rows, targets, moved)
            if value >= best:
                break
            scale /= 2
        else:
            return weights
        weights, gain, best = moved, value - best, value
        if gain < 1e-10:
            return weights
    return weights


def _dot(row: Sequence[float], weights: Sequence[float]) -> float:
    return sum(x * w for x, w in zip(row, weights, strict=True))


def _likelihood(
    rows: Sequence[Sequence[float]], targets: Sequence[float], weights: Sequence[float]
) -> float:
    total = -sum(w * w for w in weights) / (2 * PRIOR_DEVIATION**2)
    for row, target in zip(rows, targets, strict=True):
        odds = _dot(row, weights)
        # log(1 + exp(odds)) without overflow.
        total += target * odds - max(odds, 0.0) - math.log1p(math.exp(-abs(odds)))
    return total


def _information(rows: Sequence[Sequence[float]], weights: Sequence[float]) -> Matrix:
    size = len(weights)
    found = [[0.0] * size for _ in range(size)]
    for row in rows:
        p = sigmoid(_dot(row, weights))
        for i in range(size):
            for j in range(size):
                found[i][j] += p * (1 - p) * row[i] * row[j]
    for i in range(size):
        found[i][i] += 1 / PRIOR_DEVIATION**2
    return found


def _clustered(
    rows: Sequence[Sequence[float]],
    targets: Sequence[float],
    clusters: Sequence[Hashable],
    weights: Sequence[float],
    inverse: Matrix,
) -> Matrix:
    """The sandwich: inverse x (sum of outer products of the clusters' scores) x inverse."""
    size = len(weights)
    scores: dict[Hashable, list[float]] = {}
    for row, target, cluster in zip(rows, targets, clusters, strict=True):
        residual = target - sigmoid(_dot(row, weights))
        score = scores.setdefault(cluster, [0.0] * size)
        for place, x in enumerate(row):
            score[place] += residual * x
    middle = [[sum(s[i] * s[j] for s in scores.values()) for j in range(size)] for i in range(size)]
    count = len(scores)
    few = count / (count - 1) if count > 1 else 1.0
    product = _times(_times(inverse, middle), inverse)
    return [[few * value for value in line] for line in product]


def _times(a: Matrix, b: Matrix) -> Matrix:
    return [[_dot(line, column) for column in zip(*b, strict=True)] for line in a]


def _inverse(matrix: Matrix) -> Matrix:
    """The prior on the diagonal keeps the matrix regular."""
    size = len(matrix)
    columns = [solve(matrix, [float(i == j) for i in range(size)]) for j in range(size)]
    return [list(line) for line in zip(*columns, strict=True)]
