"""A sampler behind a server: weights sent to it, versions on every completion, bounded staleness.

The server is a stand-in that speaks the routes of SGLang and vLLM and samples with a real tiny
model, which it loads from the folder when it is told to.
"""

from typing import Any

import anyio
import pytest
import torch
from hostile_server import HostileServer
from safetensors.torch import load_file, save_file
from sampling_server import Serving

from burnish.errors import ModelError, UserError
from burnish.lm.base import Completion, Sampler, Sampling
from burnish.lm.decoder import init_weights
from burnish.lm.folder import LoadedModel, load_model, save_model
from burnish.lm.jobs import Limits
from burnish.lm.local import LocalLM
from burnish.lm.new_model import tiny_model
from burnish.lm.remote import OtherWeights, RemoteSampler, StaleWeights
from burnish.lm.weights import weights_checksum
from burnish.records import Author, Message, Span, Task, Trajectory
from burnish.rollouts.session import Session
from burnish.training.packing import make_rows, pack

PROMPT = [5, 6, 7, 8]
TASK = Task("t", (Message("user", "hi"),))


@pytest.fixture
def trained(tmp_path):
    return load_model(tiny_model(tmp_path / "trained"), device="cpu")


@pytest.fixture
def serving(tmp_path, trained):
    return Serving(save_model(trained, tmp_path / "served"))


def sampled(lm: Any, n: int = 3) -> list[Completion]:
    found: list[Completion] = anyio.run(lm.sample, PROMPT, Sampling(n=n, max_tokens=6, seed=4))
    return found


def remote(server: HostileServer, serving: Serving, **more: Any) -> RemoteSampler:
    limits = Limits(retries=0)
    return RemoteSampler(server.url, "m", folder=serving.folder, limits=limits, **more)


def update(sampler: Any, version: int, loaded: LoadedModel) -> None:
    anyio.run(sampler.update_weights, version, loaded.module.weights_to_save().items())


def drawn(completions: list[Completion]) -> list[tuple[Any, ...]]:
    return [(c.text, c.token_ids, c.prompt_ids, c.finish) for c in completions]


@pytest.mark.parametrize("dialect", ["sglang", "vllm"])
def test_the_server_samples_with_the_weights_it_was_sent(trained, serving, dialect):
    local = LocalLM(trained)
    with HostileServer(serving) as server:
        sampler = remote(server, serving, dialect=dialect)
        assert isinstance(sampler, Sampler)
        before = sampled(sampler)
        assert drawn(before) == drawn(sampled(local))
        assert [c.weight_version for c in before] == [0, 0, 0]
        init_weights(trained.module, seed=9, std=0.2)
        update(sampler, 7, trained)
        after = sampled(sampler)
    assert drawn(after) == drawn(sampled(local)) != drawn(before)
    assert [c.weight_version for c in after] == [7, 7, 7]
    assert (sampler.weight_version, sampler.staleness, sampler.stale_completions) == (7, 0, 0)
    expected = {
        "sglang": ["/update_weights_from_disk"],
        "vllm": ["/collective_rpc", "/reset_prefix_cache"],
    }
    assert serving.paths == ["/v1/completions", *expected[dialect], "/v1/completions"]


def test_the_samplers_log_probs_reach_the_batch_of_the_loss(trained, serving):
    with HostileServer(serving) as server:
        completions = sampled(remote(server, serving))
    rollouts = [
        Trajectory(
            f"t.{i}",
            "t",
            "t",
            (
                Span(Author.PROMPT, c.prompt_ids),
                Span(Author.MODEL, c.token_ids, c.logprobs, trainable=True),
            ),
            c.text,
        )
        for i, c in enumerate(completions)
    ]
    packed = pack(make_rows(rollouts, True), rollouts, torch.device("cpu"))
    scored = LocalLM(trained).score_batch([(PROMPT, c.token_ids) for c in completions])
    flat = torch.tensor([p for one in scored for p in one.logprobs])
    torch.testing.assert_close(packed.sampled_N.float(), flat, atol=2e-5, rtol=0)


