"""Child of speed.py: the same steps through TRL's GRPOTrainer with its in-process generation.

    python lab/benchmarks/_trl_step.py JOB OUT

Same model folder, prompts, reward, sizes and loss; weights in the dtype of the job, no gradient
checkpointing, no KL term, one optimiser step for each batch of rollouts.
"""

from __future__ import annotations

import itertools
import sys
import tempfile
from typing import Any

import msgspec
import torch
from _burnish_step import peak_memory
from _speed_floor import clock
from _speed_records import PeerResult, StepJob, read_job, say
from datasets import Dataset  # type: ignore[import-untyped]
from transformers import AutoModelForCausalLM, AutoTokenizer, TrainerCallback
from trl import GRPOConfig, GRPOTrainer  # type: ignore[attr-defined]

from burnish.lm.folder import find_folder
from burnish.records import Response, Task
from burnish.rewards.checks.numeric import Numeric, NumericConfig
from burnish.tasks.arithmetic import Arithmetic, ArithmeticTasks


class Marks(TrainerCallback):  # type: ignore[misc]
    """Notes the clock when training begins and at the end of each optimiser step."""

    def __init__(self, device: torch.device, label: str) -> None:
        self.device = device
        self.label = label
        self.times: list[float] = []

    def on_train_begin(self, *_: Any, **__: Any) -> None:
        self.times.append(clock(self.device))

    def on_step_end(self, *_: Any, **__: Any) -> None:
        self.times.append(clock(self.device))
        seconds = self.times[-1] - self.times[-2]
        say(f"trl {self.label} step {len(self.times) - 1}: {seconds:.3f} s")


class Reward:
    """burnish's numeric check on TRL's completions; counts their tokens on the way."""

    __name__ = "correct"

    def __init__(self, tasks: list[Task]) -> None:
        self.tasks = tasks
        self.check = Numeric(NumericConfig(name="correct"))
        self.tokens: list[int] = []

    def __call__(
        self,
        completions: list[str],
        completion_ids: list[list[int]],
        index: list[int],
        **_: Any,
    ) -> list[float | None]:
        self.tokens.append(sum(map(len, completion_ids)))
        return [
            self.check.judge(self.tasks[i], Response(str(n), text)).value
            for n, (i, text) in enumerate(zip(index, completions, strict=True))
        ]


def main() -> None:
    job, out = read_job(StepJob)
    device = torch.device(job.device)
    if job.threads:
        torch.set_num_threads(job.threads)
    folder = find_folder(job.model)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder, padding_side="left")
    size = job.size
    source = ArithmeticTasks(Arithmetic(level=2, instruction=size.instruction), seed=0)
    tasks = [source.train(i) for i in range(size.prompts * size.peer_steps)]
    prompts = [
        tokenizer.apply_chat_template(
            [{"role": m.role, "content": m.content} for m in task.messages],
            tokenize=False,
            add_generation_prompt=True,
        )
        for task in tasks
    ]
    marks, reward = Marks(device, size.label), Reward(tasks)
    full = False
    with tempfile.TemporaryDirectory() as place:
        trainer: Any = GRPOTrainer(
            model=AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, job.dtype)),
            reward_funcs=reward,
            args=_config(job, place),
            train_dataset=Dataset.from_dict({"prompt": prompts, "index": list(range(len(tasks)))}),
            processing_class=tokenizer,
            callbacks=[marks],
        )
        try:
            trainer.train()
        except torch.OutOfMemoryError as error:
            print(error, file=sys.stderr)
            full = True
    peak, kind = peak_memory(job.device)
    times = marks.times
    result = PeerResult(
        seconds=[b - a for a, b in itertools.pairwise(times)],
        tokens=reward.tokens,
        rollouts=job.size.prompts * job.size.samples,
        peak_bytes=peak,
        peak_kind=kind,
        accumulate=job.accumulate,
        out_of_memory=full,
    )
    out.write_bytes(msgspec.json.encode(result))


def _config(job: StepJob, place: str) -> GRPOConfig:
    size, on_gpu = job.size, job.device.startswith("cuda")
    return GRPOConfig(
        output_dir=place,
        max_steps=size.peer_steps,
        per_device_train_batch_size=size.prompts * size.samples // job.accumulate,
        gradient_accumulation_steps=job.accumulate,
        num_generations=size.samples,
        max_completion_length=size.max_tokens,
        num_iterations=1,
        shuffle_dataset=False,
        temperature=1.0,
        beta=0.0,
        loss_type="grpo",
        learning_rate=size.learning_rate,
        lr_scheduler_type="constant",
        bf16=on_gpu and job.dtype == "bfloat16",
        use_cpu=not on_gpu,
        gradient_checkpointing=False,
        report_to=[],
        logging_strategy="no",
        save_strategy="no",
        disable_tqdm=True,
    )


if __name__ == "__main__":
    main()
