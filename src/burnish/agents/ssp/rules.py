"""The rules of search self-play (arXiv 2510.18821): what a question, an answer and a score are.

Where we differ from the released code: an answer may be a text or a list of aliases everywhere (the
release breaks on lists and then rejects every question); text inside observations is never read as
the model's own; scripts without blanks are counted by the letter; an empty reference is refused.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta, Struct, field

from burnish.arguments import as_flag, refused, same_length
from burnish.boundary import (
    Call,
    Count,
    Draws,
    Name,
    Number,
    PositiveInt,
    Settings,
    Share,
    public,
)
from burnish.errors import ArgumentError
from burnish.records import Message, Trajectory
from burnish.rewards.checks.match import exact_match, normalize_answer, states
from burnish.rewards.checks.texts import spaced
from burnish.rollouts.search import (
    ANSWER,
    INFORMATION,
    QUESTION,
    SEARCH,
    parse_queries,
    scan_tags,
    tag_pairs,
)


class _Golds:
    """Accepted answers as an argument: a text, or a list of aliases."""

    words = "a text or a list of texts, none empty"

    def read(self, name: str, given: Any, call: Call) -> list[str]:
        return as_golds(name, given)


Golds = Annotated[list[str], _Golds()]
Scores = Sequence[float | None]


class Proposal(NamedTuple):
    question: str | None
    """In the first pair of question tags."""
    queries: tuple[str, ...]
    observations: tuple[str, ...]


@public
def extract_answer(text: str) -> str | None:
    """The text in the last pair of answer tags; None where there is no pair.

    >>> extract_answer("<answer>Rome</answer> no, <answer> Paris </answer>")
    'Paris'
    >>> extract_answer("Paris") is None
    True
    """
    found = tag_pairs(text, ANSWER)
    return found[-1] if found else None


class _Parts(Struct):
    question: str | None
    queries: tuple[str, ...] = ()
    observations: tuple[str, ...] = ()


def parse_proposal(trajectory: Any) -> Proposal:
    """The question, the queries and the observations of a proposer's trajectory.

    A trajectory is a text with tags (observations in information tags), a list of messages, a dict
    with `messages`, `output` or `text` or with `question`, `queries` and `observations`, or a
    `Trajectory`. Tags inside an observation are data.
    """
    try:
        if isinstance(trajectory, Mapping) and {"question", "queries"} <= trajectory.keys():
            parts = msgspec.convert(trajectory, _Parts)
            asked = None if parts.question is None else parts.question.strip()
            return Proposal(asked, parts.queries, parts.observations)
        said, observations = _said_and_seen(trajectory)
    except (msgspec.ValidationError, KeyError, TypeError, AttributeError) as error:
        expected = "a text with tags, messages, or question, queries and observations"
        raise refused("trajectory", trajectory, expected) from error
    questions = tag_pairs(said, QUESTION)
    queries = [query for text in tag_pairs(said, SEARCH) for query in parse_queries.plain(text)]
    return Proposal(questions[0] if questions else None, tuple(queries), tuple(observations))


def _said_and_seen(trajectory: Any) -> tuple[str, list[str]]:
    """Words of the assistant, and what followed them by others."""
    if isinstance(trajectory, Mapping):
        key = next((name for name in ("messages", "output") if name in trajectory), "text")
        return _said_and_seen(trajectory[key])
    if isinstance(trajectory, str):
        pairs, said = scan_tags(trajectory, INFORMATION)
        return said, [text for inner, _ in pairs if (text := inner.strip())]
    messages = trajectory.messages if isinstance(trajectory, Trajectory) else trajectory
    own: list[str] = []
    seen: list[str] = []
    for one in messages:
        if not isinstance(one, Message):
            one = Message(str(one.get("role", "")), one["content"])
        if one.role == "assistant":
            own.append(one.text)
        elif own:
            inside = tag_pairs(one.text, INFORMATION) or [one.text.strip()]
            seen += [text for text in inside if text]
    return "\n".join(own), seen


MOST_TAGS = 10
"""Opening or closing answer tags in one text; more are flooding, and a right answer counts a quarter."""
LENGTHS = (10, 1000)
"""Fewest and most characters of a question."""
RewardType = Literal["1-acc", "intermediate_difficulty", "format_only"]
Strategy = Literal["periodic", "full", "resample", "dummy"]


class Rules(Settings, frozen=True, kw_only=True):
    """Which questions are valid before anybody reads them."""

    min_words: Count = 10
    """Fewest words of a question, 0: any. In scripts without blanks each letter is a word (the release
    kills Chinese)."""
    min_queries: Count = 2
    """Fewest search queries; the paper asks for 1."""
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
    are_plain = all(isinstance(v, str | int | float) and not isinstance(v, bool) for v in values)
    golds = [str(value).strip() for value in values]
    empty = ("", "nan", "inf", "-inf")
    if not golds or not are_plain or any(normalize_answer(gold) in empty for gold in golds):
        raise refused(what, answer, "a text or a list of texts, none empty")
    return golds


@public
def rule_filter(trajectory: object, answer: Golds, rules: Rules | None = None) -> Filtered:
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
    rules = Rules() if rules is None else rules
    found = parse_proposal(trajectory)
    question = found.question or ""
    is_fitting = LENGTHS[0] <= len(question) <= LENGTHS[1]
    queries: Iterable[str] = found.queries
    if rules.spoilers == "normalised":
        queries = [normalize_answer(query) or query for query in found.queries]
    broken = ""
    if found.question is None:
        broken = "format"
    elif not is_fitting or len(spaced(question).split()) < rules.min_words:
        broken = "length"
    elif _spoils(question, answer, rules):
        broken = "answer_in_question"
    elif not any(text.strip() for text in found.observations):
        broken = "no_observation"
    elif len(found.queries) < rules.min_queries:
        broken = "too_few_queries"
    elif len(set(queries)) < len(found.queries):
        broken = "repeated_query"
    elif not rules.answer_in_query and any(_spoils(q, answer, rules) for q in found.queries):
        broken = "answer_in_query"
    return Filtered(not broken, broken, question, found.queries, found.observations)


def _spoils(text: str, golds: list[str], rules: Rules) -> bool:
    if any(gold.casefold() in text.casefold() for gold in golds):
        return True
    return rules.spoilers == "normalised" and states(text, golds)


def tag_penalty(text: str) -> float:
    """What a right answer counts: 1, or a quarter in a text with more than `MOST_TAGS` answer tags.

    >>> tag_penalty("<answer>a</answer>" * 11)
    0.25
    """
    is_flooded = max(text.count(f"<{ANSWER}>"), text.count(f"</{ANSWER}>")) > MOST_TAGS
    return 0.25 if is_flooded else 1.0


Judge = Callable[[str, list[str]], bool | None]
"""Whether a prediction means the same as the references; None where that cannot be said."""


@public
def solver_score(text: str, golds: Golds, judge: Judge | None = None) -> float | None:
    """Score of one attempt: 1 where the last tagged answer is right, 0 else, a quarter if flooded.

    Right is equal after normalisation or, with `judge`, what the judge says; None where the judge
    could not say. A text without a pair of answer tags scores 0.

    >>> solver_score("It is <answer>The Paris!</answer>", ["Paris", "City of Light"])
    1.0
    >>> solver_score("Paris", "Paris")
    0.0
    """
    found = extract_answer.plain(text)
    if found is None:
        return 0.0
    if exact_match(found, golds):
        return tag_penalty(text)
    if judge is None:
        return 0.0
    said = judge(found, golds)
    return None if said is None else tag_penalty(text) * float(as_flag("judge", said))


@public
def success_rate(solver_rewards: Scores) -> float | None:
    """Share of attempts with any positive score, of those that have one; None where none has.

    >>> success_rate([1.0, 0.25, 0.0, None])
    0.6666666666666666
    """
    known = [reward for reward in solver_rewards if reward is not None]
    return sum(reward > 0 for reward in known) / len(known) if known else None


@public
def proposer_reward(
    solver_rewards: Annotated[Sequence[float | Scores | None], Meta(min_length=1)],
    reward_type: RewardType = "1-acc",
    valid: bool | Sequence[bool] = True,
    invalid_reward: Number = 0.0,
    left: Number = 0.0,
    right: Number = 1.0,
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
    rows: list[Any] = list(solver_rewards)

    def of(scores: Scores, is_valid: bool) -> float | None:
        rate = success_rate.plain(scores)
        if not is_valid:
            return invalid_reward
        if reward_type == "format_only":
            return 1.0
        if rate is None:
            return None
        if reward_type == "1-acc":
            return 1.0 - rate
        return 4.0 * (left + rate) * (right - rate) if 0 < rate < 1 else 0.0

    if all(isinstance(row, list | tuple) for row in rows):
        marks = [valid] * len(rows) if isinstance(valid, bool) else valid
        same_length("valid", marks, len(rows), "questions")
        return [of(row, mark) for row, mark in zip(rows, marks, strict=True)]
    if not isinstance(valid, bool):
        raise refused("valid", valid, "True or False for one question")
    return of(rows, valid)


class Kept(NamedTuple):
    proposer: list[int]
    solver: list[int]


@public
def dynamic_filter(scores: Sequence[float], groups: Sequence[int | str], solver_n: Draws) -> Kept:
    """Drop proposer groups whose rewards are all equal, and the solver rows of their questions.

    `scores` and `groups` have an item for each proposer row; row i has the solver rows
    `i * solver_n` to `(i + 1) * solver_n - 1`. A group of one is kept.

    >>> dynamic_filter([1.0, 1.0, 0.0, 0.5, 0.3], [0, 0, 1, 1, 2], 2)
    Kept(proposer=[2, 3, 4], solver=[4, 5, 6, 7, 8, 9])
    """
    same_length("groups", groups, len(scores), "scores")
    members: dict[int | str, list[float]] = {}
    for label, value in zip(groups, scores, strict=True):
        members.setdefault(label, []).append(value)
    kept = {g for g, own in members.items() if len(own) == 1 or max(own) > min(own)}
    rows = [place for place, label in enumerate(groups) if label in kept]
    solver = [row * solver_n + place for row in rows for place in range(solver_n)]
    return Kept(rows, solver)


REWARD = "game"
"""Name of the reward that both roles bring: `[[rewards]] kind = "env", name = "game"`."""


class SelfPlay(Settings, frozen=True, kw_only=True):
    corpus: Name = "burnish.agents.ssp.world:corpus"
    """Function that gives a retriever: `my_file.py:name` or `package.module:name`."""
    corpus_options: dict[str, object] = field(default_factory=dict)
    top_k: PositiveInt = 3
    mode: Literal["game", "solver"] = "game"
    """solver: no proposer; the task's own `question` is solved, which is plain policy optimisation."""
    train: Annotated[tuple[Literal["proposer", "solver"], ...], Meta(min_length=1)] = (
        "proposer",
        "solver",
    )
    """Roles that are trained; the other one plays, and is no part of the batch."""
    proposer_samples: PositiveInt = 1
    """Questions to each answer; 1: the proposer is a group of one."""
    reward_type: RewardType = "1-acc"
    left: float = 0.0
    right: float = 1.0
    invalid_reward: float = 0.0
    """Of a proposer without a valid question. Below 0 the valid rate may collapse."""
    rules: Rules = Rules()
    reader: Literal["auto", "policy", "judge", "code", "none"] = "auto"
    """Who reads questions back: auto is the judge where there is one, else the policy; none: no
    check."""
    reader_path: str = ""
    """Function `(question, documents) -> answers, best first` of the reader `code`."""
    judge: str = ""
    """Model that judges answers which do not match word by word: `http://host:port/v1#model`."""
    judge_key_env: str = ""
    """Environment variable with the server's key."""
    noise: Count = 4
    """Blocks of other trajectories' documents among those that a reader gets."""
    readers: PositiveInt = 1
    agreement: PositiveInt = 1
    """Readings that must find the answer."""

    unique: bool = False
    """Ask the reader for every answer that fits, and reject questions with several."""
    strategy: Strategy = "periodic"
    """What fills the place of an invalid question."""
    reset_every: Count = 10
    """Steps after which the pool of `periodic` is emptied."""
    keep_ratio: Share = 0.0
    """Share of the newest questions that a reset keeps."""
    ceiling: Share = 1.0
    """Highest success rate of a question that is played again, while there are such."""
    retries: Count = 5
    """Further answers that `resample` may draw for each place."""
    drop_flat: bool = False
    """Leave out proposer groups without spread, and their solvers."""

    def check(self) -> None:
        problem = ""
        if self.agreement > self.readers:
            problem = f"agreement is {self.agreement}; expected at most readers, {self.readers}"
        elif self.reader == "code" and not self.reader_path:
            problem = "reader 'code' needs reader_path: a function (question, documents)"
        elif self.reader == "judge" and not self.judge:
            problem = "reader 'judge' needs judge: http://host:port/v1#model"
        elif self.mode == "solver" and "solver" not in self.train:
            problem = "mode 'solver' has no proposer to train; expected train = ['solver']"
        if problem:
            raise ArgumentError(problem)
