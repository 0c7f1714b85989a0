import pytest
import torch
from hypothesis import given, strategies as st

from burnish.lm import load_model
from burnish.lm.model_input import ModelInput
from burnish.records import Author, Span, Trajectory
from burnish.training.packing import (
    FULL_TOKENS,
    LONG_ANSWER,
    ROW_TOKENS,
    Row,
    make_rows,
    micro_batches,
    pack,
    token_scores,
)


def trajectory(name, prompt, answer, tool=()):
    spans = [Span(Author.PROMPT, tuple(prompt))]
    if tool:
        half = len(answer) // 2
        first, second = answer[:half], answer[half:]
        spans.append(Span(Author.MODEL, tuple(first), (-1.0,) * len(first), trainable=True))
        spans.append(Span(Author.TOOL, tuple(tool)))
        spans.append(Span(Author.MODEL, tuple(second), (-1.0,) * len(second), trainable=True))
    else:
        spans.append(Span(Author.MODEL, tuple(answer), (-1.0,) * len(answer), trainable=True))
    return Trajectory(id=name, task_id="t", group="g", spans=tuple(spans), text="")


@pytest.fixture(scope="module")
def model():
    return load_model("tiny", dtype="float64", device="cpu").module


ROLLOUTS = [
    trajectory("a", [5, 6, 7, 8], [20, 21, 22]),
    trajectory("b", [5, 6, 7, 8], [23]),
    trajectory("c", [9, 10], [24, 25, 26, 27, 28]),
    trajectory("d", [5, 6, 7, 8], [29, 30, 31, 32], tool=[40, 41]),
]


def plain_logprobs(model, item):
    ids = torch.tensor([item.token_ids])
    logits = model.logits(model(ModelInput(ids, torch.arange(ids.shape[1])[None])))
    logp = logits.log_softmax(-1)
    places = [i for i, trained in enumerate(item.loss_mask) if trained]
    return torch.stack([logp[0, i - 1, ids[0, i]] for i in places])


def packed_logprobs(model, items, share):
    rows = make_rows(items, share)
    batch = pack(rows, items, torch.device("cpu"))
    scores = token_scores(model, batch, 1.0)
    found = {}
    for row, member in enumerate(batch.members):
        found[member] = scores.logp_BT[row, : len(items[member].logprobs)]
    return found


@pytest.mark.parametrize("share", [True, False])
def test_packed_logprobs_equal_separate_ones(model, share):
    found = packed_logprobs(model, ROLLOUTS, share)
    for i, item in enumerate(ROLLOUTS):
        torch.testing.assert_close(found[i], plain_logprobs(model, item), rtol=0, atol=1e-12)


def test_packed_gradients_equal_separate_ones(model):
    weights = [0.3, -1.0, 0.7, 2.0]

    def gradient(values):
        model.zero_grad()
        sum(w * v.sum() for w, v in zip(weights, values, strict=True)).backward()
        return [p.grad.clone() for p in model.parameters()]

    packed = packed_logprobs(model, ROLLOUTS, True)
    ours = gradient([packed[i] for i in range(4)])
    theirs = gradient([plain_logprobs(model, item) for item in ROLLOUTS])
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=1e-12)


def test_rows_stay_within_their_size():
    many = [trajectory(str(i), range(100), range(60)) for i in range(40)]
    rows = make_rows(many, True)
    assert sorted(m for row in rows for m in row.members) == list(range(40))
    assert all(row.tokens <= ROW_TOKENS for row in rows)


def test_micro_batches_respect_the_budget_and_lose_nothing():
    rows = make_rows([trajectory(str(i), [i], [2] * (i + 1)) for i in range(20)], True)
    batches = micro_batches(rows, 40)
    assert sorted(r.members for b in batches for r in b) == sorted(r.members for r in rows)
    for batch in batches:
        assert len(batch) == 1 or len(batch) * max(r.tokens for r in batch) <= 40


def test_entropy_is_that_of_the_whole_distribution(model):
    batch = pack(make_rows(ROLLOUTS[:1], True), ROLLOUTS[:1], torch.device("cpu"))
    scores = token_scores(model, batch, 2.0)
    ids = torch.tensor([ROLLOUTS[0].token_ids])
    logits = model.logits(model(ModelInput(ids, torch.arange(ids.shape[1])[None])))[0, 3:6] / 2.0
    p = logits.softmax(-1)
    torch.testing.assert_close(scores.entropy_BT[0], -(p * p.log()).sum(-1), rtol=0, atol=1e-10)


def test_rows_of_one_rollout_need_no_mask(model):
    """Padding stands on the right: plain causal rows of different lengths."""
    batch = pack(make_rows(ROLLOUTS, False), ROLLOUTS, torch.device("cpu"))
    assert batch.mask_RSS is None
    lengths = [len(rollout.token_ids) for rollout in ROLLOUTS]
    assert sorted(batch.positions_RS.amax(dim=1).tolist()) == sorted(n - 1 for n in lengths)
    assert pack(make_rows(ROLLOUTS, True), ROLLOUTS, torch.device("cpu")).mask_RSS is not None


