"""Who decodes when: pages, slots, bursts whose results come late, and engine state that outlives their calls."""

import random
from dataclasses import replace

import pytest
import torch

from burnish.errors import ModelError
from burnish.lm.base import Sampling
from burnish.lm.folder import load_model
from burnish.lm.model_input import ModelInput
from burnish.lm.new_model import tiny_model
from burnish.lm.sampler import Engine, Request, engine_state
from burnish.lm.sampler.engine import Schedule
from burnish.lm.sampler.rows import Row, in_canonical_order, make_rows
from burnish.lm.sampler.slots import OutputBuffer, Pages
from burnish.lm.sampler.step import Plan, bucket, side_by_side


@pytest.fixture(scope="module")
def loaded(tmp_path_factory):
    return load_model(tiny_model(tmp_path_factory.mktemp("tiny")), device="cpu")


def mixed_requests(count=12, seed=0):
    """Prompts of unlike lengths, some shared, with unlike budgets and settings."""
    draw = random.Random(seed)
    prompts = [tuple(draw.randrange(4, 250) for _ in range(draw.randint(1, 70))) for _ in range(5)]
    return [
        Request(
            draw.choice(prompts),
            Sampling(
                n=draw.randint(1, 3),
                temperature=draw.choice((0.0, 0.7, 1.0)),
                max_tokens=draw.choice((1, 2, 5, 9, 24)),
                seed=i,
            ),
        )
        for i in range(count)
    ]


def flat(completions):
    return [(c.token_ids, c.finish) for group in completions for c in group]


def paged_run(loaded, requests, *, slots, memory=10**9, burst=4, lag=1, holds_all_prompts=None):
    """The GPU's schedule (pages of 16, results that come late, buckets) with plain arithmetic."""
    plan = Plan(loaded.module)
    rows = make_rows(requests)
    size = replace(engine_state._paged_size(rows, plan, slots, memory), slots=slots)
    state = engine_state.allocate(plan, size, tuple(loaded.tokenizer.eos_ids))
    state.burst, state.lag, state.fit = burst, lag, bucket
    outputs = (state.slots.out_tokens, state.slots.out_logprobs, state.slots.out_raw)
    state.host_buffers = [tuple(map(torch.empty_like, outputs)) for _ in range(4)]
    assert state.slots.count >= bucket(min(slots, len(rows)))
    schedule = Schedule(state, size, rows, loaded.tokenizer)
    with torch.inference_mode():
        schedule.run()
    return rows, schedule


def filled(rows):
    return [(tuple(row.tokens), row.finish) for row in rows]


def test_pages_and_late_results_change_nothing(loaded):
    requests = mixed_requests()
    expected = flat(Engine(loaded.module, loaded.tokenizer).generate(requests))
    for slots, burst, lag in ((32, 4, 1), (8, 4, 1), (4, 3, 2), (1, 2, 1)):
        rows, schedule = paged_run(loaded, requests, slots=slots, burst=burst, lag=lag)
        assert filled(rows) == expected, (slots, burst, lag)
        assert len(schedule.pages.free) == schedule.pages.count - 1, "every page came back"
        assert not schedule.pages.prompts
        assert not schedule.active


def test_rows_wait_for_pages_when_memory_is_short(loaded):
    requests = mixed_requests(20, seed=1)
    expected = flat(Engine(loaded.module, loaded.tokenizer).generate(requests))
    per_token = loaded.module.cache_bytes_per_token
    slot_bytes = 16 * 24 * loaded.module.head_weight.shape[0]
    rows, schedule = paged_run(loaded, requests, slots=16, memory=slot_bytes + 16 * 16 * per_token)
    assert schedule.size.pages == 16
    assert not schedule.size.holds_all_prompts
    assert filled(rows) == expected


