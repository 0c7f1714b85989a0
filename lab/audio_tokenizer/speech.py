"""Speech from text on the tokenizer's latents: one generator of several voices, for one GPU.

    python -m lab.audio_tokenizer.packed DATA runs/voices.parquet runs/packed --hibari 60 --joe 15
    python -m lab.audio_tokenizer.gpu --packed runs/packed --out OUT --speech      # needs a GPU
    python -m lab.audio_tokenizer.speech --packed runs/packed --measure OUT        # by Whisper
    burnish speak scene.toml -o scene.wav --engine OUT/speech

The neural voices of the pack are few minutes. So that the generator learns to read, four voices of espeak-ng
speak every sentence of the pack before training, 450 times as fast as real time. Characters go in, patches
of latents come out of the flow head; a table of voices is the condition.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import statistics
import time
from collections.abc import Callable, Sequence
from multiprocessing.synchronize import Event
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from burnish.models.audio_tokenizer import (
    AudioGeneratorModel,
    AudioTokenizerModel,
    draw_flow,
    new_generator,
    open_speech_folder,
    open_tokenizer,
    save_speech_folder,
)
from burnish.models.audio_tokenizer.spelling import ALPHABET, spelled
from lab.audio_tokenizer.packed import (
    ESPEAK,
    HELD_DIGITS,
    LIBRARY,
    NEURAL,
    RATE,
    SOUNDS,
    WORDS_A_MINUTE,
    unpack,
)
from lab.audio_tokenizer.parts import Item

SIZES: dict[str, Any] = {"hidden_size": 384, "num_hidden_layers": 8, "num_attention_heads": 6}
SIZES |= {"head_size": 512, "head_layers": 4}
TINY: dict[str, Any] = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
TINY |= {"head_size": 16, "head_layers": 1}
GUIDANCE = (1.0, 1.5, 2.5)
NAMES = {"hibari": "heart", "piper:joe": "joe", **{one: one.split("+")[1] for one in ESPEAK}}
"""Voices as the generator's table calls them."""
TOKENIZER = "tokenizer"
"""Its folder beside that of the voices."""
WORKERS = 8
BATCH = 160
LONGEST_S = 8.0
KEPT_S = 240.0
"""Seconds between two copies of the voices: what ends a machine costs no more."""


# --- espeak's voices


def espeak_says(job: tuple[str, list[tuple[str, str]]]) -> list[Item]:
    """Sentences by voices, in a process of its own; the folder is what `pack_espeak` wrote."""
    from lab.audio_tokenizer import voices

    folder, lines = Path(job[0]), job[1]
    library = voices.Espeak(folder / "libespeak-ng.so", folder)
    made = []
    for voice, text in lines:
        line = voices.Line("sentence", voice, text, words_a_minute=WORDS_A_MINUTE)
        samples = _resampled(library.speak(line), library.rate)
        samples = (0.7 / max(float(np.abs(samples).max()), 1e-6)) * samples
        made.append(Item(voice, samples, text, {"voice": voice}))
    return made


