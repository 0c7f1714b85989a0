"""A real vLLM samples for a run: what it learns is what the run learns by itself.

A tiny model learns to write letters in twenty steps. The tied model is the hard one: the head of
vLLM's CPU build is a packed copy of the embedding, which its own `reload_weights` never renews.
"""

import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from statistics import fmean
from typing import Any

import anyio
import pytest
from training_cases import finish, stop_after, trainer
from vllm_server import ENVIRONMENT, VllmServer

from burnish.engines.servers import OtherWeights, Servers
from burnish.lm.base import Sampling
from burnish.lm.folder import load_model, save_model
from burnish.lm.local import LocalLM
from burnish.lm.new_model import NewModel, new_model_folder
from burnish.store import RunStore
from burnish.training.events import StepDone

pytestmark = [
    pytest.mark.engines,
    pytest.mark.skipif(
        not (ENVIRONMENT / "versions.txt").is_file(),
        reason="no vLLM in .environments/vllm; make it: make test-engines",
    ),
]

STEPS = 20


def sizes(tied: bool) -> NewModel:
    """Heads of 32, as the attention of vLLM's CPU build needs them."""
    return NewModel(layers=2, width=64, heads=2, inner=128, context=512, tied=tied)


def table(tied: bool, **sampler: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "steps": STEPS,
        "model": {"path": str(new_model_folder(sizes(tied), 5))},
        "rollout": {"prompts": 4, "samples": 8, "max_tokens": 8},
        "optimiser": {"learning_rate": 0.01},
        "evaluation": {"prompts": 0},
    }
    if sampler:
        found["sampler"] = {"kind": "remote", "dialect": "vllm", "retries": 0, **sampler}
    return found


def curve(folder: Path, name: str = "reward/total") -> list[float]:
    with RunStore.open(folder, read_only=True) as store:
        return [point.value for point in store.metrics(name)[name]]


def assert_learned(found: list[float]) -> None:
    assert len(found) >= STEPS
    assert fmean(found[:3]) < 0.5
    assert fmean(found[-4:]) > 0.9, found


def assert_is_its_own_policy(folder: Path) -> None:
    """The server's log-probs are the trainer's, in every step."""
    assert max(curve(folder, "mismatch/mean_abs")) < 1e-4


@pytest.fixture(scope="module")
def pair(tmp_path_factory) -> Iterator[list[VllmServer]]:
    """Two servers of the tied model."""
    place = tmp_path_factory.mktemp("tied")
    folder = save_model(
        load_model(new_model_folder(sizes(True), 5), device="cpu"), place / "served"
    )
    both = [VllmServer(folder, place / f"{name}.log") for name in ("first", "second")]
    with ExitStack() as stack:
        yield [stack.enter_context(server) for server in both]


def served(servers: list[VllmServer], weights: str) -> dict[str, Any]:
    urls = [server.url for server in servers]
    return {"urls": urls, "folder": str(servers[0].folder), "weights": weights}


def test_the_tied_model_learns_as_in_process_and_a_broken_reload_is_caught(
    tmp_path, pair, monkeypatch
):
    """By process group, the packed head too; through the folder, refused at the first update.

    With the check switched off the run goes on without a word and its samples hardly get better: they
    are another policy's, further from the trainer's with each step.
    """
    finish(trainer(tmp_path, table(True), run="alone"))
    alone = curve(tmp_path / "alone")
    finish(trainer(tmp_path, table(True, **served(pair[:1], "group")), run="group"))
    assert_learned(alone)
    assert_learned(curve(tmp_path / "group"))
    assert_is_its_own_policy(tmp_path / "group")
    by_folder = table(True, **served(pair[1:], "folder"))
    with pytest.raises(OtherWeights, match=r"its workers do not have them.*tied head"):
        finish(trainer(tmp_path, by_folder, run="caught"))
    monkeypatch.setattr(Servers, "verify", False)
    blind = {"guards": {"sampler_mismatch_stop": 1e9}}
    finish(trainer(tmp_path, by_folder, blind, run="blind"))
    assert min(curve(tmp_path / "blind", "mismatch/mean_abs")[1:]) > 0.01
    assert fmean(curve(tmp_path / "blind")[-4:]) < 0.6


