"""ATP-Bench: questions whose answers need pictures, and Markdown documents as its free stand-in.

The benchmark's own rows have trace_id, query, image_query, doc, images and gt. Rows that also say where a
picture is needed (`needs`) are scored without a judge; the set that ships has them (40 guides, written by
`recipes/atp/manuals.py`). Of a Markdown document the images are taken out: the answer is to put them back,
and their places are the needs.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

from burnish.bench.items import Item, Judged, message
from burnish.bench.loaders.reading import Source, parsed, posed, read_each, text_of
from burnish.bench.statistics import Estimate, as_record, estimate_of
from burnish.errors import UserError
from burnish.records import Response, Reward
from burnish.rewards.judges.atp_bench import (
    Corpus,
    Plan,
    aggregate,
    atp_scorer,
    plan_of,
    read_needs,
)
from burnish.rewards.judges.atp_bench.three_roles import Agreement, JudgedPlan, cohen
from burnish.rewards.scorer import checked
from burnish.seeds import derive

SHIPPED = Path(__file__).parents[1] / "data" / "atp_manuals.jsonl"
MARKDOWN = (".md", ".markdown")
LONGEST = 20_000
"""Characters of a Markdown document that is still a question."""
ASKED = (
    "Write this document again and put its pictures back. Call a picture where it belongs, on a line of "
    'its own, as <tool name="reference">{"image_id": 0}</tool>.'
)
_IMAGE = re.compile(r"!\[([^\]\n]{0,300}+)\]\(([^)\s\n]{1,1000}+)(?:[ \t][^)\n]{0,300}+)?\)")
_FENCE = re.compile(r"^ {0,3}(?:```|~~~)", re.MULTILINE)
_WORDS = (6, 10, 16)
"""Words of a paragraph that name it; more where fewer are not unique."""


class Stripped(NamedTuple):
    text: str
    captions: list[str]
    places: list[int]
    """Number of the paragraph that each image stands in or behind; -1 before the first."""
    starts: list[str]
    """The first words of each paragraph."""


def load_atp(path: Path) -> list[Item]:
    files = [path] if path.suffix.lower() in MARKDOWN else []
    if path.is_dir():
        files = sorted(f for f in path.rglob("*") if f.suffix.lower() in MARKDOWN and f.is_file())
    if not files:
        shapes = [("trace_id", "query", "doc"), ("trace_id", "query", "images")]
        return read_each(path, "ATP-Bench", shapes, lambda row: [_item(row)])
    found = []
    for file in files:
        text = file.read_text(encoding="utf-8", errors="replace")
        name = file.name if file == path else file.relative_to(path).as_posix()
        item = markdown_item(name, text) if len(text) <= LONGEST else None
        found += [item] if item is not None else []
    if not found:
        raise UserError(f"{path}: no short Markdown document with an image, no row with trace_id.")
    return found


def _item(row: Source) -> Item:
    values = row.values
    id, asked, answer = str(values["trace_id"]), values.get("image_query"), values.get("response")
    images = [*([asked] if asked else []), *_maybe_list(values.get("images"))]
    shown: dict[str, Any] = {"documents": _maybe_list(values.get("doc")), "images": images}
    if values.get("sections"):
        shown["sections"] = [str(one) for one in _maybe_list(values["sections"])]
    hidden: dict[str, Any] = {}
    if values.get("needs") is not None:
        hidden["needs"] = parsed(row, "needs")
        read_needs(hidden["needs"], row.where)
    if values.get("gt"):
        hidden["gt"] = values["gt"]
    return posed(
        id,
        text_of(row, "query"),
        [answer] if isinstance(answer, str) else [],
        None,
        str(values.get("category") or ""),
        shown=shown,
        hidden=hidden,
    )


def _maybe_list(given: Any) -> list[Any]:
    if given is None or given == "":
        return []
    if isinstance(given, str) and given.lstrip().startswith("["):
        with suppress(ValueError, RecursionError):
            given = json.loads(given)
    return list(given) if isinstance(given, list | tuple) else [given]


def markdown_item(id: str, text: str) -> Item | None:
    """One document as a question; None where it has no image behind a paragraph.

    >>> item = markdown_item("a.md", "Open the lid.\\n\\n![the lid](lid.png)\\n\\nDone.")
    >>> item.hidden["needs"][0]["where"], item.shown["images"]
    ('Open the lid.', ['the lid'])
    """
    stripped = strip_images(text)
    usual = [n for n, place in enumerate(stripped.places) if place >= 0]
    if not usual:
        return None
    # In the order of the text the ids alone would give the places away.
    order = sorted(usual, key=lambda n: derive("atp images", id, n))
    captions = [stripped.captions[n] for n in order]
    needs = [
        {
            "where": stripped.starts[stripped.places[n]],
            "intent": stripped.captions[n] or "the picture",
            "tool": "reference",
            "args": {"image_id": order.index(n)},
        }
        for n in usual
    ]
    listed = "\n".join(f"{n}: {caption or '(no caption)'}" for n, caption in enumerate(captions))
    return Item(
        id,
        message(f"{ASKED}\n\nPictures:\n{listed}\n\nDocument:\n{stripped.text}"),
        (),
        subset="markdown",
        shown={"documents": [stripped.text], "images": captions, "sections": stripped.starts},
        hidden={"needs": needs, "gt": text},
    )


def strip_images(text: str) -> Stripped:
    """The text without its images, and where they were; those in code fences stay."""
    fences = [found.start() for found in _FENCE.finditer(text)]
    captions, at, cut, last = [], [], [], 0
    for found in _IMAGE.finditer(text):
        if sum(fence < found.start() for fence in fences) % 2:
            continue
        cut.append(text[last : found.start()])
        at.append(sum(map(len, cut)))
        captions.append(" ".join(found[1].split()))
        last = found.end()
    rest = "".join([*cut, text[last:]])
    pieces = [(m.start(), m[0]) for m in re.finditer(r"(?:[^\n]+\n?)+", rest) if m[0].strip()]
    starts = _names([piece for _, piece in pieces])
    begins = [begin for begin, _ in pieces]
    places = [sum(begin < place for begin in begins) - 1 for place in at]
    return Stripped(rest, captions, places, starts)


def _names(pieces: Sequence[str]) -> list[str]:
    """The first words of each paragraph, as they stand there; more where two begin alike."""
    found: list[str] = []
    for piece in pieces:
        line = piece.strip().splitlines()[0]
        for count in _WORDS:
            name = " ".join(line.split(" ")[:count]).rstrip()
            if name not in found:
                break
        found.append(name)
    return found


# --- the figures


class PlanScore(NamedTuple):
    corpus: Corpus
    f1: Estimate | None
    validity: Estimate | None
    """Over responses with calls."""
    final: Estimate | None
    """0 to 100, with the quality judge; None without one."""
    items: int
    failed: int
    between: Agreement | None
    """The judge's own passes, all items together."""


