"""Step scores gated by the premises they rest on, and how they become one value (EVPV).

A verifier says +1 or -1 of each step. A step that rests on a premise (a fact of a picture, a table, a
document) keeps its +1 only as far as that premise is reliable; a -1 is never softened (arXiv
2603.16253). Ours: an unreadable verdict is None and no -1, and the aggregators' soft forms, which read
the fractions that the gate makes.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping, Sequence
from itertools import accumulate
from operator import mul
from typing import Annotated, Any, Literal, NamedTuple, cast

from msgspec import Meta

from burnish.arguments import as_text, as_word, read_each, refused, same_length
from burnish.boundary import Share, public
from burnish.rewards.checks.sections import Split, find_steps
from burnish.rewards.judges.evpv.facts import words_of
from burnish.rewards.judges.evpv.matching import FactIndex, numbers_in
from burnish.rewards.judges.reading import extract_json

PREMISES = ("premise", "premises", "visualdependency", "visual_dependency")
"""Keys of a step's premise; the third is the reference's."""
HIGH, LOW = 0.5, 0.2
"""What a contradiction that changes the result takes off the reliability, and a minor one."""
FLOOR = 0.1
"""A wrong step in the geometric mean."""
Aggregate = Literal["weighted", "rate", "streak", "geometric", "first_error"]
StepScores = Sequence[Annotated[float, Meta(ge=-1.0, le=1.0)]]

_OPEN_FENCE = re.compile(r"\A```[a-zA-Z0-9_-]*")
_MINUS_ONE, _ONE = re.compile(r"(?<!\d)-1(?!\d)"), re.compile(r"(?<!\d)1(?!\d)")
_WHOLE = re.compile(r"[-+]?\d+")
_NUMBER = re.compile(r"[-+]?(?:\d+(?:\.\d*)?|\.\d+)(?:[eE][-+]?\d{1,4})?", re.ASCII)


class Checklist(NamedTuple):
    claims: list[str]
    """Each once, in the order of their first mention."""
    visual_steps: list[int]
    """Steps that rest on one, from 0."""


def parse_step_verdict(texts: Any) -> Any:
    """+1 or -1 from a verifier's reply by the reference's lenient rule; of a list one each.

    Empty: -1. A bare 1 or -1 (fences allowed) or one number that is one of them when cut to a whole
    one. Else any -1, else any 1, else the sign of the first whole number, else -1. It reads "Step 1 is
    incorrect", "10" and "1.5" as +1: for parity alone.

    >>> parse_step_verdict(["1", "The step is wrong: -1", "Step 1 is incorrect", "no idea"])
    [1, -1, 1, -1]
    """
    return read_each("texts", texts, _lenient)


def parse_step_verdict_strict(texts: Any) -> Any:
    """+1 or -1 from a reply that is nothing else, fenced or in a list of one; None otherwise.

    >>> parse_step_verdict_strict(["-1", "[1]", "Step 1 is incorrect", "10"])
    [-1, 1, None, None]
    """
    return read_each("texts", texts, _strict)


def _lenient(text: str) -> int:
    bare = _unfenced(text)
    if _NUMBER.fullmatch(bare):
        number = float(bare)
        if math.isfinite(number) and int(number) in (1, -1):
            return int(number)
    if _MINUS_ONE.search(bare):
        return -1
    first = _ONE.search(bare) or _WHOLE.search(bare)
    return 1 if first is not None and first[0][0] != "-" and first[0].strip("+0") else -1


def _unfenced(text: str) -> str:
    return _OPEN_FENCE.sub("", text.strip()).removesuffix("```").strip()


def _strict(text: str) -> int | None:
    bare = text.strip()
    if len(bare) >= 6 and bare.startswith("```") and bare.endswith("```"):
        bare = _unfenced(bare)
    if bare[:1] == "[" and bare[-1:] == "]":
        bare = bare[1:-1].strip()
    return {"1": 1, "-1": -1}.get(bare)


def premises_of(step: Any) -> list[str]:
    """The premises of one step: of a table, a (text, premise) pair, or a premise alone; "null" is none."""
    if isinstance(step, Mapping):
        step = next((step[key] for key in PREMISES if step.get(key) is not None), None)
    elif isinstance(step, tuple):
        if len(step) != 2:
            raise refused("steps", step, "a pair (text, premise)")
        step = step[1]
    if isinstance(step, bool | int | float):
        step = json.dumps(step)
    given = step if isinstance(step, list) else [step]
    found = [as_text("steps", one).strip() for one in given if one is not None]
    return [one for one in found if one and one.casefold() != "null"]


@public
def build_checklist(steps: Sequence[object]) -> Checklist:
    """The distinct premises of a solution, and the steps that rest on one.

    A step is a table with `premise` (or the reference's `visualdependency`), a pair (text, premise),
    or the premise alone. A step may have a list of them.

    >>> build_checklist([{"text": "a", "premise": "AB = 10"}, {"text": "b", "premise": None}, "AB = 10"])
    Checklist(claims=['AB = 10'], visual_steps=[0, 2])
    """
    claims: dict[str, None] = {}
    visual = []
    for place, step in enumerate(steps):
        own = premises_of(step)
        claims.update(dict.fromkeys(own))
        if own:
            visual.append(place)
    return Checklist(list(claims), visual)


@public
def reliability_from_audit(severities: Sequence[object] | None) -> Any:
    """1 less 0.5 for each contradiction that is high and 0.2 for each that is low, not below 0.

    `severities` are words, or tables with `severity`; a list of such lists gives a list. None, an audit
    that could not be read, has no reliability: None.

    >>> round(reliability_from_audit(["high", "low"]), 9), reliability_from_audit([])
    (0.3, 1.0)
    """
    if severities is None:
        return None
    if severities and all(one is None or isinstance(one, list | tuple) for one in severities):
        return [reliability_from_audit.plain(cast(Any, one)) for one in severities]
    words = [one.get("severity") if isinstance(one, Mapping) else one for one in severities]
    bare = [as_text("severities", word).strip().casefold() for word in words]
    known = [as_word("severities", word, ("high", "low")) for word in bare]
    return max(0.0, 1.0 - HIGH * known.count("high") - LOW * known.count("low"))


@public
def gate(
    raw: Sequence[float | None],
    visual_steps: Sequence[int],
    reliability: Share | Sequence[Share | None] | None,
) -> list[Any]:
    """Step scores with the positive ones of `visual_steps` times their reliability.

    `reliability` is one number from 0 to 1, one for each of `visual_steps`, or None where nothing is
    known and the gate stays open. A score of 0 or less stays, and so does None, a step without a
    verdict. Places that no step has are ignored; of a place that stands twice the least counts, once.

    >>> gate([1, 1, -1], visual_steps=[0, 2], reliability=0.5)
    [0.5, 1.0, -1.0]
    """
    given = reliability if isinstance(reliability, list) else [reliability] * len(visual_steps)
    same_length("reliability", given, len(visual_steps), "visual_steps")
    shares: dict[int, float] = {}
    for place, share in zip(visual_steps, given, strict=True):
        shares[place] = min(1.0 if share is None else share, shares.get(place, 1.0))
    return [
        score * shares.get(place, 1.0) if score is not None and score > 0 else score
        for place, score in enumerate(raw)
    ]


@public
def correctness_rate(step_scores: StepScores, *, soft: bool = False) -> float:
    """Share of steps with the score 1; soft: mean of (s + 1) / 2. Empty: 0."""
    shares = _shares(step_scores, soft)
    return math.fsum(shares) / len(shares) if shares else 0.0


@public
def weighted_correctness(step_scores: StepScores) -> float:
    """Mean score with later steps counting more, `(sum t s_t / sum t + 1) / 2`. Empty: 0."""
    count = len(step_scores)
    if not count:
        return 0.0
    total = math.fsum(place * score for place, score in enumerate(step_scores, start=1))
    return (2 * total / (count * (count + 1)) + 1) / 2


@public
def streak(step_scores: StepScores, *, soft: bool = False) -> float:
    """Runs of steps with the score 1: the run's length at each of them, -1 at each other, from 0 to 1.

    Soft: what that is on average where a step is right with the chance (s + 1) / 2. Empty: 0.
    """
    shares = _shares(step_scores, soft)
    count = len(shares)
    if not count:
        return 0.0
    run, total = 0.0, 0.0
    for share in shares:
        run = share * (run + 1)
        total += run - (1 - share)
    most = count * (count + 1) / 2
    return (total + count) / (most + count)


@public
def geometric_mean(step_scores: StepScores, *, soft: bool = False) -> float:
    """`(prod m_t)^(1/n)` with m = 1 for the score 1 and 0.1 for any other; soft: m = (s + 1) / 2, at
    least 0.1. Empty: 0."""
    shares = _shares(step_scores, soft)
    if not shares:
        return 0.0
    logs = (math.log(max(share, FLOOR)) for share in shares)
    return math.exp(math.fsum(logs) / len(shares))


@public
def first_error(step_scores: StepScores, *, soft: bool = False) -> float:
    """Share of steps before the first -1; 1 where there is none. Empty: 0.

    Soft: what that is on average where a step is right with the chance (s + 1) / 2.
    """
    if not step_scores:
        return 0.0
    if soft:
        chances = accumulate(((score + 1) / 2 for score in step_scores), mul)
        return math.fsum(chances) / len(step_scores)
    return step_scores.index(-1.0) / len(step_scores) if -1.0 in step_scores else 1.0


@public
def aggregate_steps(
    step_scores: StepScores, aggregate: Aggregate = "weighted", *, soft: bool = True
) -> float:
    """One value from 0 to 1 by the name of an aggregator."""
    if aggregate == "weighted":
        return weighted_correctness.plain(step_scores)
    return _FUNCTIONS[aggregate](step_scores, soft=soft)


_FUNCTIONS: dict[str, Callable[..., float]] = {
    "rate": correctness_rate.plain,
    "streak": streak.plain,
    "geometric": geometric_mean.plain,
    "first_error": first_error.plain,
}


def _shares(step_scores: StepScores, soft: bool) -> list[float]:
    """How right each step is: 1 or 0, or with `soft` a share."""
    return [(s + 1) / 2 if soft else float(s == 1) for s in step_scores]


LONGEST_SOLUTION = 20_000_000
"""Characters; a longer one has no steps."""
STEPS, TEXTS, FINAL = (
    ("steps", "reasoningprocess"),
    ("text", "steptext", "step"),
    ("final_answer", "finalanswer", "answer"),
)
"""Keys of a solution in JSON; the second of each is the reference's."""
_PREMISE = re.compile(r"\[\s*+(?:premise|from)\s*+:\s*+([^\[\]]*+)\]", re.IGNORECASE)
_COMPUTED = re.compile(r"[-+*/×÷·]\s*[^=\n]{1,80}=\s*([-+]?[\d.,]+)")
_NAME = re.compile(r"(?<=\S )[A-Z]\w+|\b[A-Z]{2,}\b")


class SolutionStep(NamedTuple):
    """One step, without the marks of its premises."""

    text: str
    premises: list[str]


class Solution(NamedTuple):
    steps: list[SolutionStep]
    final_answer: str | None = None


@public
def read_solution(
    text: str, split: Split = "blank_lines", headings: Sequence[str] = ()
) -> Solution:
    """The steps of a solution; an empty one, and one over 20 million characters, has none.

    >>> read_solution("AB is 10. [premise: AB = 10]\\n\\nSo 50.").steps[0]
    SolutionStep(text='AB is 10.', premises=['AB = 10'])
    """
    if len(text) > LONGEST_SOLUTION:
        return Solution([])
    if text[:200].lstrip().startswith(("{", "```")):
        found = extract_json(text)
        if found is not None and (solution := _from_json(found)) is not None:
            return solution
    steps = []
    for place in find_steps(text, split, headings):
        whole = text[place.start : place.end]
        premises = [p for one in _PREMISE.findall(whole) for p in premises_of(one)]
        steps.append(SolutionStep(_PREMISE.sub("", whole).strip(), premises))
    return Solution(steps)


def _from_json(found: dict[str, Any]) -> Solution | None:
    listed = next((found[key] for key in STEPS if isinstance(found.get(key), list)), None)
    if listed is None:
        return None
    steps = []
    for one in listed:
        if isinstance(one, str):
            steps.append(SolutionStep(one, []))
        elif isinstance(one, dict):
            words = next((one[key] for key in TEXTS if isinstance(one.get(key), str)), "")
            try:
                premises = premises_of(one)
            except ValueError:  # nested tables where a text belongs
                premises = ["(a premise that is no text)"]
            steps.append(SolutionStep(words, premises))
        else:
            return None
    final = next((found[key] for key in FINAL if found.get(key) is not None), None)
    return Solution(steps, None if final is None else str(final))


def undeclared_premises(
    steps: Sequence[SolutionStep], index: FactIndex, question: str = ""
) -> dict[int, str]:
    """Steps that mention a number or a name of the evidence without declaring it, and what it is.

    A number or name that stands in the question or in an earlier step, and the result of a calculation
    in the step itself, are no premises.

    >>> steps = [SolutionStep("AB is 10.", []), SolutionStep("10 * 5 = 50", [])]
    >>> undeclared_premises(steps, FactIndex(["AB = 10", "CD = 50"]), "What is the area?")
    {0: 'mentions AB, 10'}
    """
    known_numbers, known_words = numbers_in(question), words_of(question)
    found = {}
    for place, (text, premises) in enumerate(steps):
        words, numbers = words_of(text), numbers_in(text)
        if not premises:
            computed = {n for one in _COMPUTED.findall(text[:4000]) for n in numbers_in(one)}
            read = sorted((numbers & index.numbers) - known_numbers - computed)
            names = dict.fromkeys(_NAME.findall(text[:4000]))
            new = [name for name in names if (words_of(name) & index.words) - known_words]
            if read or new:
                told = ", ".join([*new[:5], *(f"{one:g}" for one in read[:5])])
                found[place] = f"mentions {told}"
        known_numbers |= numbers
        known_words |= words
        known_numbers |= set().union(*map(numbers_in, premises))
        known_words |= set().union(*map(words_of, premises))
    return found
