"""How answers about held-out pictures are measured, and the controls beside them."""

from __future__ import annotations

import re
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from burnish.tasks import Asked
from lab.visual.rows import Drawn, Writer, encode, padded

WAYS = ("seen", "blank", "shuffled")


@torch.no_grad()
def answers(
    model: Any, tokenizer: Any, asked: Sequence[Asked], encoded: Tensor, batch: int
) -> list[str]:
    """Greedy answers; `encoded` has a picture for each question."""
    device, found = next(model.parameters()).device, [""] * len(asked)
    writer = Writer(tokenizer, model.config.image_token_id, model.config.image_tokens)
    order = sorted(range(len(asked)), key=lambda n: asked[n].kind == "describe")
    for start in range(0, len(order), batch):
        some = order[start : start + batch]
        longest = max(len(tokenizer(asked[n].answer)["input_ids"]) for n in some)
        prompts = [writer.prompt(asked[n]) for n in some]
        ids = padded(prompts, tokenizer.pad_token_id, left=True).to(device)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            said = model.generate(
                input_ids=ids,
                attention_mask=(ids != tokenizer.pad_token_id).long(),
                encoded_images=encoded[some].float(),
                max_new_tokens=longest + 8,
                do_sample=False,
                pad_token_id=tokenizer.pad_token_id,
            )
        for n, text in zip(
            some,
            tokenizer.batch_decode(said[:, ids.shape[1] :], skip_special_tokens=True),
            strict=True,
        ):
            found[n] = text.strip()
    return found


_FACT = re.compile(r"a (\w+ \w+ (?:in row \d+, column \d+|at the \w+ \w+))|([A-Z] is \d+)")


def fact_f1(said: str, truth: str) -> float:
    """F1 of the facts of two descriptions, each fact counted as often as it is told."""
    got, wanted = (Counter(m.group(0) for m in _FACT.finditer(text)) for text in (said, truth))
    shared = (got & wanted).total()
    return 2 * shared / (got.total() + wanted.total()) if shared else 0.0


def majority(drawn: Sequence[Drawn], worlds: Sequence[str], asked: Sequence[Asked]) -> list[str]:
    """The most frequent training answer to each question, or to its kind where it is new."""
    by_text: dict[tuple[str, str], Counter[str]] = defaultdict(Counter)
    for one in drawn:
        for question in one.asked:
            for key in (question.question, f"kind {question.kind}"):
                by_text[one.world, key][question.answer] += 1
    found = []
    for world, one in zip(worlds, asked, strict=True):
        counts = by_text.get((world, one.question)) or by_text[world, f"kind {one.kind}"]
        found.append(min(counts, key=lambda a: (-counts[a], a)) if counts else "")
    return found


def measure(
    model: Any, tokenizer: Any, train: Sequence[Drawn], held: Sequence[Drawn], batch: int
) -> dict[str, float]:
    """Figures by `world/kind/way`."""
    encoded = encode(model, held, 64, lambda n: None)
    white = [Drawn("", np.full_like(held[0].pixels, 255), [])]
    blank = encode(model, white, 1, lambda n: None)
    names = sorted({one.world for one in held})
    other = {
        n: places[(k + 1) % len(places)]
        for name in names
        for places in [[n for n, one in enumerate(held) if one.world == name]]
        for k, n in enumerate(places)
    }
    flat = [(n, one.world, asked) for n, one in enumerate(held) for asked in one.asked]
    asked, worlds = [one for *_, one in flat], [world for _, world, _ in flat]
    pictures = {
        "seen": encoded[[n for n, *_ in flat]],
        "blank": blank.expand(len(flat), -1, -1),
        "shuffled": encoded[[other[n] for n, *_ in flat]],
    }
    said = {way: answers(model, tokenizer, asked, pictures[way], batch) for way in WAYS}
    said["majority"] = majority(train, worlds, asked)
    found: dict[str, list[float]] = defaultdict(list)
    for way, texts in said.items():
        for text, world, one in zip(texts, worlds, asked, strict=True):
            right = (
                fact_f1(text, one.answer) if one.kind == "describe" else float(text == one.answer)
            )
            found[f"{world}/{one.kind}/{way}"].append(right)
            if one.kind != "describe":
                found[f"{world}/all/{way}"].append(right)
                found[f"all/all/{way}"].append(right)
    return {key: sum(values) / len(values) for key, values in found.items()} | {
        "questions": float(len(found["all/all/seen"]))
    }
