"""Models outside the built-in families: sampled by transformers' `generate`, with our draws."""

import functools
import json

import pytest
import torch

from burnish.errors import ModelError, UserError
from burnish.lm.base import Sampling, TooLong
from burnish.lm.folder import load_model
from burnish.lm.local import LocalLM
from burnish.lm.model_input import ModelInput
from burnish.lm.new_model import write_byte_tokenizer
from burnish.lm.sampler.rows import Request
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
    "unpadded": (
        "RecurrentGemma",
        {**HEADS, "block_types": ["recurrent", "attention"], "attention_window_size": WINDOW},
    ),
    "one_by_one": ("Rwkv", {"hidden_size": 32, "num_hidden_layers": 2, **IDS}),
}
MENDED = {"recurrent": (5, 5), "unpadded": (5, 5)}
"""From which transformers on a family's cached steps are those of one pass; refused before."""
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
        import transformers

        since = MENDED.get(name, (0, 0))
        if tuple(map(int, transformers.__version__.split(".")[:2])) < since:
            pytest.skip(
                f"{name}: wrong in transformers before {since[0]}.{since[1]}, refused there"
            )
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


def test_sampling_leaves_nothing_that_training_cannot_use(tmp_path):
    # This rope computes frequencies on the way, and keeps them.
    folder = write_folder(tmp_path / "m", "Llama", {**HEADS, **longrope(8)})
    loaded = load_model(folder, dtype="float32", device="cpu")
    ask(loaded, Sampling(max_tokens=4), [PROMPTS[1], tuple(range(50, 60))])
    LocalLM(loaded).score_batch([(PROMPTS[1], (60,)), (PROMPTS[0], (60, 61, 62))])
    ids = torch.arange(50, 62).unsqueeze(0)
    loaded.module.logits(
        loaded.module(ModelInput(ids, torch.arange(12).unsqueeze(0)))
    ).sum().backward()
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


def test_shared_rows_are_computed_exactly_or_refused(models):
    for name in ("gpt2", "scaled"):
        module = models(name).module
        logits = module.logits(module(ModelInput(*shared_row())))[0]
        for answer, start in zip(ANSWERS, (3, 7), strict=True):
            got = logits[start : start + len(answer)]
            assert torch.allclose(got, logits_alone(models(name), answer), rtol=1e-4, atol=2e-5)
    with pytest.raises(UserError, match=r"9 tokens of several .*share_prompts = false"):
        models("sliding").module(ModelInput(*shared_row()))
    for name in ("alibi", "hybrid", "recurrent", "unpadded", "one_by_one"):
        with pytest.raises(UserError, match=r"keeps a state.*share_prompts = false"):
            models(name).module(ModelInput(*shared_row()))