def test_a_mask_shows_the_prompt_and_the_own_answer():
    pair = [trajectory("a", [5, 6], [20, 21]), trajectory("b", [5, 6], [22])]
    longer = [trajectory("c", [7, 8], [23, 24]), trajectory("d", [7, 8], [25, 26])]
    items = [*pair, *longer]
    batch = pack(make_rows(items, True), items, torch.device("cpu"))
    assert batch.ids_RS.tolist() == [[5, 6, 20, 21, 22, 0], [7, 8, 23, 24, 25, 26]]
    assert batch.positions_RS.tolist() == [[0, 1, 2, 3, 2, 0], [0, 1, 2, 3, 2, 3]]
    seen = [[k for k in range(6) if batch.mask_RSS[0, q, k]] for q in range(6)]
    assert seen[:5] == [[0], [0, 1], [0, 1, 2], [0, 1, 2, 3], [0, 1, 4]]
    assert 5 in seen[5], "a softmax over nothing"
    assert batch.source_N.tolist() == [1, 2, 1, 7, 8, 7, 10]
    assert batch.target_N.tolist() == [20, 21, 22, 23, 24, 25, 26]


def test_the_samplers_logprobs_follow_their_tokens():
    items = [rollout_with(name, said) for name, said in (("a", [-1.0, -2.0]), ("b", [-3.0]))]
    batch = pack(make_rows(items, True), items, torch.device("cpu"))
    assert batch.sampled_N.tolist() == [-1.0, -2.0, -3.0]
    assert batch.rollout_N.tolist() == [0, 0, 1]
    assert batch.column_N.tolist() == [0, 1, 0]
    assert batch.trained_BT.tolist() == [[True, True], [True, False]]
    assert (batch.trained, batch.width) == (3, 2)


def rollout_with(name, logprobs):
    answer = Span(Author.MODEL, tuple(range(20, 20 + len(logprobs))), tuple(logprobs), True)
    spans = (Span(Author.PROMPT, (5, 6)), answer)
    return Trajectory(id=name, task_id="t", group="g", spans=spans, text="")


def test_an_answer_much_longer_than_its_prompt_gets_a_row_of_its_own():
    short = [3] * (2 * LONG_ANSWER)
    items = [trajectory(str(i), [1, 2], a) for i, a in enumerate((short, [*short, 4], short))]
    assert sorted(row.members for row in make_rows(items, True)) == [(0, 2), (1,)]


def padded(batches):
    """Computed tokens over real ones."""
    computed = sum(len(batch) * max(row.tokens for row in batch) for batch in batches)
    return computed / sum(row.tokens for batch in batches for row in batch)


def single_rows(lengths):
    return [Row((1,), (i,), length) for i, length in enumerate(lengths)]


@given(
    lengths=st.lists(st.integers(1, 600), min_size=1, max_size=150),
    share=st.lists(st.booleans(), min_size=150, max_size=150),
    budget=st.sampled_from([1, 64, 4096, FULL_TOKENS, 40_000, 140_000]),
)
def test_micro_batches_hold_every_row_once_in_order_and_within_the_budget(lengths, share, budget):
    rows = [
        Row((1,), (2 * i, 2 * i + 1) if pair else (2 * i,), n)
        for i, (n, pair) in enumerate(zip(lengths, share, strict=False))
    ]
    batches = micro_batches(rows, budget)
    assert sorted(r.members for b in batches for r in b) == sorted(r.members for r in rows)
    for batch in batches:
        assert batch == sorted(batch, key=lambda row: (-row.tokens, row.members))
        longest = batch[0].tokens
        assert len(batch) == 1 or len(batch) * longest <= budget
        beyond = batch[-(-FULL_TOKENS // longest) :]
        assert all(row.tokens >= 0.75 * longest for row in beyond)


@given(lengths=st.lists(st.integers(1, 5000), min_size=1, max_size=150), pairs=st.integers(0, 3))
def test_the_budget_of_a_cpu_looks_at_lengths_alone(lengths, pairs):
    rows = [Row((1,), (i, -i) if i % 4 < pairs else (i,), n) for i, n in enumerate(lengths)]
    expected = []
    for row in sorted(rows, key=lambda row: (-row.tokens, row.members[0])):
        if expected and (len(expected[-1]) + 1) * expected[-1][0].tokens <= 4096:
            expected[-1].append(row)
        else:
            expected.append([row])
    assert micro_batches(rows, 4096) == expected


def test_a_large_budget_does_not_pad_short_answers_to_the_longest():
    """512 answers of 8, 9, ... 519 tokens: one batch would compute 1.97 tokens for each."""
    rows = single_rows(range(8, 520))
    assert 519 * 512 / sum(row.tokens for row in rows) == pytest.approx(1.97, abs=0.01)
    batches = micro_batches(rows, 300_000)
    # 390 is the first above 3/4 of 519; 76 rows of 218 are the first to fill a pass.
    assert [len(batch) for batch in batches] == [130, 98, 73, 76, 116, 19]
    assert padded(batches) == pytest.approx(1.19, abs=0.01)
    # Little work stays in one pass, however uneven.
    assert len(micro_batches(single_rows([500, 8, 8, 8]), 300_000)) == 1


def test_rows_that_need_no_mask_do_not_pay_for_those_that_do():
    shared = [Row((1,), (i, 1000 + i), 400) for i in range(50)]
    single = [Row((1,), (2000 + i,), 400) for i in range(50)]
    assert micro_batches([*single, *shared], 140_000) == [shared, single]
    few = single[:3]
    assert micro_batches([*few, *shared], 140_000) == [[*few, *shared]]
