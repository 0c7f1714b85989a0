"""Two questions about plans, on a CPU in minutes: does dropping dimensions in training help, and does planning first?

    python -m lab.long_speech.plans                 # both, 3 seeds
    python -m lab.long_speech.plans --seeds 0 --steps 200

*Dimension dropout.* A sentence has up to seven captions (tone, intonation, pace, volume, intent, the arc's
and the scene's tone), several of which say the same thing. A small network reads them as bags of words and
predicts what is measured on the sentence as espeak-ng speaks it (pitch, rate, loudness beside the voice's
own). Trained with all captions, or with each one blanked with p ~ U(0, 0.6); tested with 0 to 6 of
them missing.

*Plan first.* An instruction for three sentences in words that the resolver does not know becomes
attributes: directly by regression, or through captions that the same network chooses a sentence at a
time and the resolver turns into numbers. Same inputs, same trunk, same steps; pairs of neighbouring
states that are tested were never trained on. Share of goals that hold.
"""

from __future__ import annotations

import argparse
import math
import random
from pathlib import Path
from typing import Any

import torch
from recipes.long_speech.scenes import DIMENSIONS, STATES, _instruction as instruction
from torch import Tensor, nn

from burnish.models.long_speech import Line, Manner, dimension_dropout, read_scene
from burnish.models.long_speech.scene import Speaker
from burnish.rewards.checks.speech_plan import ENOUGH
from burnish.seeds import derive
from burnish.speech import measure_speech, resolve_manners
from burnish.speech.cast import open_engine
from lab.long_speech.scenes import LINES

RESULTS = Path(__file__).parent / "results"
BUCKETS = 256
CUES = {
    "calm": ("calm", "level", "slow", "soft", "state", "peaceful", "quiet evening"),
    "sad": ("sad", "falling", "very slow", "very soft", "thank", "mournful", "a funeral"),
    "glad": ("cheerful", "lively", "a little fast", "normal", "greet", "joyful", "a feast"),
    "angry": ("furious", "rising", "fast", "loud", "warn", "fierce", "a quarrel"),
    "afraid": ("nervous", "shrill", "very fast", "soft", "ask", "anxious", "a dark cellar"),
    "neutral": ("neutral", "level", "medium", "normal", "state", "plain", "an office"),
}
"""Captions of a mood in the seven dimensions; only the first five reach the engine."""
NAMES = ("tone", "intonation", "pace", "volume", "intent", "arc", "scene")
ATTRIBUTES = ("pitch_st", "rate", "gain_db")
SCALES = torch.tensor([4.0, 0.25, 5.0])


def bag(text: str) -> Tensor:
    """Hashed bag of words."""
    found = torch.zeros(BUCKETS)
    for word in text.lower().replace(",", " ").split():
        found[derive("word", word) % BUCKETS] += 1
    return found


def spoken_rows(rng: random.Random, count: int) -> tuple[Tensor, Tensor]:
    """Captions (rows, 7, buckets) and what espeak-ng made of them (rows, 3), beside its own way."""
    engine = open_engine("espeak")
    own: dict[str, Any] = {}
    captions, targets = [], []
    for _ in range(count):
        mood = rng.choice(list(CUES))
        # One caption in eight belongs to another mood: what people write is not always of one piece.
        words = [CUES[rng.choice(list(CUES)) if rng.random() < 1 / 8 else mood][i] for i in range(7)]  # fmt: skip
        row = dict(zip(NAMES[:5], words[:5], strict=True))
        text = rng.choice(LINES)
        scene = read_scene({"global": {"speakers": [{"id": "A"}]}, "sentences": [{"speaker": "A", "text": text, **row}]})  # fmt: skip
        (manner,) = resolve_manners(scene).manners
        found = []
        for one in (Manner(), manner):
            if one == Manner() and text in own:
                found.append(own[text])
                continue
            said = engine.speak(Line(text, Speaker(id="A"), 0, 0, one))
            samples = torch.as_tensor(said.samples) * 10 ** (one.gain_db / 20)
            found.append(measure_speech(samples, engine.sample_rate, text))
            if one == Manner():
                own[text] = found[-1]
        first, second = found
        captions.append(torch.stack([bag(one) for one in words]))
        targets.append(torch.tensor([
            12 * math.log2(second.pitch_hz / first.pitch_hz), second.rate / first.rate - 1,
            second.loudness_db - first.loudness_db,
        ]))  # fmt: skip
    return torch.stack(captions), torch.stack(targets) / SCALES