def longrope(original):
    """Rotary factors that are short up to so many tokens and long beyond."""
    factors = {"short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [2.0, 3.0, 4.0, 5.0]}
    rope = {"rope_type": "longrope", "rope_theta": 10000.0, **factors}
    rope["original_max_position_embeddings"] = original
    return {"rope_parameters": rope, "original_max_position_embeddings": original}


LONGROPES = {
    "phi3": ("Phi3", {**HEADS, **longrope(64), "max_position_embeddings": 160}),
    "llama": ("Llama", {**HEADS, **longrope(64), "max_position_embeddings": 160}),
}


def load(tmp_path, family, settings):
    return load_model(write_folder(tmp_path / "m", family, settings), dtype="float32", device="cpu")


@pytest.mark.parametrize("name", LONGROPES)
def test_a_row_keeps_the_factors_it_began_with_in_any_company(tmp_path, name):
    """Prompts of 1 and 40 tokens end at the switch of 64; those of 65 and 90 begin beyond it."""
    lm = LocalLM(load(tmp_path, *LONGROPES[name]))
    prompts = [tuple(60 + i % 30 for i in range(n)) for n in (1, 40, 65, 90, 30)]
    requests = [lm.request(p, Sampling(n=2, max_tokens=40, seed=4)) for p in prompts]
    assert [request.budget for request in requests] == [40, 24, 40, 40, 34]
    together = lm.sample_batch(requests)
    for request, completions in zip(requests, together, strict=True):
        alone = lm.sample_batch([request])[0]
        scores = lm.score_batch([(c.prompt_ids, c.token_ids) for c in completions])
        for c, a, score in zip(completions, alone, scores, strict=True):
            assert c.token_ids == a.token_ids
            assert c.raw_logprobs == pytest.approx(a.raw_logprobs, abs=2e-5)
            assert c.raw_logprobs == pytest.approx(score.logprobs, abs=2e-5)
            assert score.logprobs == pytest.approx(exact_logprobs(lm.loaded, c, 1.0), abs=2e-5)


@pytest.mark.parametrize("name", LONGROPES)
def test_training_computes_short_and_long_rows_of_one_batch_apart(tmp_path, name):
    module = load(tmp_path, *LONGROPES[name]).module
    lengths = (20, 64, 65, 100)
    rows = [
        torch.randint(4, 260, (n,), generator=torch.Generator().manual_seed(n)) for n in lengths
    ]
    ids, positions = torch.zeros(4, 100, dtype=torch.long), torch.zeros(4, 100, dtype=torch.long)
    mask = torch.eye(100, dtype=torch.bool).repeat(4, 1, 1)
    for i, row in enumerate(rows):
        ids[i, : len(row)], positions[i, : len(row)] = row, torch.arange(len(row))
        mask[i, : len(row)] = torch.ones(100, 100).tril().bool()[: len(row)]
    for given in (None, mask):
        logits = module.logits(module(ModelInput(ids, positions, given)))
        for i, row in enumerate(rows):
            expected = module.model(row.unsqueeze(0)).logits[0]
            torch.testing.assert_close(logits[i, : len(row)], expected, rtol=1e-4, atol=2e-5)
    logits[:, :20].logsumexp(-1).sum().backward()
    assert module.head_weight.grad.abs().sum() > 0


def test_answers_that_share_a_row_are_short_or_long_by_their_own_length(tmp_path):
    """A row of 104 tokens holds two answers of 62 and 64 tokens: neither is beyond the switch."""
    loaded = load(tmp_path, *LONGROPES["phi3"])
    prompt, first, second = range(50, 72), range(100, 140), range(150, 192)
    ids = torch.tensor([[*prompt, *first, *second]])
    positions = torch.tensor([[*range(62), *range(22, 64)]])
    mask = torch.ones(1, 104, 104, dtype=torch.bool).tril()
    mask[0, 62:, 22:62] = False
    logits = loaded.module.logits(loaded.module(ModelInput(ids, positions, mask)))[0]
    for answer, start in ((first, 22), (second, 62)):
        with torch.no_grad():
            expected = loaded.module.model(torch.tensor([[*prompt, *answer]])).logits[0, 22:]
        got = logits[start : start + len(answer)]
        torch.testing.assert_close(got, expected, rtol=1e-4, atol=2e-5)


def test_a_prompt_that_ends_at_the_switch_is_refused(tmp_path):
    lm = LocalLM(load(tmp_path, *LONGROPES["phi3"]))
    with pytest.raises(UserError, match=r"64 tokens leaves no room to answer: .* reads 64 tokens"):
        lm.request([50] * 64, Sampling())
    with pytest.raises(
        UserError, match=r"160 tokens leaves no room to answer: .* reads 160 tokens"
    ):
        sample(lm.loaded, [Request((50,) * 160, Sampling(max_tokens=4))])


def test_dynamic_positions_are_kept_where_they_do_not_change(tmp_path):
    rope = {"rope_type": "dynamic", "rope_theta": 10000.0, "factor": 2.0}
    settings = {**HEADS, "rope_parameters": rope, "max_position_embeddings": 24}
    loaded = load(tmp_path, "Llama", settings)
    lm = LocalLM(loaded)
    assert lm.request(PROMPTS[0], Sampling(max_tokens=100)).budget == 16
    # Padded to the longest prompt and run to the largest budget, they would be 41 tokens wide.
    prompts = [(70,), tuple(range(70, 90)), (80, 81, 82)]
    together = ask(loaded, Sampling(max_tokens=22, seed=2), prompts)
    assert [len(c[0].token_ids) for c in together] == [22, 4, 21]
    for prompt, completions in zip(prompts, together, strict=True):
        alone = ask(loaded, Sampling(max_tokens=22, seed=2), [prompt])[0][0]
        assert completions[0].token_ids == alone.token_ids
        exact = exact_logprobs(loaded, alone, 1.0)
        assert completions[0].raw_logprobs == pytest.approx(exact, abs=2e-5)
    with pytest.raises(UserError, match=r"row of 25 tokens: the dynamic rotary .* beyond 24"):
        lm.score_batch([(tuple(range(70, 90)), (60,) * 6)])


def test_rows_that_are_done_do_not_run_off_a_table_of_positions(models):
    """A row of 120 tokens waits for one that begins with 2 and draws 60: the table has 128."""
    loaded = models("gpt2")
    prompts = [tuple(60 + i % 90 for i in range(120)), PROMPTS[1]]
    requests = [
        Request(prompt, Sampling(max_tokens=new, seed=3))
        for prompt, new in zip(prompts, (8, 60), strict=True)
    ]
    together = sample(loaded, requests)
    for request, completions in zip(requests, together, strict=True):
        alone = sample(loaded, [request])[0][0]
        assert completions[0].token_ids == alone.token_ids
        exact = exact_logprobs(loaded, alone, 1.0)
        assert completions[0].raw_logprobs == pytest.approx(exact, abs=2e-5)


def test_a_single_token_that_would_continue_the_text_before_is_refused(models):
    """This family keeps its state between calls and drops it only for rows of several tokens."""
    lm = LocalLM(models("unpadded"))
    assert len(lm.sample_batch([Request((70, 71), Sampling(max_tokens=3))])[0][0].token_ids) == 3
    with pytest.raises(UserError, match=r"prompt of 1 token .* at least 2"):
        lm.sample_batch([Request((70,), Sampling(max_tokens=3))])
    with pytest.raises(UserError, match=r"row of one token .* at least 2"):
        lm.score_batch([((70,), (71,))])
    assert models("gpt2").module.least_tokens == 1


@pytest.mark.parametrize("padded", [True, False], ids=["padded", "alone"])
def test_what_goes_wrong_only_beyond_some_length_is_found_when_it_is_met(tmp_path, padded):
    """A model that computes cached steps otherwise from a length on, as a window may make it.

    Where only padding makes the difference, rows are sampled without; else they are refused.
    """
    loaded = load(tmp_path, *FAMILIES["gpt2"])
    module, plain = loaded.module, loaded.module.model.forward
    expected = [c[0].token_ids for c in ask(loaded, Sampling(max_tokens=16, seed=1))]

    @functools.wraps(plain)  # `generate` reads the signature
    def wrong_beyond_20(*args, attention_mask=None, position_ids=None, **options):
        output = plain(*args, attention_mask=attention_mask, position_ids=position_ids, **options)
        is_long_B = position_ids[:, -1] >= 20
        if padded and attention_mask is None:  # `generate` leaves out a mask without padding
            return output
        if padded:
            is_long_B = (attention_mask[:, 0] == 0) & (attention_mask.shape[1] > 20)
        output.logits[is_long_B] = output.logits[is_long_B].flip(-1)
        return output

    module.check(tmp_path)
    module.model.forward = wrong_beyond_20
    short = ask(loaded, Sampling(max_tokens=9, seed=1))
    assert [c[0].token_ids for c in short] == [tokens[:9] for tokens in expected]
    assert module.together == "any"
    if padded:
        longer = ask(loaded, Sampling(max_tokens=16, seed=1))
        assert [c[0].token_ids for c in longer] == expected
        assert module.together == "same length"
    else:
        with pytest.raises(ModelError, match=r"row of 24 tokens.*up to 21 tokens they agree"):
            ask(loaded, Sampling(max_tokens=16, seed=1))


def test_a_prompt_too_short_to_be_continued_exactly_is_refused(tmp_path):
    """Convolutions of some versions continue a prompt that is shorter than their kernel wrongly."""
    loaded = load(tmp_path, *FAMILIES["gpt2"])
    module, plain = loaded.module, loaded.module.model.forward
    assert module.least_prompt == 1
    began_with = [0]

    @functools.wraps(plain)
    def wrong_behind_two(input_ids, *args, **options):
        output = plain(input_ids, *args, **options)
        if input_ids.shape[1] > 1:
            began_with[0] = input_ids.shape[1]
        elif began_with[0] == 2:
            output.logits = output.logits.flip(-1)
        return output

    module.model.forward = wrong_behind_two
    module.check(tmp_path)
    assert (module.least_tokens, module.least_prompt) == (1, 3)
    assert len(ask(loaded, Sampling(max_tokens=3), [(70, 71, 72)])[0][0].token_ids) == 3
    with pytest.raises(UserError, match=r"prompt of 2 tokens otherwise .* at least 3 tokens"):
        ask(loaded, Sampling(max_tokens=3), [(70, 71)])


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


def test_a_text_beyond_the_table_of_positions_is_refused_in_one_line(models):
    lm = LocalLM(models("gpt2"))
    longest = [5 + i % 200 for i in range(128)]
    (scores,) = lm.score_batch([(longest[:100], [*longest[100:], 7])])
    assert len(scores.logprobs) == 29, "the last token is scored and not read"
    with pytest.raises(TooLong, match=r"^a text of 129 tokens: .* a table of 128 positions") as e:
        lm.score_batch([(longest, [7, 8])])
    assert "\n" not in str(e.value)
    ids = torch.ones(1, 129, dtype=torch.long)
    with pytest.raises(TooLong):
        lm.loaded.module(ModelInput(ids, torch.arange(129)[None]))


@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_trains_on_separate_rows(models, name):
    module = models(name).module
    logits = module.logits(module(ModelInput(*separate_rows())))
    for row, answer in zip(logits, ANSWERS, strict=True):
        expected = logits_alone(models(name), answer)
        got = row[len(PROMPT) : len(PROMPT) + len(answer)]
        assert torch.allclose(got, expected, rtol=1e-4, atol=2e-5)
    logits[:, :5].logsumexp(-1).sum().backward()
    assert module.head_weight.grad.abs().sum() > 0
    module.zero_grad()
