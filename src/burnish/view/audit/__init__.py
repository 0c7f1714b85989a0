"""An audit of a run: is it learning, or pleasing the reward? From the store alone.

    audit = audit_run(store)
    audit.findings[0].text, audit.findings[0].samples

An audit, not an alarm: it ranks what changed and was paid, with the answers behind it, and leaves
the judgement to the reader. Learning moves things too.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from burnish.metrics import ENTROPY
from burnish.store.reader import RunReader
from burnish.store.sample_name import names_of_keys
from burnish.view.audit.measures import (
    FEWEST,
    LEAST,
    SAMPLES,
    Answer,
    Audit,
    Drawn,
    Finding,
    Gold,
    comparable,
    correlation,
    draw,
    duplicates,
    mean,
    mean_by_step,
    shift,
    surface_findings,
    within,
)

__all__ = ["Audit", "Drawn", "Finding", "Gold", "audit_run", "draw"]

COMES_WITH_LEARNING = 0.5
"""A policy that converges loses entropy and spread as well: such findings count half."""
Curve = Sequence[tuple[int, float]]
Table = dict[str, dict[str, float | None]]


def entropy_collapse(store: RunReader, drawn: Drawn) -> Finding | None:
    """The policy's entropy fell, whatever for."""
    points = store.metrics(ENTROPY).get(ENTROPY, [])
    curve = [(step, value) for step, value in points if value is not None]
    early, late = _ends(curve)
    if early is None or late is None or early <= 0 or late >= early:
        return None
    fall = 1 - max(late, 0.0) / early
    counts = Counter(answer.text for answer in drawn.late())
    return Finding(
        monitor="entropy",
        title="entropy of the policy",
        text=f"entropy fell from {early:.3g} to {late:.3g} nats a token ({fall:.0%}).",
        strength=COMES_WITH_LEARNING * fall,
        early=early,
        late=late,
        curve=tuple(curve),
        samples=_ids(drawn.late(), lambda a: (counts[a.text], a.reward)),
    )


def variance_collapse(drawn: Drawn) -> Finding | None:
    """Groups whose rewards are all equal teach nothing; their share rose."""
    flat: dict[int, list[float]] = {}
    equal: list[Answer] = []
    for (step, _), answers in drawn.groups().items():
        rewards = [answer.reward for answer in answers]
        is_flat = max(rewards) == min(rewards)
        flat.setdefault(step, []).append(float(is_flat))
        equal += answers if is_flat else []
    curve = [(step, sum(marks) / len(marks)) for step, marks in sorted(flat.items())]
    early, late = _ends(curve)
    if early is None or late is None or late - early < LEAST:
        return None
    return Finding(
        monitor="spread",
        title="groups without a difference",
        text=f"groups whose rewards are all equal rose from {early:.0%} to {late:.0%}.",
        strength=COMES_WITH_LEARNING * (late - early),
        early=early,
        late=late,
        curve=tuple(curve),
        samples=_ids(equal[::-1]),
    )


def takeover(drawn: Drawn) -> Finding | None:
    """One paid component gives more of the total's rise than its weight would."""
    paid = {name: weight for name, weight in drawn.weights.items() if weight != 0}
    if len(paid) < 2:
        return None
    early, late = drawn.early(), drawn.late()
    values = {name: (_values(early, name), _values(late, name)) for name in paid}
    rises = {
        name: paid[name] * (sum(after) / len(after) - sum(before) / len(before))
        for name, (before, after) in values.items()
        if before and after
    }
    total = sum(map(abs, rises.values()))
    if total <= 0:
        return None
    name = max(rises, key=lambda key: rises[key])
    share = max(rises[name], 0.0) / total
    fair = abs(paid[name]) / sum(map(abs, paid.values()))
    excess = (share - fair) / (1 - fair) if fair < 1 else 0.0
    falling = sorted(key for key, rise in rises.items() if rise < 0)
    before, after = values[name]
    moved = abs(shift(before, after))
    has = [answer for answer in drawn.answers if name in answer.parts]
    fell = f"; {', '.join(falling)} fell" if falling else ""
    return Finding(
        monitor="component",
        title=f"component {name}",
        text=f"'{name}' gives {share:.0%} of the change of the total, with {fair:.0%} of the "
        f"weight{fell}.",
        strength=0.7 * max(excess, 0.0) * moved / (1 + moved),
        early=mean(before),
        late=mean(after),
        curve=mean_by_step(has, _values(has, name)),
        samples=_ids(late, lambda answer: answer.parts.get(name, 0.0)),
    )


def conflicts(drawn: Drawn) -> Table:
    """Correlation of each two components within groups."""
    names = sorted(drawn.weights)
    table: Table = {}
    for first in names:
        for second in names:
            both = [a for a in drawn.answers if first in a.parts and second in a.parts]
            keys = [(a.step, a.group) for a in both]
            one = within([a.parts[first] for a in both], keys)
            two = within([a.parts[second] for a in both], keys)
            table.setdefault(first, {})[second] = correlation(one, two)
    return table


