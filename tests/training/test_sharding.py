"""Processes that hold a slice of the model each come out as one that holds it whole."""

import dataclasses
import json
import os
import random
import re
import signal
import socket

import pytest
import torch
from safetensors.torch import load_file
from test_distil import write_tasks
from test_dpo import write_pairs
from test_other_families import FAMILIES, save
from test_peer_recipes import EVERYTHING
from test_ppo_run import PPO
from test_process_reward_model import write_solutions
from training_cases import (
    merged,
    one_and_two,
    resolved,
    trainer,
)

import warm
from burnish.config import render
from burnish.errors import UserError
from burnish.store import RunStore
from burnish.training.builder import _shape
from burnish.training.devices import World
from burnish.training.forecast import memory_by_part

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


def distil(teacher):
    train = {"kind": "distil", "batch": 3, "template": "{prompt} ({hint})", "teacher": teacher}
    return lambda folder: {"train": train, "task": write_tasks(folder), "rewards": []}


def labelled(kind, write):
    return lambda folder: {
        "train": {"kind": kind, "batch": 3},
        "task": write(folder),
        "rewards": [],
    }


def gemma(folder):
    """A model of transformers with a tied head."""
    path = str(save(folder / "model", "Gemma2", FAMILIES["Gemma2"]))
    return merged(policy(folder), {"model": {"path": path}})


def stages(folder):
    """A warm start, whose weights the main training reads as a model of its own."""
    warm_up = {"name": "warm", "steps": 1, "train": {"kind": "sft", "batch": 3}}
    experts = {"field": "answer", "task": write_tasks(folder)}
    return merged(policy(folder), {"stages": [warm_up], "experts": experts})


KINDS = {
    "policy": policy,
    "stages": stages,
    "marked tokens": lambda folder: merged(EVERYTHING, {"rollout": {"prompts": 3}}),
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
    "distil": distil("student"),
    "distil from the average": distil("ema"),
    "transformers": gemma,
}


def weights(folder, step=3):
    return load_file(folder / "checkpoints" / f"step-{step:06d}" / "model.safetensors")


def assert_close(one, other, atol=1e-5):
    assert one.keys() == other.keys()
    for name, tensor in one.items():
        torch.testing.assert_close(tensor, other[name], rtol=0, atol=atol)


def state(folder, step=3):
    """What the optimiser holds, put together from the files of all processes."""
    place = folder / "checkpoints" / f"step-{step:06d}" / "trainer"
    held = [load_file(part) for part in sorted(place.glob("optimiser*"))]
    assert (len(held) > 1) == (folder.name in ("two", "slices"))
    found = {name: [part[name] for part in held if name in part] for name in held[0]}
    return {name: torch.cat(rows) if rows[0].dim() else rows[0] for name, rows in found.items()}


def texts(folder):
    with RunStore.open(folder, read_only=True) as store:
        return [(s.step, s.split, s.task.id, s.trajectory.text) for s in store.samples()]


@pytest.mark.parametrize("kind", KINDS)
def test_two_processes_with_half_of_the_model_each_come_out_as_one(tmp_path, kind, monkeypatch):
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path / "cache"))
    one_and_two(tmp_path, merged(KINDS[kind](tmp_path), FULL))
    assert_close(weights(tmp_path / "one"), weights(tmp_path / "two"))
    assert texts(tmp_path / "one") == texts(tmp_path / "two")
    one, two = state(tmp_path / "one"), state(tmp_path / "two")
    assert any(one[name].any() for name in one if name.startswith("first/"))
    assert_close(one, two, 1e-4)


