"""The rules of search self-play: what a question, an answer and a score are.

Search Self-play (arXiv 2510.18821). A proposer is given an answer and writes a question; a solver
answers it. Everything here is a pure function of texts and numbers: tags, the rule filter of
questions, the solver's score, the proposer's reward, and the filter of groups without spread.

Where we differ from the released code: an answer may be a text or a list of aliases everywhere (the
release breaks on lists and then rejects every question); text inside observations is never read as
the model's own; scripts without blanks are counted by the letter; an empty reference is refused.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterable
from typing import Annotated, Any, Literal, NamedTuple

from msgspec import Meta, Struct

from burnish.agents.ssp.tags import Proposal, extract_answer, parse_proposal
from burnish.arguments import (
    as_flag,
    as_function,
    as_list,
    as_number,
    as_numbers,
    as_text,
    as_whole,
    as_word,
    refused,
    same_length,
)
from burnish.errors import ArgumentError
from burnish.rewards.checks.match import exact_match, normalize_answer, states
from burnish.rewards.checks.texts import spaced
from burnish.rollouts.search import ANSWER, QUESTION

MOST_TAGS = 10
"""Opening or closing answer tags in one text; more are flooding, and a right answer counts a quarter."""
RewardType = Literal["1-acc", "intermediate_difficulty", "format_only"]
REWARD_TYPES = ("1-acc", "intermediate_difficulty", "format_only")
Count = Annotated[int, Meta(ge=0, le=1_000_000)]


class Rules(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which questions are valid before anybody reads them."""

    min_characters: Count = 10
    """Shortest question."""
    max_characters: Count = 1000
    """Longest question."""
    min_words: Count = 10
    """Fewest words of a question; 0: any."""
    letters_as_words: bool = True
    """In scripts without blanks each letter is a word; false kills Chinese, as the release does."""
    min_queries: Count = 2
    """Fewest search queries; the paper asks for 1."""
    distinct_queries: bool = True
    """No query twice."""
    answer_in_query: bool = True
    """Whether a query may hold the answer."""
    spoilers: Literal["plain", "normalised"] = "plain"
    """When a question or a query holds the answer. plain: letter by letter, whatever the case, as in
    the release. normalised: also with other accents, punctuation, line breaks or thousands
    separators; queries that differ in nothing else are repeated ones."""


class Filtered(NamedTuple):
    """A question that the rules let pass, or the rule that rejected it; true where it passed."""

    valid: bool
    rule: str
    """Empty where it passed: format, length, answer_in_question, no_observation, too_few_queries,
    repeated_query or answer_in_query."""
    question: str
    queries: tuple[str, ...]
    observations: tuple[str, ...]

    def __bool__(self) -> bool:
        return self.valid


FILTERS = (
    "format",
    "length",
    "answer_in_question",
    "no_observation",
    "too_few_queries",
    "repeated_query",
    "answer_in_query",
    "rag_check",
)
"""Why a question is rejected, in the order of the filters; `rag_check` comes after the rules."""


def as_golds(what: str, answer: Any) -> list[str]:
    """Accepted answers from a text or a list of aliases; an empty one is no reference.

    >>> as_golds("answer", ["Paris", "City of Light"])
    ['Paris', 'City of Light']
    """
    values = answer if isinstance(answer, list | tuple) else [answer]
    golds = []
    for value in values:
        is_number = isinstance(value, int | float) and not isinstance(value, bool)
        if not isinstance(value, str) and not (is_number and math.isfinite(value)):
            raise refused(what, answer, "a text or a list of texts")
        golds.append(str(value).strip())
    if not golds or not all(normalize_answer(gold) for gold in golds):
        raise refused(what, answer, "a text or a list of texts, none empty")
    return golds


