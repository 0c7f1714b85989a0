"""Processes that hold a slice of the model each come out as one that holds it whole."""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time

import pytest
import torch
from safetensors.torch import load_file
from test_distil import write_tasks
from test_dpo import write_pairs
from test_other_families import FAMILIES, save
from test_ppo_run import PPO
from test_process_reward_model import write_solutions
from training_cases import (
    ROOT,
    finish,
    launch,
    merged,
    one_and_two,
    outcome,
    resolved,
    stop_after,
    trainer,
)

import warm
from burnish.config import render
from burnish.errors import UserError
from burnish.store import RunStore

FULL = {"steps": 3, "model": {"shard": "full"}, "update": {"micro_batch_tokens": 64}}
KL = {"policy": {"auxiliary": [{"kind": "kl", "coefficient": 0.04}]}}
LORA = {"model": {"lora": {"rank": 2, "targets": ["q_proj", "v_proj"]}}}


def policy(folder):
    """Three groups over two processes, two updates a step, a frozen reference."""
    return merged(KL, {"rollout": {"prompts": 3}, "update": {"minibatches": 2}})


def imitating(folder):
    """Passes of two kinds in one update; demonstrations of which one process has none."""
    term = {"kind": "sft", "coefficient": 0.5, "batch": 1}
    experts = {"field": "answer", "task": write_tasks(folder)}
    return {"policy": {"auxiliary": [term]}, "experts": experts}


def sft(folder):
    task = write_tasks(folder)
    experts = {"field": "answer"}
    return {"train": {"kind": "sft", "batch": 3}, "experts": experts, "task": task, "rewards": []}


def pretrain(folder):
    rng = random.Random(3)
    rows = [" ".join(rng.choices(("red", "cat", "runs"), k=rng.randint(3, 25))) for _ in range(40)]
    (folder / "text.jsonl").write_text("".join(json.dumps({"text": row}) + "\n" for row in rows))
    train = {"kind": "pretrain", "data": str(folder / "text.jsonl"), "sequence": 32, "batch": 3}
    return {"train": {**train, "held_out": 0.2}, "rewards": []}


def distil(folder):
    train = {"kind": "distil", "batch": 3, "template": "{prompt} ({hint})"}
    return {"train": {**train, "teacher": "student"}, "task": write_tasks(folder), "rewards": []}


def labelled(kind, write):
    return lambda folder: {"train": {"kind": kind, "batch": 3}, "task": write(folder), "rewards": []}


def gemma(folder):
    """A model of transformers with a tied head."""
    path = str(save(folder / "model", "Gemma2", FAMILIES["Gemma2"]))
    return merged(policy(folder), {"model": {"path": path}})


KINDS = {
    "policy": policy,
    "lora": lambda folder: merged(policy(folder), LORA),
    "imitation": imitating,
    "separate critic": lambda folder: merged(
        PPO, {"policy": {"critic": {"kind": "separate", "learning_rate": 3e-3}}}
    ),
    "sft": sft,
    "dpo": labelled("dpo", write_pairs),
    "reward_model": labelled("reward_model", write_pairs),
    "process_reward_model": lambda folder: {
        "train": {"kind": "process_reward_model", "batch": 3, "labels": "labels"},
        "task": write_solutions(folder),
        "rewards": [],
    },
    "pretrain": pretrain,
    "distil": distil,
    "transformers": gemma,
}


def weights(folder, step=3):
    return load_file(folder / "checkpoints" / f"step-{step:06d}" / "model.safetensors")


def assert_close(one, other, atol=1e-5):
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, other[name], rtol=0, atol=atol)


def texts(folder):
    with RunStore.open(folder, read_only=True) as store:
        return [(s.step, s.split, s.task.id, s.trajectory.text) for s in store.samples()]


@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_with_half_of_the_model_each_come_out_as_one(tmp_path, kind, monkeypatch):
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path / "cache"))
    one_and_two(tmp_path, merged(KINDS[kind](tmp_path), FULL))
    assert_close(weights(tmp_path / "one"), weights(tmp_path / "two"))
    assert texts(tmp_path / "one") == texts(tmp_path / "two")
    parts = sorted((tmp_path / "two").glob("checkpoints/step-000003/trainer/optimiser-*"))
    held = [load_file(part) for part in parts]
    (whole,) = (tmp_path / "one").glob("checkpoints/step-000003/trainer/optimiser*")
    for name, tensor in load_file(whole).items():
        rows = [part[name] for part in held if name in part]
        assert len(rows) in (1, 2)
        assert_close({name: tensor}, {name: torch.cat(rows) if tensor.dim() else rows[0]}, 1e-4)
