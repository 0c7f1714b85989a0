from pathlib import Path
from typing import Any

import pytest
from hostile_server import HostileServer
from sampling_server import Serving
from training_cases import finish, outcome, resolved, stop_after, trainer

from burnish.cli.entry import run
from burnish.config import render
from burnish.engines.servers import OtherWeights, Servers
from burnish.errors import GuardTripped
from burnish.lm import wire
from burnish.lm.folder import load_model, save_model
from burnish.store import RunStore


@pytest.fixture(autouse=True)
def whole_seeds(monkeypatch):
    """Servers take seeds of 31 bits; with whole ones this one draws what the engine here draws."""
    monkeypatch.setattr(wire, "MAX_SEED", 2**64 - 1)


STEPS: dict[str, Any] = {"steps": 3, "evaluation": {"prompts": 2}}


@pytest.fixture
def serving(tmp_path):
    return Serving(save_model(load_model("tiny", device="cpu"), tmp_path / "served"))


@pytest.fixture
def server(serving):
    with HostileServer(serving) as running:
        yield running


def remote(server: HostileServer, serving: Serving, **more: Any) -> dict[str, Any]:
    table = {"kind": "remote", "urls": [server.url], "folder": str(serving.folder), "retries": 0}
    return {"sampler": {**table, **more}}


def curve(folder: Path, name: str) -> list[float]:
    with RunStore.open(folder, read_only=True) as store:
        return [point.value for point in store.metrics(name)[name]]


def prompts(folder: Path) -> list[tuple[int, str, str]]:
    with RunStore.open(folder, read_only=True) as store:
        return [(s.step, s.task.id, s.trajectory.id) for s in store.samples()]


def versions(folder: Path) -> list[list[int | None]]:
    with RunStore.open(folder, read_only=True) as store:
        samples = [s for s in store.samples() if s.split == "train"]
    steps = sorted({s.step for s in samples})
    return [sorted({s.trajectory.weight_version for s in samples if s.step == n}) for n in steps]


def test_a_server_trains_the_model_as_it_trains_itself(tmp_path, server, serving):
    """From TOML and the command line: the same answers, rewards and weights, bit for bit."""
    finish(trainer(tmp_path, STEPS, run="alone"))
    settings = {**STEPS, "run": {"name": "served-run", "folder": str(tmp_path)}}
    (tmp_path / "config.toml").write_text(render(resolved(tmp_path, settings)))
    words = [f"sampler.{k}={v}" for k, v in remote(server, serving)["sampler"].items()]
    assert run(["train", str(tmp_path / "config.toml"), "--quiet", *words]) == 0
    alone, served = outcome(tmp_path / "alone"), outcome(tmp_path / "served-run")
    assert served["weights"] == alone["weights"]
    assert served["evaluations"] == alone["evaluations"]
    lags = {name: served["metrics"].pop(name) for name in ("sampler/lag", "sampler/lag_max")}
    # The company in a batch changes the last bits of a sampled log-prob.
    for run_outcome in (served, alone):
        for name in ("mismatch/mean_abs", "mismatch/kl", "mismatch/max_ratio"):
            run_outcome["metrics"].pop(name)
    assert served["metrics"] == alone["metrics"]
    assert all(point.value == 0 for points in lags.values() for point in points)
    assert versions(tmp_path / "served-run") == [[0], [1], [2]]
    # Sent before the first sample and after each of the three steps, and nothing else.
    assert serving.paths.count("/update_weights_from_disk") == 4


def test_rollouts_of_weights_that_are_too_old_are_refused(tmp_path, server, serving):
    """A server that loads the weights and says of its answers that older ones wrote them."""
    load = serving.load

    def update(body: dict[str, Any]) -> dict[str, Any]:
        load()
        serving.version = "0"
        return {"success": True}

    serving.update = update  # type: ignore[method-assign]
    with pytest.raises(GuardTripped) as caught:
        finish(trainer(tmp_path, STEPS, remote(server, serving)))
    assert "rollout guard at step 2: all 8 rollouts failed" in str(caught.value)
    assert "sampled with weights of version 0, the trainer's are of version 1" in str(caught.value)