def _resampled(samples: np.ndarray[Any, Any], rate: int) -> np.ndarray[Any, Any]:
    """At 16 kHz, by the spectrum of the whole, with numpy alone."""
    count = round(len(samples) * RATE / rate)
    spectrum = np.fft.rfft(samples)[: count // 2 + 1]
    return np.asarray(np.fft.irfft(spectrum, count) * (count / len(samples)), np.float32)


def espeak_items(folder: Path, texts: Sequence[str], times: int, workers: int) -> list[Item]:
    """Every text by `times` of espeak's voices."""
    draw = random.Random(2)
    lines = [(voice, text) for text in texts for voice in draw.sample(ESPEAK, times)]
    jobs = [(str(folder), lines[first :: 4 * workers]) for first in range(4 * workers)]
    if workers == 1:
        return [item for job in jobs for item in espeak_says(job)]
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        return [item for part in pool.imap(espeak_says, jobs) for item in part]


# --- what is learned from


class Corpus(NamedTuple):
    """Utterances as ids and latents, shortest first; all but the latents on the host."""

    latents: Tensor
    """Frames of all of them, (N, D), half precision."""
    starts: Tensor
    frames: Tensor
    ids: Tensor
    """(U, L), 0 is padding."""
    voices: Tensor

    def rows(self, chosen: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Text, latents, mask and voices of some utterances, on the latents' device."""
        frames, ids = self.frames[chosen], self.ids[chosen]
        places = torch.arange(int(frames.max()))
        mask = places < frames[:, None]
        at = torch.where(mask, self.starts[chosen][:, None] + places, 0)
        text = ids[:, : int((ids != 0).sum(1).max())]
        device = self.latents.device
        found = [x.to(device, non_blocking=True) for x in (text, at, mask, self.voices[chosen])]
        latents = torch.where(found[2][..., None], self.latents[found[1]], 0.0).float()
        return found[0], latents, found[2], found[3]

    @property
    def characters_a_patch(self) -> float:
        return float((self.ids != 0).sum() / (self.frames // 2).sum())


@torch.no_grad()
def corpus_of(
    tokenizer: AudioTokenizerModel, items: Sequence[Item], names: Sequence[str], patch: int = 2
) -> Corpus:
    """Encode in batches of about the same length; whole patches, short utterances first."""
    hop = tokenizer.config.hop_length
    kept = sorted((i for i in items if 4 * hop < len(i.samples) < LONGEST_S * RATE), key=lambda i: len(i.samples))  # fmt: skip
    found, device = [], tokenizer.device
    for begin in range(0, len(kept), 64):
        group = kept[begin : begin + 64]
        longest = max(len(i.samples) for i in group)
        waves = torch.zeros(len(group), longest)
        for row, item in enumerate(group):
            waves[row, : len(item.samples)] = torch.from_numpy(item.samples)
        latents = tokenizer.encode(waves.to(device)).latents
        assert latents is not None
        for row, item in enumerate(group):
            frames = -(-len(item.samples) // hop) // patch * patch
            found.append(latents[row, :frames].half())
    ids = [[ALPHABET.index(c) + 1 for c in spelled(item.text)] for item in kept]
    padded = torch.nn.utils.rnn.pad_sequence([torch.tensor(one) for one in ids], batch_first=True)
    frames = torch.tensor([len(one) for one in found])
    starts = frames.cumsum(0) - frames
    voices = torch.tensor([names.index(NAMES[item.labels["voice"]]) for item in kept])
    return Corpus(torch.cat(found), starts, frames, padded, voices)


def utterances(sets: dict[str, list[Item]]) -> list[Item]:
    """What the pack's two neural voices say: sentences and digit strings."""
    digits = sets["digits"][min(HELD_DIGITS, len(sets["digits"]) // 2) :]
    named = [*sets.get("spoken", []), *digits, *sets["train"]]
    held = {item.text for item in sets["held"]}
    return [i for i in named if i.labels.get("voice") in NEURAL and i.text not in held]


# --- training


def train_speech(
    corpus: Corpus,
    names: Sequence[str],
    *,
    seconds: float,
    most: int = 10**6,
    batch: int = BATCH,
    rate: float = 1e-3,
    seed: int = 0,
    keep: Callable[[AudioGeneratorModel], object] = lambda _: None,
    **sizes: Any,
) -> tuple[AudioGeneratorModel, dict[str, Any]]:
    """A generator as good as the time allows: the rate falls with the time that is left.

    `keep` gets it every few minutes.
    """
    device = corpus.latents.device
    model = new_generator(
        seed=seed,
        vocab_size=len(ALPHABET) + 1,
        alphabet=ALPHABET,
        voices=list(names),
        characters_a_patch=round(corpus.characters_a_patch, 3),
        latent_size=corpus.latents.shape[1],
        **sizes,
    )
    model.to(device).train()
    optimiser = torch.optim.AdamW(
        model.parameters(),
        lr=rate,
        weight_decay=0.02,
        betas=(0.9, 0.98),
        fused=device.type == "cuda",
    )
    generator = torch.Generator(device).manual_seed(seed)
    draw = random.Random(seed)
    width = model.config.patch * model.config.latent_size
    count, window = len(corpus.frames), min(len(corpus.frames), 8 * batch)
    began, log, step, kept = time.perf_counter(), [], 0, 0.0
    while step < most:
        spent = (time.perf_counter() - began) / seconds
        if spent >= 1:
            break
        for group in optimiser.param_groups:
            group["lr"] = rate * min(1.0, (step + 1) / 300) * max(0.02, 1 - spent)
        first = draw.randrange(count - window + 1)
        chosen = torch.tensor(draw.sample(range(first, first + window), min(batch, window)))
        text, z, mask, voices = corpus.rows(chosen)
        draws = draw_flow(len(text), z.shape[1] // model.config.patch, width, generator)
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            loss = model.loss(text, z, mask, draws, voices)
        optimiser.zero_grad()
        loss.loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        if step % 200 == 0:
            parts = [float(x.detach()) for x in (loss.patches, loss.end)]
            log.append([step, round(time.perf_counter() - began, 1), *(round(p, 4) for p in parts)])
            print("speech", *log[-1], flush=True)
        step += 1
        if time.perf_counter() - began > kept + KEPT_S:
            kept = time.perf_counter() - began
            keep(model)
    return model.eval(), {"steps": step, "log": log, "utterances": count}


class Speech(NamedTuple):
    """What a training of voices reads, where it writes and how long it may take."""

    packed: Path
    out: Path
    """Has the tokenizer's folder when the training is told so; gets `speech` and `speech.json`."""
    seconds: float
    """From when the tokenizer is there."""
    is_tiny: bool = False


def fit_speech(job: Speech, has_tokenizer: Event) -> None:
    """Render, wait for the tokenizer, encode, train, write the folder of an engine; in a process of its own."""
    device = "cuda" if torch.cuda.is_available() else "cpu"
    if device == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = True
    torch.set_num_threads(1)
    sets = unpack(job.packed / SOUNDS)
    texts = [item.text for item in sets["say"]][: 8 if job.is_tiny else None]
    items = utterances(sets)
    items += espeak_items(job.packed / LIBRARY, texts, 2, 1 if job.is_tiny else WORKERS)
    print(f"speech: {len(items)} utterances to learn from", flush=True)
    has_tokenizer.wait()
    began = time.perf_counter()
    tokenizer = open_tokenizer(job.out / TOKENIZER).to(device)
    names = list(NAMES.values())
    corpus = corpus_of(tokenizer, items[-40:] if job.is_tiny else items, names)
    ready = time.perf_counter() - began
    print(f"speech: {len(corpus.frames)} utterances, {len(corpus.latents) / 90000:.1f} hours, encoded in {ready:.0f} s", flush=True)  # fmt: skip
    folder = job.out / "speech"
    model, about = train_speech(
        corpus,
        names,
        seconds=max(5.0, job.seconds - ready),
        keep=lambda trained: save_speech_folder(folder, tokenizer, trained),
        **({"most": 3, "batch": 4, **TINY} if job.is_tiny else SIZES),
    )
    about |= {"voices": names, "encoding_s": ready, "hours": len(corpus.latents) / 90000}
    about["parameters"] = sum(p.numel() for p in model.parameters())
    save_speech_folder(folder, tokenizer, model)
    (job.out / "speech.json").write_text(json.dumps(about), encoding="utf-8")


# --- listeners


@torch.no_grad()
def speak_held(folder: Path, file: Path, guidances: Sequence[float] = GUIDANCE) -> list[Item]:
    """Every held-out sentence through the latents alone, and said by the generator, as WAV items."""
    tokenizer, generator = open_speech_folder(folder)
    made = []
    for item in unpack(file)["held"]:
        voice = NAMES[item.labels["voice"]]
        if voice not in generator.config.voices:
            continue
        made.append(item._replace(name=f"{voice} original"))
        latents = tokenizer.encode(torch.from_numpy(item.samples)).latents
        wave = tokenizer.decode(latents)[0]
        made.append(item._replace(name=f"{voice} latents", samples=wave.clamp(-1, 1).numpy()))
        text = torch.tensor([generator.ids(spelled(item.text))])
        for guidance in guidances:
            draw = torch.Generator().manual_seed(0)
            most = 10 + 2 * text.shape[1]
            z = generator.generate(text, draw, voice=voice, most_patches=most, guidance=guidance)
            wave = tokenizer.decode(z, renormalise=True)[0].clamp(-1, 1)
            name = f"{voice} generated {guidance:g}"
            made.append(item._replace(name=name, samples=wave.numpy()))
    return made


def measure(out: Path, file: Path) -> str:
    """Word error rate by Whisper of the held-out sentences, voice by voice."""
    from burnish.speech.listeners import transcribe, word_errors

    about = json.loads((out / "speech.json").read_text(encoding="utf-8"))
    groups: dict[str, list[Item]] = {}
    for item in speak_held(out / "speech", file):
        groups.setdefault(item.name, []).append(item)
    lines = [
        "# Speech from text on the tokenizer's latents",
        "",
        f"{about['parameters'] / 1e6:.1f} M weights, {about['steps']} steps on {about['hours']:.1f} hours of "
        f"{len(about['voices'])} voices. Sentences that nothing was trained on, by Whisper tiny.en; the "
        "control is the same sound against the text of the next sentence.",
        "",
        "| sound | word error rate | control | words | mean s |",
        "| --- | --- | --- | --- | --- |",
    ]
    for name, items in sorted(groups.items()):
        heard = [spelled(transcribe(item.samples, RATE)) for item in items]
        texts = [spelled(item.text) for item in items]
        rates = []
        for wanted in (texts, texts[1:] + texts[:1]):
            found = [word_errors(*pair) for pair in zip(wanted, heard, strict=True)]
            rates.append(sum(wrong for wrong, _ in found) / sum(count for _, count in found))
        words = sum(len(text.split()) for text in texts)
        seconds = statistics.mean(len(i.samples) / RATE for i in items)
        lines.append(f"| {name} | {rates[0]:.3f} | {rates[1]:.3f} | {words} | {seconds:.2f} |")
        print(lines[-1], flush=True)
    return "\n".join(lines) + "\n"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--packed", type=Path, default=Path("runs/packed"), help="folder of `packed`"
    )
    parser.add_argument("--measure", type=Path, required=True, help="what `gpu --speech` wrote")
    asked = parser.parse_args()
    table = measure(asked.measure, asked.packed / SOUNDS)
    (asked.measure / "speech.md").write_text(table, encoding="utf-8")


if __name__ == "__main__":
    main()
