"""Citations of an answer: which are right, which are missing (one use of `ThreeRoles`).

    scorer = citation_scorer()                        # the task has `documents`
    (reward,) = await scorer.score(task, [Response("r", "Tea costs 14. [1] Salt is cheaper.")])

A citation `[1]`, `[2, 3]` is right where its document supports the sentence that it stands in or behind;
one is missing where a document supports a sentence and none that does is cited. Both are decided by words
and numbers, without a model; with `by = "judge"` a model is asked wherever the words say yes. A sentence
that no document supports lacks no citation: it lacks a source, which is a matter for `support` or `march`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Literal, NamedTuple, TypedDict

from burnish.boundary import Share, public
from burnish.errors import UserError
from burnish.records import Evidence, Response, Task
from burnish.rewards.judges.atp_bench.three_roles import (
    Case,
    Gap,
    Item,
    Mark,
    RoleReply,
    ThreeRoles,
)
from burnish.rewards.judges.build import Options, read_options
from burnish.rewards.judges.evpv.matching import numbers_in
from burnish.rewards.judges.judge_model import JudgeModel
from burnish.rewards.judges.prompting import Question, fenced, wording
from burnish.rewards.judges.reading import Maybe, Table, loose_text, read_reply, truth
from burnish.rewards.scorer import gather
from burnish.seeds import digest
from burnish.tools.search.passages import query_words, tokens

MOST_SENTENCES, MOST_MARKS = 200, 200
"""Sentences of an answer, and citations of one of them, that are looked at."""

SHOWN = 6000
"""Characters of a document that a model is shown."""
LEAST = 0.4
"""Share of a sentence's words, by how rare they are, that a document must hold to support it; by a look at
claims of WiCE with people's labels, where a wrong document is taken for a right one in 1 % (docs)."""
_MARKS = re.compile(r"\[\s*(\d{1,6}(?:\s*[,;]\s*\d{1,6})*)\s*\]")
_SENTENCE = re.compile(
    r"[^.!?\n]+(?:[.!?](?!\s|\Z|\[)[^.!?\n]*)*[.!?]*(?:[ \t]*\[[\d,; \t]{1,4000}\])*"
)


class Cited(NamedTuple):
    text: str
    """Without its marks."""
    start: int
    end: int
    numbers: tuple[int, ...]
    places: tuple[int, ...]
    """Where each mark begins in the answer."""


class DocumentTable(TypedDict):
    text: str


class Supported(NamedTuple):
    is_so: bool
    share: float
    why: str
    is_known: bool = True
    """False where a sentence has no words to compare: in a script without spaces, for one."""


class CitationOptions(Options, frozen=True):
    documents: str = "documents"
    """Task field with the documents: a list of texts or of tables with `text`; [1] is the first."""
    by: Literal["words", "judge"] = "words"
    """words: no model. judge: the model is asked about each citation and each gap that the words see."""
    least: Share = LEAST
    """Share of a sentence's words that a document must hold."""
    value: Literal["f1", "precision", "recall", "validity"] = "f1"
    """f1, precision (right citations of all), recall (of sentences that have a source) or validity."""
    otherwise: float | None = None
    """The value where it is not defined, such as the precision of an answer without citations."""
    name: str = "citations"


def citation_scorer(
    options: CitationOptions | None = None, judge: JudgeModel | None = None, **more: Any
) -> ThreeRoles:
    """A scorer of the citations of a response; `more` are options by name."""
    chosen = options or read_options("citations", more, CitationOptions)
    if chosen.by == "judge" and judge is None:
        raise UserError(
            f"judge '{chosen.name}': by = 'judge' asks a model; give one, or by = 'words'."
        )
    asked = judge if chosen.by == "judge" else None
    return ThreeRoles(
        chosen.name,
        parse=partial(_parse, options=chosen),
        present=partial(_present, options=chosen, judge=asked),
        missing=partial(_missing, options=chosen, judge=asked),
        value=chosen.value,
        otherwise=chosen.otherwise,
        needs=frozenset({chosen.documents}),
        inputs=frozenset({chosen.documents}),
        shows_media=False,  # the model sees a sentence and a document
        settings=digest(
            repr(chosen), "" if asked is None else asked.fingerprint, wording("citation")
        ),
        check_task=partial(_documents, options=chosen),
    )


