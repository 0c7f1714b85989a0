"""The pattern of ATP-Bench's judge on citations: claims of WiCE and the pages they cite, roles by words.

    python -m lab.atp.citations DATA/wice          # seconds

Every claim that people found supported is a sentence of an answer. Its page is cut into documents of eight
sentences; those that hold a supporting sentence, as people marked them, are the right ones. The answer
cites the right document, one of the wrong ones, or none, so that what is there and what is missing is
known. The roles know nothing of the marks and compare words and numbers: what they find is measured
against people, errors and all. A second table has claims that people found not supported.
"""

from __future__ import annotations

import json
import random
import sys
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Any, NamedTuple

import anyio

from burnish.bench.statistics import mean_estimate
from burnish.records import Message, Response, Task
from burnish.rewards.judges.atp_bench import plan_of
from burnish.rewards.judges.citations import LEAST, citation_scorer
from burnish.seeds import derive
from burnish.tasks.rows import read_table

RESULTS = Path(__file__).resolve().parent / "results"
PIECE = 8
"""Sentences of a document."""
LEVELS = (0.3, LEAST, 0.5, 0.6, 0.7, 0.8)


class Claim(NamedTuple):
    """A claim with its page in pieces, and which of them hold what supports it."""

    id: str
    text: str
    documents: list[str]
    right: list[int]
    """Numbers from 1; none where people found it not supported."""


def load(folder: Path) -> list[Claim]:
    """Claims whose page has at least two pieces."""
    found = []
    for name in ("dev", "test"):
        for row in read_table(folder / f"{name}.parquet").rows:
            claim = _claim(row.values)
            if claim is not None:
                found.append(claim)
    return found


def _claim(row: dict[str, Any]) -> Claim | None:
    if row["label"] == "partially_supported":
        return None
    sentences = _parsed(row["evidence"])
    documents = [
        " ".join(sentences[start : start + PIECE]) for start in range(0, len(sentences), PIECE)
    ]
    marked = _parsed(row["supporting_sentences"]) or [[]]
    groups = marked if isinstance(marked[0], list) else [marked]
    is_so = row["label"] == "supported"
    # A group of sentences that lies in one piece makes that piece right on its own.
    right = {1 + min(g) // PIECE for g in groups if g and min(g) // PIECE == max(g) // PIECE}
    if len(documents) < 2 or (is_so and (not right or len(right) == len(documents))):
        return None
    text = " ".join(row["claim"].split())
    text = text if text.endswith((".", "!", "?")) else f"{text}."
    return Claim(str(row["id"]), text, documents, sorted(right) if is_so else [])


def _parsed(value: Any) -> list[Any]:
    return list(json.loads(value) if isinstance(value, str) else value or [])


def answers(claim: Claim) -> dict[str, str]:
    """The claim with the right citation, a wrong one and none."""
    rng = random.Random(derive("citations", claim.id))
    wrong = [n for n in range(1, len(claim.documents) + 1) if n not in claim.right]
    found = {"wrong document": f"{claim.text} [{rng.choice(wrong)}]", "none": claim.text}
    if claim.right:
        found["right document"] = f"{claim.text} [{claim.right[0]}]"
    return found


async def measure(claims: Sequence[Claim], least: float) -> dict[str, list[float]]:
    """What the roles say: of a right citation, of a wrong one, and of a claim without any."""
    scorer = citation_scorer(least=least)
    found: dict[str, list[float]] = {
        "right document: called right": [],
        "wrong document: called right": [],
        "none, people found a source: called missing": [],
        "none, people found no source: called missing": [],
        "the document named as missing is a right one": [],
    }
    for claim in claims:
        task = Task(claim.id, (Message("user", "?"),), {"documents": claim.documents})
        said = answers(claim)
        replies = [Response(name, text) for name, text in said.items()]
        plans = {
            reply.id: plan_of(one)
            for reply, one in zip(replies, await scorer.score(task, replies), strict=True)
        }
        for name in ("right document", "wrong document"):
            if (plan := plans.get(name)) is not None and plan.items:
                found[f"{name}: called right"].append(float(plan.items[0].correct is True))
        bare = plans["none"]
        assert bare is not None
        gaps = bare.missed or []
        kind = "a source" if claim.right else "no source"
        found[f"none, people found {kind}: called missing"].append(float(bool(gaps)))
        if gaps and claim.right:
            named = int(gaps[0].intent.rsplit(" ", 1)[-1])
            found["the document named as missing is a right one"].append(
                float(named in claim.right)
            )
    return found


def report(claims: Sequence[Claim], levels: dict[float, dict[str, list[float]]], out: Path) -> str:
    """The table."""
    names = list(next(iter(levels.values())))
    lines = [
        "# atp: citations of WiCE, judged by words",
        "",
        f"{sum(bool(one.right) for one in claims)} supported and "
        f"{sum(not one.right for one in claims)} unsupported claims with their pages in documents of "
        f"{PIECE} sentences, on average {fmean(len(one.documents) for one in claims):.1f} of them. Shares of "
        "answers [95 %], by the share of a sentence's words that a document must hold (`least`).",
        "",
        "| | " + " | ".join(f"least {level:g}" for level in levels) + " |",
        "|---|" + "---|" * len(levels),
    ]
    for name in names:
        cells = []
        for found in levels.values():
            if found[name]:
                one = mean_estimate(found[name])
                cells.append(f"{one.value:.3f} [{one.low:.3f}, {one.high:.3f}]")
            else:
                cells.append("-")
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    lines += ["", "Repeat: `python -m lab.atp.citations DATA/wice`."]
    text = "\n".join(lines) + "\n"
    out.mkdir(parents=True, exist_ok=True)
    (out / "citations.md").write_text(text, encoding="utf-8")
    return text


def main() -> None:
    """Measure all levels and write `results/citations.md`."""
    claims = load(Path(sys.argv[1]))
    levels = {level: anyio.run(measure, claims, level) for level in LEVELS}
    print(report(claims, levels, RESULTS))


if __name__ == "__main__":
    main()