SCRIPT = """
import os, signal, sys
from pathlib import Path
import torch
from burnish.config import Config, load
from burnish.training import build
from burnish.training.events import Saved, StepDone

run, shard, way, step = sys.argv[1:]
resolved = load(Config, Path("config.toml"), [f"model.shard={shard}"])
trainer = build(resolved, Path(run), root=Path())
if way == "full" and trainer.world.rank == 1:
    def full(model, micro):
        raise torch.OutOfMemoryError("CUDA out of memory")
    trainer.algorithm.loss = full
for event in trainer.run():
    if way == "stop" and isinstance(event, Saved) and event.step == int(step):
        break
    if way == "kill" and isinstance(event, StepDone) and event.step + 1 == int(step):
        if trainer.world.rank == 1:
            os.kill(os.getpid(), signal.SIGKILL)
    if way == "hang" and isinstance(event, StepDone) and event.step + 1 == int(step):
        if trainer.world.rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
trainer.store.close()
"""
RESUMED = {"steps": 4, "checkpoint": {"every": 2, "keep": 3}, "evaluation": {"prompts": 0}}


def prepared(folder, *tables):
    folder.mkdir(exist_ok=True)
    (folder / "config.toml").write_text(render(resolved(folder, policy(folder), RESUMED, *tables)))
    (folder / "script.py").write_text(SCRIPT)
    return folder


def play(folder, run, shard="full", way="run", step=0, processes=2, **more):
    words = [run, shard, way, str(step)]
    return warm.together("script.py", words, [folder] * processes, timeout=100, **more)


def left(folder):
    """All files of the last checkpoint but the checksums, and all samples, as bytes."""
    last = folder / "checkpoints" / "step-000004"
    files = {p.relative_to(last): p.read_bytes() for p in last.rglob("*.safetensors")}
    return files, texts(folder)


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory):
    folder = prepared(tmp_path_factory.mktemp("resumed"))
    assert play(folder, "whole").is_well
    return folder


def test_killed_and_continued_by_as_many_processes_a_run_is_the_same_to_the_bit(undisturbed):
    folder = undisturbed
    killed = play(folder, "killed", way="kill", step=3)
    assert killed.codes[1] == -signal.SIGKILL
    assert killed.codes[0] > 0
    assert "process 1 of 2" in killed.said[0]
    done = play(folder, "killed")
    assert done.is_well, done.said
    assert left(folder / "killed") == left(folder / "whole")


@pytest.mark.parametrize(("shard", "count"), [("full", 1), ("none", 2)])
def test_continued_by_fewer_or_with_copies_a_run_has_the_same_numbers(undisturbed, shard, count):
    folder, name = undisturbed, f"{count}-{shard}"
    assert play(folder, name, way="stop", step=2).is_well
    done = play(folder, name, shard, processes=count)
    assert done.is_well, done.said
    assert_close(weights(folder / name, 4), weights(folder / "whole", 4))
    assert texts(folder / name) == texts(folder / "whole")


def test_one_process_goes_on_as_four_and_a_slice_that_is_lost_is_named(tmp_path):
    folder = prepared(tmp_path)
    assert play(folder, "one", processes=1).is_well
    assert play(folder, "four", "none", "stop", 2, processes=1).is_well
    done = play(folder, "four", processes=4)
    assert done.is_well, done.said
    assert_close(weights(folder / "four", 4), weights(folder / "one", 4))
    last = folder / "four" / "checkpoints" / "step-000004" / "trainer"
    lost = last / "optimiser-00003-of-00004.safetensors"
    lost.unlink()
    ended = play(folder, "four", processes=1)
    assert ended.codes == [1]
    assert f"is damaged: trainer/{lost.name} is not there" in " ".join(ended.said[0].split())


def test_half_precision_over_sliced_masters_is_that_over_copied_ones(tmp_path):
    few = {"steps": 4, "rollout": {"prompts": 1}, "model": {"dtype": "bfloat16"}}
    folder = prepared(tmp_path, few)  # one group: a process has nothing to compute
    for run, shard in (("copies", "none"), ("slices", "full")):
        done = play(folder, run, shard)
        assert done.is_well, done.said
    assert {t.dtype for t in weights(folder / "slices", 4).values()} == {torch.bfloat16}
    assert_close(state(folder / "copies", 4), state(folder / "slices", 4), 1e-6)


