"""Servers that sample: who is asked, which weights they have, and whether they really have them.

The servers are real HTTP servers in this process that speak the routes of SGLang and vLLM and sample
with a real tiny model; weights come to them through the folder, or over gloo.
"""

import threading
import time
from contextlib import ExitStack
from typing import Any

import anyio
import pytest
import torch
from hostile_server import HostileServer, status
from safetensors.torch import load_file
from sampling_server import Serving

from burnish.config.schema import Remote
from burnish.engines.servers import TOLERANCE, NoServers, OtherWeights, Servers
from burnish.errors import UserError
from burnish.lm.base import Completion, Sampling, one_home
from burnish.lm.decoder import init_weights
from burnish.lm.failures import ServerFailed
from burnish.lm.folder import LoadedModel, load_model, save_model
from burnish.lm.local import LocalLM
from burnish.lm.new_model import NewModel, new_model_folder
from burnish.lm.weights import weights_checksum
from burnish.records import Author, Message, Span, Task, Trajectory
from burnish.rollouts.session import Session
from burnish.training.packing import make_rows, pack

PROMPT = [5, 6, 7, 8]
TASK = Task("t", (Message("user", "hi"),))
SIZES = NewModel(layers=2, width=64, heads=4, kv_heads=2, inner=192, context=256, tied=False)
WAYS = [("sglang", "folder"), ("vllm", "folder"), ("vllm", "group")]


@pytest.fixture
def trained():
    return load_model(new_model_folder(SIZES, 3), device="cpu")


@pytest.fixture
def folder(tmp_path, trained):
    return save_model(trained, tmp_path / "served")


@pytest.fixture
def serving(folder):
    return Serving(folder)


@pytest.fixture
def server(serving):
    with HostileServer(serving) as running:
        yield running


@pytest.fixture
def pair(folder):
    """Two servers on one folder, running."""
    both = [Serving(folder), Serving(folder)]
    with ExitStack() as stack:
        yield both, [stack.enter_context(HostileServer(one)) for one in both]


def servers(urls: Any, folder: Any, trained: LoadedModel, restart: Any = None, **more: Any) -> Any:
    given = {"model": "m", "retries": 0, "deadline_s": 20.0} | more
    addresses = tuple(one.url for one in urls)
    settings = Remote(urls=addresses, folder=str(folder), **given)
    tokenizer = trained.tokenizer
    return Servers(settings, tokenizer=tokenizer, restart=restart)


def update(remote: Servers, version: int, loaded: LoadedModel) -> None:
    anyio.run(update_now, remote, version, loaded)


async def update_now(remote: Servers, version: int, loaded: LoadedModel) -> None:
    ids = remote.canary
    (heard,) = LocalLM(loaded).score_batch([(ids[:1], ids[1:])])
    await remote.update_weights(version, loaded.module.weights_to_save(), heard.logprobs)


def sampled(lm: Any, n: int = 3) -> list[Completion]:
    found: list[Completion] = anyio.run(lm.sample, PROMPT, Sampling(n=n, max_tokens=6, seed=4))
    return found


def drawn(completions: list[Completion]) -> list[tuple[Any, ...]]:
    return [(c.text, c.token_ids, c.prompt_ids, c.finish) for c in completions]


# --- weights


@pytest.mark.parametrize(("dialect", "weights"), WAYS)
def test_servers_sample_with_the_weights_they_were_sent(
    trained, folder, serving, server, dialect, weights
):
    local = LocalLM(trained)
    remote = servers([server], folder, trained, dialect=dialect, weights=weights, model="")
    anyio.run(remote.connect)
    assert remote.name == "m"
    before = sampled(remote)
    assert drawn(before) == drawn(sampled(local))
    for version, seed in ((7, 9), (8, 10)):
        init_weights(trained.module, seed=seed, std=0.2)
        update(remote, version, trained)
        after = sampled(remote)
        assert drawn(after) == drawn(sampled(local)) != drawn(before)
        assert [c.weight_version for c in after] == [version] * 3
        assert (remote.weight_version, remote.staleness, remote.served) == (version, 0, (version,))
    expected = {
        ("sglang", "folder"): ["/update_weights_from_disk"],
        ("vllm", "folder"): [
            *("/pause", "/collective_rpc", "/update_weight_version", "/reset_prefix_cache"),
            *("/resume", "/weight_info"),
        ],
        ("vllm", "group"): [
            *("/pause", "/start_weight_update", "/update_weights", "/finish_weight_update"),
            *("/reset_prefix_cache", "/resume", "/weight_info"),
        ],
    }
    last = serving.paths[-2 - len(expected[dialect, weights]) : -2]
    assert last == expected[dialect, weights]
    # The group is met once, and the folder is written only where the weights go through it.
    assert serving.paths.count("/init_weight_transfer_engine") == (weights == "group")
    is_written = weights_checksum(load_file(folder / "model.safetensors").items())
    assert (is_written == weights_checksum(trained.module.weights_to_save().items())) == (
        weights == "folder"
    )


