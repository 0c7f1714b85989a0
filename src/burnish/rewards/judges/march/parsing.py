"""What the three roles of MARCH write, read back: claims, checks, thoughts, a prompt's parts.

    parse_claims("- Question: How many towers? [Answer: 3]")       # [Claim("How many towers?", "3")]
    parse_checks("1. Evidence: three towers [Answer: 3]")          # {1: "3"}

Each numbered block of a Checker is read by itself, so that an item without an answer never takes the
next item's (the reference's pattern does, arXiv 2603.24579). Texts are data: nothing is evaluated.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from burnish.arguments import as_flag, as_text, as_whole
from burnish.errors import ArgumentError

_CLAIM = re.compile(
    r"(?:[-•]|(?<!\*)\*)[ \t*]*+question[ \t*]*+[:：][ \t*]*+(?P<question>[^\n]*?\S)[ \t]*+"
    r"\[[ \t]*+answer[ \t]*+[:：](?P<answer>[^\n\]]*+)\]",
    re.IGNORECASE,
)
"""Nothing is given back to an earlier repetition, so that a hostile reply is read in linear time."""
_NO_BULLET = re.compile(r"^[ \t]*(?:\d{1,3}[.)][ \t]*)?(?=\*{0,4}+question\b)", re.I | re.MULTILINE)
_ITEM = re.compile(r"^[ \t>*#]*(\d{1,4})[ \t]*[.)](?!\d)", re.MULTILINE | re.ASCII)
_ANSWER = re.compile(r"\[[ \t]*+answer[ \t]*+[:：]([^\]]*+)\]", re.IGNORECASE)
_THOUGHTS = re.compile(r"\A\s*<think>(.*?)</think>(.*)\Z", re.DOTALL | re.IGNORECASE)
_PREFILLED = re.compile(r"\A(.*?)</think>(.*)\Z", re.DOTALL | re.IGNORECASE)
_TAGGED = re.compile(
    r"<(documents?|passages?|context)>(?P<docs>.*?)</\1>(?P<rest>.*)\Z", re.DOTALL | re.IGNORECASE
)
_HEADED = re.compile(
    r"^[ \t#*\[]*(?:documents?|passages?|context|references?)[ \t\]*]*[:：]?[ \t*]*$"
    r"|^[ \t#*\[]*(?:documents?|passages?|context|references?)[ \t\]*]*[:：][ \t*]*(?=\S)",
    re.MULTILINE | re.IGNORECASE,
)
_QUERY_TAG = re.compile(r"<(question|query)>(?P<query>.*?)</\1>", re.DOTALL | re.IGNORECASE)
_QUERY_HEAD = re.compile(
    r"^[ \t#*\[]*(?:user[ \t]+)?(?:question|query)[ \t\]*]*(?:[:：][ \t*]*|$)",
    re.MULTILINE | re.IGNORECASE,
)


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
    found = _CLAIM.finditer(as_text("text", text))
    claims = [Claim(one["question"], one["answer"].strip(" \t")) for one in found]
    return [one for one in claims if one.answer]


def read_claims(text: str) -> list[Claim]:
    """The claims of a Proposer that may leave out the bullets or write numbers in their place.

    >>> read_claims("1. Question: How many towers? [Answer: 3]")
    [Claim(question='How many towers?', answer='3')]
    """
    return parse_claims(text) or parse_claims(_NO_BULLET.sub("- ", text))


def parse_checks(text: str, count: int | None = None) -> dict[int, str]:
    """The answers of a Checker by item number: blocks `1. Evidence: ... [Answer: ...]`.

    A block reaches to the next line that begins with a number and a dot; its last answer counts, and
    a block without one is left out. Of an item that stands twice the last one counts. Where no block
    is numbered 1, what stands before the first number is item 1. With `count`, higher numbers (a year
    at the start of a line) begin no block.

    >>> parse_checks("Evidence: page 2 [Answer: 7]\\n2. not found\\n3. Evidence: x [Answer: 9]")
    {1: '7', 3: '9'}
    """
    as_text("text", text)
    most = None if count is None else as_whole("count", count, low=0)
    heads = [
        head
        for head in _ITEM.finditer(text)
        if int(head[1]) > 0 and (most is None or int(head[1]) <= most)
    ]
    starts = [(int(head[1]), head.start(), head.end()) for head in heads]
    if all(number != 1 for number, _, _ in starts) and most != 0:
        starts.insert(0, (1, 0, 0))
    ends = [start for _, start, _ in starts[1:]] + [len(text)] * bool(starts)
    found: dict[int, str] = {}
    for (number, _, begin), end in zip(starts, ends, strict=True):
        answers = [answer for answer in _ANSWER.findall(text[begin:end]) if answer.strip()]
        if answers:
            found.pop(number, None)
            found[number] = " ".join(answers[-1].split())
    return dict(sorted(found.items()))


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
    tagged = _TAGGED.search(prompt)
    if tagged is not None:
        docs, query = tagged["docs"], _query(tagged["rest"]) or _query(prompt[: tagged.start()])
        rest = tagged["rest"].strip()
        return _both(docs, query or rest)
    headed = _HEADED.search(prompt)
    if headed is None:
        raise ArgumentError(
            "prompt: got no documents, expected a tag <documents> or a heading 'Passages:'; give the "
            "rows a field `documents` instead"
        )
    behind = prompt[headed.end() :]
    # The last heading: a document may hold a line of that kind, what comes after it may not.
    asked = [*_QUERY_TAG.finditer(behind), *_QUERY_HEAD.finditer(behind)]
    if not asked:
        return _both(behind, _query(prompt[: headed.start()]))
    last = max(asked, key=lambda found: found.start())
    return _both(behind[: last.start()], _query(behind[last.start() :]))


def _query(text: str) -> str:
    tagged = list(_QUERY_TAG.finditer(text))
    if tagged:
        return tagged[-1]["query"].strip()
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
