"""SFT and DPO beside TRL: the same model, data, order and optimiser, step by step.

    python lab/benchmarks/beside_trl.py              # needs pip install -e '.[torch,bench]'
    python lab/benchmarks/beside_trl.py --json out.json --steps 40

Prints the largest difference between the losses of a step and the CPU seconds of a step (which do
not move with the load of the machine), storing and logging included. Each program runs in a process of its own, on the random Llama of 115 k parameters in float32 and one CPU
thread: the loss is the same computation, and what differs in time is the program around it. TRL
tokenises the texts itself; a row whose ids differ from ours ends the comparison.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

STEPS, BATCH, WARM = 24, 8, 4
RATE = 1e-3
KINDS: dict[str, dict[str, Any]] = {
    "sft": {"kind": "sft"},
    "dpo": {"kind": "dpo"},
    "dpo, length-normalised": {"kind": "dpo", "length_normalised": True},
    "dpo, LD-DPO": {"kind": "dpo", "ld_alpha": 0.4},
    "ipo": {"kind": "dpo", "loss": "ipo", "beta": 0.5},
}
THEIRS: dict[str, dict[str, Any]] = {
    "dpo, length-normalised": {"loss_type": "sigmoid_norm"},
    "dpo, LD-DPO": {"ld_alpha": 0.4},
    "ipo": {"loss_type": "ipo", "beta": 0.5},
}
"""TRL's names of the same losses."""


def rows(count: int = 96) -> list[dict[str, str]]:
    """Questions with two answers of different lengths."""
    words = ("red", "green", "blue", "amber")
    return [
        {
            "prompt": f"What colour has ball {i}?",
            "chosen": " ".join(words[(i + k) % 4] for k in range(1 + i % 5)),
            "rejected": " ".join(words[(i + k + 1) % 4] for k in range(1 + i % 3)),
        }
        for i in range(count)
    ]


def ours(kind: str, steps: int, folder: Path) -> dict[str, Any]:
    """Losses, seconds of each step, and the token ids of each row that was trained on."""
    from burnish.config import Config, load
    from burnish.training import build
    from burnish.training.events import StepDone

    data = folder / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in rows()))
    fields = {name: name for name in ("chosen", "rejected")}
    recipe = {
        "steps": steps,
        "model": {"path": "tiny", "dtype": "float32", "device": "cpu", "threads": 1},
        "task": {"kind": "file", "path": str(data), "prompt": "prompt", "fields": fields},
        "experts": {"field": "chosen"},
        "train": {**KINDS[kind], "batch": BATCH},
        "optimiser": {"learning_rate": RATE},
        "evaluation": {"prompts": 0},
        "checkpoint": {"every": 0},
    }
    trainer = build(load(Config, recipe), folder / "run")
    batches = [trainer.algorithm.batch(step) for step in range(steps)]
    rows_of = (batch if kind == "sft" else batch.rendered.trajectories for batch in batches)
    answers = [one for rows in rows_of for one in rows]
    tokenizer = trainer.trainable.loaded.tokenizer
    trained = [
        {
            "prompt": tokenizer.decode(one.token_ids[: one.prompt_length], skip_special=False),
            "answer": one.text,
            "ids": one.token_ids,
        }
        for one in answers
    ]
    losses: list[float] = []
    marks = [time.process_time()]
    for event in trainer.run():
        if isinstance(event, StepDone):
            losses.append(event.metrics["loss/total"])
            marks.append(time.process_time())
    seconds = [b - a for a, b in itertools.pairwise(marks)]
    return {"losses": losses, "seconds": seconds, "trained": trained}


def theirs(kind: str, trained: list[dict[str, Any]], folder: Path) -> dict[str, Any]:
    """The same of TRL's trainer, on the same rows in the same order."""
    import torch
    from datasets import Dataset
    from torch.utils.data import SequentialSampler
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer

    from burnish.lm.folder import find_folder

    torch.set_num_threads(1)
    is_sft = kind == "sft"
    base, config = (SFTTrainer, SFTConfig) if is_sft else (DPOTrainer, DPOConfig)
    losses: list[float] = []
    marks: list[float] = []

    class InOrder(base):  # type: ignore[misc, valid-type]
        def _get_train_sampler(self, *_: Any) -> SequentialSampler:
            return SequentialSampler(self.train_dataset)

        def training_step(self, *given: Any, **named: Any) -> Any:
            marks.append(time.process_time())
            loss = super().training_step(*given, **named)
            losses.append(float(loss))
            return loss

    model = find_folder("tiny")
    per_step = BATCH if is_sft else 2 * BATCH
    args = config(
        output_dir=str(folder),
        max_steps=len(trained) // per_step,
        per_device_train_batch_size=BATCH,
        learning_rate=RATE,
        lr_scheduler_type="constant",
        adam_beta2=0.99,
        report_to=[],
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        logging_steps=10**6,
        save_strategy="no",
        disable_tqdm=True,
        max_length=None,
        **THEIRS.get(kind, {}),
    )
    trainer = InOrder(
        model=AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32),
        args=args,
        train_dataset=Dataset.from_list(texts(trained, is_sft)),
        processing_class=AutoTokenizer.from_pretrained(model),
    )
    check_ids(trainer.train_dataset, trained, is_sft)
    trainer.train()
    marks.append(time.process_time())
    return {"losses": losses, "seconds": [b - a for a, b in itertools.pairwise(marks)]}