def build(judge: JudgeModel | None, options: Mapping[str, Any]) -> ThreeRoles:
    chosen = {"by": "words" if judge is None else "judge", **options}
    return citation_scorer(read_options("citations", chosen, CitationOptions), judge)


@public
def cited_sentences(text: str) -> list[Cited]:
    """The sentences of an answer with what each cites; marks may stand in it or right behind it.

    >>> [(one.text, one.numbers) for one in cited_sentences("Tea is 3.20 [1]. Salt is 9. [2, 3] Rye.")]
    [('Tea is 3.20.', (1,)), ('Salt is 9.', (2, 3)), ('Rye.', ())]
    """
    found = []
    for sentence in _SENTENCE.finditer(text):
        marks = list(_MARKS.finditer(sentence[0]))
        bare = re.sub(r"\s+([.!?,;:])", r"\1", " ".join(_MARKS.sub(" ", sentence[0]).split()))
        numbers, places = [], []
        for mark in marks:
            for number in re.findall(r"\d+", mark[1]):
                numbers.append(int(number))
                places.append(sentence.start() + mark.start())
        if bare.strip(" .!?"):
            found.append(Cited(bare, *sentence.span(), tuple(numbers), tuple(places)))
        elif numbers and found:  # marks on a line of their own belong to the sentence before
            last = found[-1]
            found[-1] = last._replace(
                numbers=(*last.numbers, *numbers), places=(*last.places, *places)
            )
    return found


@public
def supports(
    sentence: str, document: str, others: Sequence[str] = (), least: Share = LEAST
) -> Supported:
    """Whether a document holds a sentence's words and all of its numbers.

    A word counts the more the fewer of the documents hold it. It knows no meaning: a sentence and its
    denial come out alike, which is what the model of `by = "judge"` is for.

    >>> supports("Tea costs 14 pounds.", "The price of tea: it costs 14 pounds.").is_so
    True
    >>> supports("Tea costs 15 pounds.", "The price of tea: it costs 14 pounds.").why
    'the document has no 15'
    """
    read = [_Document(one) for one in dict.fromkeys([document, *others])]
    return _of_sentence(sentence, read, least)[0]


class _Document:
    """The words and the numbers of a document, found once."""

    def __init__(self, text: str) -> None:
        self.text, self.words, self.numbers = (
            text,
            set(tokens.plain(text)),
            numbers_in(text, len(text)),
        )


def _of_sentence(sentence: str, documents: Sequence[_Document], least: float) -> list[Supported]:
    words = [word for word in query_words(sentence) if len(word) > 1 or not word.isalpha()]
    if not words:
        return [Supported(False, 0.0, "no words to compare", False)] * len(documents)
    seen = {word: sum(word in one.words for one in documents) for word in words}
    weights = {word: math.log((len(documents) + 1) / max(seen[word], 0.5)) for word in words}
    total, wanted, found = math.fsum(weights.values()), numbers_in(sentence), []
    for one in documents:
        share = math.fsum(weights[word] for word in words if word in one.words) / total
        absent = sorted(wanted - one.numbers)
        told = f"{share:.0%} of its words"
        if absent:
            found.append(Supported(False, share, f"the document has no {absent[0]:g}"))
        elif share < least:
            found.append(Supported(False, share, f"only {told}"))
        else:
            found.append(Supported(True, share, told))
    return found


class _Read(NamedTuple):
    sentences: list[Cited]
    documents: list[str]
    found: list[list[Supported]]
    """Of each sentence, of each document."""


def _documents(task: Task, options: CitationOptions) -> list[str]:
    try:
        return documents_of(task.fields[options.documents])
    except (UserError, KeyError) as error:
        raise UserError(f"task {task.id}, field '{options.documents}': {error}") from None


