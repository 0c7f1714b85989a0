"""A 16 kHz audio tokenizer trained on generated speech of many voices, on one GPU in ten minutes.

    python -m lab.audio_tokenizer.voices books.parquet runs/voices.parquet
    python -m lab.audio_tokenizer.packed DATA runs/voices.parquet runs/packed
    python -m lab.audio_tokenizer.gpu --packed runs/packed --out OUT --minutes 9     # needs a GPU
    python -m lab.audio_tokenizer.gpu --packed runs/packed --measure OUT             # by listeners
    python -m lab.audio_tokenizer.gpu --packed tiny --out OUT --cpu                  # every part, tiny
    python -m lab.audio_tokenizer.gpu ... --speech                                   # speech from text too

55 % of the time (36 % with `--speech`) train a tokenizer (norm+noise, 25 latents of 64 a second, the last
40 % of its steps with a discriminator) by `burnish train codec`; then four generators at once, two seeds
each of a flow head and a regression head, learn digit strings on its latents. Training needs neither
sound libraries nor listeners: `--measure` reads the waveforms that it wrote and computes LSD, SI-SDR, MCD,
PESQ, STOI, words by Whisper and voices, beside what the listeners say of the originals and of Opus, a
public codec that soundfile brings. LibriSpeech, LJ Speech and ESC were never trained on. `packed` keeps
twelve bits of their samples, and codes what is trained on by its spectra.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from burnish.models.audio_tokenizer import AudioTokenizerModel, open_tokenizer
from burnish.numbers import NUMBER_WORDS
from lab.audio_tokenizer import packed
from lab.audio_tokenizer.packed import HELD_DIGITS, LIBRARY, PACKED, RATE, SOUNDS, pack, unpack
from lab.audio_tokenizer.parts import Item, latents_of, train_generator, train_tokenizer
from lab.audio_tokenizer.speech import TOKENIZER, Speech, fit_speech

TESTS = ("librispeech", "ljspeech", "esc")
NOISE = (0.0, 0.3, 0.6)
OPUS = (1.0, 0.95)
"""Compression levels of the public codec beside it: about 8 and 20 kbit/s."""
SIZES: dict[str, Any] = {
    "sampling_rate": RATE,
    "n_fft": 320,
    "frame_hop": 80,
    "strides": [8],
    "hidden_size": 384,
    "latent_size": 64,
    "residual_dilations": [1, 1, 1],
    "bottleneck": "norm+noise",
}
GENERATOR: dict[str, Any] = {"hidden_size": 384, "num_hidden_layers": 8, "num_attention_heads": 6}
GENERATOR |= {"head_size": 512, "head_layers": 4}
TINY: dict[str, Any] = {"hidden_size": 24, "num_hidden_layers": 1, "num_attention_heads": 2}
TINY |= {"head_size": 16, "head_layers": 1}
WORDS = NUMBER_WORDS[:10]
HEADS = ("flow", "regression")
GUIDANCE = (1.0, 2.0)


class Plan(NamedTuple):
    """Sizes of the whole study."""

    tokenizer_s: float
    generator_s: float
    batch: int = 32
    seeds: int = 2
    held: int = 24
    """Digit strings that are spoken."""
    is_tiny: bool = False
    speech_s: float = 0.0
    """For speech from text, once the tokenizer is there; 0: none."""

    @property
    def sizes(self) -> dict[str, Any]:
        small = {"hidden_size": 24, "residual_dilations": [1]}
        return {**SIZES, **(small if self.is_tiny else {})}


def table_of(plan: Plan, steps: int) -> dict[str, Any]:
    """The config of the tokenizer's training."""
    return {
        "steps": steps,
        "train": {
            "kind": "codec",
            "data": f"{packed.__file__}:train_sounds",
            "held_out": 0.02,
            "batch": plan.batch,
            "seconds": 1.0,
            "sizes": plan.sizes,
            "adversarial": {
                "after": int(0.6 * steps),
                "channels": 8 if plan.is_tiny else 32,
                "windows": [128, 512, 2048],
            },
        },
        "model": {"path": "new"},
        "optimiser": {
            "learning_rate": 6e-4,
            "warmup_steps": min(200, steps // 10),
            "schedule": "cosine",
            "final_ratio": 0.05,
            "beta1": 0.8,
        },
        "evaluation": {"prompts": 16},
        "checkpoint": {"every": 0, "keep": 1},
    }


def fit_tokenizer(plan: Plan, folder: Path) -> tuple[AudioTokenizerModel, dict[str, Any]]:
    """As many steps as the time allows, by the speed of a trial without and with the discriminator."""
    torch.backends.cuda.matmul.allow_tf32 = True
    half = 2 if plan.is_tiny else 24
    trial = table_of(plan, 2 * half)
    trial["train"]["adversarial"]["after"] = half
    trial["evaluation"]["prompts"] = 0
    ends: list[float] = []
    began = time.perf_counter()
    train_tokenizer(folder / "trial", trial, lambda: ends.append(time.perf_counter()))
    steps_s = np.diff([began, *ends])
    # The first steps of either half choose their kernels.
    plain_s, judged_s = (float(np.median(part[half // 2 :])) for part in np.split(steps_s, 2))
    step_s = 0.6 * plain_s + 0.4 * judged_s
    left = max(plan.tokenizer_s - 2 * (ends[0] - began), 5.0)
    steps = 4 if plan.is_tiny else max(50, int(0.9 * left / step_s))
    print(f"tokenizer: {steps} steps, {plain_s * 1000:.0f} ms and {judged_s * 1000:.0f} ms with the discriminator, {ends[0] - began:.0f} s to begin", flush=True)  # fmt: skip
    model, found = train_tokenizer(folder / "tokenizer", table_of(plan, steps))
    device = "cuda" if torch.cuda.is_available() else "cpu"
    return model.to(device), {"steps": steps, "step_s": step_s, "held_out": found.get("score")}


@torch.no_grad()
def reconstructions(
    model: AudioTokenizerModel, sets: dict[str, list[Item]]
) -> dict[str, list[Item]]:
    """Every test sound through the tokenizer, also with noise on its latents; clean ones first."""
    every = {name: latents_of(model, sets[name]) for name in TESTS}
    spread_D = torch.cat([z for rows in every.values() for z in rows]).std(0, correction=0)
    found: dict[str, list[Item]] = {}
    for name, rows in every.items():
        for strength in NOISE:
            made = []
            for place, (item, z) in enumerate(zip(sets[name], rows, strict=True)):
                generator = torch.Generator().manual_seed(place)
                noise = torch.randn(z.shape, generator=generator)
                noised = (z + strength * spread_D * noise).to(model.device)
                wave = model.decode(noised, num_samples=len(item.samples))[0]
                made.append(item._replace(samples=_bounded(wave)))
            found[f"{name} {strength:g}"] = made
    return found


def _bounded(wave: torch.Tensor) -> np.ndarray[Any, Any]:
    return wave.float().clamp(-1, 1).cpu().numpy()


@torch.no_grad()
def speed(model: AudioTokenizerModel, seconds: float = 30.0) -> dict[str, float]:
    """Seconds of computing for a second of sound: encoding and decoding, in one piece."""
    found = {}
    for device in ("cuda", "cpu") if torch.cuda.is_available() else ("cpu",):
        own = model.to(device)
        wave = torch.randn(1, int(seconds * RATE), device=device) * 0.1
        threads = torch.get_num_threads()
        torch.set_num_threads(1)
        for _ in range(2):
            began = time.perf_counter()
            latents = own.encode(wave).latents
            assert latents is not None
            own.decode(latents)
            if device == "cuda":
                torch.cuda.synchronize()
            found[device] = (time.perf_counter() - began) / seconds
        torch.set_num_threads(threads)
    return found


# --- generators


def ids_of(text: str) -> list[int]:
    """Digit words as ids; 0 is padding."""
    return [WORDS.index(word) + 1 for word in text.split()]


def fit_generator(job: tuple[str, str, str, int, Plan]) -> tuple[str, list[Item], int]:
    """Train one generator and let it speak the held-out strings; runs in a process of its own."""
    folder, file, head, seed, plan = job
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.set_num_threads(1)
    tokenizer = open_tokenizer(folder).to(device)
    digits = unpack(Path(file))["digits"]
    held, train = digits[: plan.held], digits[min(HELD_DIGITS, len(digits) // 2) :]
    latents = latents_of(tokenizer, train)
    began, steps = time.perf_counter(), 0

    def is_done() -> bool:
        nonlocal steps
        steps += 20
        return time.perf_counter() - began > plan.generator_s

    model = train_generator(
        latents,
        [ids_of(item.text) for item in train],
        head=head,
        steps=4 if plan.is_tiny else max(200, int(plan.generator_s * 25)),
        is_done=is_done,
        seed=seed,
        device=device,
        vocab_size=11,
        **(TINY if plan.is_tiny else GENERATOR),
    )
    made: list[Item] = []
    for guidance in GUIDANCE if head == "flow" else (1.0,):
        generator = torch.Generator(device).manual_seed(seed)
        for item in held:
            text = torch.tensor([ids_of(item.text)], device=device)
            z = model.generate(text, generator, most_patches=60, guidance=guidance)
            with torch.no_grad():
                wave = tokenizer.decode(z, renormalise=True)[0]
            made.append(item._replace(name=f"{head} {guidance:g} {seed}", samples=_bounded(wave)))
    return head, made, steps


def fit_generators(plan: Plan, folder: Path, file: Path) -> tuple[list[Item], dict[str, int]]:
    """All heads and seeds at once, each in a process of its own."""
    jobs = [(str(folder), str(file), h, seed, plan) for h in HEADS for seed in range(plan.seeds)]
    if not jobs:
        return [], {}
    found: list[Item] = []
    steps: dict[str, int] = {}
    with multiprocessing.get_context("spawn").Pool(2 if plan.is_tiny else len(jobs)) as pool:
        for job, (head, made, count) in zip(jobs, pool.imap(fit_generator, jobs), strict=True):
            found += made
            steps[f"{head} {job[3]}"] = count
    return found, steps


# --- the whole


def study(given: Path, out: Path, plan: Plan) -> None:
    """All of it from a folder of `packed`; `out` gets the tokenizer, waveforms, `run.json` and the speech engine."""
    file = given / SOUNDS
    os.environ[PACKED] = str(file.absolute())
    folder = Path(tempfile.mkdtemp())
    os.environ["BURNISH_CACHE"] = str(folder / "cache")
    sets = unpack(file)
    processes = multiprocessing.get_context("spawn")
    speech, has_tokenizer = None, processes.Event()
    if plan.speech_s:
        job = Speech(given, out, plan.speech_s, plan.is_tiny)
        # Not a daemon: it has workers of its own.
        speech = processes.Process(target=fit_speech, args=(job, has_tokenizer))
        speech.start()
    try:
        model, about = fit_tokenizer(plan, folder)
    except BaseException:
        if speech is not None:
            speech.terminate()
        raise
    model.save_pretrained(out / TOKENIZER)
    has_tokenizer.set()
    made = reconstructions(model, sets)
    c = model.config
    about |= {
        "parameters": sum(p.numel() for p in model.parameters()),
        "floats_a_second": c.frame_rate * c.latent_size,
        "frame_rate": c.frame_rate,
        "real_time_factor": speed(model),
        "device": torch.cuda.get_device_name() if torch.cuda.is_available() else "cpu",
    }
    _keep(out, made, about)
    spoken, steps = fit_generators(plan, out / TOKENIZER, file)
    held = sets["digits"][: plan.held]
    with torch.no_grad():
        heard = [model.decode(z.to(model.device))[0] for z in latents_of(model.cpu(), held)]
    again = [i._replace(name="latents 1 0", samples=_bounded(w)) for i, w in zip(held, heard, strict=True)]  # fmt: skip
    about["generator_steps"] = steps
    _keep(out, {**made, "digits": [*again, *spoken]}, about)
    if speech is not None:
        speech.join()
        if speech.exitcode:
            raise SystemExit(f"speech from text failed: exit code {speech.exitcode}")


def _keep(out: Path, sets: dict[str, list[Item]], about: dict[str, Any]) -> None:
    # Sixteen bits of clean reconstructions; the noisy ones are only compared in spectra.
    pack(out / "sounds.pack", {k: v for k, v in sets.items() if k.endswith(" 0")}, step=1)
    pack(out / "more.pack", {k: v for k, v in sets.items() if not k.endswith(" 0")})
    (out / "run.json").write_text(json.dumps(about, indent=1), encoding="utf-8")


# --- listeners


def measure(out: Path, file: Path) -> str:
    """The tables of a study; every number is the mean of those sounds that have one."""
    from burnish.bench.sound_quality import FIGURES, frechet_of, measure_sound

    sets = unpack(file)
    made = {**unpack(out / "sounds.pack"), **unpack(out / "more.pack")}
    about = json.loads((out / "run.json").read_text(encoding="utf-8"))
    rate = about["real_time_factor"]
    lines = [
        "# Audio tokenizer at 16 kHz",
        "",
        f"{about['parameters'] / 1e6:.1f} M weights, {about['frame_rate']:g} latents a second, "
        f"{about['floats_a_second']:g} floats a second, {about['steps']} steps on {about['device']}. "
        "Real-time factor of encoding and decoding: "
        + ", ".join(f"{value:.4f} ({name})" for name, value in rate.items())
        + ".",
        "",
        "Trained on generated speech alone. Means over sounds (sounds with a value in brackets where "
        "some have none). wer: Whisper tiny.en, against the text where there is one (LJ Speech), else against "
        "what it hears in the original.",
        "",
        f"| sounds | through | {' | '.join(FIGURES)} | frechet |",
        "| --- | --- |" + " --- |" * (len(FIGURES) + 1),
    ]
    for name in TESTS:
        originals = sets[name]
        shown = [(f"{noise:g} sd", made[f"{name} {noise:g}"], not noise) for noise in NOISE]
        for level in OPUS:
            coded = [opus(one, level) for one in originals]
            rate = sum(bits for _, bits in coded) / sum(len(o.samples) / RATE for o in originals)
            shown.append((f"Opus {rate / 1000:.1f} kbit/s", [item for item, _ in coded], True))
        if any(one.text for one in originals):
            shown.append(("original", originals, True))
        for label, items, is_whole in shown:
            figures = FIGURES if is_whole else ("lsd", "si_sdr", "mcd")
            if name == "esc":
                figures = tuple(
                    one for one in figures if one not in ("wer", "voice", "pesq", "stoi")
                )
            if items is originals:
                figures = ("wer",)
            found = [
                measure_sound(i.samples, o.samples, RATE, text=o.text, figures=figures)
                for i, o in zip(items, originals, strict=True)
            ]
            cells = [_mean([one[f].value for one in found if f in one]) for f in FIGURES]
            far = "-"
            if is_whole and items is not originals:
                both = ([i.samples for i in x] for x in (items, originals))
                distance = frechet_of(*both, RATE).value
                far = "-" if distance is None else f"{distance:.2f}"
            lines.append(f"| {name} | {label} | {' | '.join(cells)} | {far} |")
            print(lines[-1], flush=True)
            for reason in sorted(
                {one[f].status for one in found for f in one if one[f].value is None}
            ):
                print(f"without a value: {reason}")
    lines += ["", *_words(sets, made.get("digits", []))]
    return "\n".join(lines) + "\n"


def opus(item: Item, level: float) -> tuple[Item, int]:
    """A sound through Opus, and the bits it took."""
    import io

    import soundfile

    file = io.BytesIO()
    soundfile.write(file, item.samples, RATE, "OPUS", format="OGG", compression_level=level)
    bits = 8 * file.tell()
    file.seek(0)
    samples = np.asarray(soundfile.read(file, dtype="float32")[0][: len(item.samples)])
    return item._replace(samples=np.pad(samples, (0, len(item.samples) - len(samples)))), bits


def _words(sets: dict[str, list[Item]], spoken: Sequence[Item]) -> list[str]:
    """Word error rate of the digit strings, and of the originals."""
    from burnish.speech.listeners import transcribe, word_errors

    lines = [
        "Digit strings that no generator was trained on, by Whisper tiny.en (digits read as words):",
        "",
        "| sound | word error rate | strings | mean s |",
        "| --- | --- | --- | --- |",
    ]
    texts = {item.text for item in spoken}
    groups = {"originals": [i for i in sets["digits"][:HELD_DIGITS] if i.text in texts]}
    for item in spoken:
        groups.setdefault(item.name, []).append(item)
    for name, items in groups.items():
        errors = words = 0
        for item in items:
            wrong, count = word_errors(item.text, as_words(transcribe(item.samples, RATE)))
            errors, words = errors + wrong, words + count
        rate = "-" if not words else f"{errors / words:.3f}"
        mean = statistics.mean(len(i.samples) / RATE for i in items) if items else 0.0
        lines.append(f"| {name} | {rate} | {len(items)} | {mean:.2f} |")
    return lines


def as_words(text: str) -> str:
    """Digits of a transcript as words: `824.` -> `eight two four`."""
    spelled = "".join(f" {WORDS[int(c)]} " if c in "0123456789" else c for c in text)
    words = (word.strip(".,!?") for word in spelled.replace("-", " ").split())
    return " ".join(word for word in words if word)


def _mean(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    count = "" if len(known) == len(values) else f" ({len(known)})"
    return f"{statistics.mean(known):.3f}{count}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--packed", type=Path, default=Path("runs/packed"), help="folder of `packed`"
    )
    parser.add_argument("--out", type=Path, default=Path("runs/codec-gpu"))
    parser.add_argument("--minutes", type=float, default=9.0)
    parser.add_argument("--speech", action="store_true", help="speech from text too")
    parser.add_argument("--seeds", type=int, default=2, help="generators of digits a head; 0: none")
    parser.add_argument("--cpu", action="store_true", help="tiny, to try every part")
    parser.add_argument("--measure", type=Path, help="the --out of a study")
    asked = parser.parse_args()
    if asked.measure:
        table = measure(asked.measure, asked.packed / SOUNDS)
        (asked.measure / "gpu.md").write_text(table, encoding="utf-8")
        print(table)
        return
    if asked.speech and not (asked.packed / LIBRARY).is_dir():
        parser.error(
            f"--speech: {asked.packed} holds no voices of espeak; write it with packed --hibari 60 --joe 15"
        )
    seconds = 60 * asked.minutes
    plan = Plan(0.55 * seconds, 0.3 * seconds, seeds=asked.seeds)
    if asked.speech:  # the tokenizer gets less, so that both end in time
        plan = Plan(0.36 * seconds, 0.3 * seconds, seeds=asked.seeds)
        plan = plan._replace(speech_s=0.58 * seconds)
    if asked.cpu:
        plan = plan._replace(tokenizer_s=5.0, generator_s=5.0, speech_s=5.0 * asked.speech, batch=4)
        plan = plan._replace(seeds=min(1, asked.seeds), held=2, is_tiny=True)
    asked.out.mkdir(parents=True, exist_ok=True)
    study(asked.packed, asked.out, plan)


if __name__ == "__main__":
    main()