def test_a_server_that_was_started_again_is_given_the_weights_again(tmp_path, server, serving):
    finish(trainer(tmp_path, STEPS, run="alone"))
    complete, asked = serving.complete, []

    def forgetful(body: dict[str, Any]) -> dict[str, Any]:
        asked.append(body)
        if len(asked) == 6:
            serving.version = "default"
            serving.lm.loaded.module.requires_grad_(False).model.norm.weight.zero_()
        return complete(body)

    serving.complete = forgetful  # type: ignore[method-assign]
    finish(trainer(tmp_path, STEPS, remote(server, serving)))
    assert outcome(tmp_path / "run")["weights"] == outcome(tmp_path / "alone")["weights"]
    assert serving.paths.count("/update_weights_from_disk") == 5


def test_a_lost_tensor_stops_the_run_before_it_is_trained_on(
    tmp_path, server, serving, monkeypatch
):
    """By its checksum where the server echoes one, else by the canary; without both, by the guard."""
    serving.drops = "model.layers.0.mlp.down_proj.weight"
    echoed = remote(server, serving, version_path="/weights")
    with pytest.raises(OtherWeights, match="right after it was given version 1"):
        finish(trainer(tmp_path, STEPS, echoed, run="echoed"))
    with pytest.raises(OtherWeights, match="its workers do not have them"):
        finish(trainer(tmp_path, STEPS, remote(server, serving), run="heard"))
    monkeypatch.setattr(Servers, "verify", False)
    strict = {"guards": {"sampler_mismatch_stop": 1e-4}}
    with pytest.raises(GuardTripped, match=r"sampler guard: .* nats a token apart at step 2") as at:
        finish(trainer(tmp_path, STEPS, strict, remote(server, serving), run="blind"))
    assert at.value.stage == "sampler"
    assert (tmp_path / "blind" / "crash" / "step-000002" / "report.json").is_file()


@pytest.mark.parametrize("bound", [1, 2])
def test_servers_sample_ahead_of_the_update_within_the_bound(tmp_path, server, serving, bound):
    """The prompts and seeds are those of a run that waits; only the weights lag, by at most the bound.

    A run that was stopped between two steps samples what was under way again.
    """
    table = {"steps": 6, "evaluation": {"prompts": 0}, "checkpoint": {"every": 1}}
    lagging = {
        "rollout": {"max_staleness": bound},
        "policy": {"correction": {"kind": "truncated"}},
    }
    finish(trainer(tmp_path, table, run="alone"))
    stop_after(trainer(tmp_path, table, lagging, remote(server, serving)), 3, saved=True)
    finish(trainer(tmp_path, table, lagging, remote(server, serving)))
    assert prompts(tmp_path / "run") == prompts(tmp_path / "alone")
    lags = [step - min(found) for step, found in enumerate(versions(tmp_path / "run"))]
    # How much is under way when the weights change is a matter of timing; the bound is none.
    assert 1 <= max(lags) <= bound
    # The first step of each start has nothing under way.
    assert lags[0] == lags[3] == 0
    assert curve(tmp_path / "run", "sampler/lag_max") == lags
    assert server.running == 0


def test_a_curriculum_of_refills_never_samples_ahead(tmp_path, server, serving):
    """What a step asks for hangs on the rewards of the one before, so nothing is begun for it."""
    refill = {"policy": {"select": {"kind": "informative_groups", "refill": True}}}
    lagging = {"rollout": {"max_staleness": 2}, "policy": {"correction": {"kind": "truncated"}}}
    finish(trainer(tmp_path, STEPS, refill, lagging, remote(server, serving)))
    assert curve(tmp_path / "run", "sampler/lag_max") == [0, 0, 0]


def test_a_server_that_is_not_there_says_how_to_start_it(tmp_path):
    table = {"kind": "remote", "urls": ["http://127.0.0.1:9/v1"], "folder": "served", "retries": 0}
    settings = {**STEPS, "sampler": {**table, "dialect": "vllm"}}
    (tmp_path / "config.toml").write_text(render(resolved(tmp_path, settings)))
    with pytest.raises(Exception, match=r"cannot be reached: .*vllm serve .*served"):
        trainer(tmp_path, settings)
    assert (tmp_path / "served" / "model.safetensors").is_file()
    assert not (tmp_path / "run").exists()
