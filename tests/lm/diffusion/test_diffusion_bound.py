"""The likelihood bound of a masked diffusion model: by hand, by enumeration, and where it is refused."""

import copy
import dataclasses
import itertools
import math

import anyio
import pytest
import torch

from burnish.errors import ModelError, UserError
from burnish.lm import load_model
from burnish.lm.base import TooLong
from burnish.lm.diffusion.convert import convert
from burnish.lm.diffusion.masked_rows import Bound, both_ways, fill, likelihood_bound, mask_places
from burnish.lm.local import LocalLM
from burnish.lm.new_model import tiny_model
from burnish.lm.tokenizer import end_of_turn

PROMPT, ANSWER = [5, 6, 7], [40, 41, 42]


@pytest.fixture(scope="module", params=["all", "prompt"])
def loaded(request, tmp_path_factory):
    place = tmp_path_factory.mktemp(request.param)
    convert(tiny_model(place / "a", seed=4), place / "b", prompt_sees=request.param)
    return load_model(place / "b", dtype="float64", device="cpu")


def exact_bound(module, prompt, answer):
    """Every number of masked tokens, every choice of them, one row at a time."""
    mask, size = module.architecture.mask_id, len(answer)
    prompts = [len(prompt)] if module.architecture.prompt_sees == "prompt" else None
    total = 0.0
    for count in range(1, size + 1):
        choices = list(itertools.combinations(range(size), count))
        for places in choices:
            row = [*prompt, *(mask if i in places else t for i, t in enumerate(answer))]
            with torch.no_grad():
                inputs = both_ways([row], pad=0, device=torch.device("cpu"), prompts=prompts)
                logits = module.logits(module(inputs))[0, len(prompt) :]
            logits[:, mask] = float("-inf")
            logp = logits.log_softmax(-1)
            nll = sum(logp[i, answer[i]].item() for i in places)
            total += size / count * nll / len(choices) / size
    return total


def test_the_estimate_comes_to_the_bound(loaded):
    wanted = exact_bound(loaded.module, PROMPT, ANSWER)
    (found,) = likelihood_bound(loaded.module, [(PROMPT, ANSWER)], samples=600)
    assert found.standard_error is not None
    assert abs(found.logprob - wanted) < 4 * found.standard_error + 1e-9
    assert math.fsum(found.tokens) == pytest.approx(found.logprob)


def order_logprob(module, prompt, answer, order):
    """Log-prob of an answer whose tokens are written one by one in this order."""
    mask = module.architecture.mask_id
    prompts = [len(prompt)] if module.architecture.prompt_sees == "prompt" else None
    shown, total = [mask] * len(answer), 0.0
    for place in order:
        with torch.no_grad():
            inputs = both_ways(
                [[*prompt, *shown]], pad=0, device=torch.device("cpu"), prompts=prompts
            )
            logits = module.logits(module(inputs))[0, len(prompt) + place]
        logits[mask] = float("-inf")
        total += logits.log_softmax(-1)[answer[place]].item()
        shown[place] = answer[place]
    return total


def test_the_bound_is_the_mean_log_prob_of_all_orders_and_below_that_of_their_mixture(loaded):
    orders = list(itertools.permutations(range(len(ANSWER))))
    found = [order_logprob(loaded.module, PROMPT, ANSWER, one) for one in orders]
    each = torch.tensor(found, dtype=torch.float64)
    wanted = exact_bound(loaded.module, PROMPT, ANSWER)
    assert wanted == pytest.approx(each.mean().item())
    # A model that draws its order at random: its likelihood is the mean over orders.
    likelihood = each.logsumexp(0).item() - math.log(len(orders))
    assert each.max() - each.min() > 1e-4
    assert wanted < likelihood


def test_of_one_token_the_bound_is_the_log_prob(loaded):
    (found,) = likelihood_bound(loaded.module, [(PROMPT, [40])], samples=4)
    assert found.logprob == pytest.approx(exact_bound(loaded.module, PROMPT, [40]))
    assert found.standard_error == pytest.approx(0.0, abs=1e-12)


def test_masks_follow_from_seed_length_and_number_alone():
    assert mask_places(6, 4, 0) == mask_places(6, 4, 0)
    assert mask_places(6, 4, 0) != mask_places(6, 4, 1)
    counts = [len(places) for places in mask_places(100, 50, 3)]
    assert counts == sorted(counts)
    assert 1 <= counts[0] <= 2 < 99 <= counts[-1] <= 100
    assert all(len(set(places)) == len(places) for places in mask_places(5, 9, 2))


def test_rows_together_are_as_alone(loaded):
    pairs = [(PROMPT, ANSWER), ([9], [50, 51, 52, 53]), (PROMPT, [])]
    together = likelihood_bound(loaded.module, pairs, samples=6)
    for pair, found in zip(pairs, together, strict=True):
        (alone,) = likelihood_bound(loaded.module, [pair], samples=6)
        assert found.logprob == pytest.approx(alone.logprob, abs=1e-10)
    assert together[2] == Bound(0.0, None, 6, ())


def test_a_filled_canvas_counts_with_the_last_token(loaded):
    assert fill([1, 2, 9], 4, 9) == ([1, 2, 9, 9], 0)
    assert fill([1, 2, 3, 9], 4, 9) == ([1, 2, 3, 9], 0)
    assert fill([], 4, 9) == ([], 0)
    assert fill([1, 9], 8, 9, room=5) == ([1, 9, 9, 9, 9], 0)
    ended = [*ANSWER, 2]
    (filled,) = likelihood_bound(loaded.module, [(PROMPT, ended)], samples=5, canvas=6, end=2)
    (whole,) = likelihood_bound(loaded.module, [(PROMPT, [*ended, 2, 2])], samples=5)
    assert filled.logprob == pytest.approx(whole.logprob)
    assert len(filled.tokens) == 4


