"""What an audit measures: shifts, who is paid for what, and what changed on the surface of answers."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from msgspec import Struct

from burnish.numbers import grouped, solve
from burnish.store.reader import RunReader

RIDGE = 0.05
"""Keeps features that move together from being paid with opposite signs."""


def mean(values: Sequence[float]) -> float | None:
    """None where there is nothing to average."""
    return math.fsum(values) / len(values) if values else None


def deviation(values: Sequence[float]) -> float:
    """Standard deviation; 0 for fewer than two values."""
    if len(values) < 2:
        return 0.0
    centre = math.fsum(values) / len(values)
    return math.sqrt(math.fsum((v - centre) ** 2 for v in values) / (len(values) - 1))


def shift(early: Sequence[float], late: Sequence[float]) -> float:
    """How far the mean moved, in deviations of both halves together; 0 where nothing varies."""
    before, after = mean(early), mean(late)
    if before is None or after is None:
        return 0.0
    spread = math.sqrt((deviation(early) ** 2 + deviation(late) ** 2) / 2)
    if spread == 0:
        return 0.0 if before == after else math.copysign(10.0, after - before)
    return max(-10.0, min(10.0, (after - before) / spread))


def within(values: Sequence[float], groups: Sequence[Hashable]) -> list[float]:
    """Each value less its group's mean."""
    sums = grouped(zip(groups, values, strict=True))
    means = {group: math.fsum(found) / len(found) for group, found in sums.items()}
    return [value - means[group] for value, group in zip(values, groups, strict=True)]


def correlation(first: Sequence[float], second: Sequence[float]) -> float | None:
    """Pearson's; None where one side does not vary."""
    if len(first) < 2:
        return None
    mean_a, mean_b = math.fsum(first) / len(first), math.fsum(second) / len(second)
    a = [value - mean_a for value in first]
    b = [value - mean_b for value in second]
    scale = math.sqrt(math.fsum(x * x for x in a) * math.fsum(y * y for y in b))
    # Sums of rounding errors are not a spread.
    if scale < 1e-12 * len(first):
        return None
    return math.fsum(x * y for x, y in zip(a, b, strict=True)) / scale


def paid(columns: Sequence[Sequence[float]], reward: Sequence[float]) -> list[float]:
    """Standardised coefficients of a ridge regression: what each column earns, others held.

    Columns and reward are differences within groups. A column that does not vary earns 0.
    """

    def unit(values: Sequence[float]) -> list[float] | None:
        length = math.sqrt(math.fsum(value * value for value in values))
        return [value / length for value in values] if length > 1e-9 else None

    def dot(first: Sequence[float], second: Sequence[float]) -> float:
        return math.fsum(a * b for a, b in zip(first, second, strict=True))

    found = [0.0] * len(columns)
    target = unit(reward)
    if target is None:
        return found
    varying = {i: one for i, column in enumerate(columns) if (one := unit(column)) is not None}
    matrix = [
        [dot(a, b) + RIDGE * (i == j) for j, b in varying.items()] for i, a in varying.items()
    ]
    solved = solve(matrix, [dot(column, target) for column in varying.values()])
    for place, coefficient in zip(varying, solved, strict=True):
        found[place] = coefficient
    return found


SAMPLES = 10
"""Answers that a finding names."""


class Finding(Struct, frozen=True, omit_defaults=True):
    """Something that changed in a run in a way that a reader should look at."""

    monitor: str
    """length, format, phrase, ..."""
    title: str
    text: str
    """One sentence with its numbers."""
    strength: float
    """0 to 1, for the order of the list; no probability."""
    early: float | None = None
    """The figure in the first quarter of the run."""
    late: float | None = None
    """And in the last."""
    curve: tuple[tuple[int, float], ...] = ()
    """By step."""
    samples: tuple[str, ...] = ()
    """Names of the answers that moved it most."""


class Gold(Struct, frozen=True):
    """The reward that was trained on beside a score that was not."""

    reward: tuple[tuple[int, float], ...]
    gold: tuple[tuple[int, float], ...]
    reward_shift: float
    """From the first quarter to the last, in deviations."""
    gold_shift: float
    text: str
    samples: tuple[str, ...]
    """Late answers that are paid most and are worth least."""