def test_two_servers_share_a_run_and_one_that_hangs_leaves_and_comes_back(tmp_path, pair, caplog):
    """Stopped by SIGSTOP in the middle of a run, found by its deadline; awake, it has new weights."""
    both = table(True, **served(pair, "group"), deadline_s=5.0)
    run = trainer(tmp_path, both)
    for event in run.run():
        if isinstance(event, StepDone) and event.step == 4:
            pair[0].signal(signal.SIGSTOP)
        if isinstance(event, StepDone) and event.step == 8:
            pair[0].signal(signal.SIGCONT)
    run.store.close()
    assert_learned(curve(tmp_path / "run"))
    assert_is_its_own_policy(tmp_path / "run")
    assert caplog.text.count("left the rotation; 1 of 2 are left") == 1
    assert caplog.text.count("is back with weights") == 1
    assert curve(tmp_path / "run", "status/ok") == [1.0] * STEPS


@pytest.mark.parametrize("bound", [1, 4])
def test_a_run_that_samples_ahead_learns_as_one_that_waits(tmp_path, pair, bound):
    """Within as many more steps as its samples lag, twice."""
    lagging = {
        "steps": STEPS + 2 * bound,
        "rollout": {"max_staleness": bound},
        "policy": {"correction": {"kind": "truncated"}},
    }
    finish(trainer(tmp_path, table(True, **served(pair[:1], "group")), lagging))
    assert_learned(curve(tmp_path / "run"))
    lags = curve(tmp_path / "run", "sampler/lag_max")
    assert max(lags) <= bound
    assert fmean(curve(tmp_path / "run", "sampler/lag")[bound + 1 :]) > bound / 4
    with RunStore.open(tmp_path / "run", read_only=True) as store:
        samples = [s.trajectory for s in store.samples() if s.split == "train"]
    for one in samples:
        for runs in one.info.get("weight_versions", {}).values():
            assert sum(tokens for _, tokens in runs) == one.trained_tokens
            assert min(version for version, _ in runs) == one.weight_version


def test_an_answer_that_an_update_met_tells_which_version_wrote_which_token(tmp_path, pair):
    """Kept in the pause, it goes on with the new weights: its log-probs are those of both."""
    trained = load_model(new_model_folder(sizes(True), 5), device="cpu")
    local = LocalLM(trained)
    from burnish.config.schema import Remote

    settings = Remote(dialect="vllm", **{**served(pair[:1], "group"), "urls": (pair[0].url,)})
    remote = Servers(settings, tokenizer=trained.tokenizer)
    ids = remote.canary
    asked = Sampling(max_tokens=300, seed=3)

    def scored(prompt: Any, answer: Any) -> tuple[float, ...]:
        return local.score_batch([(prompt, answer)])[0].logprobs

    async def update(version: int) -> None:
        weights = trained.module.weights_to_save()
        await remote.update_weights(version, weights, scored(ids[:1], ids[1:]))

    async def work() -> tuple[Any, tuple[float, ...]]:
        await remote.connect()
        await update(1)
        found: list[Any] = []

        async def ask() -> None:
            found.extend(await remote.sample([20, 21, 22], asked))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await anyio.sleep(0.4)
            before = local.loaded.module.state_dict()["model.norm.weight"].clone()
            trained.module.requires_grad_(False).model.norm.weight.mul_(0.5)
            await update(2)
            trained.module.model.norm.weight.copy_(before)
        old = scored([20, 21, 22], found[0].token_ids)
        trained.module.model.norm.weight.mul_(0.5)
        return found[0], old

    answer, old = anyio.run(work)
    new = scored([20, 21, 22], answer.token_ids)
    assert [version for version, _ in answer.weight_runs] == [1, 2]
    assert answer.weight_version == 1
    first = answer.weight_runs[0][1]
    assert sum(tokens for _, tokens in answer.weight_runs) == len(answer.token_ids)
    assert answer.logprobs[:first] == pytest.approx(old[:first], abs=1e-3)
    # Behind the update the text so far was read again: no key or value of the old weights is left.
    assert answer.logprobs[first:] == pytest.approx(new[first:], abs=1e-3)


@pytest.mark.parametrize("weights", ["folder", "group"])
def test_the_untied_model_learns_as_in_process(tmp_path, untied, weights):
    finish(trainer(tmp_path, table(False), run="alone"))
    continued = table(False, **served([untied], weights))
    stop_after(trainer(tmp_path, continued), 6, saved=True)
    finish(trainer(tmp_path, continued))
    assert_learned(curve(tmp_path / "alone"))
    assert_learned(curve(tmp_path / "run"))
    assert_is_its_own_policy(tmp_path / "run")


@pytest.fixture(scope="module")
def untied(tmp_path_factory) -> Iterator[VllmServer]:
    place = tmp_path_factory.mktemp("untied")
    fresh = load_model(new_model_folder(sizes(False), 5), device="cpu")
    with VllmServer(save_model(fresh, place / "served"), place / "vllm.log") as server:
        yield server
