"""Do a claim and its checks agree, and what is an answer with such claims worth? (MARCH)

Each of K Checker samples agrees with a claim (+1) or not (-1, also where it gave no answer); a claim
whose votes add up to 0 or less is faulty. Zero tolerance (`ztr`): -1 where any claim is faulty,
else 0; `err`: minus the share of faulty claims; `count`: minus a tenth of them, 13 at most.

Where we differ from the reference (arXiv 2603.24579): an even split is faulty; a claim whose stated
answer is a refusal is dropped, not agreed with; numbers are read with their units. The reference's
rule of equality is `matcher="march-ref"`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Annotated, Literal, NamedTuple

from msgspec import Meta

from burnish.arguments import as_list, refused
from burnish.boundary import Count, NonNegative, PositiveShare, public
from burnish.errors import ArgumentError
from burnish.rewards.checks.match import token_f1
from burnish.rewards.checks.quantities import bare_text, read_quantity
from burnish.rewards.judges.prompting import Unreadable
from burnish.tensors import LARGEST

_BULLET = re.compile(
    r"(?:[-•]|(?<![ \t*])[ \t]*+\*)[ \t*]*+question[ \t*]*+[:：][ \t*]*+", re.IGNORECASE
)
"""Each run of blanks and stars is read once, so that a hostile reply is read in linear time."""
_NO_BULLET = re.compile(r"^[ \t]*(?:\d{1,3}[.)][ \t]*)?(?=\*{0,4}+question\b)", re.I | re.MULTILINE)
_ITEM = re.compile(r"^[ \t>*#]*(\d{1,4})[ \t]*[.)](?!\d)", re.MULTILINE | re.ASCII)
_ANY_ITEM = re.compile(r"(?im)^[ \t>*#(-]*+(?:item[ \t]++)?(\d{1,4})[ \t*]*+[.):](?!\d)", re.ASCII)
"""Also `(1)`, `- 1.`, `1:`, `**1**.` and `Item 1.`, where it is known how many there are."""
_ANSWER = re.compile(r"\[[ \t]*+answer[ \t]*+[:：]([^\]]*+)\]", re.IGNORECASE)
_SAME = re.compile(
    r"^[ \t]*(\d{1,4})[ \t]*[.):][ \t*]*(same|different)\b", re.IGNORECASE | re.MULTILINE
)
_THOUGHTS = re.compile(r"\A\s*<think>(.*?)</think>(.*)\Z", re.DOTALL | re.IGNORECASE)

_DOCUMENT_TAG = re.compile(r"<(/?)(documents?|passages?|context)>", re.IGNORECASE)
_HEADED = re.compile(
    r"^[ \t#*\[]*+(?:documents?|passages?|context|references?)[ \t\]*]*+"
    r"(?:[:：]?[ \t*]*+$|[:：][ \t*]*+(?=\S))",
    re.MULTILINE | re.IGNORECASE,
)
_QUERY_TAG = re.compile(r"<(/?)(question|query)>", re.IGNORECASE)
_QUERY_HEAD = re.compile(
    r"^[ \t#*\[]*+(?:user[ \t]++)?(?:question|query)[ \t\]*]*+(?:[:：][ \t*]*+|$)",
    re.MULTILINE | re.IGNORECASE,
)


YEAR = 100
"""From here on a number beyond the count that follows no answer begins no item: it may be a year."""


class Claim(NamedTuple):
    """One atomic statement of an answer, as a question and the answer that it gives."""

    question: str
    answer: str


class Thinking(NamedTuple):
    thinking: str
    answer: str


class DocsAndQuery(NamedTuple):
    docs: str
    query: str


@public
def parse_claims(text: str) -> list[Claim]:
    """The claims of a Proposer: bullets `- Question: ... [Answer: ...]`, one a line, in order.

    A bullet without a question, without an answer or over several lines is no claim.
    """
    claims = []
    for line in text.split("\n"):
        begin = 0
        for tag in _answers(line):
            bullet = _BULLET.search(line, begin, tag.start())
            question = line[bullet.end() : tag.start()].rstrip(" \t") if bullet else ""
            answer = tag[1].strip(" \t")
            if question and answer:
                claims.append(Claim(question, answer))
            begin = tag.end()
    return claims


@public
def parse_checks(text: str, count: Count | None = None) -> dict[int, str]:
    """The answers of a Checker by item number: blocks `1. Evidence: ... [Answer: ...]`.

    A block reaches to the next line that begins with a number and a dot; its last answer counts, and
    a block without one is left out. Of an item that stands twice the last one counts, as in the
    reference; `answered_items` has all of them. Where no block is numbered 1, what stands before the first
    number is item 1. With `count`, an item beyond it is nobody's: it changes no answer. A number of three
    digits or more that does not stand behind an answer (a year at the start of a line) begins no item.

    >>> parse_checks("Evidence: page 2 [Answer: 7]\\n2. not found\\n3. Evidence: x [Answer: 9]")
    {1: '7', 3: '9'}
    """
    return dict(sorted(dict(answered_items(text, count)).items()))


def _answers(text: str) -> Iterator[re.Match[str]]:
    """The answer tags of a text; behind its last bracket none ends, so none is looked for."""
    return _ANSWER.finditer(text, 0, text.rfind("]") + 1)


def answered_items(text: str, most: int | None) -> list[tuple[int, str]]:
    """The items of a Checker that have an answer, in the order in which they stand there."""
    head_form = _ITEM if most is None else _ANY_ITEM
    heads = [(int(head[1]), *head.span()) for head in head_form.finditer(text) if int(head[1]) > 0]
    if most != 0 and not any(number == 1 for number, _, _ in heads):
        heads.insert(0, (1, 0, 0))
    places = [start for _, start, _ in heads[1:]] + [len(text)]
    blocks: list[tuple[int, list[str]]] = []
    for (number, _, begin), end in zip(heads, places, strict=False):
        tags = _answers(text[begin:end])
        answers = [" ".join(tag[1].split()) for tag in tags if tag[1].strip()]
        is_further = most is not None and number > most
        if is_further and number >= YEAR and blocks and not blocks[-1][1]:
            blocks[-1][1].extend(answers)
        else:
            blocks.append((number, answers))
    return [
        (number, answers[-1])
        for number, answers in blocks
        if answers and (most is None or number <= most)
    ]


@public
def split_thinking(text: str) -> Thinking:
    """Thoughts between `<think>` and `</think>` at the start of a reply, and the answer behind them.

    Thoughts that are not well formed are none: the whole reply is the answer.

    >>> split_thinking("<think>3 + 4</think> It is 7.")
    Thinking(thinking='3 + 4', answer='It is 7.')
    """
    found = _THOUGHTS.match(text)
    if found is None or re.search("</?think>", found[2], re.IGNORECASE):
        return Thinking("", text)
    return Thinking(found[1].strip(), found[2].strip())


def claims_of_reply(text: str) -> list[Claim]:
    """The claims of a Proposer that a judge asks, with or without bullets; else `Unreadable`."""
    found = parse_claims.plain(_NO_BULLET.sub("- ", split_thinking.plain(text).answer))
    if not found:
        raise Unreadable(f"expected lines '- Question: ... [Answer: ...]', got {text[:60]!r}")
    return found


def same_of_reply(text: str) -> dict[int, str]:
    """Same or different by item number, of the model that settles it."""
    lines = {(int(n), word.lower()) for n, word in _SAME.findall(split_thinking.plain(text).answer)}
    found = dict(lines)
    if not found or len(found) < len(lines):
        raise Unreadable(f"expected one line such as '1. same' for each item, got {text[:60]!r}")
    return found


@public
def split_docs_and_query(prompt: str) -> DocsAndQuery:
    """The documents and the question of a rendered prompt, as texts.

    Documents stand in a tag (`<documents>`, `<passages>`, `<context>`) or under a heading such as
    `Passages:`; the question behind them in a tag, under a heading such as `Question:`, or as the
    rest. Rows with fields of their own (`query`, `documents`) need no such guess.
    """
    docs = query = ""
    if tagged := _between(prompt, _DOCUMENT_TAG):
        begin, end = tagged[0]
        docs, rest = prompt[begin.end() : end.start()], prompt[end.end() :]
        query = _query(rest) or _query(prompt[: begin.start()]) or rest
    elif headed := _HEADED.search(prompt):
        behind = prompt[headed.end() :]
        # The last heading: a document may hold a line of that kind, what comes after it may not.
        asked = [one.start() for one, _ in _between(behind, _QUERY_TAG)]
        asked += [found.start() for found in _QUERY_HEAD.finditer(behind)]
        docs = behind[: max(asked, default=None)]
        query = _query(behind[max(asked) :] if asked else prompt[: headed.start()])
    found = DocsAndQuery(docs.strip(), query.strip())
    if not all(found):
        raise ArgumentError(
            "prompt: got no documents or no question, expected a tag <documents> or a heading 'Passages:', "
            "and a question; give the rows fields `documents` and `query` instead"
        )
    return found


def _between(text: str, tag: re.Pattern[str]) -> list[tuple[re.Match[str], re.Match[str]]]:
    """Tags with their ends, in order, in one pass: a tag that never ends is a word."""
    later: dict[str, re.Match[str]] = {}
    pairs = []
    for one in reversed(list(tag.finditer(text))):
        name = one[2].lower()
        if one[1]:
            later[name] = one
        elif name in later:
            pairs.append((one, later[name]))
    found: list[tuple[re.Match[str], re.Match[str]]] = []
    for begin, end in reversed(pairs):
        if not found or begin.start() >= found[-1][1].end():
            found.append((begin, end))
    return found


def _query(text: str) -> str:
    if tagged := _between(text, _QUERY_TAG):
        begin, end = tagged[-1]
        return text[begin.end() : end.start()].strip()
    heads = list(_QUERY_HEAD.finditer(text))
    return text[heads[-1].end() :].strip() if heads else ""


Matcher = Literal["strict", "numeric", "exact", "f1", "march-ref"]
Mode = Literal["ztr", "err", "count"]
Leaks = Literal["plain", "normalised"]
Invented = Literal["drop", "keep"]
Agreement = Literal[-1, 1]
NonPositive = Annotated[float, Meta(ge=-LARGEST, le=0.0)]
COUNT_STEP, COUNT_MOST = 0.1, 13
"""Of the mode `count`: what a faulty claim costs, and how many of them at most."""

_UNTOLD = "mentioned|stated|provided|given|specified|available|answerable|answered|found|known"
_TAIL = (
    r"(?:,? (?:here|anywhere)|,? (?:(?:in|from|by|within|based on|with|to|of) )+(?:(?:the|these|those|this|"
    r"any|any of the) )?(?:(?:given|provided|available) )?(?:passages?|documents?|texts?|context|sources?|"
    r"information|articles?|questions?|answer|determine|tell|say)(?: (?:alone|provided|given|above|this|"
    r"it|the question))?){0,2}"
)
_REFUSAL = re.compile(
    r"(?:(?:(?:i|we|it|this|that|the (?:answer|question)) )?(?:(?:is|was|are|am) )?(?:"
    r"(?:cannot|can not|can't|could not|couldn't|unable to|impossible to) (?:be )?(?:answer|determine|tell|say|"
    r"find|know|found)(?:ed|d)?(?: (?:it|this|that|an answer|the answer|the question|this question))?"
    rf"|not (?:{_UNTOLD}|enough(?: (?:information|data|evidence|context))?)"
    rf"|no (?:answer|information|evidence|data)(?: (?:is |was )?(?:{_UNTOLD}))?"
    r"|no information (?:\w+ )?(?:about|on|regarding) .{1,60}"
    r"|insufficient(?: (?:information|data|evidence|context))?"
    rf"|none (?:(?:is|was|are|were) )?(?:{_UNTOLD})|unanswerable|unknown|n/?a){_TAIL})|(?:无法回答|无法确定|不知道|未提及).{{0,12}}",
    re.IGNORECASE,
)
_REF_STRIPPED = str.maketrans("", "", "%kKwW,")


Pair = tuple[str, str]
Sample = Sequence[str | None] | Mapping[int, str | None]


class FactReward(NamedTuple):
    reward: float
    faults: int
    """Claims that the Checkers do not confirm."""
    claims: int
    """Claims that count: refusals are dropped."""
    votes: tuple[int, ...]
    """Sum of the K agreements of each claim that counts."""
    agreement: tuple[tuple[Agreement, ...], ...]
    """+1 or -1 of each Checker sample (outer) on each claim that counts (inner)."""
    faulty: tuple[int, ...]
    """Places of the faulty claims among those given, from 0."""
    dropped: tuple[int, ...]
    """Places of claims whose stated answer is a refusal."""
    is_short: bool
    """Fewer claims than `min_claims`."""


@public
def answers_match(
    a: str,
    b: str,
    matcher: Matcher | Callable[[str, str], bool] = "numeric",
    *,
    relative: NonNegative = 1e-3,
    absolute: NonNegative = 1e-9,
    threshold: PositiveShare = 0.8,
) -> bool:
    """Whether two answers say the same.

    `numeric`: numbers with their units (k, w = 10,000, %, million) within a relative tolerance of
    `relative` or an absolute one; other texts whatever their case and blanks. `strict`: the same, but
    two plain whole numbers must be equal (2019 is not 2020). `exact`: texts alone. `f1`: words in
    common, at least `threshold`; numbers as in `strict`. `march-ref`: the reference's rule, in which
    10k is 10 and 0.05 is 0.1. Or a function of the two.
    """
    if callable(matcher):
        return bool(matcher(a, b))
    if matcher == "march-ref":
        return _reference_match(a, b)
    bare = bare_text(a)
    if matcher == "exact":
        return bare == bare_text(b)
    first, second = read_quantity(a), read_quantity(b)
    if first is not None and second is not None:
        if first.unit and second.unit and first.unit != second.unit:
            return False
        if matcher != "numeric" and first.whole is not None and second.whole is not None:
            return first.whole == second.whole
        gap, size = abs(first.value - second.value), max(abs(first.value), abs(second.value))
        return gap <= max(relative * size, absolute)
    is_near = token_f1(a, b) >= threshold if matcher == "f1" else bare == bare_text(b)
    return bool(bare) and is_near


@public
def is_refusal(answer: str) -> bool:
    """Whether an answer says that there is none: "Cannot answer", "not mentioned in the passages".

    It has to say nothing else: "no evidence of fracture" is a claim, and so is "none" of side effects.
    """
    return _REFUSAL.fullmatch(bare_text(answer).rstrip(".!")) is not None


@public
def fact_reward(
    claims: Sequence[Pair],
    checks: Sequence[Sample],
    *,
    mode: Mode = "ztr",
    matcher: Matcher | Callable[[str, str], bool] = "numeric",
    right: float = 0.0,
    wrong: float = -1.0,
    min_claims: Count = 3,
    short_penalty: NonPositive = 0.0,
) -> FactReward:
    """The reward of an answer from its claims and K Checker samples.

    `claims` are (question, answer) pairs; `checks` one sample each: answers by item number from 1
    (`parse_checks`), or a list of answers in order with None where one is missing. `right` and `wrong` are the two values of zero tolerance and the ends of `err`. An answer with
    fewer claims than `min_claims` gets `short_penalty` on top; the paper's is 0, which rewards
    vagueness. Without a claim the reward is `right`, whatever the Checkers said.

    >>> found = fact_reward([("How many towers?", "3"), ("Since when?", "1901")], [{1: "3", 2: "1910"}])
    >>> found.reward, found.faulty
    (-1.0, (1,))
    """
    dropped = [n for n, (_, answer) in enumerate(claims) if is_refusal.plain(answer)]
    counted = sorted(set(range(len(claims))).difference(dropped))
    if counted:
        as_list("checks", checks, least=1)
    agreement: list[list[Agreement]] = []
    for sample in checks:
        by_item = sample if isinstance(sample, Mapping) else dict(enumerate(sample, start=1))
        said = [(claims[n][1], by_item.get(n + 1)) for n in counted]
        agreement.append(
            [
                1 if found is not None and answers_match.plain(stated, found, matcher) else -1
                for stated, found in said
            ]
        )
    return reward_of_votes(
        agreement if counted else [],
        counted,
        dropped,
        mode=mode,
        right=right,
        wrong=wrong,
        min_claims=min_claims,
        short_penalty=short_penalty,
    )


def reward_of_votes(
    agreement: Sequence[Sequence[Agreement]],
    counted: Sequence[Count],
    dropped: Sequence[Count] = (),
    *,
    mode: Mode = "ztr",
    right: float = 0.0,
    wrong: float = -1.0,
    min_claims: Count = 3,
    short_penalty: NonPositive = 0.0,
) -> FactReward:
    """The same from agreements that are known: +1 or -1 by sample (outer) and claim (inner)."""
    votes = [sum(row[n] for row in agreement) for n in range(len(counted))]
    # An even split is neither: it counts as faulty.
    faulty = [place for place, vote in zip(counted, votes, strict=True) if vote <= 0]
    count, faults = len(counted), len(faulty)
    if mode == "ztr":
        reward = wrong if faults else right
    elif mode == "err":
        reward = right + (wrong - right) * faults / count if count else right
    else:
        reward = right - COUNT_STEP * min(faults, COUNT_MOST)
    is_short = count < min_claims
    return FactReward(
        reward + short_penalty * is_short + 0.0,  # never -0.0
        faults,
        count,
        tuple(votes),
        tuple(map(tuple, agreement)),
        tuple(faulty),
        tuple(dropped),
        is_short,
    )


@public
def checker_rewards(agreement: Sequence[Sequence[Agreement]]) -> list[float]:
    """What each Checker sample earns for agreeing with the majority: mean over claims of
    agreement times the sign of the vote, -1 to 1. In the paper all share the Solver's reward.

    >>> checker_rewards([[1, -1], [1, 1], [-1, 1]])
    [0.0, 1.0, 0.0]
    """
    if len(set(map(len, agreement))) > 1 or [] in agreement:
        raise refused("agreement", agreement, "+1 or -1 for each claim, as many in every row")
    signs = [1 if sum(votes) > 0 else -1 for votes in zip(*agreement, strict=True)]
    return [
        math.fsum(bit * sign for bit, sign in zip(row, signs, strict=True)) / len(signs)
        for row in agreement
    ]


def _reference_match(a: str, b: str) -> bool:
    """The reference's rule: signs cut off, equal texts, whole numbers exact, others within 0.1."""
    first, second = a.translate(_REF_STRIPPED), b.translate(_REF_STRIPPED)
    if first == second:
        return True
    try:
        one, other = (float(text) if "." in text else int(text) for text in (first, second))
        is_whole = isinstance(one, int) and isinstance(other, int)
        return one == other if is_whole else abs(one - other) < 0.1
    except (ValueError, OverflowError):  # no numbers, or one beyond every float
        return False


def checks_of_reply(text: str, count: int) -> dict[int, str]:
    """The answers of a Checker that a judge asks; `Unreadable` where it has none or contradicts itself."""
    found: dict[int, str] = {}
    for number, answer in answered_items(split_thinking.plain(text).answer, count):
        if not answers_match.plain(found.setdefault(number, answer), answer, "strict"):
            raise Unreadable(
                f"expected each item once, got item {number} twice with different answers"
            )
    if not found:
        raise Unreadable(f"expected items '1. Evidence: ... [Answer: ...]', got {text[:60]!r}")
    return found
