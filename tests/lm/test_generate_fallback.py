"""Models outside the built-in families: sampled by transformers' `generate`, with our draws."""

import json
import logging

import pytest
import torch

from burnish.errors import ModelError, UserError
from burnish.lm.base import Sampling
from burnish.lm.folder import load_model
from burnish.lm.local import LocalLM
from burnish.lm.sampler.rows import Request
from burnish.lm.tiny import write_byte_tokenizer
from burnish.records import Finish

HEADS = {
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 128,
    "eos_token_id": 2,
    "pad_token_id": 3,
    "bos_token_id": 1,
}
IDS = {"eos_token_id": 2, "pad_token_id": 3, "bos_token_id": 1}
WINDOW = 6
FAMILIES = {
    "gpt2": ("GPT2", {"n_embd": 32, "n_layer": 2, "n_head": 2, "n_positions": 128, **IDS}),
    "sliding": (
        "Gemma2",
        {**HEADS, "head_dim": 8, "sliding_window": WINDOW, "tie_word_embeddings": False},
    ),
    "scaled": ("Cohere", {**HEADS, "logit_scale": 0.5}),
    "alibi": ("Bloom", {"hidden_size": 32, "n_layer": 2, "n_head": 2, **IDS}),
    "hybrid": (
        "Lfm2",
        {**HEADS, "layer_types": ["conv", "full_attention"], "block_multiple_of": 8},
    ),
    "recurrent": ("Mamba", {"hidden_size": 32, "num_hidden_layers": 2, "state_size": 4, **IDS}),
    "unpadded": ("RecurrentGemma", {**HEADS, "attention_window_size": WINDOW}),
    "one_by_one": ("Rwkv", {"hidden_size": 32, "num_hidden_layers": 2, **IDS}),
}
PROMPTS = [(70, 71, 72, 73, 74, 75, 76, 77), (80, 81), (90, 91, 92), (60, 61), (50, 51, 52, 53, 54)]


def write_folder(folder, family, settings, *, std=0.3):
    import transformers

    config = getattr(transformers, f"{family}Config")(vocab_size=260, **settings)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config)
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=std)
    model.save_pretrained(folder)
    write_byte_tokenizer(folder)
    return folder


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """Each family, written and loaded once."""
    made = {}

    def get(name):
        if name not in made:
            folder = write_folder(tmp_path_factory.mktemp(name) / "m", *FAMILIES[name])
            made[name] = load_model(folder, dtype="float32", device="cpu")
        return made[name]

    return get


def sample(loaded, requests, *, max_rows=None):
    return LocalLM(loaded, max_rows=max_rows).sample_batch(requests)


def ask(loaded, sampling, prompts=PROMPTS, **options):
    return sample(loaded, [Request(prompt, sampling) for prompt in prompts], **options)


@torch.no_grad()
def exact_logprobs(loaded, completion, temperature):
    """Of each sampled token, from one plain pass of the transformers model."""
    ids = torch.tensor([[*completion.prompt_ids, *completion.token_ids]])
    logits = loaded.module.model(ids).logits[0, len(completion.prompt_ids) - 1 : -1]
    logprobs = (logits / temperature).log_softmax(-1)
    return logprobs.gather(1, torch.tensor(completion.token_ids)[:, None])[:, 0].tolist()


@pytest.mark.parametrize("name", FAMILIES)
def test_greedy_tokens_are_those_of_generate_alone(models, name):
    loaded = models(name)
    distinct = set()
    for completions in ask(loaded, Sampling(n=2, temperature=0, max_tokens=12)):
        prompt = completions[0].prompt_ids
        expected = loaded.module.model.generate(
            torch.tensor([prompt]), max_new_tokens=12, do_sample=False, eos_token_id=2
        )
        assert list(completions[0].token_ids) == expected[0, len(prompt) :].tolist()
        assert completions[0].token_ids == completions[1].token_ids
        distinct |= set(completions[0].token_ids)
    assert len(distinct) > 5  # the comparison is about text that varies


@pytest.mark.parametrize("name", FAMILIES)
def test_logprobs_are_exact_and_neighbours_change_nothing(models, name):
    loaded = models(name)
    sampling = Sampling(n=2, temperature=0.7, max_tokens=12, seed=4)
    together = ask(loaded, sampling)
    for prompt, completions in zip(PROMPTS, together, strict=True):
        alone = ask(loaded, sampling, [prompt])[0]
        assert [c.token_ids for c in alone] == [c.token_ids for c in completions]
        for c in completions:
            assert c.logprobs == pytest.approx(exact_logprobs(loaded, c, 0.7), abs=2e-5)
            assert c.raw_logprobs == pytest.approx(exact_logprobs(loaded, c, 1.0), abs=2e-5)
    assert len({c.token_ids for completions in together for c in completions}) == 10


def test_batches_are_as_large_as_the_model_computes_exactly(models):
    got = {name: str(models(name).module.together) for name in ("hybrid", "unpadded", "one_by_one")}
    assert got == {"hybrid": "any", "unpadded": "same length", "one_by_one": "none"}


