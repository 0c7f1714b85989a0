"""Read a judge that writes a rubric first, and pay it for rubrics that let another judge decide.

    extract_rubric(text)                        # the rubric alone, or None
    accuracy_reward((text, 1))                  # 1.0 or -1.0
    compose(acc=1.0, prox=-1.0)                 # 0.5: right, but the rubric misled the proxy

Proxy-GRM (arXiv 2603.16600): a judge answers with three blocks, `<rubric>` (criteria with weights, then
`<justify>` inside it), `<eval>` and `<answer>` with 1 or 2. Besides being right it is paid where a second,
frozen model, the proxy, finds the better response from the rubric alone. `burnish.rewards.proxy_rubric`
is the reward. Where we differ from the published code: a rubric without its closing tag is no rubric
(the code sends the whole reply, verdict included, to the proxy), a rubric that names a winner is found
(`leaks`), digits are read as numbers, so that 10 does not name 1, and a proxy that fails is missing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping, Sequence
from statistics import fmean
from typing import Any, NamedTuple

from burnish.arguments import (
    as_list,
    as_number,
    as_numbers,
    as_text,
    as_whole,
    as_word,
    read_each,
    refused,
)
from burnish.numbers import plain
from burnish.rewards.judges.rubric_leaks import leaks, without_leaks

__all__ = [
    "VARIANTS",
    "WEIGHTS",
    "Cells",
    "accuracy_reward",
    "compose",
    "compose_variants",
    "extract_rubric",
    "format_ok",
    "leaks",
    "mm_rlhf",
    "mmrb_group",
    "multimodal_rewardbench",
    "proxy_choice",
    "proxy_reward",
    "variant_score",
    "vl_rewardbench",
    "weights_ok",
    "without_leaks",
]

WEIGHTS = (1.0, 1.0, 0.5)
"""Of accuracy, proxy and format."""
_FORMAT = 0.5
_BLOCKS = re.compile(
    r"<rubric>(.*?)</rubric>(\s*)<eval>(.*?)</eval>(\s*)<answer>(.*?)</answer>", re.S
)
_TAGS = tuple(f"<{end}{name}>" for name in ("rubric", "eval", "answer") for end in ("", "/"))
_NUMBER = re.compile(r"(?<!\d)(?<!(?<![^\W\d])[.,/–−-])[12](?![.,/–−-]?\d)")
"""1 or 2 alone: no part of a decimal, a fraction or a range, and not below 0; `no.1` and `response-2` do."""
_OPEN = re.compile(r"<\s*rubric\s*>", re.I)
_CLOSE = re.compile(r"<\s*/\s*rubric\s*>", re.I)
_OTHER = re.compile(r"<\s*(/?)\s*(?:justif\w*|eval\w*|answer|think|summary|verdict|rubric)\b", re.I)


class Cells(NamedTuple):
    """The score by what was right: verdict and rubric."""

    both: float
    verdict_only: float
    """The verdict is right, the proxy was misled."""
    rubric_only: float
    neither: float


VARIANTS: Mapping[int, Cells] = {
    0: Cells(2.5, 0.5, 0.5, -1.5),
    1: Cells(2.5, -1.5, -1.5, -1.5),
    2: Cells(1.5, -0.5, -0.5, -0.5),
    3: Cells(3.0, 0.0, 0.5, -1.5),
    4: Cells(3.0, 0.0, 0.0, -1.5),
    5: Cells(3.0, 0.0, 0.0, -2.5),
    6: Cells(2.5, 0.0, 0.5, -1.5),
    7: Cells(2.0, 1.0, -0.5, -0.5),
    8: Cells(2.0, 1.0, -1.0, -0.5),
    9: Cells(2.0, 1.0, -1.0, -1.5),
    10: Cells(1.5, 1.0, -0.5, -0.5),
}
"""Published ways to couple verdict and rubric, at good format; 0 is the sum."""


def format_ok(texts: Any, *, strict: bool = True) -> Any:
    """True where a reply is exactly a rubric, an evaluation and an answer block, each once.

    Line feeds do not count. `strict=False` also allows white space between and around the blocks.
    Takes a text or a list of texts.
    """

    def read(text: str) -> bool:
        text = text.strip() if not strict else text
        text = text.replace("\n", "")
        # Counted first: matching blocks that come a thousand times would cost their cube.
        if text.count("<rubric") != 1 or any(text.count(tag) != 1 for tag in _TAGS):
            return False
        found = _BLOCKS.fullmatch(text)
        return found is not None and not (strict and (found[2] or found[4]))

    return read_each("texts", texts, read)


def accuracy_reward(cases: Any, *, lenient: bool = True) -> Any:
    """1.0 where the answer block names the label and not the other, else -1.0.

    A case is (text, label) or a mapping with these two; a list of cases gives a list. The label is 1
    or 2, also inside an answer tag. Without an answer block the whole text is read, as published;
    `lenient=False` says -1 then, so that leaving the block out is never paid.
    """

    def read(text: str, label: int) -> float:
        block = _answer(text)
        if block is None and not lenient:
            return -1.0
        named = {int(digit) for digit in _NUMBER.findall(text if block is None else block)}
        return 1.0 if named == {label} else -1.0

    return _each_case(cases, read)


def proxy_reward(cases: Any) -> Any:
    """1.0 where a proxy's reply names the label, else -1.0; cases as for `accuracy_reward`.

    Its answer block counts, which may name one response only; without one the last 1 or 2 of the
    text. A proxy that gave no reply has no reward: do not ask for one.
    """
    return _each_case(cases, lambda text, label: 1.0 if proxy_choice(text) == label else -1.0)


def proxy_choice(text: str) -> int | None:
    """1 or 2, as a proxy's reply names it; None where it names both or none."""
    block = _answer(as_text("text", text))
    named = [int(digit) for digit in _NUMBER.findall(text if block is None else block)]
    if block is None:
        return named[-1] if named else None
    return named[0] if len(set(named)) == 1 else None


