from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from training_cases import finish, trainer

from burnish.lm.folder import load_model
from burnish.lm.local import LocalLM
from burnish.store import RunStore
from burnish.training import Trainer
from burnish.training.packing import make_rows, pack, token_scores

STEPS = 4
RUN = {
    "steps": STEPS,
    "optimiser": {"learning_rate": 0.02},
    "evaluation": {"prompts": 0},
    "checkpoint": {"every": 1, "keep": STEPS},
}
TOKEN = {"kind": "truncated", "cap": 1.05}
SEQUENCE = {"kind": "truncated", "level": "sequence", "cap": 2.0}
MASKED = {"kind": "masked", "low": 0.9, "high": 1.1}


def trained(folder: Path, correction: dict[str, Any] | None, *, is_stale: bool) -> Trainer:
    """A finished run; a stale sampler keeps the weights that the run began with."""
    folder.mkdir()
    policy = {"policy": {"correction": correction}} if correction else {}
    lag = {"rollout": {"max_staleness": STEPS}} if is_stale else {}
    run = trainer(folder, RUN, policy, lag)
    if is_stale:
        old = LocalLM(load_model("tiny", dtype="float32", device="cpu"))
        run.algorithm.collector = replace(run.algorithm.collector, lm=old)
    finish(run)
    return run


def weights(run: Trainer) -> bytes:
    (last,) = sorted((run.folder / "checkpoints").glob("step-*"))[-1:]
    return (last / "model.safetensors").read_bytes()


def curve(run: Trainer, name: str) -> list[float]:
    with RunStore.open(run.folder, read_only=True) as store:
        return [point.value for point in store.metrics().get(name, [])]


@pytest.fixture(scope="module")
def stale_runs(tmp_path_factory):
    """The same run on a stale sampler, without a correction and with each."""
    folder = tmp_path_factory.mktemp("stale")
    kinds = {"none": None, "token": TOKEN, "sequence": SEQUENCE, "masked": MASKED}
    return {name: trained(folder / name, kind, is_stale=True) for name, kind in kinds.items()}


def test_a_sampler_in_sync_is_left_alone(tmp_path):
    plain = trained(tmp_path / "plain", None, is_stale=False)
    corrected = trained(tmp_path / "corrected", {"kind": "truncated"}, is_stale=False)
    assert curve(plain, "correction/weight") == []
    assert curve(corrected, "correction/weight") == pytest.approx([1.0] * STEPS, abs=1e-5)
    assert curve(corrected, "correction/cut_share") == [0.0] * STEPS
    # The sampler's and the trainer's log-probs differ by rounding, and so do the weights.
    first, second = (
        load_file(run.folder / "checkpoints" / f"step-{STEPS:06d}" / "model.safetensors")
        for run in (plain, corrected)
    )
    for name, weight in first.items():
        torch.testing.assert_close(second[name], weight, rtol=0, atol=1e-3)


def test_a_stale_sampler_is_seen_in_the_metrics(stale_runs):
    for name in ("token", "sequence", "masked"):
        weight = curve(stale_runs[name], "correction/weight")
        cut = curve(stale_runs[name], "correction/cut_share")
        # The first step still samples with the weights that are trained.
        assert weight[0] == pytest.approx(1.0, abs=1e-5)
        assert cut[0] == 0.0
        assert all(abs(value - 1) > 1e-3 for value in weight[1:]), name
        assert all(0 <= share <= 1 for share in cut)
        assert max(cut[1:]) > 0, name
    assert max(curve(stale_runs["token"], "correction/weight")) <= TOKEN["cap"]
    assert max(curve(stale_runs["sequence"], "correction/weight")) <= SEQUENCE["cap"]
    assert curve(stale_runs["none"], "correction/weight") == []


def test_each_correction_changes_the_weights(stale_runs):
    assert len({weights(run) for run in stale_runs.values()}) == len(stale_runs)


def test_the_metric_is_the_mean_of_the_truncated_ratios(stale_runs):
    """Recomputed from what is stored: the trainer's weights after step 0, the sampler's log-probs."""
    run = stale_runs["token"]
    module = load_model(run.folder / "checkpoints" / "step-000001", device="cpu").module
    with RunStore.open(run.folder, read_only=True) as store:
        samples = [s for s in store.samples(step=1, split="train") if s.advantage]
    items = [sample.trajectory for sample in samples]
    packed = pack(make_rows(items, True), items, torch.device("cpu"))
    with torch.no_grad():
        logp_BT = token_scores(module, packed, 1.0).logp_BT
    rows = [(row, torch.tensor(items[i].logprobs)) for row, i in enumerate(packed.members)]
    ratio = torch.cat([(logp_BT[row, : len(said)] - said).exp() for row, said in rows])
    capped = ratio.clamp(max=TOKEN["cap"]).mean().item()
    assert curve(run, "correction/weight")[1] == pytest.approx(capped, abs=1e-4)
    share = (ratio > TOKEN["cap"]).float().mean().item()
    assert curve(run, "correction/cut_share")[1] == pytest.approx(share, abs=1e-6)
