"""A reward model's training beside TRL's RewardTrainer, and its scoring beside transformers' pipeline.

    python lab/benchmarks/reward_model.py                       # tiny model, float32, one CPU thread
    python lab/benchmarks/reward_model.py --model smollm2 --device cuda --dtype bfloat16 --batch 64

Both programs begin with the same weights and score head, and train on the same token ids in the
same order with the same optimiser; each runs in a process of its own. A token is one that TRL's
attention mask counts: padding and shared prompts earn nothing. In float32 the losses of every step
are compared too; equal losses after several updates mean equal gradients. Needs
`pip install -e '.[torch,bench]'`.
"""

from __future__ import annotations

import argparse
import itertools
import json
import random
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

WARM = 3
"""Steps that are not timed: kernels are chosen and memory is taken in them."""
RATE = 1e-5
WORDS = ("the", "red", "green", "blue", "of", "to", "it", "is", "old", "river", "stone", "light")


def rows(count: int, words: int) -> list[dict[str, str]]:
    """Questions of up to half of `words` words, with two answers of up to all of them."""
    draw = random.Random(0)
    some = lambda low, high: " ".join(draw.choices(WORDS, k=draw.randint(low, high)))  # noqa: E731
    return [
        {"prompt": some(5, words // 2), "chosen": some(5, words), "rejected": some(5, words)}
        for _ in range(count)
    ]


def read_rows(path: Path, count: int) -> list[dict[str, str]]:
    """The first pairs of a JSONL file with `prompt`, `chosen` and `rejected`."""
    with path.open() as lines:
        found = [json.loads(line) for line in itertools.islice(lines, count)]
    if len(found) < count:
        sys.exit(f"{path} has {len(found)} pairs; {count} are needed: lower --steps or --batch")
    return found


def make_start(model: str, folder: Path) -> None:
    """The start of both programs: the model with a score head, as transformers saves it."""
    import torch
    from transformers import AutoModelForSequenceClassification, AutoTokenizer

    from burnish.lm.folder import find_folder

    torch.manual_seed(0)
    source = find_folder(model)
    tokenizer = AutoTokenizer.from_pretrained(source)
    start = AutoModelForSequenceClassification.from_pretrained(source, num_labels=1)
    if start.config.pad_token_id is None:
        start.config.pad_token_id = tokenizer.pad_token_id or tokenizer.eos_token_id
    start.save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def clock(device: str) -> float:
    """Seconds now: of the processor on the CPU, of the wall when the GPU is done."""
    if device == "cpu":
        return time.process_time()
    import torch

    torch.cuda.synchronize()
    return time.perf_counter()


def ours(job: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Losses and seconds of each step, and the token ids of each pair in its order."""
    from burnish.config import Config, load
    from burnish.training import build
    from burnish.training.events import StepDone

    data = folder / "rows.jsonl"
    data.write_text("".join(json.dumps(row) + "\n" for row in job["rows"]))
    fields = {name: name for name in ("chosen", "rejected")}
    model = {"path": job["start"], "dtype": job["dtype"], "device": job["device"]}
    recipe = {
        "steps": job["steps"],
        "model": model | ({"threads": 1} if job["device"] == "cpu" else {}),
        "task": {"kind": "file", "path": str(data), "prompt": "prompt", "fields": fields},
        "train": {"kind": "reward_model", "batch": job["batch"]},
        "optimiser": {"learning_rate": RATE},
        "evaluation": {"prompts": 0},
        "checkpoint": {"every": 0},
    }
    trainer = build(load(Config, recipe), folder / "run")
    batches = [trainer.algorithm.batch(step).answers for step in range(job["steps"])]
    pairs = [
        {
            "chosen_ids": list(batch.trajectories[a].token_ids),
            "rejected_ids": list(batch.trajectories[b].token_ids),
        }
        for batch in batches
        for a, b in zip(batch.chosen, batch.rejected, strict=True)
    ]
    losses: list[float] = []
    marks = [clock(job["device"])]
    for event in trainer.run():
        if isinstance(event, StepDone):
            losses.append(event.metrics["loss/total"])
            marks.append(clock(job["device"]))
    seconds = [b - a for a, b in itertools.pairwise(marks)]
    return {"losses": losses, "seconds": seconds, "pairs": pairs}


def theirs(job: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The same of TRL's trainer on the same ids in the same order."""
    import torch
    from datasets import Dataset
    from torch.utils.data import SequentialSampler
    from transformers import AutoModelForSequenceClassification, AutoTokenizer
    from trl import RewardConfig, RewardTrainer

    on_cpu = job["device"] == "cpu"
    if on_cpu:
        torch.set_num_threads(1)
    losses: list[Any] = []
    marks: list[float] = []

    class InOrder(RewardTrainer):  # type: ignore[misc]
        def _get_train_sampler(self, *_: Any) -> SequentialSampler:
            return SequentialSampler(self.train_dataset)

        def training_step(self, *given: Any, **named: Any) -> Any:
            marks.append(clock(job["device"]))
            loss = super().training_step(*given, **named)
            losses.append(loss.detach())
            return loss

    args = RewardConfig(
        output_dir=str(folder),
        max_steps=job["steps"],
        per_device_train_batch_size=job["batch"],
        learning_rate=RATE,
        lr_scheduler_type="constant",
        adam_beta2=0.99,
        report_to=[],
        use_cpu=on_cpu,
        bf16=job["dtype"] == "bfloat16",
        gradient_checkpointing=False,
        logging_steps=10**6,
        save_strategy="no",
        disable_tqdm=True,
        max_length=None,
    )
    model = AutoModelForSequenceClassification.from_pretrained(
        job["start"], num_labels=1, dtype=getattr(torch, job["dtype"])
    )
    trainer = InOrder(
        model=model,
        args=args,
        train_dataset=Dataset.from_list(job["pairs"]),
        processing_class=AutoTokenizer.from_pretrained(job["start"]),
    )
    trainer.train()
    marks.append(clock(job["device"]))
    seconds = [b - a for a, b in itertools.pairwise(marks)]
    return {"losses": [float(loss) for loss in losses], "seconds": seconds}


def our_scores(job: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Scores of the chosen answers and the seconds they took, the second of two passes."""
    import asyncio

    from burnish.records import Message, Response, Task
    from burnish.rewards.models.trained_model import RewardModelConfig, RewardModelReward

    scorer = RewardModelReward(
        RewardModelConfig(
            path=job["start"], dtype=job["dtype"], device=job["device"], explain=False
        )
    )
    asked = [
        (Task(str(i), (Message("user", row["prompt"]),)), Response(str(i), row["chosen"]))
        for i, row in enumerate(job["rows"])
    ]

    async def work() -> list[float]:
        found = await asyncio.gather(*(scorer.score(task, [answer]) for task, answer in asked))
        return [one[0].value for one in found]

    return timed(lambda: asyncio.run(work()), job["device"])


def their_scores(job: dict[str, Any], folder: Path) -> dict[str, Any]:
    """The same by transformers' pipeline."""
    import torch
    from transformers import AutoTokenizer, pipeline

    if job["device"] == "cpu":
        torch.set_num_threads(1)
    tokenizer = AutoTokenizer.from_pretrained(job["start"])
    texts = [
        tokenizer.apply_chat_template(
            [
                {"role": "user", "content": row["prompt"]},
                {"role": "assistant", "content": row["chosen"]},
            ],
            tokenize=False,
        )
        for row in job["rows"]
    ]
    pipe = pipeline(
        "text-classification",
        model=job["start"],
        tokenizer=tokenizer,
        device=job["device"],
        dtype=getattr(torch, job["dtype"]),
        function_to_apply="none",
        batch_size=job["batch"],
    )
    ask: Any = lambda: [one["score"] for one in pipe(texts, add_special_tokens=False)]  # noqa: E731
    return timed(ask, job["device"])


def timed(work: Any, device: str) -> dict[str, Any]:
    """What `work` gives, and the seconds of its second pass."""
    work()
    before = clock(device)
    scores = work()
    return {"scores": scores, "seconds": clock(device) - before}


CHILDREN = {"ours": ours, "theirs": theirs, "our_scores": our_scores, "their_scores": their_scores}


def in_child(program: str, request: dict[str, Any]) -> dict[str, Any]:
    """Run one program in a process of its own."""
    done = subprocess.run(
        [sys.executable, __file__, "--child", program],
        input=json.dumps(request),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        sys.exit(f"{program} failed:\n{done.stderr[-3000:]}")
    found: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return found


def measure(job: dict[str, Any]) -> dict[str, Any]:
    """The figures of both parts."""
    mine = in_child("ours", job)
    other = in_child("theirs", job | {"pairs": mine["pairs"]})
    sizes = [len(ids) for pair in mine["pairs"] for ids in pair.values()]
    a_step = 2 * job["batch"]
    tokens = [sum(sizes[i : i + a_step]) for i in range(0, len(sizes), a_step)]
    differences = [abs(a - b) for a, b in zip(mine["losses"], other["losses"], strict=True)]
    figures: dict[str, Any] = {"largest_difference": max(differences), "losses": mine["losses"]}
    for name, found in (("burnish", mine), ("trl", other)):
        rates = [n / s for n, s in zip(tokens, found["seconds"], strict=True)][WARM:]
        figures[f"{name}_tokens_s"] = statistics.median(rates)
        figures[f"{name}_spread"] = (min(rates), max(rates))
    figures["training_ratio"] = figures["burnish_tokens_s"] / figures["trl_tokens_s"]
    mine, other = in_child("our_scores", job), in_child("their_scores", job)
    figures["burnish_answers_s"] = len(job["rows"]) / mine["seconds"]
    figures["pipeline_answers_s"] = len(job["rows"]) / other["seconds"]
    figures["scoring_ratio"] = figures["burnish_answers_s"] / figures["pipeline_answers_s"]
    pairs = zip(mine["scores"], other["scores"], strict=True)
    figures["largest_score_difference"] = max(abs(a - b) for a, b in pairs)
    return figures


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="tiny")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--dtype", default="float32", choices=("float32", "bfloat16"))
    parser.add_argument("--batch", type=int, default=8, help="pairs a step")
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--words", type=int, default=60, help="of the longest made-up answer")
    parser.add_argument("--data", type=Path, help="JSONL with prompt, chosen, rejected")
    parser.add_argument("--json", type=Path, help="write the figures here too")
    parser.add_argument("--child", help=argparse.SUPPRESS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        if options.child:
            request = json.load(sys.stdin)
            sys.stdout, out = sys.stderr, sys.stdout
            print(json.dumps(CHILDREN[options.child](request, Path(folder))), file=out)
            return
        make_start(options.model, Path(folder) / "start")
        count = options.steps * options.batch
        job = {
            "rows": read_rows(options.data, count) if options.data else rows(count, options.words),
            "start": str(Path(folder) / "start"),
            **{name: getattr(options, name) for name in ("device", "dtype", "batch", "steps")},
        }
        figures = measure(job)
    per = "CPU s" if options.device == "cpu" else "s"
    print(f"{'':12} {'burnish':>12} {'beside':>12} {'ratio':>7}   largest difference")
    print(
        f"{'training':12} {figures['burnish_tokens_s']:12.0f} {figures['trl_tokens_s']:12.0f} "
        f"{figures['training_ratio']:7.2f}   {figures['largest_difference']:.1e} (loss)   "
        f"tokens/{per}, beside TRL's RewardTrainer"
    )
    print(
        f"{'scoring':12} {figures['burnish_answers_s']:12.1f} "
        f"{figures['pipeline_answers_s']:12.1f} {figures['scoring_ratio']:7.2f}   "
        f"{figures['largest_score_difference']:.1e} (score)  answers/{per}, beside the pipeline"
    )
    if options.json:
        options.json.write_text(json.dumps(figures, indent=2) + "\n")


if __name__ == "__main__":
    main()