@pytest.mark.parametrize(("dialect", "weights"), WAYS)
@pytest.mark.parametrize("lost", ["lm_head.weight", "model.layers.1.mlp.up_proj.weight"])
def test_one_tensor_that_the_workers_did_not_take_is_heard(
    trained, folder, serving, server, dialect, weights, lost
):
    """Each stale tensor alone: sent twice in full, then the run stops; without the check it goes on."""
    remote = servers([server], folder, trained, dialect=dialect, weights=weights)
    update(remote, 1, trained)
    serving.drops = lost
    with torch.no_grad():
        for name, parameter in trained.module.named_parameters():
            parameter.mul_(1.2 if "proj" in name or "head" in name else 1.0)
    with pytest.raises(OtherWeights, match=r"its workers do not have them: .* nats a token apart"):
        update(remote, 2, trained)
    sent = {"folder": "/collective_rpc", "group": "/update_weights"}[weights]
    sent = "/update_weights_from_disk" if dialect == "sglang" else sent
    assert serving.paths.count(sent) == 3
    remote.verify = False
    update(remote, 2, trained)
    assert drawn(sampled(remote)) != drawn(sampled(LocalLM(trained)))


def test_coarse_weights_that_did_not_move_at_all_are_heard_below_the_rounding(
    trained, folder, serving, server
):
    remote = servers([server], folder, trained)
    loose = TOLERANCE["bfloat16"]
    weights = trained.module.weights_to_save()
    named = {name: tensor.to(torch.bfloat16) for name, tensor in weights.items()}
    ids = remote.canary
    (heard,) = LocalLM(trained).score_batch([(ids[:1], ids[1:])])
    serving.update = lambda body: (
        serving.__dict__.update(version=body["weight_version"]) or {"success": True}
    )
    anyio.run(remote.update_weights, 1, named, heard.logprobs)
    moved = [value - 0.3 * loose for value in heard.logprobs]
    with pytest.raises(OtherWeights, match="other ones than before"):
        anyio.run(remote.update_weights, 2, named, moved)


def test_checksums_that_a_server_tells_of_its_workers_are_compared(
    trained, folder, serving, server
):
    remote = servers([server], folder, trained, version_path="/weights")
    init_weights(trained.module, seed=9, std=0.2)
    update(remote, 1, trained)
    assert "prompt_logprobs" not in [key for seen in server.requests for key in seen.body]
    serving.drops = "model.layers.0.mlp.up_proj.weight"
    init_weights(trained.module, seed=10, std=0.2)
    with pytest.raises(OtherWeights, match="right after it was given version 2"):
        update(remote, 2, trained)


def test_a_server_whose_weights_stay_wrong_is_started_again_where_somebody_can(
    trained, folder, serving, server
):
    remote = servers([server], folder, trained)
    serving.drops = "lm_head.weight"
    restarted = []

    async def restart(url: str) -> None:
        restarted.append(url)
        serving.drops = ""

    remote.restart = restart
    init_weights(trained.module, seed=9, std=0.2)
    update(remote, 1, trained)
    assert restarted == [server.url]
    assert drawn(sampled(remote)) == drawn(sampled(LocalLM(trained)))


def test_a_server_that_cannot_be_verified_is_refused(trained, folder, serving, server):
    serving.complete = lambda body: {  # type: ignore[method-assign]
        "model": "m",
        "choices": [{"index": 0, "text": "a", "finish_reason": "length"}],
    }
    with pytest.raises(UserError, match="nobody can tell whether"):
        update(servers([server], folder, trained), 1, trained)


# --- the rotation


def test_requests_go_where_the_fewest_tokens_are_in_flight(trained, folder, pair):
    (first, second), running = pair
    remote = servers(running, folder, trained)
    gate = threading.Event()
    first.holds = second.holds = lambda prompt: gate.wait(20)

    async def ask() -> list[int]:
        shares = []
        async with anyio.create_task_group() as group:
            # 4 + 40 tokens to one server; the other then takes four of 4 + 6 before it has as many.
            for tokens in (40, 6, 6, 6, 6, 6):
                group.start_soon(remote.sample, PROMPT, Sampling(n=1, max_tokens=tokens))
                await anyio.sleep(0.05)
                shares = [one.tokens for one in remote.servers]
            gate.set()
        return shares

    assert anyio.run(ask) == [44, 50]
    assert [one.tokens for one in remote.servers] == [0, 0]