def test_the_order_of_requests_does_not_change_a_bit(models):
    loaded = models("gpt2")
    requests = [
        Request(prompt, Sampling(n=2, max_tokens=tokens, seed=seed))
        for prompt, tokens in zip(PROMPTS, (9, 3, 12, 9, 1), strict=True)
        for seed in (1, 2)
    ]
    plain = sample(loaded, requests, max_rows=3)
    order = [7, 2, 9, 0, 5, 3, 8, 1, 6, 4]
    shuffled = sample(loaded, [requests[i] for i in order], max_rows=3)
    assert shuffled == [plain[i] for i in order]
    assert [len(p[0].token_ids) for p in plain[::2]] == [9, 3, 12, 9, 1]


def test_settings_differ_by_row(models):
    loaded = models("gpt2")
    prompt = PROMPTS[0]
    settings = [
        Sampling(temperature=0, max_tokens=8),
        Sampling(temperature=5.0, top_k=1, max_tokens=8, seed=3),
        Sampling(temperature=5.0, max_tokens=8, seed=3, top_logprobs=3),
        Sampling(temperature=5.0, max_tokens=8, seed=3),
        Sampling(temperature=5.0, min_p=1.0, max_tokens=5, top_logprobs=1),
    ]
    greedy, narrow, wide, same, likeliest = (
        c[0] for c in sample(loaded, [Request(prompt, s) for s in settings])
    )
    assert greedy.token_ids == narrow.token_ids
    assert greedy.token_ids[:5] == likeliest.token_ids
    assert wide.token_ids == same.token_ids != greedy.token_ids
    assert greedy.logprobs == pytest.approx(greedy.raw_logprobs, abs=1e-6)  # untempered
    assert narrow.raw_logprobs == pytest.approx(greedy.raw_logprobs, abs=1e-5)
    assert narrow.logprobs == pytest.approx(exact_logprobs(loaded, narrow, 5.0), abs=1e-5)
    assert [len(top) for top in wide.top_logprobs] == [3] * 8
    assert (same.top_logprobs, narrow.top_logprobs) == ((), ())
    for token, logprob, top in zip(
        likeliest.token_ids, likeliest.logprobs, likeliest.top_logprobs, strict=True
    ):
        assert top == pytest.approx({token: logprob}, abs=1e-6)


def test_ends_stop_strings_and_budgets(models):
    loaded = models("gpt2")
    free = ask(loaded, Sampling(n=2, max_tokens=20, seed=3))
    ends = loaded.tokenizer.eos_ids
    end = free[0][0].token_ids[4]
    try:
        loaded.tokenizer.eos_ids = (end,)
        ended = ask(loaded, Sampling(n=2, max_tokens=20, seed=3))
    finally:
        loaded.tokenizer.eos_ids = ends
    assert ended[0][0].token_ids == free[0][0].token_ids[:5]
    assert ended[0][0].finish is Finish.STOP
    others = [c for completions in ended for c in completions if end not in c.token_ids]
    assert others
    assert {(c.finish, len(c.token_ids)) for c in others} == {(Finish.LENGTH, 20)}

    text = free[1][1].text
    stop = text[6:8]
    got = ask(loaded, Sampling(n=2, max_tokens=20, seed=3, stop=("never@@", stop)))[1][1]
    assert got.text == text[: text.find(stop)]
    assert got.finish is Finish.STOP
    assert got.token_ids == free[1][1].token_ids[: len(got.token_ids)]
    assert stop not in loaded.tokenizer.decode(got.token_ids[:-1])
    assert len(got.logprobs) == len(got.raw_logprobs) == len(got.token_ids)


def test_the_folders_own_generation_settings_do_not_touch_the_draw(models, tmp_path):
    folder = write_folder(tmp_path / "m", *FAMILIES["gpt2"])
    settings = {"repetition_penalty": 9.0, "suppress_tokens": list(range(4, 200)), "top_k": 1}
    file = folder / "generation_config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | settings))
    loaded = load_model(folder, dtype="float32", device="cpu")
    sampling = Sampling(max_tokens=10, seed=6)
    expected = [[c.token_ids for c in q] for q in ask(models("gpt2"), sampling)]
    assert [[c.token_ids for c in q] for q in ask(loaded, sampling)] == expected


def test_a_padding_token_beyond_the_vocabulary_is_not_read(models):
    loaded = models("gpt2")
    sampling = Sampling(max_tokens=6, seed=1)
    expected = ask(loaded, sampling)
    pad = loaded.tokenizer.pad_id
    try:
        loaded.tokenizer.pad_id = 260
        assert ask(loaded, sampling) == expected
    finally:
        loaded.tokenizer.pad_id = pad


def test_falling_back_is_one_line_with_its_reason(tmp_path, caplog):
    folder = write_folder(tmp_path / "other", *FAMILIES["gpt2"])
    with caplog.at_level(logging.INFO, logger="burnish"):
        load_model(folder, dtype="float32", device="cpu")
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 1
    assert lines[0].startswith(
        "other runs through transformers, which is slower: model_type 'gpt2'"
    )


