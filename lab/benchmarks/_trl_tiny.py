"""Child of tiny_step.py: TRL's GRPOTrainer on the same model, prompts, reward and sizes."""

import json
import sys
import tempfile
import time
from typing import Any

START = time.perf_counter() - time.process_time()

import torch  # noqa: E402
from _tiny_reward import has_digit  # noqa: E402
from datasets import Dataset  # noqa: E402
from transformers import (  # noqa: E402
    AutoModelForCausalLM,
    AutoTokenizer,
    PreTrainedTokenizerFast,
    TrainerCallback,
)
from trl import GRPOConfig, GRPOTrainer  # noqa: E402

from burnish.lm.folder import find_folder  # noqa: E402
from burnish.tasks.arithmetic import Arithmetic, ArithmeticTasks  # noqa: E402

marks = []


class Marks(TrainerCallback):
    """Notes the clock at the end of each optimiser step."""

    def on_step_end(self, *_: Any, **__: Any) -> None:
        marks.append((time.process_time(), time.perf_counter() - START))


def reward(completions: list[Any], **_: Any) -> list[float]:
    return [has_digit(c[0]["content"] if isinstance(c, list) else c) for c in completions]


folder = find_folder("tiny")
model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
tokenizer: PreTrainedTokenizerFast = AutoTokenizer.from_pretrained(folder)
tasks = ArithmeticTasks(Arithmetic(level=1), seed=0)
steps = int(sys.argv[1])
prompts = [
    tokenizer.apply_chat_template(
        [{"role": m.role, "content": m.content} for m in tasks.train(i).messages],
        tokenize=False,
        add_generation_prompt=True,
    )
    for i in range(2 * steps)
]
with tempfile.TemporaryDirectory() as out:
    config = GRPOConfig(
        output_dir=out,
        max_steps=steps,
        per_device_train_batch_size=8,
        num_generations=4,
        max_completion_length=16,
        beta=0.0,
        report_to=[],
        use_cpu=True,
        bf16=False,
        gradient_checkpointing=False,
        logging_steps=1,
        save_strategy="no",
        disable_tqdm=True,
    )
    trainer = GRPOTrainer(
        model=model,
        reward_funcs=reward,
        args=config,
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        processing_class=tokenizer,
        callbacks=[Marks()],
    )
    sys.stdout, real = sys.stderr, sys.stdout
    trainer.train()
    sys.stdout = real
print(json.dumps(marks))
