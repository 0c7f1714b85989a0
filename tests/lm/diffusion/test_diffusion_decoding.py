"""Decoding a masked diffusion model: orders, blocks, seeds, ends, batches, and the kept prompt."""

import anyio
import pytest
import torch

from burnish.errors import UserError
from burnish.lm import load_model
from burnish.lm.base import Sampling
from burnish.lm.diffusion.convert import convert
from burnish.lm.diffusion.sampler import (
    Decoding,
    DiffusionSampler,
    chosen,
    order_scores,
    parse_decoding,
    read_decoding,
    step_counts,
    write_decoding,
)
from burnish.lm.local import LocalLM
from burnish.lm.new_model import tiny_model
from burnish.lm.sampler.rows import Request
from burnish.records import Finish, Message
from burnish.rollouts.session import Session

PROMPTS = ((5, 6, 7), (20, 21), (30, 31, 32, 33, 34, 35))


@pytest.fixture(scope="module", params=["all", "prompt"])
def loaded(request, tmp_path_factory):
    place = tmp_path_factory.mktemp(request.param)
    convert(tiny_model(place / "a", seed=4), place / "b", prompt_sees=request.param)
    return load_model(place / "b", dtype="float64", device="cpu")


def sampler_of(loaded, **settings):
    return DiffusionSampler(loaded.module, loaded.tokenizer, decoding=Decoding(**settings))


def write(sampler, *requests):
    return [found[0] for found in sampler.generate(requests)]


def request(prompt, **sampling):
    return Request(tuple(prompt), Sampling(**{"max_tokens": 10, "seed": 3, **sampling}))


def test_orders_by_hand():
    logits = torch.log(torch.tensor([[0.5, 0.4, 0.1], [0.4, 0.3, 0.3], [0.7, 0.0, 0.3]]))
    drawn, uniform = torch.tensor([1, 0, 0]), torch.tensor([0.3, 0.1, 0.2])
    found = {o: order_scores(logits, drawn, o, uniform) for o in ("confidence", "margin", "random")}
    assert found["confidence"].exp().tolist() == pytest.approx([0.4, 0.4, 0.7])
    assert found["margin"].tolist() == pytest.approx([0.1, 0.1, 0.4], abs=1e-6)
    assert torch.equal(found["random"], uniform)
    entropy = order_scores(logits, drawn, "entropy", uniform)
    assert entropy.tolist() == pytest.approx([-0.9433, -1.0889, -0.6109], abs=1e-3)


def test_the_surest_places_are_kept_and_ties_go_left():
    scores = torch.tensor([[0.2, 0.9, 0.9, 0.1], [1.0, 1.0, 1.0, 1.0]])
    is_open = torch.tensor([[True, True, True, True], [False, True, True, True]])
    found = chosen(scores, is_open, torch.tensor([2, 1]))
    assert found.tolist() == [[False, True, True, False], [False, True, False, False]]
    assert not chosen(scores, is_open, torch.tensor([0, 0])).any()


def test_a_block_is_spread_evenly_over_its_steps():
    assert step_counts(10, 4) == [3, 3, 2, 2]
    assert step_counts(3, 0) == [1, 1, 1]
    assert step_counts(2, 8) == [1, 1]


@pytest.mark.parametrize("order", ["confidence", "entropy", "margin", "random"])
def test_every_token_is_written_once_block_by_block(loaded, order):
    sampler = sampler_of(loaded, block=4, steps=2, order=order)
    sampler.tokenizer = _Endless(loaded.tokenizer)
    (found,) = write(sampler, request(PROMPTS[0], temperature=1.0))
    assert len(found.token_ids) == len(found.unmasked) == len(found.logprobs) == 10
    # Two steps of two tokens in each block; the last has two tokens.
    blocks = [sorted(found.unmasked[start : start + 4]) for start in (0, 4, 8)]
    assert blocks == [[0, 0, 1, 1], [2, 2, 3, 3], [4, 5]]
    assert loaded.module.architecture.mask_id not in found.token_ids
    assert all(value <= 0 for value in found.logprobs)