def test_memory_for_one_row_serves_many_one_after_the_other(loaded):
    """The least that is let in is enough: nobody waits for pages that never come."""
    requests = [Request((5 + i,) * 32, Sampling(max_tokens=4, temperature=0.0)) for i in range(4)]
    plan, slots = Plan(loaded.module), 4
    page_bytes = 16 * loaded.module.cache_bytes_per_token
    enough = slots * engine_state._bytes_per_slot(plan) + 4 * page_bytes
    with pytest.raises(ModelError, match="one sequence of 36 tokens"):
        engine_state._paged_size(make_rows(requests), plan, slots, enough - 1)
    rows, _ = paged_run(loaded, requests, slots=slots, memory=enough)
    assert filled(rows) == flat(Engine(loaded.module, loaded.tokenizer).generate(requests))


def test_memory_decides_how_many_sit_on_a_cpu(loaded, monkeypatch):
    requests = mixed_requests(16, seed=2)
    expected = flat(Engine(loaded.module, loaded.tokenizer).generate(requests))
    monkeypatch.setattr(engine_state, "available_bytes", lambda device: 4_000_000)
    sampler = Engine(loaded.module, loaded.tokenizer)
    assert flat(sampler.generate(requests)) == expected
    assert 1 <= sampler._state.size.slots < len(make_rows(requests))


def test_stop_strings_end_rows_between_bursts(loaded):
    prompts = mixed_requests(6, seed=3)
    plain = [Request(r.prompt_ids, Sampling(n=2, max_tokens=24, seed=7)) for r in prompts]
    texts = [
        c.text for group in Engine(loaded.module, loaded.tokenizer).generate(plain) for c in group
    ]
    stop = next(text[5] for text in texts if len(text) > 8 and text[5].isascii())
    stopped = [
        Request(r.prompt_ids, Sampling(n=2, max_tokens=24, seed=7, stop=(stop,))) for r in prompts
    ]
    expected = Engine(loaded.module, loaded.tokenizer).generate(stopped)
    rows, _ = paged_run(loaded, stopped, slots=4)
    assert filled(rows) == flat(expected)
    for text, c in zip(texts, (c for group in expected for c in group), strict=True):
        assert c.text == text.split(stop)[0]
    assert any(stop in text for text in texts)


def test_alternatives_arrive_with_their_tokens(loaded):
    requests = [
        Request(r.prompt_ids, Sampling(n=2, max_tokens=6, seed=1, top_logprobs=count))
        for r, count in zip(mixed_requests(4, seed=5), (0, 1, 3, 2), strict=True)
    ]
    expected = Engine(loaded.module, loaded.tokenizer).generate(requests)
    rows, _ = paged_run(loaded, requests, slots=4)
    for row, c in zip(rows, (c for group in expected for c in group), strict=True):
        assert [list(a) for a in row.alternatives] == [list(a) for a in c.top_logprobs]
        wanted = row.sampling.top_logprobs
        assert len(row.alternatives) == (len(row.tokens) if wanted else 0)
        for token, logprob, best in zip(row.tokens, row.logprobs, row.alternatives, strict=False):
            assert len(best) == wanted
            assert best.get(token, logprob) == pytest.approx(logprob, abs=1e-5)


def test_a_longer_tail_costs_only_its_own_steps(loaded):
    """One row of 40 tokens among 31 of 2: the full batch must not decode for 40 steps."""
    requests = [Request((5, 6, i), Sampling(max_tokens=2, seed=i)) for i in range(4, 35)]
    requests.append(Request((5, 6, 99), Sampling(max_tokens=40, seed=1)))
    calls = []
    plan = Plan(loaded.module)
    rows = make_rows(requests)
    for size_of in (engine_state._dense_size, engine_state._paged_size):
        size = size_of(rows, plan, 32, 10**9)
        state = engine_state.allocate(plan, size, ())
        decode = state.decode

        def counted(count, variant, decode=decode):
            calls.append(count)
            decode(count, variant)

        state.decode = counted
        for row in rows:
            row.shorten(0)
        with torch.inference_mode():
            Schedule(state, size, rows, loaded.tokenizer).run()
        assert calls == [32] + [1] * 38
        assert sorted(len(row.tokens) for row in rows) == [2] * 31 + [40]
        calls.clear()


