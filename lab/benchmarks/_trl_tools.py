"""Rollouts of several turns through TRL's GRPOTrainer, its own generation and its own tool loop.

The model need not know how to call a tool: every turn is read as a call, until the turns are used up.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from typing import Any

import torch
import trl.trainer.grpo_trainer as grpo  # type: ignore[import-untyped]
from datasets import Dataset  # type: ignore[import-untyped]
from transformers import AutoModelForCausalLM, AutoTokenizer
from trl import GRPOConfig, GRPOTrainer  # type: ignore[attr-defined]
from trl.chat_template_utils import qwen3_chat_template  # type: ignore[import-untyped]

from burnish.lm.folder import find_folder

CALL = {"type": "function", "function": {"name": "look_up", "arguments": {}}}


def trl_rollouts(
    model: str,
    device: str,
    prompts: list[str],
    turns: int,
    tokens: int,
    wait: Callable[[], None],
    result: str,
) -> tuple[Callable[[], None], Callable[[], float]]:
    """What plays all episodes once, and what says how many seconds of it the model was sampling."""

    def look_up() -> str:
        """Look it up."""
        wait()
        return result

    folder = find_folder(model)
    tokenizer: Any = AutoTokenizer.from_pretrained(folder, padding_side="left")
    tokenizer.chat_template = qwen3_chat_template  # the same turns, and it knows tools
    talks = [[{"role": "user", "content": prompt}] for prompt in prompts]
    grpo.parse_response = lambda tokenizer, ids, **_: {
        "role": "assistant",
        "content": tokenizer.decode(ids, skip_special_tokens=True),
        "tool_calls": [CALL],
    }
    on_gpu = device.startswith("cuda")
    trainer: Any = GRPOTrainer(
        model=AutoModelForCausalLM.from_pretrained(
            folder, dtype=torch.bfloat16 if on_gpu else torch.float32
        ),
        reward_funcs=lambda completions, **_: [0.0] * len(completions),
        args=GRPOConfig(
            output_dir=tempfile.mkdtemp(),
            per_device_train_batch_size=len(prompts),
            num_generations=len(prompts),
            max_completion_length=tokens * turns + 64 * turns,
            max_tool_calling_iterations=turns - 1,
            temperature=1.0,
            bf16=on_gpu,
            use_cpu=not on_gpu,
            report_to=[],
        ),
        train_dataset=Dataset.from_dict({"prompt": talks}),
        processing_class=tokenizer,
        tools=[look_up],
    )
    trainer.generation_config.max_new_tokens = tokens  # a turn's, as in the other rows
    busy = [0.0]
    single_turn = trainer._generate_single_turn

    def timed(*args: Any, **kwargs: Any) -> Any:
        began = time.perf_counter()
        try:
            return single_turn(*args, **kwargs)
        finally:
            busy[0] += time.perf_counter() - began

    trainer._generate_single_turn = timed
    tools = {"look_up": look_up}
    trainer._sync_tool_dicts = [tools] * len(prompts)
    trainer._async_tool_dicts = [{}] * len(prompts)

    def play() -> None:
        busy[0] = 0.0
        trainer._generate(talks)

    return play, lambda: busy[0]