def texts(trained: list[dict[str, Any]], is_sft: bool) -> list[dict[str, str]]:
    """The rows as TRL takes them, without a chat template: the prompts are rendered already."""
    if is_sft:
        return [{"prompt": row["prompt"], "completion": row["answer"]} for row in trained]
    return [
        {"prompt": chosen["prompt"], "chosen": chosen["answer"], "rejected": rejected["answer"]}
        for chosen, rejected in zip(trained[::2], trained[1::2], strict=True)
    ]


def check_ids(dataset: Any, trained: list[dict[str, Any]], is_sft: bool) -> None:
    """End where TRL would train on other tokens."""
    for place, row in enumerate(dataset):
        if is_sft:
            pairs = [(row["input_ids"], trained[place])]
        else:
            both = trained[2 * place : 2 * place + 2]
            names = ("chosen_ids", "rejected_ids")
            pairs = [(row["prompt_ids"] + row[n], t) for n, t in zip(names, both, strict=True)]
        for ids, wanted in pairs:
            if list(ids) != list(wanted["ids"]):
                sys.exit(f"row {place}: TRL has the tokens {ids}, burnish {wanted['ids']}")


def compare(kind: str, steps: int, run: Any) -> dict[str, Any]:
    """One line of the table; `run(program, request)` runs a program."""
    mine = run("ours", {"kind": kind, "steps": steps})
    other = run("theirs", {"kind": kind, "trained": mine["trained"]})
    pairs = list(zip(mine["losses"], other["losses"], strict=True))
    figures = {
        "kind": kind,
        "steps": steps,
        "first_loss": mine["losses"][0],
        "last_loss": mine["losses"][-1],
        "largest_difference": max(abs(a - b) for a, b in pairs),
        "largest_relative_difference": max(abs(a - b) / max(abs(b), 1e-9) for a, b in pairs),
    }
    for name, found in (("burnish", mine), ("trl", other)):
        figures[f"{name}_step_s"] = statistics.median(found["seconds"][WARM:] or found["seconds"])
    figures["ratio"] = figures["trl_step_s"] / figures["burnish_step_s"]
    return figures


def in_child(program: str, request: dict[str, Any]) -> dict[str, Any]:
    """Run one program in a process of its own."""
    env = {**os.environ, "OMP_NUM_THREADS": "1", "TOKENIZERS_PARALLELISM": "false"}
    command = [sys.executable, __file__, "--child", program]
    done = subprocess.run(
        command, env=env, input=json.dumps(request), capture_output=True, text=True, check=False
    )
    if done.returncode:
        sys.exit(f"{program} failed:\n{done.stderr[-2000:]}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def in_this_process(program: str, request: dict[str, Any]) -> dict[str, Any]:
    """Run one program here."""
    with tempfile.TemporaryDirectory() as folder:
        if program == "ours":
            return ours(request["kind"], request["steps"], Path(folder))
        return theirs(request["kind"], request["trained"], Path(folder))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--json", type=Path, help="write the figures here too")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.child:
        request = json.load(sys.stdin)
        sys.stdout, out = sys.stderr, sys.stdout
        print(json.dumps(in_this_process(options.child, request)), file=out)
        return
    table = [compare(kind, options.steps, in_child) for kind in KINDS]
    head = ("", "first loss", "last loss", "difference", "burnish", "TRL", "TRL / burnish")
    print("{:24} {:>10} {:>10} {:>10} {:>9} {:>9} {:>14}".format(*head))
    for row in table:
        print(
            f"{row['kind']:24} {row['first_loss']:10.6f} {row['last_loss']:10.6f} "
            f"{row['largest_difference']:10.1e} {1000 * row['burnish_step_s']:6.1f} ms "
            f"{1000 * row['trl_step_s']:6.1f} ms {row['ratio']:14.1f}"
        )
    if options.json:
        options.json.write_text(json.dumps(table, indent=2) + "\n")


if __name__ == "__main__":
    main()