def test_the_state_is_kept_while_it_is_large_enough(loaded):
    sampler = Engine(loaded.module, loaded.tokenizer)
    large = mixed_requests(12)
    sampler.generate(large)
    state = sampler._state
    small = [Request((5, 6), Sampling(n=2, max_tokens=3))]
    alone = flat(Engine(loaded.module, loaded.tokenizer).generate(small))
    assert flat(sampler.generate(small)) == alone, "a larger state changes nothing"
    assert sampler._state is state
    sampler.generate([Request((5,) * 300, Sampling(max_tokens=3))])
    assert sampler._state is not state
    sampler.release()
    assert sampler._state is None
    assert flat(sampler.generate(small)) == alone


def test_weights_that_moved_are_found_again(tmp_path):
    """An optimiser writes in place; whoever puts new tensors in place of the old is noticed."""
    loaded = load_model(tiny_model(tmp_path), device="cpu")
    sampler = Engine(loaded.module, loaded.tokenizer)
    request = [Request((5, 6, 7), Sampling(temperature=0, max_tokens=8))]
    before = flat(sampler.generate(request))
    state = sampler._state
    with torch.no_grad():
        weight = loaded.module.model.layers[0].mlp.down_proj.weight
        weight.normal_(std=3.0, generator=torch.Generator().manual_seed(1))
    in_place = flat(sampler.generate(request))
    assert sampler._state is state, "written in place: nothing to rebuild"
    assert in_place != before
    fresh = {name: tensor.clone() for name, tensor in loaded.module.state_dict().items()}
    fresh["model.embed_tokens.weight"].normal_(generator=torch.Generator().manual_seed(0))
    loaded.module.load_state_dict(fresh, assign=True)
    moved = flat(sampler.generate(request))
    assert sampler._state is not state
    assert moved == flat(Engine(loaded.module, loaded.tokenizer).generate(request))
    assert moved != in_place


def test_projections_are_one_view_of_the_parameters(loaded):
    layer = loaded.module.model.layers[0]
    attention = layer.self_attn
    parts = [attention.q_proj.weight, attention.k_proj.weight, attention.v_proj.weight]
    joined = side_by_side(parts)
    assert torch.equal(joined, torch.cat([part.detach() for part in parts]))
    assert joined.data_ptr() == parts[0].data_ptr()
    assert side_by_side([parts[1], parts[0]]) is None
    assert side_by_side([parts[0], parts[1].clone()]) is None
    assert Plan(loaded.module).layers[0].gate_up.weight is not None


def test_adapters_are_sampled_through(tmp_path):
    pytest.importorskip("peft")
    from peft import LoraConfig, inject_adapter_in_model

    loaded = load_model(tiny_model(tmp_path), device="cpu")
    inject_adapter_in_model(LoraConfig(r=4, target_modules=["q_proj", "up_proj"]), loaded.module)
    with torch.no_grad():
        for name, parameter in loaded.module.named_parameters():
            if "lora_B" in name:
                parameter.normal_(generator=torch.Generator().manual_seed(1))
    sampler = Engine(loaded.module, loaded.tokenizer)
    made = sampler.generate([Request((5, 6, 7), Sampling(temperature=0, max_tokens=10))])[0][0]
    ids = torch.tensor([[5, 6, 7, *made.token_ids]])
    with torch.no_grad():
        hidden = loaded.module(ModelInput(ids, torch.arange(ids.shape[1]).unsqueeze(0)))
        expected = loaded.module.logits(hidden)[0, 2:-1].argmax(-1)
    assert list(made.token_ids) == expected.tolist()


def test_canonical_order_is_the_same_for_every_order_of_asking():
    requests = mixed_requests(30, seed=9)
    rows = make_rows(requests)
    shuffled = rows[:]
    random.Random(4).shuffle(shuffled)

    def names(ordered):
        return [(r.prompt, r.sampling, r.index) for r in in_canonical_order(ordered)]

    assert names(rows) == names(shuffled)
    budgets = [r.request.max_new for r in in_canonical_order(rows)]
    assert budgets == sorted(budgets, reverse=True)


