"""The steps of a solution with the premises that they declare, and those that they do not (EVPV).

    read_solution('{"steps": [{"text": "AB is 10.", "premise": "AB = 10"}], "final_answer": "50"}')
    read_solution("AB is 10. [premise: AB = 10]\\n\\nSo the area is 50.")

A solution is JSON as the reference asks for it (`steps` with `text` and `premise`; also its own keys),
or plain text that is cut into steps, in which a premise stands in brackets. A step that reads off the
evidence without saying so is found by what it mentions: else declaring nothing would never be gated.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from burnish.arguments import as_text
from burnish.rewards.checks.steps import Split, find_steps
from burnish.rewards.judges.evpv.facts import words_of
from burnish.rewards.judges.evpv.matching import FactIndex, numbers_in
from burnish.rewards.judges.evpv.scores import premises_of
from burnish.rewards.judges.reading import extract_json

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
    """A solution as its steps."""

    steps: list[SolutionStep]
    final_answer: str | None = None


def read_solution(
    text: str, split: Split = "blank_lines", headings: Sequence[str] = ()
) -> Solution:
    """The steps of a solution; an empty one, and one over 20 million characters, has none.

    >>> read_solution("AB is 10. [premise: AB = 10]\\n\\nSo 50.").steps[0]
    SolutionStep(text='AB is 10.', premises=['AB = 10'])
    """
    start = as_text("text", text)[:200].lstrip()
    if len(text) > LONGEST_SOLUTION:
        return Solution([])
    if start[:1] == "{" or start[:3] == "```":
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
            steps.append(SolutionStep(words, _premises(one)))
        else:
            return None
    final = next((found[key] for key in FINAL if found.get(key) is not None), None)
    return Solution(steps, None if final is None else str(final))


def _premises(step: dict[str, Any]) -> list[str]:
    try:
        return premises_of(step)
    except ValueError:  # nested tables where a text belongs: said, and no text to be matched
        return ["(a premise that is no text)"]


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
        for premise in premises:
            known_numbers |= numbers_in(premise)
            known_words |= words_of(premise)
    return found