def _answer(text: str) -> str | None:
    """What the first answer block holds; None without one. One look, however many tags there are."""
    start = text.find("<answer>")
    end = -1 if start < 0 else text.find("</answer>", start)
    return None if end < 0 else text[start + len("<answer>") : end]


def extract_rubric(text: str | None) -> str | None:
    """The rubric block without its justification, tags included; None where there is none.

    It begins at the opening tag and ends at the first closing one, and stops before any other block,
    so that no evaluation, justification or answer is in it. Without a closing tag, with a block that
    only closes inside it, or with nothing in it there is no rubric.
    """
    text = "" if text is None else as_text("text", text)
    start = _OPEN.search(text)
    end = None if start is None else _CLOSE.search(text, start.end())
    if start is None or end is None:
        return None
    body = text[start.end() : end.start()]
    other = _OTHER.search(body)
    if other is not None and other[1]:  # a block that ends here began before: its words are inside
        return None
    body = body[: other.start()] if other else body
    return f"<rubric>{body}</rubric>" if body.strip() else None


def weights_ok(rubric: str) -> bool:
    """True where the percentages of a rubric add up to 100."""
    # From the first digit of a number on: a reply of digits alone would cost its square.
    found = re.findall(r"(?<!\d)(\d+(?:\.\d+)?)\s*%", as_text("rubric", rubric))
    return bool(found) and abs(sum(map(float, found)) - 100) < 0.5