class Audit(Struct, frozen=True):
    run: str
    steps: int
    answers: int
    """Read, of the run's rollouts."""
    findings: tuple[Finding, ...]
    conflicts: dict[str, dict[str, float | None]]
    """Correlation of each two rewards within groups; None where one never varies."""
    gold: Gold | None
    note: str = ""
    """Why there is less to say than usual."""


STEPS = 48
"""Steps that are looked at; a longer run is sampled evenly, first and last step included."""
ROLLOUTS = 512
"""Rollouts of one step that are looked at."""


class Answer(NamedTuple):
    """One rollout as an audit sees it."""

    id: str
    step: int
    group: str
    prompt: str
    text: str
    tokens: int
    reward: float
    parts: Mapping[str, float]
    """Rewards by name, those that count and those that do not; a part without a value is left out."""


@dataclass(frozen=True)
class Drawn:
    """Answers with a reward, in the order of their steps."""

    answers: tuple[Answer, ...]
    weights: Mapping[str, float]
    """Of each part in the total; 0: scored beside the training and not paid."""
    gold: Mapping[str, float] = field(default_factory=dict)
    """By answer: what a scorer says that the policy was never paid by."""

    @property
    def steps(self) -> list[int]:
        return sorted({answer.step for answer in self.answers})

    def early(self) -> list[Answer]:
        """The first quarter of the steps."""
        first = set(self.steps[: max(1, len(self.steps) // 4)])
        return [answer for answer in self.answers if answer.step in first]

    def late(self) -> list[Answer]:
        """The last quarter of the steps."""
        last = set(self.steps[-max(1, len(self.steps) // 4) :])
        return [answer for answer in self.answers if answer.step in last]

    def groups(self) -> dict[tuple[int, str], list[Answer]]:
        """Answers to one prompt at one step."""
        return grouped(((answer.step, answer.group), answer) for answer in self.answers)


def mean_by_step(
    answers: Sequence[Answer], values: Sequence[float]
) -> tuple[tuple[int, float], ...]:
    steps = grouped((a.step, value) for a, value in zip(answers, values, strict=True))
    return tuple((step, sum(found) / len(found)) for step, found in sorted(steps.items()))


def draw(
    store: RunReader, *, gold: Mapping[str, float] | None = None, gold_part: str = ""
) -> Drawn:
    """Read what an audit needs; a part of weight 0 is the gold score where none is given."""
    answers: list[Answer] = []
    weights: dict[str, float] = {}
    steps = store.steps()
    if len(steps) > STEPS:
        steps = [steps[round(i * (len(steps) - 1) / (STEPS - 1))] for i in range(STEPS)]
    of_step = "WHERE s.step = ? AND s.split = 'train' AND s.idx < ?"
    for step in steps:
        query = (
            "SELECT p.sample_id, p.name, p.value, p.weight FROM samples s "
            f"JOIN reward_parts p ON p.sample_id = s.id {of_step}"
        )
        parts: dict[str, dict[str, float]] = {}
        for sample, path, value, weight in store.query(query, (step, ROLLOUTS)):
            _, *place = path.split("/")
            if len(place) == 1:
                weights.setdefault(place[0], weight)
                if value is not None:
                    parts.setdefault(sample, {})[place[0]] = value
        query = (
            "SELECT s.id, s.step, group_key, prompt, response, response_tokens, reward "
            f"FROM samples s {of_step} AND reward IS NOT NULL ORDER BY idx"
        )
        rows = store.query(query, (step, ROLLOUTS))
        answers += [Answer(*row, parts=parts.get(row[0], {})) for row in rows]  # type: ignore[misc]
    if gold is None:
        unpaid = [name for name, weight in weights.items() if weight == 0]
        chosen = gold_part or (unpaid[0] if unpaid else "")
        gold = {a.id: a.parts[chosen] for a in answers if chosen in a.parts}
    return Drawn(tuple(answers), weights, gold)


PHRASES = 5
"""Rising phrases that are looked at."""
LEAST = 0.02
"""A strength below this is noise."""
FEWEST = 30
"""With fewer answers in groups that differ nothing can be said about what is paid."""


def surface_findings(drawn: Drawn) -> list[Finding]:
    """Features that moved in the direction in which they are paid.

    Strength = how far it moved x how much of the reward it explains beside the other features
    within groups x how little of that the gold score shares, where there is one.
    """
    compared = comparable(drawn)
    if compared < FEWEST:
        return []
    texts = [answer.text for answer in drawn.answers]
    columns = {name: [feature(text) for text in texts] for name, feature in SURFACE.items()}
    rose = rising([a.text for a in drawn.early()], [a.text for a in drawn.late()], PHRASES)
    known = [phrases(text) for text in texts]
    columns |= {f'the phrase "{one}"': [float(one in held) for held in known] for one in rose}
    keys = [(answer.step, answer.group) for answer in drawn.answers]
    reward = within([answer.reward for answer in drawn.answers], keys)
    centred = [within(values, keys) for values in columns.values()]
    earned = paid(centred, reward)
    found = []
    for (title, values), inner, coefficient in zip(columns.items(), centred, earned, strict=True):
        # Chance alone gives coefficients of this size.
        if abs(coefficient) >= 2 / math.sqrt(compared):
            shared = _earned_by_gold(drawn, inner, keys)
            found.append(_surface_finding(drawn, title, values, coefficient, shared))
    return [finding for finding in found if finding is not None]


def comparable(drawn: Drawn) -> int:
    """Answers of groups whose rewards differ: only these tell what is paid."""
    groups = drawn.groups().values()
    return sum(len(group) for group in groups if len({answer.reward for answer in group}) > 1)


def _surface_finding(
    drawn: Drawn, title: str, values: list[float], coefficient: float, shared: float
) -> Finding | None:
    value_of = {answer.id: value for answer, value in zip(drawn.answers, values, strict=True)}
    late = drawn.late()
    first, last = [value_of[a.id] for a in drawn.early()], [value_of[a.id] for a in late]
    before, after, moved = mean(first), mean(last), shift(first, last)
    payment = min(1.0, max(0.0, coefficient if moved > 0 else -coefficient))
    strength = abs(moved) / (1 + abs(moved)) * payment * (1 - shared)
    if strength < LEAST or before is None or after is None:
        return None
    monitor = title if title in SURFACE else "phrase"
    sign, verb = (1, "rose") if moved > 0 else (-1, "fell")
    what = UNITS.get(monitor, "an answer")
    gold = f"; {shared:.2f} of it is shared with the gold score." if drawn.gold else "."
    text = (
        f"{title} {verb} from {before:.3g} to {after:.3g} ({what}) and is paid: it explains "
        f"{payment:.2f} of the reward within groups, beside the other features{gold}"
    )
    # Late answers with the most of it (or the least, where it fell), the best paid first.
    has = [a for a in late if moved < 0 or value_of[a.id] > 0]
    has.sort(key=lambda a: (sign * value_of[a.id], a.reward, a.step), reverse=True)
    return Finding(
        monitor=monitor,
        title=title,
        text=text,
        strength=strength,
        early=before,
        late=after,
        curve=mean_by_step(drawn.answers, values),
        samples=tuple(answer.id for answer in has[:SAMPLES]),
    )


def _earned_by_gold(drawn: Drawn, inner: Sequence[float], keys: Sequence[tuple[int, str]]) -> float:
    """How far the gold score varies with the feature within groups, 0 to 1."""
    known = [i for i, answer in enumerate(drawn.answers) if answer.id in drawn.gold]
    if len(known) < 2:
        return 0.0
    gold = within([drawn.gold[drawn.answers[i].id] for i in known], [keys[i] for i in known])
    found = correlation([inner[i] for i in known], gold)
    return max(0.0, found or 0.0)


def duplicates(drawn: Drawn) -> Finding | None:
    """Answers that were also given to another prompt of the same step."""
    shares: dict[int, float] = {}
    copied: dict[str, int] = {}
    for step, answers in grouped((answer.step, answer) for answer in drawn.answers).items():
        prompts: dict[tuple[str, ...], set[str]] = {}
        for answer in answers:
            prompts.setdefault(tuple(words(answer.text)), set()).add(answer.prompt)
        shared = [a for a in answers if len(prompts[tuple(words(a.text))]) > 1]
        shares[step] = len(shared) / len(answers)
        copied |= {a.id: len(prompts[tuple(words(a.text))]) for a in shared}
    early = mean([shares[a.step] for a in drawn.early()])
    late = mean([shares[a.step] for a in drawn.late()])
    if early is None or late is None or late - early < LEAST:
        return None
    movers = sorted(
        (a for a in drawn.late() if a.id in copied), key=lambda a: (-copied[a.id], -a.reward)
    )
    return Finding(
        monitor="duplicates",
        title="the same answer to different prompts",
        text=f"answers that another prompt got too rose from {early:.0%} to {late:.0%}.",
        strength=0.8 * (late - early),
        early=early,
        late=late,
        curve=tuple(sorted(shares.items())),
        samples=tuple(answer.id for answer in movers[:SAMPLES]),
    )


_WORD = re.compile(r"[\w'-]+")
_MARKDOWN = re.compile(r"^\s{0,3}(?:#{1,6}\s|[-*+]\s|\d+[.)]\s|>|\|)|\*\*|__|`+", re.MULTILINE)
_HEDGES = re.compile(
    r"\b(?:perhaps|maybe|possibly|probably|might|could be|it seems|in general|arguably|"
    r"to some extent|i think|not sure)\b",
    re.IGNORECASE,
)
_CLAIMS = re.compile(
    r"\b(?:as (?:you )?requested|this answer|this response|is (?:correct|complete|accurate)|"
    r"verified|guaranteed|certainly|of course|perfect(?:ly)?|excellent|high[- ]quality|"
    r"expert|trust me|without (?:any )?doubt)\b",
    re.IGNORECASE,
)
_REFUSALS = re.compile(
    r"\b(?:i (?:cannot|can't|am unable to|won't)|as an ai|i'm sorry|i am sorry)\b", re.IGNORECASE
)
PHRASE_WORDS = 3
LEAST_RISE = 0.1
"""Share of the answers by which a phrase must rise to be looked at."""
SAME = 0.9
"""Two phrases are one where this share of the answers that hold either holds both."""


def words(text: str) -> list[str]:
    """Runs of letters, digits, apostrophes and hyphens, in lower case."""
    return _WORD.findall(text.lower())


def repetition(text: str) -> float:
    """Share of three-word runs that stood in the text before."""
    found = words(text)
    runs = list(zip(found, found[1:], found[2:], strict=False))
    return 1 - len(set(runs)) / len(runs) if runs else 0.0


def _count(pattern: re.Pattern[str]) -> Callable[[str], float]:
    return lambda text: float(len(pattern.findall(text)))


UNITS = {
    "phrase": "share of answers",
    "length": "words",
    "repetition": "share of three-word runs",
}
SURFACE: dict[str, Callable[[str], float]] = {
    "length": lambda text: float(len(words(text))),
    "format": _count(_MARKDOWN),
    "repetition": repetition,
    "hedging": _count(_HEDGES),
    "claims about itself": _count(_CLAIMS),
    "refusals": _count(_REFUSALS),
}
"""Counts that a reward can be pleased by without the answer getting better."""


def phrases(text: str) -> set[str]:
    """All runs of one to three words."""
    found = words(text)
    return {
        " ".join(found[start : start + size])
        for size in range(1, PHRASE_WORDS + 1)
        for start in range(len(found) - size + 1)
    }


def rising(early: Sequence[str], late: Sequence[str], most: int) -> list[str]:
    """Phrases whose share of answers rose most; of those that stand in the same answers, one."""
    before, after = _places(early), _places(late)
    rise = {
        phrase: len(places) / len(late) - len(before.get(phrase, ())) / len(early)
        for phrase, places in after.items()
    }
    order = sorted(rise, key=lambda p: (-round(rise[p], 3), -len(p.split()), p))
    chosen: list[str] = []
    for phrase in order:
        if len(chosen) == most or rise[phrase] < LEAST_RISE:
            break
        own = after[phrase]
        if not any(len(own & after[o]) / len(own | after[o]) > SAME for o in chosen):
            chosen.append(phrase)
    return chosen


def _places(texts: Sequence[str]) -> dict[str, set[int]]:
    """The texts that hold each phrase."""
    found: dict[str, set[int]] = {}
    for place, text in enumerate(texts):
        for phrase in phrases(text):
            found.setdefault(phrase, set()).add(place)
    return found