def test_the_samples_of_a_group_stay_on_one_server(trained, folder, pair):
    _, running = pair
    remote = servers(running, folder, trained)

    async def group(start: int) -> None:
        with one_home():
            for turn in range(3):
                await remote.sample([start, *range(5, 8 + turn)], Sampling(n=2, max_tokens=4))

    async def ask() -> None:
        async with anyio.create_task_group() as tasks:
            for start in range(20, 24):
                tasks.start_soon(group, start)

    anyio.run(ask)
    asked = [{seen.body["prompt"][0] for seen in one.requests} for one in running]
    assert asked[0] | asked[1] == {20, 21, 22, 23}
    assert not asked[0] & asked[1]
    assert all(asked)


@pytest.mark.parametrize("fault", ["gone", "failing", "silent"])
def test_rows_of_a_server_that_stops_answering_are_sampled_on_another(
    trained, folder, pair, fault, caplog
):
    """With the same seeds they are the same rows; within the deadline, and each exactly once."""
    (first, _), running = pair
    alone = LocalLM(trained)
    remote = servers(running, folder, trained, deadline_s=1.5)
    gate = threading.Event()
    if fault == "gone":
        running[0].__exit__()
    elif fault == "failing":
        running[0]._behaviours = lambda number, seen: status(503, "no memory")
    else:
        first.holds = lambda prompt: gate.wait(30)
    asked = [Sampling(n=2, max_tokens=5, seed=seed) for seed in range(6)]

    async def ask(lm: Any) -> list[list[Completion]]:
        rows: dict[int, list[Completion]] = {}

        async def one(sampling: Sampling) -> None:
            rows[sampling.seed] = await lm.sample(PROMPT, sampling)

        async with anyio.create_task_group() as tasks:
            for sampling in asked:
                tasks.start_soon(one, sampling)
        return [rows[sampling.seed] for sampling in asked]

    began = time.monotonic()
    found = anyio.run(ask, remote)
    assert time.monotonic() - began < 6
    gate.set()
    assert [drawn(one) for one in found] == [drawn(one) for one in anyio.run(ask, alone)]
    assert remote.served == (-1, 0)
    assert caplog.text.count("left the rotation") == 1
    assert "1 of 2 are left" in caplog.text


def test_a_server_comes_back_with_the_current_weights(trained, folder, pair, caplog):
    (first, _), running = pair
    remote = servers(running, folder, trained)
    first.refuses = True
    init_weights(trained.module, seed=9, std=0.2)
    update(remote, 1, trained)
    assert remote.served == (-1, 1)
    assert first.version == "default"
    assert [c.weight_version for c in sampled(remote)] == [1, 1, 1]
    first.refuses = False
    init_weights(trained.module, seed=10, std=0.2)
    update(remote, 2, trained)
    assert remote.served == (2, 2)
    assert "is back with weights 2" in caplog.text
    assert {str(c.weight_version) for c in sampled(remote)} == {first.version} == {"2"}


def test_where_no_server_is_left_the_run_stops_or_they_are_started_again(trained, folder):
    own = Serving(folder)
    with HostileServer(own) as gone:
        remote = servers([gone], folder, trained)
        update(remote, 4, trained)
    with pytest.raises(NoServers, match=r"none of 1 sampling server answers: .*/v1.* Start one"):
        sampled(remote)
    started = []

    async def restart(url: str) -> None:
        port = int(url.rpartition(":")[2].partition("/")[0])
        started.append(HostileServer(Serving(folder), port).__enter__())

    remote.restart = restart
    again = sampled(remote)
    assert drawn(again) == drawn(sampled(LocalLM(trained)))
    assert [c.weight_version for c in again] == [4, 4, 4]
    assert len(started) == 1
    started[0].__exit__()


def test_a_group_of_processes_survives_a_server_that_was_started_again(trained, folder):
    """It is met anew; the other end of the old one is gone."""
    with HostileServer(Serving(folder)) as one:
        remote = servers([one], folder, trained, dialect="vllm", weights="group")
        update(remote, 1, trained)
        port = one._server.server_port
    second = Serving(folder)
    with HostileServer(second, port):
        remote.servers[0].leave("it was killed")
        init_weights(trained.module, seed=9, std=0.2)
        update(remote, 2, trained)
        assert drawn(sampled(remote)) == drawn(sampled(LocalLM(trained)))
    assert second.paths.count("/init_weight_transfer_engine") == 1


