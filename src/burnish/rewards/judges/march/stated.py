"""Does a text state an answer? A question must not, the answer that a claim is from must (MARCH).

    states_its_answer(Claim("Which of the forty-one towers?", "41"))         # True
    is_own_claim(Claim("Who won?", "The Patriots"), "Tampa, Florida")        # False

Words are compared without case, accents and punctuation, numbers by their value.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import cached_property

from burnish.arguments import as_text, as_word
from burnish.numbers import NUMBER_WORDS, TENS_WORDS
from burnish.rewards.checks.match import (
    contained_match,
    is_stated_in,
    loose_forms,
    normalize_answer,
)
from burnish.rewards.checks.quantities import (
    Quantity,
    quantities_in,
    read_number_words,
    read_quantity,
    same_quantity,
)
from burnish.rewards.judges.march.claims import LEAKS, Leaks, claim_of
from burnish.rewards.judges.march.parsing import Claim

_YES_NO = frozenset({"yes", "no", "true", "false"})
_NUMBER_WORDS = re.compile(
    rf"\b(?:(?i:{'|'.join((*NUMBER_WORDS, *TENS_WORDS))}|\w+teen|hundred|thousand|million|billion|dozen|"
    r"hal(?:f|ves|ved)|thirds?|quarters?|once|twice|thrice|doubled?|tripled?|both|pair|couple|single|score)"
    r"|[IVXLCDM]{2,})\b"
)
"""Words that may be a number, and Roman numerals."""
OWN_SHARE = 0.5
"""Words of a stated answer that an answer has, at least, where the claim is its own."""
MOST_NUMBERS = 1000
"""Numbers of a text that are compared; in a text with more of them any number may stand."""


def states_its_answer(claim: Claim, rule: Leaks = "normalised") -> bool:
    """Whether the question gives its own answer away: a Checker would read it there.

    plain: its words stand there, without case and ASCII punctuation. normalised: also with other
    Unicode forms, accents, line breaks and thousands separators, and its number however it is written
    (1.2 million, 50 %, forty-one).

    >>> states_its_answer(Claim("Which of the 3 towers is 41 m high?", "41"))
    True
    >>> states_its_answer(Claim("Which of the forty-one towers?", "41"))
    True
    """
    as_word("rule", rule, LEAKS)
    question, answer = claim_of("claim", claim, 0)
    if contained_match(question, answer):
        return True
    return rule == "normalised" and SearchedText(question).states(SearchedText(answer))


class SearchedText:
    """A text in which answers are looked up, read once for all of them."""

    def __init__(self, text: str) -> None:
        self.text = as_text("text", text)

    @cached_property
    def forms(self) -> tuple[str, str]:
        """Without case, accents and punctuation."""
        return loose_forms(self.text)

    @cached_property
    def words(self) -> frozenset[str]:
        return frozenset(normalize_answer(self.text).split())

    @cached_property
    def numbers(self) -> list[Quantity]:
        return quantities_in(self.text, MOST_NUMBERS)

    @cached_property
    def number(self) -> Quantity | None:
        """The number that the whole text is, in digits or in words."""
        return read_quantity(self.text) or read_number_words(self.text)

    @cached_property
    def hides_numbers(self) -> bool:
        """Whether it has numbers in words, or more than are compared: any number may stand here."""
        return len(self.numbers) >= MOST_NUMBERS or _NUMBER_WORDS.search(self.text) is not None

    def states(self, answer: SearchedText) -> bool:
        """Whether an answer stands here in any spelling, or its number in any form."""
        if is_stated_in(self.forms, answer.forms):
            return True
        own = answer.number
        return own is not None and any(same_quantity(own, one) for one in self.numbers)


def is_own_claim(claim: Claim, answer: str) -> bool:
    """Whether an answer makes this claim: what is stated stands there, half of its words, or its number.

    A Proposer that is asked for several claims of a short answer invents some. What is stated as yes
    or no cannot be looked up, nor a number where the answer writes numbers in words: these count as
    its own, so that no spelling escapes a check.

    >>> is_own_claim(Claim("Who won?", "The Patriots"), "Tampa, Florida")
    False
    >>> is_own_claim(Claim("How many live there?", "1.2 million"), "It has 1,200,000 people.")
    True
    """
    return makes_claim(SearchedText(as_text("answer", answer)), claim_of("claim", claim, 0))


def makes_claim(answer: SearchedText, claim: Claim) -> bool:
    """The same for an answer that has many claims."""
    stated = SearchedText(claim.answer)
    words = normalize_answer(stated.text).split()
    if not words or is_yes_or_no(claim.answer) or answer.states(stated):
        return True
    if sum(word in answer.words for word in words) >= OWN_SHARE * len(words):
        return True
    return stated.number is not None and answer.hides_numbers


def is_yes_or_no(answer: str) -> bool:
    """Whether an answer has one of these words, which no text can be searched for."""
    return not _YES_NO.isdisjoint(normalize_answer(answer).split())


def without_tellers(claims: Sequence[Claim]) -> list[Claim]:
    """Claims whose questions tell no answer of another one that stays: one prompt can hold them all.

    >>> without_tellers([Claim("Which town has 9 parks?", "Arlen"), Claim("How many parks has it?", "9")])
    [Claim(question='How many parks has it?', answer='9')]
    """
    questions = [SearchedText(claim.question) for claim in claims]
    answers = [SearchedText(claim.answer) for claim in claims]
    kept = dict.fromkeys(range(len(claims)))
    for place, question in enumerate(questions):
        others = (one for one in kept if one != place and not is_yes_or_no(claims[one].answer))
        if any(question.states(answers[one]) for one in others):
            del kept[place]
    return [claims[place] for place in kept]


def asked_together(claims: Sequence[Claim]) -> list[list[int]]:
    """Claims by their places, in groups in which no question tells the answer of another claim.

    Questions of one prompt are read together, so that a Checker would read the answer of one in
    another. Yes and no are no answers that a question could tell.

    >>> asked_together([Claim("How many parks has it?", "9"), Claim("Which town has 9 parks?", "Arlen")])
    [[0], [1]]
    """
    questions = [SearchedText(claim.question) for claim in claims]
    answers = [SearchedText(claim.answer) for claim in claims]
    told = [not is_yes_or_no(claim.answer) for claim in claims]
    groups: list[list[int]] = []
    for place, question in enumerate(questions):
        for group in groups:
            if not any(
                (told[other] and question.states(answers[other]))
                or (told[place] and questions[other].states(answers[place]))
                for other in group
            ):
                group.append(place)
                break
        else:
            groups.append([place])
    return groups