def rule_filter(
    trajectory: Any, answer: Any, rules: Rules | None = None, tag: str = QUESTION
) -> Filtered:
    """Whether a proposer's trajectory holds a question that may be read: the rules before the check.

    In order: a question in tags, its length, the answer does not stand in it (any alias, whatever
    the case; `Rules(spoilers="normalised")` also finds it in other spellings), something was
    observed, enough queries and none twice, and where asked for no query holds the answer.

    >>> said = "<search>Vel</search><information>Vel lies on the Tol.</information>"
    >>> said += "<search>Tol</search><information>A river.</information>"
    >>> asked = "<question>On which long river does the old town of Vel lie?</question>"
    >>> rule_filter(said + asked, "Tol").valid
    True
    >>> rule_filter(said + asked, ["Tol", "old TOWN"]).rule
    'answer_in_question'
    """
    golds = as_golds("answer", answer)
    rules = Rules() if rules is None else rules
    if not isinstance(rules, Rules):
        raise refused("rules", rules, "Rules")
    found = parse_proposal(trajectory, as_text("tag", tag))
    question = found.question or ""
    failed = _first_broken(found, question, golds, rules)
    return Filtered(not failed, failed, question, found.queries, found.observations)


def _first_broken(found: Proposal, question: str, golds: list[str], rules: Rules) -> str:
    if found.question is None:
        return "format"
    words = len((spaced(question) if rules.letters_as_words else question).split())
    is_long_enough = rules.min_characters <= len(question) <= rules.max_characters
    if not is_long_enough or words < rules.min_words:
        return "length"
    if _spoils(question, golds, rules):
        return "answer_in_question"
    if not any(text.strip() for text in found.observations):
        return "no_observation"
    if len(found.queries) < rules.min_queries:
        return "too_few_queries"
    queries: Iterable[str] = found.queries
    if rules.spoilers == "normalised":
        queries = [normalize_answer(query) or query for query in found.queries]
    if rules.distinct_queries and len(set(queries)) < len(found.queries):
        return "repeated_query"
    if not rules.answer_in_query and any(_spoils(q, golds, rules) for q in found.queries):
        return "answer_in_query"
    return ""


def _spoils(text: str, golds: list[str], rules: Rules) -> bool:
    """Whether a text holds one of the answers."""
    if any(gold.casefold() in text.casefold() for gold in golds):
        return True
    return rules.spoilers == "normalised" and states(text, golds)


def tag_penalty(text: str, most: int = MOST_TAGS) -> float:
    """What a right answer counts: 1, or a quarter in a text with more than `most` answer tags.

    >>> tag_penalty("<answer>a</answer>" * 11)
    0.25
    """
    text, most = as_text("text", text), as_whole("most", most, low=0)
    is_flooded = text.count(f"<{ANSWER}>") > most or text.count(f"</{ANSWER}>") > most
    return 0.25 if is_flooded else 1.0


Judge = Callable[[str, list[str]], bool | None]
"""Whether a prediction means the same as the references; None where that cannot be said."""


def solver_score(text: str, golds: Any, judge: Judge | None = None) -> float | None:
    """Score of one attempt: 1 where the last tagged answer is right, 0 else, a quarter if flooded.

    Right is equal after normalisation or, with `judge`, what the judge says; None where the judge
    could not say. A text without a pair of answer tags scores 0.

    >>> solver_score("It is <answer>The Paris!</answer>", ["Paris", "City of Light"])
    1.0
    >>> solver_score("Paris", "Paris")
    0.0
    """
    accepted = as_golds("golds", golds)
    if judge is not None:
        as_function("judge", judge)
    found = extract_answer(text)
    if found is None:
        return 0.0
    if exact_match(found, accepted):
        return tag_penalty(text)
    if judge is None:
        return 0.0
    said = judge(found, accepted)
    return None if said is None else tag_penalty(text) * float(as_flag("judge", said))


def success_rate(solver_rewards: Any) -> float | None:
    """Share of attempts with any positive score, of those that have one; None where none has.

    >>> success_rate([1.0, 0.25, 0.0, None])
    0.6666666666666666
    """
    known = [r for r in as_numbers("solver_rewards", solver_rewards, missing=True) if r is not None]
    return sum(reward > 0 for reward in known) / len(known) if known else None