def test_a_process_that_hangs_ends_the_others_with_one_line(tmp_path):
    folder = prepared(tmp_path, {"guards": {"process_s": 5}})
    said = " ".join(said_beside_a_silent_one(folder).split())
    assert re.search(r"process 0 at [\w ]+ waited for the other processes", said)
    assert "guards.process_s" in said


def test_a_device_that_is_full_within_a_pass_of_all_ends_the_run_and_says_what_to_lower(tmp_path):
    ended = play(prepared(tmp_path, {"update": {"micro_batch_tokens": 512}}), "run", way="full")
    first, second = (" ".join(said.split()) for said in ended.said)
    assert all(ended.codes)
    assert "what saves most, in order: update.micro_batch_tokens=256" in second
    assert "process 1 of 2" in first
    assert "out of device memory" in first


def said_beside_a_silent_one(folder):
    """What process 0 says when process 1 stops without a word."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    shared = {**os.environ, "OMP_NUM_THREADS": "1", "MASTER_ADDR": "127.0.0.1"}
    shared |= {"MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    children = []
    for rank in "01":
        environment = {**shared, "RANK": rank, "LOCAL_RANK": rank}
        words, log = ["run", "full", "hang", "2"], folder / f"said-{rank}.txt"
        children.append(
            warm.start("script.py", words, folder=folder, log=log, environment=environment)
        )
    children[0].join(60)
    codes = [child.exitcode for child in children]
    for child in children:
        child.kill()
        child.join()
    assert codes == [1, None], "the first has ended by itself, the second is still stopped"
    return (folder / "said-0.txt").read_text()


def test_the_forecast_counts_a_slice_of_what_is_trained_and_the_weights_that_sample(tmp_path):
    made = trainer(tmp_path)
    made.store.close()
    work, tokens = made.algorithm.workload(), made.stage.setup.batches.tokens
    whole = dataclasses.replace(_shape(made.trainable.loaded), trained=1000)
    cut = dataclasses.replace(whole, processes=4)
    one, four = (memory_by_part(made.config, work, shape, tokens) for shape in (whole, cut))
    assert (one["gradients"], one["optimiser"]) == (4000, 8000)
    assert (four["gradients"], four["optimiser"], four["master weights"]) == (1000, 2000, 1000)
    assert four["weights"] == one["weights"]


@pytest.mark.parametrize(
    ("table", "what"),
    [
        ({"layer_metrics_every": 1}, "layer_metrics_every"),
        ({"train": {"kind": "pretrain", "data": "t.jsonl", "compile": True}}, "train.compile"),
        (
            {"train": {"kind": "diffusion", "on": "text", "data": "t.jsonl"}},
            "train.kind = 'diffusion'",
        ),
    ],
)
def test_what_needs_the_whole_model_refuses_slices_in_one_line(tmp_path, table, what):
    (tmp_path / "t.jsonl").write_text('{"text": "red cats run"}\n' * 40)
    asked = merged(table, {"model": {"shard": "full"}})
    with pytest.raises(UserError, match=f"model.shard = 'full': {re.escape(what)} needs the whole"):
        trainer(tmp_path, asked)


def test_a_launcher_that_starts_one_process_of_two_is_refused(monkeypatch):
    launch = pytest.importorskip("accelerate.commands.launch")
    asked = ["--cpu", "--num_processes", "2", "-m", "burnish", "train", "config.toml"]
    arguments = launch.launch_command_parser().parse_args(asked)
    arguments.mixed_precision, arguments.num_machines, arguments.use_cpu = "no", 1, True
    arguments.num_cpu_threads_per_process, arguments.dynamo_backend = 1, "no"
    command, environment = launch.prepare_simple_launcher_cmd_env(arguments)
    assert command[-4:] == asked[-4:], "one plain process"
    for name in environment.keys() - os.environ.keys():
        monkeypatch.setenv(name, environment[name])
    with pytest.raises(UserError, match=r"several processes and started one.* torchrun --nproc"):
        World.join()
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(UserError, match="WORLD_SIZE is 2, and RANK is not in the environment"):
        World.join()