def test_answers_of_weights_that_were_not_verified_are_sampled_again(trained, folder, pair):
    """One that ends between an update and its verification waits for that, and goes where it fails."""
    (first, _), running = pair
    remote = servers(running, folder, trained)
    update(remote, 1, trained)
    init_weights(trained.module, seed=9, std=0.2)
    asked, load, gate = [], first.load, threading.Event()

    def lossy() -> None:
        load()
        with torch.no_grad():
            first.lm.loaded.module.model.norm.weight.mul_(1.5)
        gate.set()

    first.load = lossy  # type: ignore[method-assign]
    first.holds = lambda prompt: asked.append(prompt) or gate.wait(20)

    async def beside() -> list[Completion]:
        found: list[Completion] = []

        async def ask() -> None:
            found.extend(await remote.sample(PROMPT, Sampling(n=2, max_tokens=6, seed=4)))

        async with anyio.create_task_group() as tasks:
            tasks.start_soon(ask)
            await anyio.sleep(0.1)
            with pytest.raises(OtherWeights):
                await update_now(remote, 2, trained)
            await anyio.sleep(0.2)
        return found

    found = anyio.run(beside)
    assert asked == [PROMPT]
    assert drawn(found) == drawn(
        anyio.run(LocalLM(trained).sample, PROMPT, Sampling(n=2, max_tokens=6, seed=4))
    )


def test_one_row_that_a_server_cannot_answer_takes_no_server_along(trained, folder, pair):
    _, running = pair
    remote = servers(running, folder, trained)
    for one in running:
        own = one._behaviours
        one._behaviours = lambda number, seen, own=own: (
            status(500, "odd") if seen.body.get("prompt") == [9, 9] else own(number, seen)
        )
    with pytest.raises(ServerFailed, match="HTTP 500"):
        anyio.run(remote.sample, [9, 9], Sampling(max_tokens=3))
    assert remote.served == (0, 0)


# --- versions


def test_answers_in_flight_are_kept_and_tell_the_version_of_each_token(
    trained, folder, serving, server
):
    """An answer that began under weights 1 ends under weights 2; the store has both."""
    remote = servers([server], folder, trained, dialect="vllm")
    update(remote, 1, trained)
    written, gate = serving.generate, threading.Event()

    def kept(body: dict[str, Any]) -> dict[str, Any]:
        gate.wait(20)
        reply = written(body)
        for choice in reply["choices"]:
            spans = [("1", 0, 2), ("2", 2, len(choice["token_ids"]))]
            choice["weight_versions"] = [{"version": v, "start": a, "end": b} for v, a, b in spans]
        return reply

    serving.generate = kept  # type: ignore[method-assign]
    session = Session(remote, [Message("user", "hi")], seed=1)

    async def beside() -> None:
        async with anyio.create_task_group() as tasks:
            tasks.start_soon(session.generate, Sampling(max_tokens=6))
            await anyio.sleep(0.1)
            await update_now(remote, 2, trained)
            gate.set()

    anyio.run(beside)
    trajectory = session.trajectory(TASK)
    count = trajectory.trained_tokens
    assert trajectory.weight_version == 1
    assert trajectory.info["weight_versions"] == {"0": [[1, 2], [2, count - 2]]}


def test_a_server_that_forgets_its_version_was_started_again(trained, folder, serving, server):
    remote = servers([server], folder, trained)
    update(remote, 3, trained)
    assert [c.weight_version for c in sampled(remote, n=1)] == [3]
    serving.version = "default"
    assert [c.weight_version for c in sampled(remote, n=1)] == [-1]
    serving.version = "41"  # somebody else updated it
    assert [c.weight_version for c in sampled(remote, n=1)] == [41]


def test_a_rollout_is_as_old_as_the_oldest_weights_that_wrote_it(trained):
    lm = LocalLM(trained)
    session = Session(lm, [Message("user", "hi")], seed=1)
    assert session.trajectory(TASK).weight_version is None
    for version in (5, 7, 6):
        lm.weight_version = version
        anyio.run(session.generate, Sampling(max_tokens=2))
        session.observe([Message("user", "and?")])
    assert session.trajectory(TASK).weight_version == 5


@pytest.mark.parametrize("dialect", ["sglang", "vllm"])
def test_the_samplers_log_probs_reach_the_batch_of_the_loss(trained, folder, server, dialect):
    completions = sampled(servers([server], folder, trained, dialect=dialect))
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


def test_settings_that_cannot_work_are_refused(trained, folder, server, tmp_path):
    with pytest.raises(UserError, match="is no model folder"):
        servers([server], tmp_path, trained)
    with pytest.raises(UserError, match=r"sampler.urls: got none"):
        servers([], folder, trained)
    with pytest.raises(UserError, match="expected folder with dialect = 'sglang'"):
        servers([server], folder, trained, dialect="sglang", weights="group")
