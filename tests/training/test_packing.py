"""Packed rows give the log-probs and gradients of separate rows."""

import pytest
import torch

from burnish.lm import load_model
from burnish.records import Author, Span, Trajectory
from burnish.training.forward import token_scores
from burnish.training.packing import ROW_TOKENS, make_rows, micro_batches, pack


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
    logits = model.logits(model(ids, torch.arange(ids.shape[1])[None]))
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


def test_sharing_saves_the_repeated_prompt():
    shared = sum(row.tokens for row in make_rows(ROLLOUTS, True))
    separate = sum(row.tokens for row in make_rows(ROLLOUTS, False))
    assert separate - shared == 2 * 4


def test_rows_stay_within_their_size():
    many = [trajectory(str(i), range(100), range(60)) for i in range(40)]
    rows = make_rows(many, True)
    assert sorted(m for row in rows for m in row.members) == list(range(40))
    assert all(row.tokens <= ROW_TOKENS for row in rows)


def test_a_rollout_longer_than_a_row_still_gets_one():
    rows = make_rows([trajectory("long", range(10), [3] * (ROW_TOKENS + 5))], True)
    assert [row.tokens for row in rows] == [10 + ROW_TOKENS + 5]


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
    logits = model.logits(model(ids, torch.arange(ids.shape[1])[None]))[0, 3:6] / 2.0
    p = logits.softmax(-1)
    torch.testing.assert_close(scores.entropy_BT[0], -(p * p.log()).sum(-1), rtol=0, atol=1e-10)