def compose(
    mode: str = "additive",
    format_ok: bool = True,
    weights: Sequence[float] = WEIGHTS,
    *,
    acc: float | None = None,
    prox: float | None = None,
) -> Any:
    """`w_a acc + w_p prox + w_f format`; without `acc` the four cells of (verdict, rubric).

    `acc` and `prox` are 1 or -1. A `prox` of None is missing and adds nothing, and so does every
    one with `mode="no_proxy"`, the outcome alone.
    """
    as_word("mode", mode, ("additive", "no_proxy"))
    given = as_numbers("weights", weights)
    if len(given) != 3:
        raise refused("weights", weights, "three numbers: accuracy, proxy, format")
    if not math.isfinite(sum(map(abs, given))):
        raise refused("weights", weights, "numbers with a finite sum")
    for_acc, for_prox, for_format = given
    for_prox = for_prox if mode == "additive" else 0.0
    base = for_format if _flag(format_ok) else 0.0
    if acc is None and prox is None:
        signs = ((1.0, 1.0), (1.0, -1.0), (-1.0, 1.0), (-1.0, -1.0))
        return Cells(*(for_acc * a + for_prox * p + base for a, p in signs))
    right, found = _sign("acc", acc), 0.0 if prox is None else _sign("prox", prox)
    return for_acc * right + for_prox * found + base


def compose_variants(format_ok: bool = True, variant_ids: Any = tuple(VARIANTS)) -> Any:
    """The four cells of the published variants, 0 to 10, by id; one id gives its cells alone."""
    lost = 0.0 if _flag(format_ok) else _FORMAT
    ids = plain(variant_ids)
    is_one = not isinstance(ids, list | tuple | range)
    listed = [ids] if is_one else as_list("variant_ids", ids)
    known = [as_whole("variant_ids", one, low=0, high=max(VARIANTS)) for one in listed]
    found = {one: Cells(*(cell - lost for cell in VARIANTS[one])) for one in known}
    return found[known[0]] if is_one else found


def variant_score(variant: int, acc: float, prox: float | None, format_ok: bool = True) -> float:
    """One cell of a variant; without a proxy the outcome and the format alone."""
    right = _sign("acc", acc)
    if prox is None:
        return right + (_FORMAT if _flag(format_ok) else 0.0)
    cells: Cells = compose_variants(format_ok, as_whole("variant", variant))
    return cells[2 * (right < 0) + (_sign("prox", prox) < 0)]


# Benchmarks: rows {id, rewards: [first, second], reverse}; the first response is the better one,
# or the second where `reverse` is set. An unparsed verdict is [0, 0]: wrong, never a choice.


def vl_rewardbench(
    rows: Sequence[Mapping[str, Any]], *, any_case: bool = False
) -> dict[str, float | None]:
    """Accuracy of VL-RewardBench by category, over all rows (`micro`) and of categories (`macro`).

    The category follows from the id as published, in small letters. The benchmark's own file has ids
    such as `RLAIF-V-14`, which that rule counts as general: `any_case` reads them too.
    """
    marks: dict[str, list[bool]] = {"reasoning": [], "hallucination": [], "general": []}
    for row in _rows(rows):
        marks[vl_category(str(row.get("id", "")), any_case=any_case)].append(_is_right(row))
    found: dict[str, float | None] = {name: _mean(hits) for name, hits in marks.items()}
    present = [value for value in found.values() if value is not None]
    every = [hit for hits in marks.values() for hit in hits]
    return {**found, "micro": _mean(every), "macro": _mean(present)}


def vl_category(id: str, *, any_case: bool = True) -> str:
    """reasoning, hallucination or general, by what the id of a VL-RewardBench row holds.

    >>> vl_category("RLAIF-V-14"), vl_category("RLAIF-V-14", any_case=False)
    ('hallucination', 'general')
    """
    name = as_text("id", id)
    name = name.lower() if any_case else name
    if "mmmu" in name or "mathverse" in name:
        return "reasoning"
    is_hallucination = any(word in name for word in ("hallucination", "rlhf", "rlaif"))
    return "hallucination" if is_hallucination else "general"


