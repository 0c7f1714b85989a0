"""Every shipped recipe shows itself within a minute: the tiny model, three steps.

Seconds are of the processor, of all processes, after the imports: other programs may share the cores.
All of them, with what each took: pytest tests/training/test_every_recipe.py -m "" -s
"""

import os
import sys

import pytest
from hostile_server import HostileServer, ok
from openrs_judge import openrs_reply

import warm
from burnish.config.recipes import all_recipes
from burnish.models.audio_tokenizer import new_tokenizer
from burnish.store import RunStatus, RunStore

MOST_S = 60.0
SAMPLE = ("afrl", "distil", "grpo", "number_game")
"""In the default tier: a warm start, another algorithm, the plain case, several turns."""


def marked(name):
    return name if name in SAMPLE else pytest.param(name, marks=pytest.mark.attacks)


@pytest.fixture
def judge_server():
    """Answers the recipe that asks a server of the user's own."""

    def answer(number, seen):
        return ok(openrs_reply(seen.body["messages"][0]["content"]))

    with HostileServer(answer) as server:
        yield server


@pytest.mark.parametrize("name", [marked(name) for name in sorted(all_recipes())])
def test_a_recipe_ends_within_a_minute_on_the_tiny_model(name, tmp_path, judge_server):
    tiny = "visual:tiny" if name == "visual" else "tiny"  # one that sees
    words = [name, "steps=3", "run.name=trial"]
    if name not in ("codec", "speech"):  # their models are no language models, and as small
        words.append(f"model.path={tiny}")
    if name == "speech":  # learns on the latents of a tokenizer that a run before it trained
        tokenizer = {"sampling_rate": 8000, "n_fft": 320, "frame_hop": 160, "hidden_size": 16}
        new_tokenizer(tmp_path / "runs/codec", latent_size=8, **tokenizer)
    if name == "openrs":
        # A random model writes no language that the recipe's check could tell: no value for most.
        words += [f"rewards.0.model={judge_server.url}#judge", "guards.failed_share=1"]
    if name == "policyalign":  # the tiny model reads 1024 characters, fewer than the policy has
        words.append("train.allow_truncate=true")
    log, seconds = tmp_path / "said.txt", tmp_path / "seconds.txt"
    code = warm.run(
        "burnish",
        ["train", *words],
        folder=tmp_path,
        log=log,
        environment={**os.environ, "OMP_NUM_THREADS": "1"},
        timeout=900,
        seconds=seconds,
    )
    said, took = log.read_text(), float(seconds.read_text())
    sys.stdout.write(f"{name} {took:.1f} s\n")
    assert code == 0, said[-2000:]
    assert took < MOST_S
    with RunStore.open(tmp_path / "runs" / "trial", read_only=True) as store:
        summary = store.summary()
    assert (summary.status, summary.steps) == (RunStatus.FINISHED, 3)
    assert "step 3/3" in said