def train_dropout(
    captions: Tensor, targets: Tensor, drops: bool, seed: int, steps: int
) -> nn.Module:
    """A network from captions to attributes; with `drops`, dimensions are blanked as the paper does."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Flatten(), nn.Linear(7 * BUCKETS, 64), nn.GELU(), nn.Linear(64, 3))
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3, weight_decay=0.01)
    rng = random.Random(derive("dropout", seed))
    for _ in range(steps):
        rows = torch.tensor(rng.choices(range(len(captions)), k=64))
        given = captions[rows].clone()
        if drops:
            for row in given:
                u = [rng.random() for _ in NAMES]
                for name in dimension_dropout(NAMES, u, rng.uniform(0, 0.6)):
                    row[NAMES.index(name)] = 0
        loss = (model(given) - targets[rows]).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
    return model


def dropout_study(seeds: list[int], steps: int, rows: int) -> list[str]:
    """Mean absolute error by how many of the seven dimensions are missing."""
    errors: dict[tuple[bool, int], list[float]] = {}
    for seed in seeds:
        captions, targets = spoken_rows(random.Random(derive("rows", seed)), rows)
        train, test = slice(0, rows * 3 // 4), slice(rows * 3 // 4, rows)
        for drops in (False, True):
            model = train_dropout(captions[train], targets[train], drops, seed, steps)
            for missing in range(7):
                rng = random.Random(derive("missing", seed, missing))
                total = []
                for _ in range(8):
                    given = captions[test].clone()
                    for row in given:
                        row[rng.sample(range(7), missing)] = 0
                    with torch.no_grad():
                        total.append((model(given) - targets[test]).abs().mean().item())
                errors.setdefault((drops, missing), []).append(sum(total) / len(total))
    lines = [
        f"Mean absolute error of predicted pitch, rate and loudness (in units of 4 st, 25 %, 5 dB), {len(seeds)} seeds, "
        f"{rows} sentences spoken by espeak-ng each; mean (standard deviation over seeds).",
        "",
        "| captions missing of 7 | trained with all | dimension dropout |",
        "|---|---|---|",
    ]  # fmt: skip
    for missing in range(7):
        cells = [spread(errors[drops, missing]) for drops in (False, True)]
        lines.append(f"| {missing} | {cells[0]} | {cells[1]} |")
    return lines


def spread(values: list[float]) -> str:
    mean = sum(values) / len(values)
    if len(values) < 2:
        return f"{mean:.3f}"
    std = math.sqrt(sum((one - mean) ** 2 for one in values) / (len(values) - 1))
    return f"{mean:.3f} ({std:.3f})"


class Reader(nn.Module):
    """Words of an instruction to one vector a sentence: a small bidirectional GRU."""

    def __init__(self, words: int, out: int) -> None:
        super().__init__()
        self.words = nn.Embedding(words, 48)
        self.gru = nn.GRU(48, 64, batch_first=True, bidirectional=True)
        self.ask = nn.Parameter(torch.randn(3, 128) * 0.1)
        self.out = nn.Linear(128, out)

    def forward(self, ids_BT: Tensor) -> Tensor:
        """(rows, words) -> (rows, 3 sentences, out); each sentence attends to the words."""
        hidden_BTD, _ = self.gru(self.words(ids_BT))
        scores_BST = torch.einsum("sd,btd->bst", self.ask, hidden_BTD) / math.sqrt(128)
        read_BSD = torch.einsum("bst,btd->bsd", scores_BST.softmax(-1), hidden_BTD)
        result: Tensor = self.out(read_BSD)
        return result


def caption_rows() -> tuple[list[list[str]], Tensor]:
    """Words that each dimension may have, and the attributes of each state."""
    names = list(STATES)
    known = [sorted({getattr(STATES[name], dimension) for name in names}) for dimension in DIMENSIONS]  # fmt: skip
    return known, torch.stack([attributes(STATES[name]._asdict()) for name in names])


def attributes(captions: dict[str, Any]) -> Tensor:
    """Pitch, rate and gain of captions, beside the voice's own."""
    row = {name: captions[name] for name in DIMENSIONS}
    scene = read_scene({"global": {"speakers": [{"id": "A"}]}, "sentences": [{"speaker": "A", "text": "Yes.", **row}]})  # fmt: skip
    (manner,) = resolve_manners(scene).manners
    return torch.tensor([manner.pitch_st, manner.rate - 1, manner.gain_db])


def instructions(rng: random.Random, count: int, held_out: bool) -> list[tuple[str, list[str]]]:
    """Instructions and their states; every fourth pair of neighbours is only tested."""
    names, rows = list(STATES), []
    while len(rows) < count:
        chosen = [rng.choice(names) for _ in range(3)]
        pairs = [derive("pair", *chosen[i : i + 2]) % 4 == 0 for i in range(2)]
        if held_out == any(pairs):
            rows.append((instruction(rng, chosen), chosen))
    return rows


def share_held(values: Tensor, chosen: list[list[str]]) -> float:
    """Share of goals that hold, of attributes (rows, 3 sentences, 3)."""
    held = total = 0
    for row, names in zip(values.tolist(), chosen, strict=True):
        for sentence, name in zip(row, names, strict=True):
            for attribute, direction in STATES[name].goals.items():
                change = sentence[ATTRIBUTES.index(attribute)]
                enough = ENOUGH[attribute]
                held += abs(change) < enough if not direction else direction * change >= enough
                total += 1
    return held / total