def test_pages_are_shared_and_come_back():
    pages = Pages(count=10, page=4)
    prompt = (1, 2, 3, 4, 5, 6)
    assert pages.needed(prompt, 3) == 2 + 2
    pages.hold_prompt(prompt)
    held = pages.prompts[prompt]
    assert (held.pages, held.full) == ([1, 2], 1)
    assert pages.needed(prompt, 3) == 2
    own = pages.take(pages.private(prompt, 3))
    assert own == [3, 4]
    assert pages.idle(besides=()) == [prompt]
    assert pages.idle(besides=prompt) == []
    held.readers = 1
    assert pages.idle(besides=()) == []
    pages.give(own)
    pages.drop_prompt(prompt)
    assert sorted(pages.free) == list(range(1, 10))


def test_output_ends_a_row_at_its_end_or_its_budget():
    import numpy as np

    output = OutputBuffer(slots=3, steps=5, burst=3, ends=(0,))
    output.open([0, 1, 2], [5, 5, 2])
    assert output.left == 4
    output.ask(3)
    assert output.asked.tolist() == [4, 4, 2]
    tokens = np.array([[7, 8, 9], [7, 0, 9], [7, 8, 0]])
    values = tokens.astype(np.float32)
    progress = output.add(np.array([0, 1, 2]), tokens, -values, values)
    assert progress.counts.tolist() == [3, 2, 2]
    assert progress.ended.tolist() == [False, True, False]
    assert progress.is_full.tolist() == [False, False, True]
    row = Row(Request((1,), Sampling()), 0)
    output.write(row, 1)
    assert (row.tokens, row.logprobs, row.raw_logprobs) == ([7, 0], [-7.0, 0.0], [7.0, 0.0])
    output.move([0], [1])
    assert output.drawn.tolist() == [0, 3, 2]
    progress = output.add(np.array([1]), np.array([[0, 1, 2]]), values[:1], values[:1])
    assert (progress.counts[0], progress.ended[0], progress.is_full[0]) == (1, True, False)


def test_an_engine_serves_one_call_at_a_time(loaded):
    import threading

    sampler = Engine(loaded.module, loaded.tokenizer)
    requests = mixed_requests(6)
    expected = flat(sampler.generate(requests))
    results = []
    threads = [
        threading.Thread(target=lambda: results.append(flat(sampler.generate(requests))))
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [expected] * 4


def test_a_call_that_broke_off_leaves_nothing_behind(loaded, monkeypatch):
    sampler = Engine(loaded.module, loaded.tokenizer)
    requests = mixed_requests(10, seed=6)
    expected = flat(sampler.generate(requests))
    collected = iter(range(100))
    collect = Schedule._collect

    def breaks(self, draws):
        if next(collected) == 4:
            raise MemoryError("planted")
        collect(self, draws)

    monkeypatch.setattr(Schedule, "_collect", breaks)
    with pytest.raises(MemoryError, match="planted"):
        sampler.generate(requests)
    monkeypatch.undo()
    assert flat(sampler.generate(requests)) == expected


def test_numbers_that_are_none_do_not_outlive_their_call(tmp_path):
    loaded = load_model(tiny_model(tmp_path), device="cpu")
    sampler = Engine(loaded.module, loaded.tokenizer)
    healthy = [
        Request((5, 6), Sampling(max_tokens=6, seed=1)),
        Request((5, 6, 7, 8, 9), Sampling(max_tokens=6, seed=1)),
    ]
    expected = [c.logprobs for group in sampler.generate(healthy) for c in group]
    weight = loaded.module.model.embed_tokens.weight
    with torch.no_grad():
        kept = weight[9].clone()
        weight[9] = float("inf")
        broken = sampler.generate([Request((9,) * 8, Sampling(max_tokens=6))])[0][0]
        weight[9] = kept
    assert not any(value == value for value in broken.logprobs), "the planted fault shows"
    again = [c.logprobs for group in sampler.generate(healthy) for c in group]
    assert again == expected


def test_a_row_that_can_never_fit_is_refused(loaded):
    plan = Plan(loaded.module)
    rows = make_rows([Request((5,) * 400, Sampling(max_tokens=100))])
    for size in (engine_state._paged_size, engine_state._dense_size):
        with pytest.raises(ModelError, match=r"one sequence of 500 tokens needs .* MiB"):
            size(rows, plan, 1, 100_000)