@pytest.mark.parametrize("order", ["confidence", "entropy", "margin", "random"])
def test_a_row_does_not_depend_on_its_neighbours(loaded, order):
    sampler = sampler_of(loaded, block=4, steps=3, order=order)
    asked = [
        request(p, temperature=1.0, max_tokens=m) for p, m in zip(PROMPTS, (10, 7, 9), strict=True)
    ]
    together = write(sampler, *asked)
    for one, alone in zip(together, asked, strict=True):
        own = write(sampler, alone)[0]
        assert (one.token_ids, one.unmasked) == (own.token_ids, own.unmasked)
        assert one.logprobs == pytest.approx(own.logprobs, abs=1e-9)
    assert write(sampler, *asked)[1].token_ids == together[1].token_ids
    other = write(sampler, request(PROMPTS[0], temperature=1.0, seed=4))[0]
    assert other.token_ids != together[0].token_ids


def test_few_rows_at_once_write_the_same(loaded):
    asked = [request(p, temperature=1.0) for p in PROMPTS]
    many = write(sampler_of(loaded, block=4), *asked)
    sampler = DiffusionSampler(
        loaded.module, loaded.tokenizer, decoding=Decoding(block=4), max_rows=1
    )
    few = write(sampler, *asked)
    assert [one.token_ids for one in many] == [one.token_ids for one in few]


def test_greedy_with_one_step_takes_every_places_likeliest_token(loaded):
    from burnish.lm.diffusion.masked_rows import both_ways

    mask = loaded.module.architecture.mask_id
    (found,) = write(
        sampler_of(loaded, block=6, steps=1), request(PROMPTS[0], temperature=0.0, max_tokens=6)
    )
    prompts = [3] if loaded.module.architecture.prompt_sees == "prompt" else None
    row = [*PROMPTS[0], *[mask] * 6]
    with torch.no_grad():
        hidden = loaded.module(both_ways([row], pad=0, device=torch.device("cpu"), prompts=prompts))
        logits = loaded.module.logits(hidden)[0, 3:]
    logits[:, mask] = float("-inf")
    best = logits.argmax(-1).tolist()
    ends = [i for i, token in enumerate(best) if token in loaded.tokenizer.eos_ids]
    assert list(found.token_ids) == best[: ends[0] + 1 if ends else 6]
    assert found.unmasked == (0,) * len(found.token_ids)


class _Endless:
    """A tokenizer without end tokens."""

    eos_ids = ()

    def __init__(self, own):
        self.decode = own.decode


def test_an_end_token_closes_the_row(loaded, monkeypatch):
    end = loaded.tokenizer.eos_ids[0]

    def sure(hidden):
        logits = torch.zeros(*hidden.shape[:-1], 261, dtype=hidden.dtype)
        logits[..., end] = 50.0
        return logits

    monkeypatch.setattr(loaded.module, "logits", sure)
    sampler = sampler_of(loaded, block=4)
    (found,) = write(sampler, request(PROMPTS[0], max_tokens=12))
    assert found.token_ids == (end,)
    assert (found.finish, found.text, sampler.passes) == (Finish.STOP, "", 4)


def test_a_stop_string_cuts_the_text(loaded, monkeypatch):
    letter = loaded.tokenizer.encode("a")[0]

    def sure(hidden):
        logits = torch.zeros(*hidden.shape[:-1], 261, dtype=hidden.dtype)
        logits[..., letter] = 50.0
        return logits

    monkeypatch.setattr(loaded.module, "logits", sure)
    (found,) = write(sampler_of(loaded, block=4), request(PROMPTS[0], stop=("aaa",)))
    assert (found.text, found.finish, len(found.token_ids)) == ("", Finish.STOP, 3)


