"""What the studies of the audio tokenizer share: runs of the trainer, encoders on latents, generators."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from burnish.config import Config, load
from burnish.media import read_sound
from burnish.models.audio_tokenizer import (
    AudioGeneratorModel,
    AudioRepresentationModel,
    AudioTokenizerModel,
    FrozenLMBridge,
    draw_flow,
    new_generator,
    new_representation,
    open_tokenizer,
)
from burnish.store.manifest import newest_weights
from burnish.training import build
from burnish.training.events import StepDone

PROMPT = "Write the words you hear: "


class Item(NamedTuple):
    """A sound with what is known of it."""

    name: str
    samples: np.ndarray[Any, Any]
    text: str = ""
    labels: Mapping[str, str] = {}


def read_items(file: Path, rate: int, column: str, text: str = "", most: int = 0) -> list[Item]:
    """The rows of a Parquet file with the bytes of sounds."""
    import pyarrow.parquet as pq  # packed sounds are read without it

    rows = pq.read_table(file).to_pylist()
    found = []
    for place, row in enumerate(rows[: most or len(rows)]):
        samples = read_sound(row.pop(column), rate=rate).samples
        labels = {key: str(value) for key, value in row.items()}
        found.append(Item(labels.get("id", str(place)), samples, labels.get(text, ""), labels))
    return found


def train_tokenizer(
    folder: Path, table: dict[str, Any], each_step: Callable[[], None] = lambda: None
) -> tuple[AudioTokenizerModel, dict[str, Any]]:
    """A run of `burnish train codec` and its last evaluation, if any; goes on where it was."""
    trainer = build(load(Config, table), folder)
    for event in trainer.run():
        if isinstance(event, StepDone):
            each_step()
    evaluations = trainer.store.evaluations("held_out")
    summary = evaluations[-1].summary if evaluations else {}
    trainer.store.close()
    return open_tokenizer(newest_weights(folder)), summary


@torch.no_grad()
def latents_of(model: AudioTokenizerModel, items: Sequence[Item]) -> list[Tensor]:
    """(T, D) of each sound, on the CPU."""
    found = []
    for item in items:
        latents = model.encode(torch.from_numpy(item.samples).to(model.device)).latents
        assert latents is not None
        found.append(latents[0].float().cpu())
    return found


def padded(rows: Sequence[Tensor]) -> tuple[Tensor, Tensor]:
    """Rows (T, D) as one (B, T, D) with its mask (B, T)."""
    batch = torch.nn.utils.rnn.pad_sequence(list(rows), batch_first=True)
    lengths = torch.tensor([len(row) for row in rows])
    return batch, torch.arange(batch.shape[1]) < lengths[:, None]


def pooled(features: Callable[[Tensor], Tensor], latents: Sequence[Tensor]) -> Tensor:
    """Mean over the frames of each row, (N, F)."""
    with torch.no_grad():
        return torch.stack([features(row[None])[0].mean(0).cpu() for row in latents])


class Texts(NamedTuple):
    """Prompt and target of each row as ids of a language model."""

    ids: list[list[int]]
    """With the end of the text."""
    prompt: int
    """Ids of the prompt."""


def train_encoder(
    latents: Sequence[Tensor],
    *,
    lm: Any = None,
    texts: Texts | None = None,
    uses_codes: bool = True,
    steps: int = 300,
    batch: int = 16,
    rate: float = 1e-3,
    seed: int = 0,
    device: str = "cpu",
    **sizes: Any,
) -> AudioRepresentationModel:
    """A representation encoder by RQ-MTP, by a frozen language model, or by both; steps 0: untrained."""
    model = new_representation(seed=seed, latent_size=latents[0].shape[1], **sizes)
    model.standardise(torch.cat(list(latents)))
    model.to(device)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        bridge = None if lm is None else FrozenLMBridge(lm, model.config.hidden_size).to(device)
    trained = [*model.parameters(), *(bridge.parameters() if bridge is not None else ())]
    optimiser = torch.optim.AdamW(trained, lr=rate, weight_decay=0.01)
    draw = random.Random(seed)
    for step in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = rate * min(1.0, (step + 1) / 20) * (1 - 0.9 * step / steps)
        rows = [draw.randrange(len(latents)) for _ in range(batch)]
        z, mask = (x.to(device) for x in padded([latents[row] for row in rows]))
        hidden = model(z)
        loss = hidden.new_zeros(())
        if uses_codes:
            loss = loss + model.prediction_loss(z, mask, hidden).loss
        if bridge is not None and texts is not None:
            chosen = [torch.tensor(texts.ids[row]) for row in rows]
            ids = torch.nn.utils.rnn.pad_sequence(chosen, batch_first=True)
            lengths = torch.tensor([len(one) for one in chosen])
            places = torch.arange(ids.shape[1])
            is_target = (places >= texts.prompt) & (places < lengths[:, None])
            loss = loss + bridge(hidden, mask, ids.to(device), is_target.to(device))
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(trained, 1.0)
        optimiser.step()
    if bridge is not None:
        bridge.check_frozen()
    return model.eval().cpu()


def train_generator(
    latents: Sequence[Tensor],
    texts: Sequence[Sequence[int]],
    *,
    head: str,
    steps: int,
    is_done: Callable[[], bool] = lambda: False,
    batch: int = 32,
    rate: float = 5e-4,
    seed: int = 0,
    device: str = "cpu",
    **sizes: Any,
) -> AudioGeneratorModel:
    """A generator with a flow head or a regression head; the other settings are the same."""
    model = new_generator(seed=seed, head=head, latent_size=latents[0].shape[1], **sizes)
    model.to(device).train()
    optimiser = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.01)
    generator = torch.Generator(device).manual_seed(seed)
    draw = random.Random(seed)
    width = model.config.patch * model.config.latent_size
    for step in range(steps):
        for group in optimiser.param_groups:
            group["lr"] = rate * min(1.0, (step + 1) / 100) * (1 - 0.9 * step / steps)
        rows = [draw.randrange(len(latents)) for _ in range(batch)]
        z, mask = (x.to(device) for x in padded([latents[row] for row in rows]))
        chosen = [torch.tensor(texts[row]) for row in rows]
        ids = torch.nn.utils.rnn.pad_sequence(chosen, batch_first=True).to(device)
        draws = draw_flow(batch, z.shape[1] // model.config.patch, width, generator)
        loss = model.loss(ids, z, mask, draws).loss
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        if step % 20 == 0 and is_done():
            break
    return model.eval()