def plan_study(seeds: list[int], steps: int, sizes: tuple[int, ...]) -> list[str]:
    """Directly to numbers, or through captions: share of goals on pairs that were never trained."""
    known, state_values = caption_rows()
    names = list(STATES)
    scores: dict[tuple[int, str], list[float]] = {}
    for seed in seeds:
        test = instructions(random.Random(derive("test", seed)), 400, held_out=True)
        train_all = instructions(random.Random(derive("train", seed)), max(sizes), held_out=False)
        words = sorted({word for text, _ in [*train_all, *test] for word in tokens(text)})
        index = {word: i + 1 for i, word in enumerate(words)}
        for size in sizes:
            train = train_all[:size]
            ids, test_ids = (encode([text for text, _ in rows], index) for rows in (train, test))
            states = torch.tensor([[names.index(one) for one in chosen] for _, chosen in train])
            chosen = [one for _, one in test]
            for arm in ("direct", "plan"):
                torch.manual_seed(seed)
                out = 3 if arm == "direct" else sum(map(len, known))
                model = Reader(len(words) + 1, out)
                optimiser = torch.optim.AdamW(model.parameters(), lr=3e-3)
                rng = random.Random(derive(arm, seed))
                for _ in range(steps):
                    rows = torch.tensor(rng.choices(range(size), k=64))
                    found = model(ids[rows])
                    if arm == "direct":
                        loss = (found - state_values[states[rows]] / SCALES).square().mean()
                    else:
                        loss = caption_loss(found, states[rows], known, names)
                    optimiser.zero_grad()
                    loss.backward()
                    optimiser.step()
                with torch.no_grad():
                    found = model(test_ids)
                values = found * SCALES if arm == "direct" else planned_values(found, known)
                scores.setdefault((size, arm), []).append(share_held(values, chosen))
    lines = [
        f"Share of goals that hold on 400 instructions with held-out pairs of states, {len(seeds)} seeds; mean (standard "
        "deviation over seeds).",
        "",
        "| instructions in training | directly to numbers | captions first |",
        "|---|---|---|",
    ]  # fmt: skip
    for size in sizes:
        lines.append(f"| {size} | {spread(scores[size, 'direct'])} | {spread(scores[size, 'plan'])} |")  # fmt: skip
    return lines


def tokens(text: str) -> list[str]:
    return text.lower().replace(",", " ,").replace(".", " .").split()


def encode(texts: list[str], index: dict[str, int]) -> Tensor:
    rows = [[index[word] for word in tokens(text)] for text in texts]
    width = 40
    return torch.tensor([(row + [0] * width)[:width] for row in rows])


def caption_loss(found: Tensor, states: Tensor, known: list[list[str]], names: list[str]) -> Tensor:
    """Cross-entropy of the caption of each dimension."""
    total = found.new_zeros(())
    for part, (dimension, words) in zip(
        found.split([len(one) for one in known], dim=-1),
        zip(DIMENSIONS, known, strict=True),
        strict=True,
    ):
        target = torch.tensor([words.index(getattr(STATES[name], dimension)) for name in names])
        total = total + nn.functional.cross_entropy(part.flatten(0, 1), target[states].flatten())
    return total


def planned_values(found: Tensor, known: list[list[str]]) -> Tensor:
    """Attributes of the captions that are chosen."""
    parts = [part.argmax(-1) for part in found.split([len(one) for one in known], dim=-1)]
    kept: dict[tuple[int, ...], Tensor] = {}
    rows = []
    for i in range(found.shape[0]):
        row = []
        for sentence in range(3):
            key = tuple(int(part[i, sentence]) for part in parts)
            if key not in kept:
                kept[key] = attributes({name: words[at] for name, words, at in zip(DIMENSIONS, known, key, strict=True)})  # fmt: skip
            row.append(kept[key])
        rows.append(torch.stack(row))
    return torch.stack(rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--steps", type=int, default=100)
    parser.add_argument("--rows", type=int, default=120, help="spoken sentences for dropout")
    parser.add_argument("--only", choices=["dropout", "captions"], help="one of the two")
    parser.add_argument("--out", type=Path, default=RESULTS)
    options = parser.parse_args()
    options.out.mkdir(parents=True, exist_ok=True)
    repeat = f"`python -m lab.long_speech.plans` ({options.steps} steps)"
    if options.only != "captions":
        lines = dropout_study(options.seeds, options.steps, options.rows)
        (options.out / "dropout.md").write_text("\n".join([*lines, "", repeat]) + "\n")
        print("\n".join(lines), flush=True)
    if options.only != "dropout":
        lines = plan_study(options.seeds, options.steps, (100, 400))
        (options.out / "captions_first.md").write_text("\n".join([*lines, "", repeat]) + "\n")
        print("\n".join(lines), flush=True)


if __name__ == "__main__":
    main()
