"""Our own sampling server: the draws of the sampler in process, and weights between two batches."""

import anyio
import anyio.lowlevel
import httpx
import pytest

from burnish.engines.serve_model import ServedModel, sampler_app
from burnish.lm.base import Sampling
from burnish.lm.folder import load_model, save_model
from burnish.lm.local import LocalLM
from burnish.lm.weights import WEIGHTS, read_weights, weights_checksum, write_weights

PROMPT = [72, 101, 108, 108, 111]
SEEDS = (7, 2**31 + 5, 2**63 - 1)
TOKEN = "a-token-of-some-length"


@pytest.fixture
def folder(tmp_path):
    return save_model(load_model("tiny", device="cpu"), tmp_path / "served")


def weights_times(folder, factor):
    """Other weights in the folder; their checksum."""
    file = folder / WEIGHTS
    weights = {name: tensor * factor for name, tensor in read_weights(file).items()}
    write_weights(file, weights)
    return weights_checksum(weights.items())


def drawn(lm, seed):
    """What the sampler in process draws: tokens and log-probs of three completions."""
    sampling = Sampling(n=3, max_tokens=8, temperature=1.0, top_p=0.9, seed=seed)
    (found,) = lm.sample_batch([lm.request(PROMPT, sampling)])
    return [(one.token_ids, one.logprobs) for one in found]


def serve(folder, talk):
    """Talk to the app of a served model, in this process."""
    served = ServedModel(folder, "cpu")

    async def work():
        transport = httpx.ASGITransport(app=sampler_app(served, TOKEN))
        headers = {"authorization": f"Bearer {TOKEN}"}
        where = "http://127.0.0.1"
        async with httpx.AsyncClient(
            transport=transport, base_url=where, headers=headers
        ) as client:
            await talk(client)

    anyio.run(work)


async def asked(client, seed):
    body = {"prompt": PROMPT, "n": 3, "max_tokens": 8, "top_p": 0.9, "seed": seed, "logprobs": 0}
    reply = (await client.post("/v1/completions", json=body)).json()
    found = [
        (tuple(c["token_ids"]), tuple(c["logprobs"]["token_logprobs"])) for c in reply["choices"]
    ]
    return reply["metadata"]["weight_version"], found


def test_it_draws_what_the_sampler_in_process_draws(folder):
    local = LocalLM(load_model(folder, device="cpu"))

    async def talk(client):
        (listed,) = (await client.get("/v1/models")).json()["data"]
        assert listed["max_seed"] == 2**63 - 1
        for seed in SEEDS:
            assert await asked(client, seed) == ("default", drawn(local, seed))

    serve(folder, talk)


def test_weights_go_in_between_two_batches_and_answers_say_which_they_had(folder):
    before = LocalLM(load_model(folder, device="cpu"))
    replies = []

    async def ask(client, seed):
        replies.append((seed, *await asked(client, seed)))

    async def talk(client):
        async with anyio.create_task_group() as group:
            for seed in range(4):
                group.start_soon(ask, client, seed)
            await anyio.lowlevel.checkpoint()
            checksum = weights_times(folder, 1.5)
            body = {"model_path": str(folder), "weight_version": "3"}
            done = await client.post("/update_weights_from_disk", json=body)
            assert done.json() == {"success": True, "message": ""}
            for seed in range(4, 8):
                group.start_soon(ask, client, seed)
        info = (await client.get("/weight_info")).json()
        assert info == {"weight_version": "3", "weights_checksum": checksum}

    serve(folder, talk)
    lms = {"default": before, "3": LocalLM(load_model(folder, device="cpu"))}
    assert {seed: version for seed, version, _ in replies if seed > 3} == dict.fromkeys(
        range(4, 8), "3"
    )
    # The company in a batch changes the last bits of a log-prob, never a token.
    for seed, version, found in replies:
        expected = drawn(lms[version], seed)
        assert [tokens for tokens, _ in found] == [tokens for tokens, _ in expected]
        for (_, mine), (_, theirs) in zip(found, expected, strict=True):
            assert mine == pytest.approx(theirs, abs=1e-4)


def test_weights_that_do_not_fit_leave_the_old_ones(folder):
    first = weights_checksum(load_model(folder, device="cpu").module.weights_to_save().items())
    weights = read_weights(folder / WEIGHTS)

    async def refused(client, **body):
        reply = await client.post(
            "/update_weights_from_disk",
            json={"model_path": str(folder), "weight_version": "1", **body},
        )
        assert reply.status_code in (400, 422)
        info = (await client.get("/weight_info")).json()
        assert info == {"weight_version": "default", "weights_checksum": first}
        return reply.text

    async def talk(client):
        name = next(iter(weights))
        write_weights(folder / WEIGHTS, {k: v for k, v in weights.items() if k != name})
        assert name in await refused(client)
        write_weights(folder / WEIGHTS, {**weights, name: weights[name][:-1]})
        assert name in await refused(client)
        write_weights(folder / WEIGHTS, {**weights, name: weights[name].half()})
        assert name in await refused(client)
        assert "model_path" in await refused(client, model_path="/elsewhere")
        assert "weight_version" in await refused(client, weight_version="new")
        (folder / WEIGHTS).write_bytes(b"no weights")
        assert "safetensors" in await refused(client)

    serve(folder, talk)


def test_only_health_is_told_without_the_token(folder):
    async def talk(client):
        client.headers["authorization"] = "Bearer another"
        assert (await client.get("/health")).json() == {"status": "ok"}
        for method, path in (
            ("GET", "/v1/models"),
            ("GET", "/weight_info"),
            ("POST", "/v1/completions"),
        ):
            assert (await client.request(method, path, json={})).status_code == 401

    serve(folder, talk)