def worst_conflict(drawn: Drawn, table: Table) -> Finding | None:
    """The two paid components that pull apart most."""
    pairs = [
        (value, first, second)
        for first, row in table.items()
        for second, value in row.items()
        if value is not None and first < second and value < 0
        if drawn.weights[first] and drawn.weights[second]
    ]
    if not pairs:
        return None
    value, first, second = min(pairs)
    both = [a for a in drawn.answers if first in a.parts and second in a.parts]
    return Finding(
        monitor="conflict",
        title=f"{first} against {second}",
        text=f"within groups, '{first}' and '{second}' have a correlation of {value:.2f}: what "
        "pleases one costs the other.",
        strength=0.5 * -value,
        samples=_ids(both, lambda a: abs(a.parts[first] - a.parts[second])),
    )


def flips(store: RunReader, drawn: Drawn) -> Finding | None:
    """Judges that change their verdict when the texts change places."""
    query = (
        "SELECT s.step, s.id, f.value, b.value FROM reward_parts f "
        "JOIN reward_parts b ON b.sample_id = f.sample_id "
        "AND b.name = substr(f.name, 1, length(f.name) - 7) || 'backward' "
        "JOIN samples s ON s.id = f.sample_id "
        "WHERE s.step = ? AND s.split = 'train' AND f.name LIKE '%/forward' "
        "AND f.value IS NOT NULL AND b.value IS NOT NULL"
    )
    curve: list[tuple[int, float]] = []
    movers: list[str] = []
    for step in drawn.steps:
        rows = list(store.query(query, (step,)))
        turned = [row[1] for row in rows if row[2] * row[3] < 0]
        if rows:
            curve.append((step, len(turned) / len(rows)))
            movers = [*turned, *movers]
    early, late = _ends(curve)
    if early is None or late is None or max(early, late) < LEAST:
        return None
    return Finding(
        monitor="flips",
        title="verdicts that flip",
        text=f"the judge's two orders disagree on {early:.0%} of the pairs early and {late:.0%} late.",
        strength=0.5 * max(late, late - early),
        early=early,
        late=late,
        curve=tuple(curve),
        samples=tuple(movers[:SAMPLES]),
    )


def gold(drawn: Drawn) -> Gold | None:
    """The training reward beside a score that the policy was not paid by."""
    if not drawn.gold:
        return None
    early = [a for a in drawn.early() if a.id in drawn.gold]
    late = [a for a in drawn.late() if a.id in drawn.gold]
    rose = shift([a.reward for a in early], [a.reward for a in late])
    gold_rose = shift([drawn.gold[a.id] for a in early], [drawn.gold[a.id] for a in late])
    apart = "both rose" if rose > 0.2 else "the reward did not rise"
    if rose > 0.2 > gold_rose:
        apart = "the reward rose and the gold score did not"
    scored = [a for a in drawn.answers if a.id in drawn.gold]
    return Gold(
        reward=mean_by_step(scored, [a.reward for a in scored]),
        gold=mean_by_step(scored, [drawn.gold[a.id] for a in scored]),
        reward_shift=rose,
        gold_shift=gold_rose,
        text=f"{apart}: {rose:+.2f} and {gold_rose:+.2f} deviations from the first quarter to the "
        "last.",
        samples=_ids(late, lambda a: (-drawn.gold[a.id], a.reward)),
    )


def _ids(answers: Sequence[Answer], rank: Callable[[Answer], Any] | None = None) -> tuple[str, ...]:
    """Those that a finding names, the highest rank first."""
    ordered = sorted(answers, key=rank, reverse=True) if rank else answers
    return tuple(answer.id for answer in ordered[:SAMPLES])


def _ends(curve: Curve) -> tuple[float | None, float | None]:
    """Means of the first and of the last quarter of a curve."""
    quarter = max(1, len(curve) // 4)
    values = [value for _, value in curve]
    return mean(values[:quarter]), mean(values[-quarter:])


def _values(answers: Sequence[Answer], name: str) -> list[float]:
    return [answer.parts[name] for answer in answers if name in answer.parts]


FEWEST_STEPS = 4


def audit_run(
    store: RunReader, *, gold_scores: Mapping[str, float] | None = None, gold_part: str = ""
) -> Audit:
    """All findings of a run, the strongest first.

    `gold_scores` by sample id come from a scorer that the policy was never paid by; without them
    the first component of weight 0 is taken, or `gold_part`.
    """
    drawn = draw(store, gold=gold_scores, gold_part=gold_part)
    steps = len(drawn.steps)
    scores = gold(drawn)
    scores = scores and replace(scores, samples=tuple(names_of_keys(store, scores.samples)))
    if steps < FEWEST_STEPS:
        note = (
            f"{steps} steps with rewards are too few to tell early from late; expected 4 or more."
        )
        return Audit(store.name, steps, len(drawn.answers), (), {}, scores, note)
    table = conflicts(drawn)
    single = (
        entropy_collapse(store, drawn),
        variance_collapse(drawn),
        takeover(drawn),
        worst_conflict(drawn, table),
        flips(store, drawn),
    )
    strong = [one for one in single if one is not None and one.strength >= LEAST]
    found = [*surface_findings(drawn), *filter(None, [duplicates(drawn)]), *strong]
    found.sort(key=lambda finding: -finding.strength)
    note = ""
    if (compared := comparable(drawn)) < FEWEST:
        note = (
            f"{compared} answers stand in groups whose rewards differ; with fewer than {FEWEST} "
            "nothing can be said about what was paid."
        )
    named = tuple(
        replace(finding, samples=tuple(names_of_keys(store, finding.samples))) for finding in found
    )
    return Audit(store.name, steps, len(drawn.answers), named, table, scores, note)
