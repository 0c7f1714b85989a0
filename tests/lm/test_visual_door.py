"""The small vision-language model through the doors of every other model."""

import subprocess
import sys
from pathlib import Path

import anyio
import pytest

import burnish
from burnish.errors import UserError
from burnish.lm.base import Sampling
from burnish.lm.folder import find_folder, load_model
from burnish.lm.local import LocalLM
from burnish.tasks import Scenes

pytest.importorskip("PIL.Image", reason="images need pillow")

SCENES = {"kind": "scenes", "layout": "scattered", "questions": ["colour"], "held_out_size": 6}


@pytest.fixture(autouse=True)
def cache(tmp_path_factory, monkeypatch):
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path_factory.getbasetemp() / "visual-cache"))


def test_by_name():
    folder = find_folder("visual:tiny")
    assert folder == find_folder("visual:tiny")
    loaded = load_model("visual:tiny", device="cpu")
    assert list(loaded.tokenizer.media.kinds) == ["image"]
    assert loaded.module.packs
    assert not [name for name, _ in loaded.module.named_parameters() if "encoder" in name]
    with pytest.raises(UserError, match=r"expected visual:smollm2 or visual:tiny\. .*--to visual"):
        find_folder("visual:other")


def test_sampled_log_probs_are_those_of_a_pass():
    lm = LocalLM(load_model("visual:tiny", device="cpu"))
    task = Scenes().build(0, Path()).train(0)

    async def both() -> tuple[list[float], list[float]]:
        (said,) = await lm.sample(task.messages, Sampling(max_tokens=8, temperature=1.0, seed=1))
        prompt = lm.tokenizer.prompt_ids(task.messages)
        scores = await lm.score(prompt, said.token_ids)
        return list(said.logprobs), list(scores.logprobs)

    sampled, scored = anyio.run(both)
    assert sampled == pytest.approx(scored, abs=1e-4)


@pytest.mark.parametrize("kind", ["sft", "policy"])
def test_trained_and_opened_again(tmp_path, kind):
    settings = {"train": {"kind": "sft", "batch": 4}} if kind == "sft" else {}
    run = burnish.train(
        "visual" if kind == "sft" else "tiny",
        model="visual:tiny",
        task=SCENES,
        steps=2,
        evaluation={"prompts": 2},
        runs=tmp_path,
        show=False,
        **settings,
    )
    loaded = load_model(sorted(Path(run.folder).glob("checkpoints/step-*"))[-1], device="cpu")
    assert list(loaded.tokenizer.media.kinds) == ["image"]


def test_try_in_a_fresh_process(tmp_path):
    """`burnish try` reads the processor alone: no model has made the family known before."""
    command = [sys.executable, "-m", "burnish", "try", "visual"]
    found = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=300)
    assert found.returncode == 0, found.stderr
    assert found.stdout.replace("\n", "").count("<|image|>") == 3 * 16
