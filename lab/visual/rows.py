"""Pictures as arrays, and questions about them as rows of tokens."""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import lru_cache, partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from burnish.seeds import derive
from burnish.tasks import Asked, Charts, Picture, PictureTasks, Scenes

QUESTIONS = {
    "scenes": ("count", "colour", "shape", "place", "relation"),
    "charts": ("value", "largest", "smallest", "compare", "count"),
}
EASY = {
    "scenes": Scenes(grid=3, most=4, instruction=""),
    "charts": Charts(forms=("bar",), most=4, instruction=""),
}
FULL = {
    "scenes": Scenes(instruction=""),
    "scattered": Scenes(layout="scattered", instruction=""),
    "charts": Charts(instruction=""),
}
SMALL = {
    "scenes": Scenes(size=96, grid=3, most=4, instruction=""),
    "charts": Charts(size=96, forms=("bar",), most=4, instruction=""),
}
WORLDS = {"small": SMALL, "easy": EASY, "full": FULL}


END = "<|im_end|>"


class Drawn(NamedTuple):
    """A picture in bytes of colour (H, W, 3), and what is asked about it."""

    world: str
    pixels: np.ndarray
    asked: list[Asked]


class Row(NamedTuple):
    """Token ids of one conversation; `trained` marks the answers."""

    ids: list[int]
    trained: list[bool]


def pixels_of(picture: Picture) -> np.ndarray:
    """Bytes of colour, (H, W, 3)."""
    from PIL import Image

    return np.asarray(Image.open(io.BytesIO(picture.png())).convert("RGB"))


@lru_cache
def tasks_of(worlds: str, world: str, seed: int) -> PictureTasks:
    config: Any = WORLDS[worlds][world]
    found: PictureTasks = config.build(seed, Path())
    return found


def draw_one(number: int, *, worlds: str, seed: int, questions: int, held_out: bool) -> Drawn:
    """A picture of the world whose turn it is, with questions of kinds by chance.

    On the held-out side each picture has one question of every kind, and a description.
    """
    names = list(WORLDS[worlds])
    world, index = names[number % len(names)], number // len(names)
    tasks = tasks_of(worlds, world, seed)
    kinds = QUESTIONS.get(world, QUESTIONS["scenes"])
    if held_out:
        picture = tasks.picture(index, held_out=True)
        rng = random.Random(derive("visual held-out", number))
        asked = [picture.ask(kind, rng) for kind in (*kinds, "describe")]
    else:
        picture = tasks.picture(index)
        rng = random.Random(derive("visual train", seed, number))
        drawn = [rng.choice((*kinds, "describe")) for _ in range(questions)]
        asked = [picture.ask(kind, rng) for kind in drawn]
        # A description gives the other answers away: it comes last, and once.
        asked = [one for one in asked if one and one.kind != "describe"] + [
            one for one in asked if one and one.kind == "describe"
        ][:1]
    return Drawn(world, pixels_of(picture), [one for one in asked if one is not None])


def draw(
    count: int, worlds: str, seed: int, questions: int, *, held_out: bool, workers: int = 1
) -> list[Drawn]:
    """Pictures of one side; the same for any number of workers."""
    one = partial(draw_one, worlds=worlds, seed=seed, questions=questions, held_out=held_out)
    if workers <= 1:
        return [one(number) for number in range(count)]
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        return list(pool.map(one, range(count), chunksize=64))


@torch.no_grad()
def encode(model: Any, drawn: Sequence[Drawn], batch: int, note: Callable[[int], None]) -> Tensor:
    """What the frozen encoder says of each picture (N, T, F), computed once, in 16 bits."""
    # Imported here: processes that draw need no transformers.
    from burnish.models.visual.processing_visual import MEAN, STD

    device, found = next(model.parameters()).device, []
    # float16 of the CPU has the range that relu6 features need; a GPU keeps them in bfloat16.
    kept = torch.bfloat16 if device.type == "cuda" else torch.float16
    for start in range(0, len(drawn), batch):
        images = np.stack([one.pixels for one in drawn[start : start + batch]])
        pixels = torch.from_numpy(images).to(device).permute(0, 3, 1, 2).float()
        found.append(model.model.encode((pixels - MEAN) / STD).to(kept))
        note(min(start + batch, len(drawn)))
    return torch.cat(found)


class Writer:
    """Conversations as ids: a picture with the first question, then question by question.

    What the chat template puts around a question is found once, with marks in the questions' place.
    """

    def __init__(self, tokenizer: Any, image_id: int, image_tokens: int) -> None:
        self.tokenizer, self.image_id, self.image_tokens = tokenizer, image_id, image_tokens
        first = {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "\x02"}]}
        said = {"role": "assistant", "content": "\x03"}
        then = {"role": "user", "content": "\x04"}
        told = tokenizer.apply_chat_template(
            [first, said, then], tokenize=False, add_generation_prompt=True
        )
        self.opening, _, rest = told.partition("\x02")
        self.answering, _, rest = rest.partition("\x03" + END)
        self.going_on = rest.partition("\x04")[0]
        self._ids: dict[str, list[int]] = {}

    def row(self, asked: Sequence[Asked]) -> Row:
        """A conversation whose answers are trained."""
        ids: list[int] = []
        trained: list[bool] = []
        for number, one in enumerate(asked):
            before = self.going_on if number else self.opening
            for part, is_answer in (
                (before + one.question + self.answering, False),
                (one.answer + END, True),
            ):
                found = self._tokens(part)
                ids += found
                trained += [is_answer] * len(found)
        return Row(ids, trained)

    def prompt(self, asked: Asked) -> list[int]:
        """Ids up to where the answer begins."""
        return self._tokens(self.opening + asked.question + self.answering)

    def _tokens(self, text: str) -> list[int]:
        if text not in self._ids:
            plain = self.tokenizer(text, add_special_tokens=False)["input_ids"]
            times = {self.image_id: self.image_tokens}
            self._ids[text] = [token for token in plain for _ in range(times.get(token, 1))]
        return self._ids[text]


def padded(rows: Sequence[Sequence[int]], fill: int, *, left: bool = False) -> Tensor:
    """Rows of ids as one tensor."""
    width = max(map(len, rows))
    laid = [
        [fill] * (width - len(row)) + list(row) if left else list(row) + [fill] * (width - len(row))
        for row in rows
    ]
    return torch.tensor(laid)