def mm_rlhf(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """MM-RLHF's `acc` over pairs and `acc_plus`, the share of ids whose pairs are all right.

    `categories` has both for mcq, long, short, safety and video, by the media path of an id.
    """
    by_id: dict[str, list[bool]] = {}
    media: dict[str, str] = {}
    for row in _rows(rows):
        if row.get("id") in (None, ""):
            raise refused(
                "rows: id", row.get("id"), "the id of each row; pairs of one id count as one"
            )
        name = str(row["id"])
        by_id.setdefault(name, []).append(_is_right(row))
        media.setdefault(name, str(row.get("image") or row.get("video") or "").lower())

    def of(ids: Sequence[str]) -> dict[str, float | None]:
        hits = [hit for name in ids for hit in by_id[name]]
        return {"acc": _mean(hits), "acc_plus": _mean([all(by_id[name]) for name in ids])}

    kinds = ("mcq", "long", "short", "safety", "video")
    kind_of = {name: next((k for k in kinds if k in path), None) for name, path in media.items()}
    categories = {k: of([name for name in by_id if kind_of[name] == k]) for k in kinds}
    return {**of(list(by_id)), "categories": categories}


def mmrb_group(rows: Any) -> Any:
    """The group of a Multimodal RewardBench row, as its macro average counts it; a list gives a list."""
    if isinstance(rows, Mapping):
        category = str(rows.get("Category", rows.get("category", "unknown"))).lower()
        name = str(rows.get("id", "")).lower()
        if category == "safety":
            return "safety/bias" if name.startswith("pairs") else "safety/toxicity"
        if category == "reasoning":
            return "reasoning/math" if name.startswith("math") else "reasoning/coding"
        return category
    return [mmrb_group(row) for row in _rows(rows)]


def multimodal_rewardbench(rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Accuracy of Multimodal RewardBench over all rows (`micro`), and of its groups (`macro`).

    `groups` are those of `mmrb_group`. The published macro average counts "all" as one more group;
    ours does not.

    >>> rows = [{"id": "math_1", "Category": "reasoning", "rewards": [1, 0]}]
    >>> multimodal_rewardbench(rows)["groups"]
    {'reasoning/math': 1.0}
    """
    marks: dict[str, list[bool]] = {}
    for row in _rows(rows):
        marks.setdefault(mmrb_group(row), []).append(_is_right(row))
    groups = {name: fmean(hits) for name, hits in sorted(marks.items())}
    every = [hit for hits in marks.values() for hit in hits]
    return {"groups": groups, "micro": _mean(every), "macro": _mean(list(groups.values()))}


def _each_case(cases: Any, read: Any) -> Any:
    is_pair = isinstance(cases, list | tuple) and len(cases) == 2 and isinstance(cases[0], str)
    if isinstance(cases, Mapping):
        text = next((cases[key] for key in ("text", "output", "response") if key in cases), None)
        label = cases.get("label", cases.get("answer"))
    elif is_pair:
        text, label = cases
    else:
        return [_each_case(case, read) for case in as_list("cases", cases)]
    return read(as_text("cases: text", text), _label(label))


def _label(label: Any) -> int:
    """1 or 2, as a number, a text or inside an answer tag."""
    if isinstance(label, str):
        block = _answer(label)
        said = (label if block is None else block).strip()
        label = int(said) if said in ("1", "2") else label
    if isinstance(label, bool) or label not in (1, 2):
        raise refused("cases: label", label, "1 or 2")
    return int(label)


def _flag(value: Any) -> bool:
    given = plain(value)
    if given not in (0, 1):
        raise refused("format_ok", value, "True or False")
    return bool(given)


def _sign(what: str, value: Any) -> float:
    number = as_number(what, value, low=-1, high=1)
    if number not in (1.0, -1.0):
        raise refused(what, value, "1 (right) or -1 (wrong)")
    return number


def _rows(rows: Any) -> list[Mapping[str, Any]]:
    found = as_list("rows", rows)
    for row in found:
        if not isinstance(row, Mapping):
            raise refused("rows", row, "a table with id, rewards and reverse")
    return found


def _is_right(row: Mapping[str, Any]) -> bool:
    first, second, *_ = [*as_numbers("rows: rewards", row.get("rewards")), None, None]
    if first is None or second is None:
        raise refused("rows: rewards", row.get("rewards"), "two rewards")
    return second > first if row.get("reverse") else first > second


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None
