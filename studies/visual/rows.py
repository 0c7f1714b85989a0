"""Pictures as arrays, and questions about them as rows of tokens."""

from __future__ import annotations

import io
import random
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from burnish.models.visual.processing_visual import MEAN, STD
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
WORLDS = {"easy": EASY, "full": FULL}


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


def draw_one(number: int, *, worlds: str, seed: int, questions: int, held_out: bool) -> Drawn:
    """A picture of the world whose turn it is, with questions of kinds by chance.

    On the held-out side each picture has one question of every kind, and a description.
    """
    names = list(WORLDS[worlds])
    world, index = names[number % len(names)], number // len(names)
    config: Any = WORLDS[worlds][world]
    tasks: PictureTasks = config.build(seed, Path())
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
    device, found = next(model.parameters()).device, []
    # float16 of the CPU has the range that relu6 features need; a GPU keeps them in bfloat16.
    kept = torch.bfloat16 if device.type == "cuda" else torch.float16
    for start in range(0, len(drawn), batch):
        images = np.stack([one.pixels for one in drawn[start : start + batch]])
        pixels = torch.from_numpy(images).to(device).permute(0, 3, 1, 2).float()
        found.append(model.model.encode((pixels - MEAN) / STD).to(kept))
        note(min(start + batch, len(drawn)))
    return torch.cat(found)


def conversation(tokenizer: Any, asked: Sequence[Asked], image_id: int, image_tokens: int) -> Row:
    """The picture with the first question, then question by question; answers are trained."""
    messages: list[dict[str, Any]] = []
    ids: list[int] = []
    trained: list[bool] = []
    said = ""
    for number, one in enumerate(asked):
        text = {"type": "text", "text": one.question}
        content = [{"type": "image"}, text] if number == 0 else [text]
        messages.append({"role": "user", "content": content})
        prompt = tokenizer.apply_chat_template(messages, tokenize=False, add_generation_prompt=True)
        for part, is_answer in ((prompt[len(said) :], False), (one.answer + END, True)):
            for token in tokenizer(part, add_special_tokens=False)["input_ids"]:
                times = image_tokens if token == image_id else 1
                ids += [token] * times
                trained += [is_answer] * times
        messages.append({"role": "assistant", "content": one.answer})
        said = prompt + one.answer + END
    return Row(ids, trained)


END = "<|im_end|>"


def prompt_row(tokenizer: Any, asked: Asked, image_id: int, image_tokens: int) -> list[int]:
    """Ids up to where the answer begins."""
    row = conversation(tokenizer, [asked], image_id, image_tokens)
    return row.ids[: row.trained.index(True)]


def padded(rows: Sequence[Sequence[int]], fill: int, *, left: bool = False) -> Tensor:
    """Rows of ids as one tensor."""
    width = max(map(len, rows))
    laid = [
        [fill] * (width - len(row)) + list(row) if left else list(row) + [fill] * (width - len(row))
        for row in rows
    ]
    return torch.tensor(laid)