def test_sampling_leaves_nothing_that_training_cannot_use(tmp_path):
    # This rope recomputes its frequencies on the way, and keeps them.
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    settings = {**HEADS, "rope_parameters": rope, "max_position_embeddings": 8}
    folder = write_folder(tmp_path / "m", "Llama", settings)
    loaded = load_model(folder, dtype="float32", device="cpu")
    ask(loaded, Sampling(max_tokens=4))
    ids = torch.arange(50, 62).unsqueeze(0)
    loaded.module.logits(loaded.module(ids, torch.arange(12).unsqueeze(0))).sum().backward()
    assert loaded.module.head_weight.grad.abs().sum() > 0


PROMPT, ANSWERS = (50, 51, 52), ((60, 61, 62, 63), (70, 71))


def separate_rows():
    """One answer a row, padded on the right: ids, positions and mask as training lays them out."""
    ids = torch.tensor([[*PROMPT, *ANSWERS[0]], [*PROMPT, *ANSWERS[1], 3, 3]])
    positions = torch.tensor([[0, 1, 2, 3, 4, 5, 6], [0, 1, 2, 3, 4, 0, 0]])
    mask = torch.ones(2, 7, 7, dtype=torch.bool).tril()
    mask[1, 5:] = torch.eye(7, dtype=torch.bool)[5:]  # padding sees itself alone
    return ids, positions, mask


def shared_row():
    """Both answers behind one prompt."""
    ids = torch.tensor([[*PROMPT, *ANSWERS[0], *ANSWERS[1]]])
    positions = torch.tensor([[0, 1, 2, 3, 4, 5, 6, 3, 4]])
    mask = torch.ones(1, 9, 9, dtype=torch.bool).tril()
    mask[0, 7:, 3:7] = False
    return ids, positions, mask


@torch.no_grad()
def logits_alone(loaded, answer):
    """At the answer's own tokens."""
    return loaded.module.model(torch.tensor([[*PROMPT, *answer]])).logits[0, len(PROMPT) :]


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_trains_on_separate_rows(models, name):
    module = models(name).module
    logits = module.logits(module(*separate_rows()))
    for row, answer in zip(logits, ANSWERS, strict=True):
        expected = logits_alone(models(name), answer)
        got = row[len(PROMPT) : len(PROMPT) + len(answer)]
        assert torch.allclose(got, expected, rtol=1e-4, atol=2e-5)
    logits[:, :5].logsumexp(-1).sum().backward()
    assert module.head_weight.grad.abs().sum() > 0
    module.zero_grad()


def test_shared_rows_are_computed_exactly_or_refused(models):
    for name in ("gpt2", "scaled"):
        module = models(name).module
        logits = module.logits(module(*shared_row()))[0]
        for answer, start in zip(ANSWERS, (3, 7), strict=True):
            got = logits[start : start + len(answer)]
            assert torch.allclose(got, logits_alone(models(name), answer), rtol=1e-4, atol=2e-5)
    with pytest.raises(ModelError, match=r"9 tokens exceeds .* window .*share_prompts = false"):
        models("sliding").module(*shared_row())
    for name in ("alibi", "hybrid", "recurrent", "unpadded", "one_by_one"):
        with pytest.raises(UserError, match=r"share a row differently.*share_prompts = false"):
            models(name).module(*shared_row())


def test_sequences_stay_where_positions_do_not_follow_the_longest_row(tmp_path):
    factors = {"short_factor": [1.0] * 4, "long_factor": [2.0] * 4, "rope_theta": 10000.0}
    rope = {"rope_type": "longrope", "original_max_position_embeddings": 16, **factors}
    settings = {**HEADS, "rope_parameters": rope, "original_max_position_embeddings": 16}
    folder = write_folder(tmp_path / "m", "Phi3", settings)
    lm = LocalLM(load_model(folder, dtype="float32", device="cpu"))
    assert lm.request(PROMPTS[0], Sampling(max_tokens=100)).budget == 8
    with pytest.raises(UserError, match="reads 16 tokens"):
        lm.request([50] * 16, Sampling())


def test_a_sequence_that_memory_cannot_hold_is_refused(models, monkeypatch):
    monkeypatch.setattr("burnish.lm.generate.available_bytes", lambda device: 1000)
    with pytest.raises(ModelError, match="one sequence of 20 tokens needs"):
        ask(models("gpt2"), Sampling(max_tokens=12))


def test_what_is_no_causal_model_is_refused(tmp_path):
    settings = {
        "hidden_size": 32,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "intermediate_size": 48,
        "pad_token_id": 3,
    }
    folder = write_folder(tmp_path / "m", "Bert", settings)
    with pytest.raises(UserError, match=r"later tokens change earlier ones.*is_decoder"):
        load_model(folder, dtype="float32", device="cpu")