def test_weights_beyond_the_bound_are_never_sampled_with(trained, serving):
    with HostileServer(serving) as server:
        sampler = remote(server, serving)
        serving.refuses = True
        with pytest.raises(ModelError, match="HTTP 500"):
            update(sampler, 1, trained)
        with pytest.raises(StaleWeights, match=r"version 0, 1 behind .* max_staleness=0"):
            sampled(sampler)
        serving.refuses = False
        update(sampler, 1, trained)
        assert [c.weight_version for c in sampled(sampler)] == [1, 1, 1]


def test_stale_completions_within_the_bound_are_counted(trained, serving, caplog):
    with HostileServer(serving) as server:
        sampler = remote(server, serving, max_staleness=1)
        serving.refuses = True
        update(sampler, 1, trained)
        assert "keeps the weights of version 0" in caplog.text
        assert [c.weight_version for c in sampled(sampler, n=2)] == [0, 0]
        assert sampler.stale_completions == 2
        with pytest.raises(ModelError, match="HTTP 500"):
            update(sampler, 2, trained)


def test_a_server_that_says_no_has_not_loaded_the_weights(trained, serving, tmp_path):
    other = save_model(trained, tmp_path / "other")
    with HostileServer(serving) as server:
        sampler = RemoteSampler(server.url, "m", folder=other)
        with pytest.raises(ModelError, match=r"did not load weights 3: 'no such model'"):
            update(sampler, 3, trained)
    assert sampler.weight_version == 0


def test_the_version_that_a_server_reports_is_the_completions(serving):
    """Somebody else may have updated it."""
    serving.version = "41"
    with HostileServer(serving) as server:
        assert [c.weight_version for c in sampled(remote(server, serving))] == [41] * 3


def test_a_rollout_is_as_old_as_the_oldest_weights_that_wrote_it(trained):
    lm = LocalLM(trained)
    session = Session(lm, [Message("user", "hi")], seed=1)
    assert session.trajectory(TASK).weight_version is None
    for version in (5, 7, 6):
        lm.weight_version = version
        anyio.run(session.generate, Sampling(max_tokens=2))
        session.observe([Message("user", "and?")])
    assert session.trajectory(TASK).weight_version == 5


def test_a_server_that_forgets_its_version_was_started_again(trained, serving):
    with HostileServer(serving) as server:
        sampler = remote(server, serving)
        update(sampler, 3, trained)
        assert [c.weight_version for c in sampled(sampler, n=1)] == [3]
        serving.version = "default"
        assert [c.weight_version for c in sampled(sampler, n=1)] == [-1]


def test_one_lost_tensor_is_seen_by_the_checksum_that_the_server_echoes(trained, serving):
    with HostileServer(serving) as server:
        sampler = remote(server, serving, version_path="/weights")
        init_weights(trained.module, seed=9, std=0.2)
        update(sampler, 1, trained)
        assert sampler.checksum == weights_checksum(trained.module.weights_to_save().items())
        serving.drops = "model.layers.0.mlp.up_proj.weight"
        init_weights(trained.module, seed=10, std=0.2)
        with pytest.raises(OtherWeights, match="right after it was given version 2"):
            update(sampler, 2, trained)


def test_a_folder_that_somebody_else_writes_into_is_seen(trained, serving):
    """Also where the server says nothing of its weights, and within the bound of staleness."""

    def overwrite(body: dict[str, Any]) -> dict[str, Any]:
        file = serving.folder / "model.safetensors"
        weights = load_file(file)
        weights["model.norm.weight"] += 1.0
        save_file(weights, file)
        return {"success": True}

    serving.update = overwrite  # type: ignore[method-assign]
    with HostileServer(serving) as server:
        sampler = remote(server, serving, max_staleness=3)
        with pytest.raises(OtherWeights, match="does another run"):
            update(sampler, 1, trained)


def test_the_only_model_of_a_server_needs_no_name(serving):
    with HostileServer(serving) as server:
        sampler = RemoteSampler(server.url, folder=serving.folder)
        anyio.run(sampler.connect)
    assert sampler.name == "m"


def test_settings_that_cannot_work_are_refused(serving, tmp_path):
    url = "http://127.0.0.1:1/v1"
    with pytest.raises(UserError, match="is no model folder"):
        RemoteSampler(url, "m", folder=tmp_path)
    with pytest.raises(UserError, match="expected sglang, vllm"):
        RemoteSampler(url, "m", folder=serving.folder, dialect="tgi")