def test_a_canvas_longer_than_the_budget_is_laid_out_and_cut(loaded):
    sampler = sampler_of(loaded, block=4, canvas=16)
    sampler.tokenizer = _Endless(loaded.tokenizer)
    (found,) = write(sampler, request(PROMPTS[0], max_tokens=6))
    assert len(found.token_ids) == 6
    longest = loaded.module.max_positions
    (near,) = write(sampler, request([5] * (longest - 6), max_tokens=6))
    assert len(near.token_ids) == 6


def test_top_p_and_top_k_keep_to_the_likeliest(loaded):
    greedy = write(sampler_of(loaded, block=4), request(PROMPTS[0], temperature=0.0))[0]
    for how in ({"top_k": 1}, {"top_p": 1e-6}):
        found = write(sampler_of(loaded, block=4), request(PROMPTS[0], temperature=1.0, **how))[0]
        assert found.token_ids == greedy.token_ids


def test_settings_travel_with_the_model(tmp_path):
    folder = convert(tiny_model(tmp_path / "a"), tmp_path / "b").folder
    assert read_decoding(folder) == Decoding()
    wanted = parse_decoding("steps=3, order=margin,canvas=8", Decoding())
    write_decoding(folder, wanted)
    assert read_decoding(folder) == wanted == Decoding(steps=3, order="margin", canvas=8)
    assert LocalLM(load_model(folder, device="cpu"))._sampler.decoding == wanted
    (folder / "generation_config.json").write_text('{"masked_diffusion": {"block": 0}}')
    with pytest.raises(UserError, match="block"):
        read_decoding(folder)


def test_a_trajectory_knows_the_order(tmp_path):
    folder = convert(tiny_model(tmp_path / "a"), tmp_path / "b").folder
    lm = LocalLM(load_model(folder, device="cpu"))

    async def talk():
        session = Session(lm, [Message("user", "Hi")], seed=1)
        await session.generate(Sampling(max_tokens=5))
        return session

    session = anyio.run(talk)
    (steps,) = session.info["unmasked"]
    assert len(steps) == len(session.spans[-1].token_ids)


def test_rows_take_the_room_of_their_canvas(loaded, monkeypatch):
    """Two rows of 3 + 4 tokens fit 20 tokens; on canvases of 16 they do not."""
    monkeypatch.setattr("burnish.lm.diffusion.sampler.prefill_tokens", lambda device: 20)
    passes = {}
    for canvas in (0, 16):
        sampler = sampler_of(loaded, block=4, canvas=canvas)
        write(sampler, *(request((5, 6, one), max_tokens=4) for one in (7, 8)))
        passes[canvas] = sampler.passes
    assert passes == {0: 4, 16: 8}


@pytest.mark.skipif(not torch.cuda.is_available(), reason="graphs need a GPU")
@pytest.mark.parametrize("prompt_sees", ["all", "prompt"])
def test_recorded_passes_write_what_plain_ones_do(tmp_path, monkeypatch, prompt_sees):
    convert(tiny_model(tmp_path / "a", seed=4), tmp_path / "b", prompt_sees=prompt_sees)
    loaded = load_model(tmp_path / "b", dtype="float32", device="cuda")
    asked = [request(prompt, max_tokens=24) for prompt in PROMPTS]
    recorded = write(sampler_of(loaded, block=8), *asked)
    monkeypatch.setattr("burnish.lm.diffusion.sampler.RECORDED", 1 << 30)
    plain = write(sampler_of(loaded, block=8), *asked)
    assert [one.token_ids for one in recorded] == [one.token_ids for one in plain]


def test_passes_are_counted_and_fewer_steps_are_fewer_passes(loaded):
    for steps, expected in ((0, 8), (2, 4)):
        sampler = sampler_of(loaded, block=4, steps=steps)
        sampler.tokenizer = _Endless(loaded.tokenizer)
        write(sampler, request(PROMPTS[0], temperature=1.0, max_tokens=8))
        assert sampler.passes == expected
