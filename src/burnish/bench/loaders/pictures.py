"""Benchmarks of answers to questions on pictures: VL-RewardBench, Multimodal RewardBench, MM-RLHF, MATH-Vision.

Read from the files that their authors publish: VL-RewardBench as `data.jsonl` with `image_path`, or as
Parquet with the image in it; Multimodal RewardBench as `all_data.json` beside its `images/`; MM-RLHF-Reward-
Bench as JSON lines with `prompt`, `chosen`, `rejected` and `image`; MATH-Vision as Parquet with responses of
real systems. The first three follow their public scripts and, for the first, its published file; no data of
the other two was at hand. Pictures are opened once, checked and kept by their hash. A path starts at
the folder of the file, or above it where the file says so, and nothing is fetched.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from burnish.bench.items import Choice, Item, responses_of, shuffled
from burnish.bench.loaders.reading import (
    Source,
    list_of,
    read_rows,
    text_of,
    texts_of,
    unknown_label,
)
from burnish.errors import UserError
from burnish.records import ImagePart, Message, TextPart
from burnish.rewards.judges.proxy_grm import mmrb_group, vl_category
from burnish.tasks.media_columns import CheckedBlobs, read_media

logger = logging.getLogger(__name__)

FOLDERS = {
    "vlfeedback": "general",
    "wildvision-battle": "general",
    "povid": "hallucination",
    "rlhf-v": "hallucination",
    "rlaif-v": "hallucination",
    "reasoning_tasks": "reasoning",
}
"""VL-RewardBench's groups, by the folder of the picture, as its own script counts them."""
_MARK = re.compile(r"<image\s*\d*>", re.IGNORECASE)


def load_vl_rewardbench(path: Path) -> list[Item]:
    """Pairs of responses to a question on a picture, with people's ranking; the subset is the group."""
    shapes = (
        ("query", "response", "human_ranking", "image"),
        ("query", "response", "human_ranking", "image_path"),
        ("query", "response", "ranking", "image_path"),
    )
    rows = read_rows(path, "VL-RewardBench", shapes)
    blobs = CheckedBlobs()
    return [_vl(row, blobs) for row in rows]


def _vl(row: Source, blobs: CheckedBlobs) -> Item:
    values = row.values
    texts = texts_of(row, "response")
    column = "human_ranking" if values.get("human_ranking") is not None else "ranking"
    ranks = list_of(row, column)
    if len(texts) != 2 or ranks not in ([0, 1], [1, 0]):
        raise unknown_label(row, column, ranks, "[0, 1] or [1, 0], for two responses")
    name = str(values.get("id") or row.number)
    place = str(values.get("image_path") or "")
    # One id may have several pairs of responses.
    id = f"{name}/{row.number}"
    parts = Path(place).parts
    group = next((FOLDERS[part.lower()] for part in parts if part.lower() in FOLDERS), None)
    models = values.get("models")
    authors = (
        tuple(map(str, models)) if isinstance(models, list | tuple) and len(models) == 2 else ()
    )
    return Item(
        id,
        _asked(row, text_of(row, "query"), "image" if values.get("image") else "image_path", blobs),
        responses_of(id, texts),
        (ranks.index(0),),
        group or vl_category(name),
        authors=authors,
        info={"name": name, "image": place},
    )


def load_multimodal_rewardbench(path: Path) -> list[Item]:
    """Pairs by category, as `all_data.json` beside `images/`; the subset is the group of the average."""
    wanted = ("Text", "Image", "Output1", "Output2", "Better")
    blobs = CheckedBlobs()
    found = []
    for row in read_rows(path, "Multimodal RewardBench", [wanted]):
        better = row.values["Better"]
        if better not in ("Output1", "Output2"):
            raise unknown_label(row, "Better", better, "Output1 or Output2")
        name = str(row.values.get("ID") or row.values.get("id") or row.number)
        best: Choice = (0,) if better == "Output1" else (1,)
        category = str(row.values.get("Category") or "unknown")
        id = f"{name}/{row.number}"
        texts = [text_of(row, "Output1"), text_of(row, "Output2")]
        found.append(
            Item(
                id,
                _asked(row, text_of(row, "Text"), "Image", blobs),
                responses_of(id, texts),
                best,
                mmrb_group({"Category": category, "id": name}),
                info={"name": name, "category": category},
            )
        )
    return found


