"""Sampling and scoring with a model in this process."""

from itertools import chain

import anyio
import pytest
import torch

from burnish.errors import UserError
from burnish.lm import LM, LocalLM, Sampling, choose_threads, load_model, tiny_model
from burnish.lm.decoder import init_weights
from burnish.lm.model_input import ModelInput
from burnish.records import Finish, Message

PROMPTS = ["What is 3 + 4?", "Hi", "Tell me a long story about a short day, please."]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    model = load_model(tiny_model(tmp_path_factory.mktemp("tiny")), device="cpu")
    model.name = "tiny"
    init_weights(model.module, seed=2, std=0.15)  # peaked enough that positions matter
    return model


@pytest.fixture
def lm(loaded):
    return LocalLM(loaded)


def messages(text):
    return [Message("user", text)]


def ask(lm, texts, sampling):
    return lm.sample_batch([lm.request(messages(text), sampling) for text in texts])


@pytest.mark.parametrize("temperature", [0.0, 1.0])
def test_left_padding_and_neighbours_change_nothing(lm, temperature):
    sampling = Sampling(n=3, temperature=temperature, max_tokens=24, seed=5)
    together = ask(lm, PROMPTS, sampling)
    for text, completions in zip(PROMPTS, together, strict=True):
        alone = ask(lm, [text], sampling)[0]
        assert [c.token_ids for c in alone] == [c.token_ids for c in completions]
        for a, b in zip(alone, completions, strict=True):
            assert a.logprobs == pytest.approx(b.logprobs, abs=1e-4)
    backwards = ask(lm, PROMPTS[::-1], sampling)[::-1]
    assert [[c.token_ids for c in q] for q in backwards] == [
        [c.token_ids for c in q] for q in together
    ]


def test_greedy_tokens_equal_transformers(lm, tmp_path):
    from transformers import AutoModelForCausalLM

    from burnish.lm import save_model

    theirs = AutoModelForCausalLM.from_pretrained(save_model(lm.loaded, tmp_path / "m")).eval()
    got = ask(lm, PROMPTS, Sampling(temperature=0, max_tokens=20))
    for completions in got:
        prompt = list(completions[0].prompt_ids)
        output = theirs.generate(torch.tensor([prompt]), max_new_tokens=20, do_sample=False)
        assert list(completions[0].token_ids) == output[0, len(prompt) :].tolist()


def test_cutting_into_chunks_changes_nothing(loaded, lm):
    sampling = Sampling(n=3, max_tokens=12, seed=9)
    small = LocalLM(loaded, max_rows=2)
    a, b = ask(lm, PROMPTS, sampling), ask(small, PROMPTS, sampling)
    assert [[c.token_ids for c in q] for q in a] == [[c.token_ids for c in q] for q in b]


def test_completion_i_does_not_depend_on_n(lm):
    few = ask(lm, PROMPTS[:1], Sampling(n=2, max_tokens=10, seed=4))[0]
    many = ask(lm, PROMPTS[:1], Sampling(n=6, max_tokens=10, seed=4))[0]
    assert [c.token_ids for c in many[:2]] == [c.token_ids for c in few]
    assert len({c.token_ids for c in many}) == 6


def test_logprobs_equal_scores(lm):
    for completions in ask(lm, PROMPTS, Sampling(n=2, max_tokens=15, seed=8)):
        for c in completions:
            scores = lm.score_batch([(c.prompt_ids, c.token_ids)])[0]
            assert scores.logprobs == pytest.approx(c.logprobs, abs=1e-4)


def test_scores_equal_transformers(lm, tmp_path):
    from transformers import AutoModelForCausalLM

    from burnish.lm import save_model

    theirs = AutoModelForCausalLM.from_pretrained(save_model(lm.loaded, tmp_path / "m")).eval()
    prompt, response = [1, 50, 60, 70], [80, 90, 2]
    with torch.no_grad():
        logprobs = theirs(torch.tensor([prompt + response])).logits[0].log_softmax(-1)
    expected = [float(logprobs[len(prompt) - 1 + i, t]) for i, t in enumerate(response)]
    got = anyio.run(lm.score, prompt, response)
    assert got.logprobs == pytest.approx(expected, abs=1e-4)
    assert lm.score_batch([(prompt, [])])[0].logprobs == ()


