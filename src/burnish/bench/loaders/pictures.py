"""Benchmarks of answers to questions on pictures: VL-RewardBench, Multimodal RewardBench, MM-RLHF, MATH-Vision.

The first three follow their public scripts and, for the first, its published file; no data of the other
two was at hand. Pictures are checked and kept by their hash; nothing is fetched.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterator
from pathlib import Path

from burnish.bench.items import Item, responses_of, shuffled
from burnish.bench.loaders.choices import FIRST, SECOND
from burnish.bench.loaders.reading import (
    Source,
    label_of,
    list_of,
    read_each,
    text_of,
    texts_of,
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
    blobs = CheckedBlobs()

    def items(row: Source) -> Iterator[Item]:
        values, texts = row.values, texts_of(row, "response")
        column = "human_ranking" if values.get("human_ranking") is not None else "ranking"
        first, second = list_of(row, column)
        best = {(0, 1): FIRST, (1, 0): SECOND}[first, second]
        name, place = str(values.get("id") or row.number), str(values.get("image_path") or "")
        parts = [part.lower() for part in Path(place).parts]
        group = next((FOLDERS[part] for part in parts if part in FOLDERS), None)
        models = values.get("models")
        is_known = isinstance(models, list | tuple) and len(models) == 2
        shown = "image" if values.get("image") else "image_path"
        id = f"{name}/{row.number}"  # one id may have several pairs of responses
        yield Item(
            id,
            _asked(row, text_of(row, "query"), shown, blobs),
            responses_of(id, texts),
            best,
            group or vl_category(name),
            authors=tuple(map(str, models)) if is_known and models else (),
            info={"name": name, "image": place},
        )

    return read_each(path, "VL-RewardBench", shapes, items)


def load_multimodal_rewardbench(path: Path) -> list[Item]:
    """Pairs by category, as `all_data.json` beside `images/`; the subset is the group of the average."""
    blobs = CheckedBlobs()

    def items(row: Source) -> Iterator[Item]:
        name = str(row.values.get("ID") or row.values.get("id") or row.number)
        category = str(row.values.get("Category") or "unknown")
        id = f"{name}/{row.number}"
        yield Item(
            id,
            _asked(row, text_of(row, "Text"), "Image", blobs),
            responses_of(id, [text_of(row, "Output1"), text_of(row, "Output2")]),
            label_of(row, "Better", {"Output1": FIRST, "Output2": SECOND}),
            mmrb_group({"Category": category, "id": name}),
            info={"name": name, "category": category},
        )

    wanted = ("Text", "Image", "Output1", "Output2", "Better")
    return read_each(path, "Multimodal RewardBench", [wanted], items)


def load_mm_rlhf(path: Path) -> list[Item]:
    """Ranked pairs; those of one id count together (acc+). Rows with a video are left out and named."""
    blobs, videos = CheckedBlobs(), list[str]()
    kinds = ("mcq", "long", "short", "safety", "video")

    def items(row: Source) -> Iterator[Item]:
        image = row.values.get("image")
        if not image:
            videos.append(row.where)
            return
        name = str(row.values.get("id") or row.number)
        id = f"{name}/{row.number}"
        texts, best, _ = shuffled(id, [text_of(row, "chosen")], [text_of(row, "rejected")])
        place = image if isinstance(image, str) else ""
        yield Item(
            id,
            _asked(row, text_of(row, "prompt"), "image", blobs),
            responses_of(id, texts),
            best,
            next((kind for kind in kinds if kind in place.lower()), ""),
            group=name,
            info={"name": name, "image": place},
        )

    found = read_each(path, "MM-RLHF-RewardBench", [("prompt", "chosen", "rejected")], items)
    if videos:
        what = "rows of %s without an image; videos are not shown"
        logger.warning(f"left out: %d {what}", len(videos), path)
    if not found:
        raise UserError(f"{path}: no row with an image; expected a path or bytes in 'image'.")
    return found


def load_mathvision(path: Path) -> list[Item]:
    """Pairs of a right and a wrong response of real systems to a problem with a picture.

    One pair a problem, drawn from its id; the subset is the subject.
    """
    blobs = CheckedBlobs()

    def items(row: Source) -> Iterator[Item]:
        by_truth: dict[bool, dict[str, None]] = {True: {}, False: {}}
        for one in list_of(row, "responses"):
            text, is_right = one.get("response"), one.get("correct", one.get("is_correct"))
            if isinstance(text, str) and text.strip() and isinstance(is_right, bool):
                by_truth[is_right][text.strip()] = None
        right, wrong = list(by_truth[True]), list(by_truth[False])
        if not right or not wrong:
            return
        id = str(row.values.get("id") or row.number)
        _, _, first = shuffled(f"{id} right", right, [])
        _, _, second = shuffled(f"{id} wrong", wrong, [])
        texts, best, _ = shuffled(id, [right[first[0]]], [wrong[second[0]]])
        options = row.values.get("options")
        listed = options if isinstance(options, list) else []
        lines = [f"({chr(65 + n)}) {one}" for n, one in enumerate(listed)]
        column = "image_jpg" if row.values.get("image_jpg") else "image"
        answer = row.values["answer"]
        yield Item(
            id,
            _asked(row, "\n".join([text_of(row, "question"), *lines]), column, blobs),
            responses_of(id, texts),
            best,
            str(row.values.get("subject") or ""),
            hidden={} if answer is None else {"reference": str(answer)},
        )

    wanted = ("question", "answer", "responses")
    found = read_each(path, "MATH-Vision with responses", [wanted], items)
    if not found:
        raise UserError(f"{path}: no 'responses' with a 'correct' one and one that is not.")
    return found


def _asked(row: Source, text: str, column: str, blobs: CheckedBlobs) -> tuple[Message, ...]:
    try:
        found = read_media(row.values.get(column), row.path.parent, blobs)
    except UserError as error:
        raise UserError(f"{row.where}: column '{column}' has {error}") from None
    pictures = [part for part in found if isinstance(part, ImagePart)]
    if not pictures or len(pictures) < len(found):
        raise UserError(f"{row.where}: column '{column}' holds no picture; expected one at least.")
    return (Message("user", (*pictures, TextPart(_MARK.sub("", text).strip()))),)