def _read(task: Task, response: Response, options: CitationOptions) -> _Read:
    documents = _documents(task, options)
    sentences = cited_sentences.plain(response.text)[:MOST_SENTENCES]
    known = [_Document(one) for one in documents]
    found = [_of_sentence(one.text, known, options.least) for one in sentences]
    return _Read(sentences, documents, found)


@public
def documents_of(given: Sequence[str | DocumentTable]) -> list[str]:
    return [one if isinstance(one, str) else one["text"] for one in given]


def _parse(task: Task, response: Response, options: CitationOptions) -> Sequence[Item]:
    documents = _documents(task, options)
    items = []
    for place, one in enumerate(cited_sentences.plain(response.text)):
        before: set[int] = set()
        for order, (number, start) in enumerate(zip(one.numbers, one.places, strict=True)):
            reason = ""
            if place >= MOST_SENTENCES or order >= MOST_MARKS:
                reason = "too_many"
            elif not 1 <= number <= len(documents):
                reason = "no_such_document"
            elif number in before:
                reason = "duplicate"
            before.add(number)
            value = {"document": number, "sentence": place}
            items.append(Item("citation", value, start, one.end, not reason, reason))
    return items


async def _present(
    case: Case, number: int, options: CitationOptions, judge: JudgeModel | None
) -> RoleReply[Mapping[int, Mark]]:
    read = _read(case.task, case.response, options)
    by_place = {
        place: (case.items[place].value["sentence"], case.items[place].value["document"] - 1)
        for place in case.valid
    }
    said = {place: read.found[one][document] for place, (one, document) in by_place.items()}
    marks = {place: Mark(one.is_so, one.why) for place, one in said.items() if one.is_known}
    if judge is None:
        return RoleReply(marks)
    asked = [place for place, one in said.items() if one.is_so or not one.is_known]
    calls = [partial(_ask, judge, read, *by_place[place], case, number) for place in asked]
    replies = await gather(calls)
    evidence = tuple(line for one in replies for line in one.evidence)
    for place, reply in zip(asked, replies, strict=True):
        if reply.value is None:
            marks.pop(place, None)  # nobody judged it
        else:
            marks[place] = reply.value
    return RoleReply(marks, evidence=evidence)


async def _missing(
    case: Case, number: int, options: CitationOptions, judge: JudgeModel | None
) -> RoleReply[Sequence[Gap]]:
    read = _read(case.task, case.response, options)
    gaps: list[Gap] = []
    evidence: list[Evidence] = []
    for place, (sentence, found) in enumerate(zip(read.sentences, read.found, strict=True)):
        right = [n for n, one in enumerate(found) if one.is_so]
        if not right or any(n + 1 in sentence.numbers for n in right):
            continue
        best = max(right, key=[one.share for one in found].__getitem__)
        if judge is not None:
            reply = await _ask(judge, read, place, best, case, number)
            evidence += reply.evidence
            if reply.value is None:
                return RoleReply(None, reply.status, reply.reason, tuple(evidence))
            if not reply.value.correct:
                continue
        words = " ".join(sentence.text.split()[:12])
        gaps.append(Gap(words, f"cite document {best + 1}", "citation", found[best].why))
    return RoleReply(gaps, evidence=tuple(evidence))


_SAID = Table(
    lambda supported, reason: Mark(supported, reason),
    open=True,
    supported=truth,
    reason=Maybe(loose_text),
)


async def _ask(
    judge: JudgeModel, read: _Read, sentence: int, document: int, case: Case, number: int
) -> RoleReply[Mark]:
    """Whether a document supports a sentence, by a model that sees these two and nothing else."""
    claim, source = read.sentences[sentence].text, read.documents[document][:SHOWN]
    material = {"sentence": [("sentence", claim)], "document": [("document", source)]}
    about = (case.task.id, case.response.id, f"sentence {sentence + 1}, document {document + 1}")
    question = Question("citation", fenced(wording("citation"), material), about, number)
    reply = await judge.ask(question, partial(read_reply, table=_SAID, shown=(claim, source)))
    return RoleReply(reply.verdict, reply.status, reply.reason, reply.evidence)