def test_tempered_logprobs_and_alternatives(lm):
    sampling = Sampling(temperature=0.5, max_tokens=4, seed=1, top_logprobs=5)
    c = ask(lm, PROMPTS[:1], sampling)[0][0]
    ids = torch.tensor([[*c.prompt_ids, *c.token_ids]])
    with torch.no_grad():
        hidden = lm.loaded.module(ModelInput(ids, torch.arange(ids.shape[1]).unsqueeze(0)))
        logprobs = (lm.loaded.module.logits(hidden)[0] / 0.5).log_softmax(-1)
    start = len(c.prompt_ids) - 1
    expected = [float(logprobs[start + i, t]) for i, t in enumerate(c.token_ids)]
    assert c.logprobs == pytest.approx(expected, abs=1e-4)
    best = logprobs[start].topk(5)
    assert list(c.top_logprobs[0]) == best.indices.tolist()
    assert list(c.top_logprobs[0].values()) == pytest.approx(best.values.tolist(), abs=1e-4)


def test_end_token_budget_and_rows_that_leave_early(lm, loaded):
    free = ask(lm, PROMPTS, Sampling(n=4, max_tokens=30, seed=3))
    first = free[0][0].token_ids
    ends = loaded.tokenizer.eos_ids
    try:
        loaded.tokenizer.eos_ids = (first[4], 2)
        stopped = ask(lm, PROMPTS, Sampling(n=4, max_tokens=30, seed=3))
    finally:
        loaded.tokenizer.eos_ids = ends
    lengths = []
    for before, after in zip(chain(*free), chain(*stopped), strict=True):
        places = [i for i, t in enumerate(before.token_ids) if t in (first[4], 2)]
        expected = before.token_ids[: places[0] + 1] if places else before.token_ids
        assert after.token_ids == expected
        assert after.finish is (Finish.STOP if places else Finish.LENGTH)
        assert len(after.logprobs) == len(expected)
        lengths.append(len(expected))
    assert lengths[0] == 5
    assert len(set(lengths)) > 1  # some rows really left before others


def test_budgets_may_differ_within_a_batch(lm):
    requests = [
        lm.request(messages("Hi"), Sampling(max_tokens=m, seed=6)) for m in (1, 3, 17, 2, 40)
    ]
    got = [c[0].token_ids for c in lm.sample_batch(requests)]
    assert [len(ids) for ids in got] == [1, 3, 17, 2, 40]
    assert all(got[4][: len(ids)] == ids for ids in got)


def test_stop_strings_cut_the_text_and_keep_the_tokens(lm):
    plain = ask(lm, PROMPTS[:1], Sampling(max_tokens=40, seed=12))[0][0]
    text = plain.text
    stop = text[10:13]
    place = text.find(stop)
    cut = ask(lm, PROMPTS[:1], Sampling(max_tokens=40, seed=12, stop=("never@@", stop)))[0][0]
    assert cut.text == text[:place]
    assert cut.finish is Finish.STOP
    assert plain.token_ids[: len(cut.token_ids)] == cut.token_ids
    assert stop in lm.loaded.tokenizer.decode(cut.token_ids)
    assert stop not in lm.loaded.tokenizer.decode(cut.token_ids[:-1])
    unmet = ask(lm, PROMPTS[:1], Sampling(max_tokens=40, seed=12, stop=("never@@",)))[0][0]
    assert (unmet.text, unmet.finish) == (text, Finish.LENGTH)


def test_concurrent_calls_become_one_batch(lm, monkeypatch):
    sizes = []
    whole = lm.sample_batch
    monkeypatch.setattr(
        lm, "sample_batch", lambda requests: (sizes.append(len(requests)), whole(requests))[1]
    )
    sampling = Sampling(n=2, max_tokens=8, seed=5)
    results = {}

    async def one(text, rounds):
        for _ in range(rounds):  # tasks that become ready one after the other still meet
            await anyio.lowlevel.checkpoint()
        results[text] = await lm.sample(messages(text), sampling)

    async def main():
        async with anyio.create_task_group() as group:
            for rounds, text in enumerate(PROMPTS):
                group.start_soon(one, text, rounds)

    anyio.run(main)
    assert sizes == [3]
    anyio.run(main)  # a second event loop starts afresh
    assert sizes == [3, 3]
    for text, completions in results.items():
        alone = whole([lm.request(messages(text), sampling)])[0]
        assert [c.token_ids for c in completions] == [c.token_ids for c in alone]
        assert completions[0].model == "tiny"


