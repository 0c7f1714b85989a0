"""Graded relevance judgements of people, brought into the answer-first form.

Two public collections: Cranfield (1,400 abstracts, grades 1 best to 4) and LiveQA-Med (answers
to consumer health questions, grades 4 best to 1). Both become four letters, A best. The grade is
the annotators'; the `rule:` and `why:` lines of the demonstration are made from it and from the
words that both sides share, because neither collection holds explanations.

    rows = cranfield_rows(folder, "train")
    write_jsonl(filter(None, map(from_cranfield, rows)), "cranfield.jsonl")

The written file is one for the task kind `file` with `prompt = "prompt"`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec

from burnish.errors import UserError
from burnish.tasks.rows import read_table

GRADES = ("A", "B", "C", "D")
RULES = {"A": "full-answer", "B": "large-part", "C": "related", "D": "little-or-none"}
PROMPT_PIECES = 300
"""Estimated tokens of query and document; the instruction and an error of the estimate come on
top, and together they stay within 400 tokens of SmolLM2."""
QUERY_PIECES = 100
"""Longer questions are cut, so that a document always has room."""
SHARED_WORDS = 3
STEM = 6
"""Letters by which two words are the same: enough for endings to differ."""
SOURCE_DOCUMENT = -1
"""Cranfield's mark of the paper that a query was written from: no judgement, so not a grade."""

INSTRUCTION = (
    "Grade how well the text answers the query: A fully, B in large part, C it is related, "
    "D little or not at all. Write the letter, then a line 'rule:' and a line 'why:'."
)

_PIECES = re.compile(r"[A-Za-z]+|\d|[^\sA-Za-z\d]")
_WORD = re.compile(r"[a-z]{4,}")
_COMMON = frozenset(
    {
        "about", "also", "been", "being", "between", "both", "cause", "could", "does", "each",
        "from", "have", "help", "into", "just", "know", "like", "made", "make", "many", "more",
        "most", "much", "need", "other", "please", "should", "some", "such", "take", "than",
        "that", "their", "them", "then", "there", "these", "they", "this", "those", "very",
        "want", "were", "what", "when", "where", "which", "while", "will", "with", "would",
        "your", "question", "answer", "information", "treatment",
    }
)  # fmt: skip


def from_cranfield(row: Mapping[str, Any]) -> dict[str, Any] | None:
    """A joined row (`query`, `title`, `text`, `grade`) as a task.

    None for a query's source document, which nobody graded, and where the collection lacks the
    abstract.
    """
    # The stored abstracts begin with their own title.
    document = (str(row["text"]) or str(row["title"])).strip()
    if row["grade"] == SOURCE_DOCUMENT or not document:
        return None
    return _task(str(row["query"]), document, _letter(row["grade"], best=1))


def from_liveqa(row: Mapping[str, Any]) -> dict[str, Any]:
    """A row of LiveQA-Med (`paraphrase`, `message`, `subject`, `answer`, `grade`) as a task."""
    asked = next(
        (text for key in ("paraphrase", "message", "subject") if (text := str(row[key] or ""))), ""
    )
    return _task(
        asked,
        "\n".join(line for line in str(row["answer"]).splitlines() if not line.startswith("URL:")),
        _letter(row["grade"], best=4),
    )


def cranfield_rows(folder: str | Path, split: str) -> Iterator[dict[str, Any]]:
    """Judgements joined with their query and abstract: `qrels_*`, `queries_*` and `docs`."""
    home = Path(folder)
    documents = {row.values["doc_id"]: row.values for row in _rows(home / "docs.parquet")}
    queries = {
        row.values["query_id"]: row.values["text"]
        for row in _rows(home / f"queries_{split}.parquet")
    }
    for row in _rows(home / f"qrels_{split}.parquet"):
        judged = row.values
        document = documents[judged["doc_id"]]
        yield {
            "query": queries[judged["query_id"]],
            "title": document["title"],
            "text": document["text"],
            "grade": judged["grade"],
        }


def write_jsonl(tasks: Iterable[Mapping[str, Any]], path: str | Path) -> int:
    """Write tasks as one object a line; returns how many."""
    lines = [msgspec.json.encode(task) for task in tasks]
    if not lines:
        raise UserError(f"{path}: there is no task to write; expected at least one.")
    Path(path).write_bytes(b"\n".join(lines) + b"\n")
    return len(lines)


def _rows(path: Path) -> list[Any]:
    return list(read_table(path).rows)


def _letter(grade: Any, best: int) -> str:
    """Grades 1 to 4 as letters; `best` says which end is A."""
    if grade not in (1, 2, 3, 4):
        raise UserError(f"a relevance grade is {grade!r}; expected 1, 2, 3 or 4.")
    return GRADES[grade - 1 if best == 1 else 4 - grade]


def _task(query: str, document: str, grade: str) -> dict[str, Any]:
    asked = _shortened(query, QUERY_PIECES)
    shown = _shortened(document, PROMPT_PIECES - _pieces(asked))
    if not asked or not shown:
        raise UserError(
            f"a row of graded search has {'no document' if asked else 'no query'}; "
            "expected text in both."
        )
    there = {word[:STEM] for word in _WORD.findall(shown.lower())}
    words = dict.fromkeys(_WORD.findall(asked.lower()))
    shared = [word for word in words if word[:STEM] in there and word not in _COMMON][:SHARED_WORDS]
    why = f"both speak of {', '.join(shared)}" if shared else "they share no word"
    return {
        "prompt": f"{INSTRUCTION}\nQuery: {asked}\nText: {shown}",
        "answer": grade,
        "grade": grade,
        "rule": RULES[grade],
        "demonstration": f"{grade}\nrule: {RULES[grade]}\nwhy: {why}",
    }


def _shortened(text: str, budget: int) -> str:
    """The first words of a text, as many as fit the estimated tokens, on one line."""
    kept, spent = [], 0
    for word in text.split():
        spent += _pieces(word)
        if spent > budget:
            break
        kept.append(word)
    return " ".join(kept)


def _pieces(text: str) -> int:
    """About how many tokens: one for six letters or fewer, a digit or a sign."""
    return sum((len(piece) + 5) // 6 for piece in _PIECES.findall(text))