def proposer_reward(
    solver_rewards: Any,
    reward_type: RewardType = "1-acc",
    valid: Any = True,
    invalid_reward: float = 0.0,
    left: float = 0.0,
    right: float = 1.0,
) -> Any:
    """Reward of a question from its solver's scores: one list of scores, or a list for each question.

    With p the share of attempts with a positive score: `1-acc` is 1 - p; `intermediate_difficulty`
    is 0 for p of 0 or 1 and else 4 (left + p) (right - p); `format_only` is 1. A question that is
    not `valid` earns `invalid_reward`. None where no attempt could be scored.

    >>> proposer_reward([1.0, 0.0, 0.0, 0.25])
    0.5
    >>> proposer_reward([[1, 0], [1, 1]], "intermediate_difficulty")
    [1.0, 0.0]
    >>> proposer_reward([0.0, 0.0], valid=False)
    0.0
    """
    as_word("reward_type", reward_type, REWARD_TYPES)
    numbers = {"invalid_reward": invalid_reward, "left": left, "right": right}
    for name, value in numbers.items():
        numbers[name] = as_number(name, value)
    rows = as_list("solver_rewards", solver_rewards, least=1)
    is_many = all(hasattr(row, "__len__") and not isinstance(row, str) for row in rows)
    marks = as_list("valid", valid) if not isinstance(valid, bool) else [valid] * len(rows)
    if is_many:
        same_length("valid", marks, len(rows), "questions")
        return [
            _reward(row, reward_type, mark, **numbers)
            for row, mark in zip(rows, marks, strict=True)
        ]
    if not isinstance(valid, bool):
        raise refused("valid", valid, "True or False for one question")
    return _reward(rows, reward_type, valid, **numbers)


def _reward(
    scores: Any, reward_type: str, valid: Any, invalid_reward: float, left: float, right: float
) -> float | None:
    rate = success_rate(as_list("solver_rewards", scores))
    if not as_flag("valid", valid):
        return invalid_reward
    if reward_type == "format_only":
        return 1.0
    if rate is None:
        return None
    if reward_type == "1-acc":
        return 1.0 - rate
    return 4.0 * (left + rate) * (right - rate) if 0 < rate < 1 else 0.0


class Kept(NamedTuple):
    """Rows that a filter keeps, in order."""

    proposer: list[int]
    solver: list[int]


def dynamic_filter(scores: Any, groups: Any, solver_n: int) -> Kept:
    """Drop proposer groups whose rewards are all equal, and the solver rows of their questions.

    `scores` and `groups` have an item for each proposer row; row i has the solver rows
    `i * solver_n` to `(i + 1) * solver_n - 1`. A group of one is kept.

    >>> dynamic_filter([1.0, 1.0, 0.0, 0.5, 0.3], [0, 0, 1, 1, 2], 2)
    Kept(proposer=[2, 3, 4], solver=[4, 5, 6, 7, 8, 9])
    """
    values = as_numbers("scores", scores)
    labels = as_list("groups", groups)
    same_length("groups", labels, len(values), "scores")
    attempts = as_whole("solver_n", solver_n, low=1, high=1_000_000)
    members: dict[Any, list[float]] = {}
    for label, value in zip(labels, values, strict=True):
        is_label = isinstance(label, Hashable) and label is not None
        if not is_label or (isinstance(label, float) and not math.isfinite(label)):
            raise ArgumentError(
                f"groups: got {label!r:.60}, expected a label for each score, such as 0, 0, 1"
            )
        members.setdefault(label, []).append(value)
    kept = {g for g, own in members.items() if len(own) == 1 or max(own) > min(own)}
    rows = [place for place, label in enumerate(labels) if label in kept]
    solver = [row * attempts + place for row in rows for place in range(attempts)]
    return Kept(rows, solver)
