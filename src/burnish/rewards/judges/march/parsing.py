"""What the three roles of MARCH write, read back: claims, checks, thoughts, a prompt's parts.

    parse_claims("- Question: How many towers? [Answer: 3]")       # [Claim("How many towers?", "3")]
    parse_checks("1. Evidence: three towers [Answer: 3]")          # {1: "3"}

Each numbered block of a Checker is read by itself, so that an item without an answer never takes the
next item's (the reference's pattern does, arXiv 2603.24579). Texts are data: nothing is evaluated.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import NamedTuple

from burnish.arguments import as_flag, as_text, as_whole
from burnish.errors import ArgumentError
from burnish.rewards.judges.prompting import Unreadable

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
_PREFILLED = re.compile(r"\A(.*?)</think>(.*)\Z", re.DOTALL | re.IGNORECASE)
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


class _Tagged(NamedTuple):
    """What stands between a tag and its end, by its places in the text."""

    start: int
    inner: slice
    end: int


class Claim(NamedTuple):
    """One atomic statement of an answer, as a question and the answer that it gives."""

    question: str
    answer: str


class Thinking(NamedTuple):
    """A reply in two parts."""

    thinking: str
    answer: str


class DocsAndQuery(NamedTuple):
    """The two parts of a prompt, as texts."""

    docs: str
    query: str


def parse_claims(text: str) -> list[Claim]:
    """The claims of a Proposer: bullets `- Question: ... [Answer: ...]`, one a line, in order.

    A bullet without a question, without an answer or over several lines is no claim.

    >>> parse_claims("- Question: How many towers? [Answer: 3]\\nThat is all.")
    [Claim(question='How many towers?', answer='3')]
    """
    claims = []
    for line in as_text("text", text).split("\n"):
        begin = 0
        for tag in _answers(line):
            bullet = _BULLET.search(line, begin, tag.start())
            question = line[bullet.end() : tag.start()].rstrip(" \t") if bullet else ""
            answer = tag[1].strip(" \t")
            if question and answer:
                claims.append(Claim(question, answer))
            begin = tag.end()
    return claims


def read_claims(text: str) -> list[Claim]:
    """The claims of a Proposer that may leave out the bullets or write numbers in their place.

    >>> read_claims("1. Question: How many towers? [Answer: 3]")
    [Claim(question='How many towers?', answer='3')]
    """
    return parse_claims(_NO_BULLET.sub("- ", as_text("text", text)))


def parse_checks(text: str, count: int | None = None) -> dict[int, str]:
    """The answers of a Checker by item number: blocks `1. Evidence: ... [Answer: ...]`.

    A block reaches to the next line that begins with a number and a dot; its last answer counts, and
    a block without one is left out. Of an item that stands twice the last one counts, as in the
    reference; `check_items` has all of them. Where no block is numbered 1, what stands before the first
    number is item 1. With `count`, an item beyond it is nobody's: it changes no answer. A number of three
    digits or more that does not stand behind an answer (a year at the start of a line) begins no item.

    >>> parse_checks("Evidence: page 2 [Answer: 7]\\n2. not found\\n3. Evidence: x [Answer: 9]")
    {1: '7', 3: '9'}
    >>> parse_checks("1. Evidence: x [Answer: 7]\\n2. Evidence: y [Answer: 9]", count=1)
    {1: '7'}
    """
    return dict(sorted(dict(check_items(text, count)).items()))


def _answers(text: str) -> Iterator[re.Match[str]]:
    """The answer tags of a text; behind its last bracket none ends, so none is looked for."""
    return _ANSWER.finditer(text, 0, text.rfind("]") + 1)


def check_items(text: str, count: int | None) -> list[tuple[int, str]]:
    """The items of a Checker that have an answer, in the order in which they stand there."""
    as_text("text", text)
    most = None if count is None else as_whole("count", count, low=0)
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


def split_thinking(text: str, *, prefilled: bool = False) -> Thinking:
    """Thoughts between `<think>` and `</think>` at the start of a reply, and the answer behind them.

    Thoughts that are not well formed are none: the whole reply is the answer. With `prefilled` the
    chat template wrote `<think>` into the prompt, so that only its end stands in the reply.

    >>> split_thinking("<think>3 + 4</think> It is 7.")
    Thinking(thinking='3 + 4', answer='It is 7.')
    """
    form = _PREFILLED if as_flag("prefilled", prefilled) else _THOUGHTS
    found = form.match(as_text("text", text))
    if found is None or "<think>" in found[2].lower() or "</think>" in found[2].lower():
        return Thinking("", text)
    return Thinking(found[1].strip(), found[2].strip())


def claims_of_reply(text: str) -> list[Claim]:
    """The claims of a Proposer that a judge asks; `Unreadable` where there is none."""
    found = read_claims(split_thinking(text).answer)
    if not found:
        raise Unreadable(f"expected lines '- Question: ... [Answer: ...]', got {text[:60]!r}")
    return found


def same_of_reply(text: str) -> dict[int, str]:
    """Same or different by item number, of the model that settles it."""
    lines = {(int(n), word.lower()) for n, word in _SAME.findall(split_thinking(text).answer)}
    found = dict(lines)
    if len(found) < len(lines):
        raise Unreadable("expected each item once, got one as both same and different")
    if not found:
        raise Unreadable(f"expected lines such as '1. same', got {text[:60]!r}")
    return found


def split_docs_and_query(prompt: str) -> DocsAndQuery:
    """The documents and the question of a rendered prompt, as texts.

    Documents stand in a tag (`<documents>`, `<passages>`, `<context>`) or under a heading such as
    `Passages:`; the question behind them in a tag, under a heading such as `Question:`, or as the
    rest. Refused where either is missing: rows with fields of their own (`query`, `documents`) need
    no such guess.

    >>> split_docs_and_query("Passages:\\n[1] Three towers.\\n\\nQuestion: How many towers?")
    DocsAndQuery(docs='[1] Three towers.', query='How many towers?')
    """
    as_text("prompt", prompt)
    tagged = next(iter(_between(prompt, _DOCUMENT_TAG)), None)
    if tagged is not None:
        rest = prompt[tagged.end :]
        query = _query(rest) or _query(prompt[: tagged.start]) or rest
        return _both(prompt[tagged.inner], query)
    headed = _HEADED.search(prompt)
    if headed is None:
        raise ArgumentError(
            "prompt: got no documents, expected a tag <documents> or a heading 'Passages:'; give the "
            "rows a field `documents` instead"
        )
    behind = prompt[headed.end() :]
    # The last heading: a document may hold a line of that kind, what comes after it may not.
    asked = [one.start for one in _between(behind, _QUERY_TAG)]
    asked += [found.start() for found in _QUERY_HEAD.finditer(behind)]
    if not asked:
        return _both(behind, _query(prompt[: headed.start()]))
    return _both(behind[: max(asked)], _query(behind[max(asked) :]))


def _between(text: str, tag: re.Pattern[str]) -> list[_Tagged]:
    """What stands in tags that end, in order, in one pass: a tag that never ends is a word."""
    tags = list(tag.finditer(text))
    ends: list[re.Match[str] | None] = []
    later: dict[str, re.Match[str]] = {}
    for one in reversed(tags):
        ends.append(None if one[1] else later.get(one[2].lower()))
        if one[1]:
            later[one[2].lower()] = one
    found: list[_Tagged] = []
    for one, end in zip(tags, reversed(ends), strict=True):
        if end is not None and (not found or one.start() >= found[-1].end):
            found.append(_Tagged(one.start(), slice(one.end(), end.start()), end.end()))
    return found


def _query(text: str) -> str:
    tagged = _between(text, _QUERY_TAG)
    if tagged:
        return text[tagged[-1].inner].strip()
    heads = list(_QUERY_HEAD.finditer(text))
    return text[heads[-1].end() :].strip() if heads else ""


def _both(docs: str, query: str) -> DocsAndQuery:
    found = DocsAndQuery(docs.strip(), query.strip())
    for what, part in (("documents", found.docs), ("question", found.query)):
        if not part:
            raise ArgumentError(
                f"prompt: got no {what}, expected both documents and a question; give the rows "
                "fields `documents` and `query` instead"
            )
    return found