def test_behind_an_answer_that_was_cut_off_the_canvas_is_open(loaded):
    """Masked as when it was written, and no end token counts that was never written."""
    mask = loaded.module.architecture.mask_id
    assert fill(ANSWER, 6, 2) == (ANSWER, 3)
    (found,) = likelihood_bound(loaded.module, [(PROMPT, ANSWER)], samples=5, canvas=6, end=2)
    total = 0.0
    for places in mask_places(3, 5, 0):
        row = [
            *PROMPT,
            *(mask if i in places else t for i, t in enumerate(ANSWER)),
            mask,
            mask,
            mask,
        ]
        prompts = [3] if loaded.module.architecture.prompt_sees == "prompt" else None
        with torch.no_grad():
            inputs = both_ways([row], pad=0, device=torch.device("cpu"), prompts=prompts)
            logits = loaded.module.logits(loaded.module(inputs))[0, 3:6]
        logits[:, mask] = float("-inf")
        logp = logits.log_softmax(-1)
        total += 3 / len(places) * sum(logp[i, ANSWER[i]].item() for i in places) / 5
    assert found.logprob == pytest.approx(total)


def test_a_mask_token_in_a_response_is_no_number(loaded):
    mask = loaded.module.architecture.mask_id
    one, other = likelihood_bound(
        loaded.module, [(PROMPT, [40, mask]), (PROMPT, ANSWER)], samples=3
    )
    assert one == Bound(None, None, 3, ())
    assert other.logprob < 0
    with pytest.raises(UserError, match=f"a response holds {mask}, the mask token"):
        LocalLM(loaded).score_batch([(PROMPT, [40, mask])])


def test_the_mask_token_is_not_read_in_a_text_from_data(loaded):
    tokenizer = loaded.tokenizer
    mask = loaded.module.architecture.mask_id
    assert mask in tokenizer.encode("a <|mask|>")
    assert mask not in tokenizer.encode_data("a <|mask|>")
    assert tokenizer.decode(tokenizer.encode_data("a <|mask|>")) == "a <|mask|>"
    assert tokenizer.encode_data("a b") == tokenizer.encode("a b")


def test_weights_without_a_number_give_none(tmp_path):
    convert(tiny_model(tmp_path / "a"), tmp_path / "b")
    broken = load_model(tmp_path / "b", device="cpu")
    with torch.no_grad():
        next(broken.module.parameters()).fill_(float("nan"))
    assert likelihood_bound(broken.module, [(PROMPT, ANSWER)], samples=2)[0].logprob is None
    with pytest.raises(ModelError, match="no finite log-prob"):
        LocalLM(broken).score_batch([(PROMPT, ANSWER)])


def test_a_row_that_is_too_long_is_refused_and_the_canvas_is_not(loaded):
    longest = loaded.module.max_positions
    lm = LocalLM(loaded, decoding=f"canvas={longest}")
    with pytest.raises(TooLong, match=f"reads {longest} tokens"):
        lm.score_batch([(PROMPT, [40] * longest)])
    (found,) = likelihood_bound(
        loaded.module, [(PROMPT, [40, 2])], samples=1, canvas=longest, end=2
    )
    assert len(found.tokens) == 2


def test_scores_say_that_they_are_a_bound(loaded):
    lm = LocalLM(loaded)
    scores = anyio.run(lm.score, PROMPT, ANSWER)
    assert scores.is_bound
    assert scores.bound_samples == 32
    assert scores.standard_error > 0
    exact = anyio.run(LocalLM(load_model("tiny", device="cpu")).score, PROMPT, ANSWER)
    assert not exact.is_bound
    assert exact.standard_error is None
    with pytest.raises(UserError, match="expected an id"):
        lm.score_batch([(PROMPT, [9999])])


def test_scores_are_of_the_canvas_that_the_model_writes_on(loaded):
    plain, wide = (LocalLM(loaded, decoding=how) for how in ("", "canvas=6"))
    (end,) = end_of_turn(loaded.tokenizer)
    ended = [*ANSWER, end]
    (filled,) = likelihood_bound(loaded.module, [(PROMPT, ended)], canvas=6, end=end)
    found = wide.score_batch([(PROMPT, ended)])[0]
    assert math.fsum(found.logprobs) == pytest.approx(filled.logprob)
    assert found.logprobs != plain.score_batch([(PROMPT, ended)])[0].logprobs


def test_answers_are_filled_with_the_token_that_ends_a_turn(loaded):
    """A model may know several end tokens, and the first one need not end a turn."""
    tokenizer = loaded.tokenizer
    (end,) = end_of_turn(tokenizer)
    several = copy.copy(tokenizer)
    several.eos_ids = (40, end)
    other = dataclasses.replace(loaded, tokenizer=several)
    found = LocalLM(other, decoding="canvas=6").score_batch([(PROMPT, [41, end])])[0]
    (wanted,) = likelihood_bound(loaded.module, [(PROMPT, [41, end])], canvas=6, end=end)
    assert math.fsum(found.logprobs) == pytest.approx(wanted.logprob)