def load_mm_rlhf(path: Path) -> list[Item]:
    """Ranked pairs; those of one id count together (acc+). Rows with a video are left out and named."""
    wanted = ("prompt", "chosen", "rejected")
    blobs = CheckedBlobs()
    found, videos = [], 0
    for row in read_rows(path, "MM-RLHF-RewardBench", [wanted]):
        if not row.values.get("image"):
            videos += 1
            continue
        name = str(row.values.get("id") or row.number)
        id = f"{name}/{row.number}"
        texts, best, _ = shuffled(id, [text_of(row, "chosen")], [text_of(row, "rejected")])
        place = str(row.values["image"] if isinstance(row.values["image"], str) else "")
        kinds = ("mcq", "long", "short", "safety", "video")
        found.append(
            Item(
                id,
                _asked(row, text_of(row, "prompt"), "image", blobs),
                responses_of(id, texts),
                best,
                next((kind for kind in kinds if kind in place.lower()), ""),
                group=name,
                info={"name": name, "image": place},
            )
        )
    if videos:
        logger.warning(
            "left out: %d rows of %s without an image; videos are not shown", videos, path
        )
    if not found:
        raise UserError(f"{path}: no row with an image; expected a path or bytes in 'image'.")
    return found


def load_mathvision(path: Path) -> list[Item]:
    """Pairs of a right and a wrong response of real systems to a problem with a picture.

    One pair a problem, drawn from its id; the subset is the subject.
    """
    wanted = ("question", "answer", "responses")
    blobs = CheckedBlobs()
    found = []
    for row in read_rows(path, "MATH-Vision with responses", [wanted]):
        right, wrong = _by_truth(row)
        if not right or not wrong:
            continue
        id = str(row.values.get("id") or row.number)
        _, _, first = shuffled(f"{id} right", right, [])
        _, _, second = shuffled(f"{id} wrong", wrong, [])
        texts, best, _ = shuffled(id, [right[first[0]]], [wrong[second[0]]])
        options = row.values.get("options")
        listed = [str(one) for one in options] if isinstance(options, list) else []
        lines = [f"({chr(65 + n)}) {one}" for n, one in enumerate(listed)]
        column = "image_jpg" if row.values.get("image_jpg") else "image"
        answer = row.values["answer"]
        found.append(
            Item(
                id,
                _asked(row, "\n".join([text_of(row, "question"), *lines]), column, blobs),
                responses_of(id, texts),
                best,
                str(row.values.get("subject") or ""),
                hidden={} if answer is None else {"reference": str(answer)},
            )
        )
    if not found:
        raise UserError(
            f"{path}: no problem has a right and a wrong response; expected 'responses' with "
            "'response' and 'correct'."
        )
    return found


def _by_truth(row: Source) -> tuple[list[str], list[str]]:
    right: dict[str, None] = {}
    wrong: dict[str, None] = {}
    for one in list_of(row, "responses"):
        text = one.get("response") if isinstance(one, dict) else None
        correct = one.get("correct", one.get("is_correct")) if isinstance(one, dict) else None
        if isinstance(text, str) and text.strip() and isinstance(correct, bool):
            (right if correct else wrong)[text.strip()] = None
    return list(right), list(wrong)


def _asked(row: Source, text: str, column: str, blobs: CheckedBlobs) -> tuple[Message, ...]:
    pictures = _pictures(row, column, blobs)
    return (Message("user", (*pictures, TextPart(_MARK.sub("", text).strip()))),)


def _pictures(row: Source, column: str, blobs: CheckedBlobs) -> Sequence[ImagePart]:
    value: Any = row.values.get(column)
    try:
        found = read_media(value, row.path.parent, blobs)
    except UserError as error:
        raise UserError(f"{row.where}: column '{column}' has {error}") from None
    pictures = [part for part in found if isinstance(part, ImagePart)]
    if not pictures or len(pictures) < len(found):
        raise UserError(f"{row.where}: column '{column}' holds no picture; expected one at least.")
    return pictures