def test_a_cancelled_caller_does_not_strand_the_others(lm):
    async def main():
        got = []
        async with anyio.create_task_group() as group:

            async def leader():
                with anyio.CancelScope() as scope:
                    scope.cancel()
                    await lm.sample(messages("Hi"), Sampling(max_tokens=4))

            async def follower():
                got.append(await lm.sample(messages("Hi"), Sampling(max_tokens=4)))

            group.start_soon(leader)
            group.start_soon(follower)
        return got

    with_deadline = anyio.run(main)
    assert len(with_deadline[0][0].token_ids) == 4


def test_a_failing_batch_fails_every_call_in_it(lm, monkeypatch):
    def broken(requests):
        raise RuntimeError("out of memory")

    monkeypatch.setattr(lm, "sample_batch", broken)
    caught = []

    async def one():
        with pytest.raises(RuntimeError, match="out of memory"):
            await lm.sample(messages("Hi"), Sampling(max_tokens=4))
        caught.append(1)

    async def main():
        async with anyio.create_task_group() as group:
            group.start_soon(one)
            group.start_soon(one)

    anyio.run(main)
    assert len(caught) == 2


def test_new_weights_are_seen_without_any_copy(loaded, lm):
    sampling = Sampling(temperature=0, max_tokens=12)
    before = ask(lm, PROMPTS, sampling)
    weight = loaded.module.model.layers[0].mlp.down_proj.weight
    with torch.no_grad():
        weight.neg_()
        after = ask(lm, PROMPTS, sampling)
        weight.neg_()
    assert before != after
    assert ask(lm, PROMPTS, sampling) == before
    assert isinstance(lm, LM)
    lm.weight_version = 7
    assert lm.weight_version == 7


def test_training_after_sampling_sees_no_inference_tensors(lm):
    ask(lm, PROMPTS, Sampling(max_tokens=2))
    ids = torch.tensor([[5, 6, 7]])
    hidden = lm.loaded.module(ModelInput(ids, torch.arange(3).unsqueeze(0)))
    lm.loaded.module.logits(hidden).sum().backward()
    assert lm.loaded.module.head_weight.grad.abs().sum() > 0
    lm.loaded.module.zero_grad()


def test_prompts_that_cannot_be_answered_are_refused(lm):
    with pytest.raises(UserError, match="empty prompt"):
        lm.request([], Sampling())
    with pytest.raises(UserError, match="token 1 of a prompt is 260; expected an id from 0 to 259"):
        lm.request([5, 260], Sampling())
    with pytest.raises(UserError, match=r"leaves no room.*1024"):
        lm.request([5] * 1024, Sampling())
    short = lm.request([5] * 1020, Sampling(max_tokens=50))
    completion = lm.sample_batch([short])[0][0]
    assert len(completion.token_ids) <= 4


def test_bfloat16_samples_and_scores_agree_within_its_noise(tmp_path):
    loaded = load_model(tiny_model(tmp_path), dtype="bfloat16", device="cpu")
    lm = LocalLM(loaded)
    for completions in ask(lm, PROMPTS, Sampling(n=2, max_tokens=12, seed=2)):
        for c in completions:
            scores = lm.score_batch([(c.prompt_ids, c.token_ids)])[0]
            assert scores.logprobs == pytest.approx(c.logprobs, abs=0.05)


def test_small_models_get_one_thread():
    assert choose_threads(115_264, cores=8) == 1
    assert choose_threads(134_515_008, cores=2) == 2
    assert choose_threads(134_515_008, cores=1) == 1
    assert choose_threads(115_264, cores=8, rows=16) == 1
    assert choose_threads(115_264, cores=8, rows=64) == 8