def plan_score(judged: Sequence[Judged]) -> PlanScore:
    plans = [plan for one in judged for reward in one.rewards[:1] if (plan := plan_of(reward))]
    return PlanScore(
        corpus=aggregate([_response(plan) for plan in plans]),
        f1=estimate_of(plan.metrics.get("f1") for plan in plans),
        validity=estimate_of(plan.metrics.get("validity") for plan in plans),
        final=estimate_of(plan.final for plan in plans),
        items=len(judged),
        failed=len(judged) - len(plans),
        between=_between(plans),
    )


async def with_oracle(judged: Sequence[Judged], items: Sequence[Item]) -> Agreement | None:
    """The judge's marks of calls against those by the needs of the data; None where it has none."""
    by_id = {item.id: item for item in items}
    pairs: list[tuple[bool, bool]] = []
    for one in judged:
        item = by_id.get(one.id)
        plan = plan_of(one.rewards[0]) if one.rewards else None
        if item is None or plan is None or "needs" not in item.hidden or not one.responses:
            continue
        told = await oracle_reward(item, one.responses[0])
        right = plan_of(told)
        for ours, theirs in zip(plan.items, right.items if right else (), strict=False):
            if ours.valid and ours.correct is not None and theirs.correct is not None:
                pairs.append((ours.correct, theirs.correct))
    share, kappa = cohen(pairs)
    return Agreement(share, kappa, len(pairs), None) if pairs else None


async def oracle_reward(item: Item, text: str) -> Reward:
    (reward,) = await checked(atp_scorer(), item.task(oracle=True), [Response(item.id, text)])
    return reward


def plan_record(found: PlanScore) -> dict[str, Any]:
    record: dict[str, Any] = as_record(found)
    corpus, between = record.pop("corpus"), record.pop("between")
    return {**corpus, **record, "passes_agree": renamed(between)}


def renamed(agreement: dict[str, Any] | None) -> dict[str, Any] | None:
    """An agreement by the names of a report."""
    if agreement is None:
        return None
    names = {"share": "share", "kappa": "kappa", "calls": "items", "missed": "gaps"}
    return {name: agreement[field] for name, field in names.items()}


def _response(plan: Plan) -> JudgedPlan:
    flags = [item.correct for item in plan.items] + [False] * plan.more
    return {
        "calls_correct": flags,
        "missed": None if plan.missed is None else len(plan.missed),
        "tools": sorted({item.kind for item in plan.items}),
    }


def _between(plans: Sequence[Plan]) -> Agreement | None:
    """Means over the items, weighted by their calls; kappa is left to single items."""
    known = [plan.agreement for plan in plans if plan.agreement is not None]
    calls = sum(one.items for one in known)
    same = sum(one.share * one.items for one in known if one.share is not None)
    gaps = [one.gaps for one in known if one.gaps is not None]
    if not known:
        return None
    share = same / calls if calls else None
    return Agreement(share, None, calls, sum(gaps) / len(gaps) if gaps else None)
