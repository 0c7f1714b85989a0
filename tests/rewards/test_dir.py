"""DIR: worked numbers and the properties of its penalty, heads, attributes and measures."""

from __future__ import annotations

import logging
import math

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn

from burnish.errors import UserError
from burnish.records import Message, Task
from burnish.rewards.models import (
    Attribute,
    BiasHead,
    BiasPenalty,
    Pair as TaskPair,
    accuracy_by_group,
    attribute_correlation,
    attribute_labels,
    attribute_report,
    auc,
    bias_head_loss,
    club_categorical,
    contaminate,
    dual_lambda,
    grouped_pair_metrics,
    length_label,
    probe_auc,
    rmbench_metrics,
    total_loss,
)
from burnish.rewards.models.bias_attributes import ATTRIBUTES
from burnish.rewards.models.dir import club, represent
from burnish.rewards.models.dir_term import BiasSettings


def Pair(prompt, chosen, rejected, fields=None, id="t"):
    return TaskPair(Task(id, (Message("user", prompt),), fields or {}), chosen, rejected)


def f64(values):
    return torch.tensor(values, dtype=torch.float64)


def naive_club(logits, labels):
    """The definition, O(N^2), with the softmax."""
    logp = logits.log_softmax(1)
    own = logp.gather(1, labels[:, None]).mean()
    return own - torch.stack([row[labels].mean() for row in logp]).mean()


def drawn(seed, pairs, classes):
    draw = torch.Generator().manual_seed(seed)
    logits = 3 * torch.randn(pairs, classes, generator=draw, dtype=torch.float64)
    return logits, torch.randint(classes, (pairs,), generator=draw)


batches = st.builds(drawn, st.integers(0, 10_000), st.integers(2, 40), st.integers(2, 4))


# CLUB.


def test_worked_number_of_club():
    # Logit differences 2, 0, -1 with labels 1, 0, 1: covariance 1/3 (2 - 1) - (1/3)(2/3) = 1/9.
    logits = f64([[0.0, 2.0], [0.0, 0.0], [0.0, -1.0]])
    assert club_categorical(logits, [1, 0, 1]).item() == pytest.approx(1 / 9, abs=1e-12)


@given(batches)
def test_club_is_the_covariance_and_the_definition(batch):
    logits, labels = batch
    value = club_categorical(logits, labels)
    one_hot = nn.functional.one_hot(labels, logits.shape[1]).double()
    centred = (logits - logits.mean(0)) * (one_hot - one_hot.mean(0))
    assert abs(value - centred.mean(0).sum()) < 1e-12
    assert abs(value - naive_club(logits, labels)) < 1e-12


@given(batches, st.floats(-5, 5))
def test_club_ignores_a_shift_of_a_pair_and_names_of_classes(batch, shift):
    logits, labels = batch
    value = club_categorical(logits, labels)
    moved = logits + shift * torch.arange(len(logits), dtype=torch.float64)[:, None]
    assert torch.allclose(club_categorical(moved, labels), value, atol=1e-10)
    classes = logits.shape[1]
    turned = club_categorical(logits.flip(1), classes - 1 - labels)
    assert torch.allclose(turned, value, atol=1e-12)


def test_club_is_zero_where_there_is_nothing_to_tell():
    weights = torch.randn(3, 2, dtype=torch.float64)
    for states, labels, matrix in (
        (torch.randn(1, 3, dtype=torch.float64), [1], weights),
        (torch.randn(4, 3, dtype=torch.float64), [1, 1, 1, 1], weights),
        (torch.randn(4, 3, dtype=torch.float64), [1, 0, 1, 1], torch.zeros_like(weights)),
    ):
        states.requires_grad_()
        value = club_categorical(states @ matrix + 0.1, labels)
        value.backward()
        assert value.item() == 0
        assert states.grad.abs().max() == 0


def test_club_has_no_bounds():
    confident = f64([[0.0, 16.0], [0.0, -16.0]])
    assert club_categorical(confident, [1, 0]).item() == pytest.approx(8.0)
    assert club_categorical(confident, [0, 1]).item() == pytest.approx(-8.0)
    assert club_categorical(confident, [0, 1], clamp="zero").item() == 0


def test_ties_are_left_out_of_both_means():
    logits, labels = drawn(1, 6, 2)
    with_tie = torch.cat([labels, torch.tensor([-1])])
    more = torch.cat([logits, f64([[9.0, -9.0]])])
    assert torch.allclose(
        club_categorical(more, with_tie), club_categorical(logits, labels), atol=1e-12
    )
    assert torch.allclose(bias_head_loss(more, with_tie), bias_head_loss(logits, labels))


def test_past_labels_give_a_single_pair_something_to_differ_from():
    value = club_categorical(f64([[0.0, 2.0]]), [1], past_labels=[0, 1, 0])
    # Half of the four labels are 1: log q(1) - (log q(0) + log q(1)) / 2 = 2 - 1.
    assert value.item() == pytest.approx(1.0)


def test_gradient_of_club_by_finite_differences():
    logits, labels = drawn(3, 5, 3)
    assert torch.autograd.gradcheck(lambda x: club_categorical(x, labels), logits.requires_grad_())


# The total.


def states(pairs=6, width=4, seed=0):
    draw = torch.Generator().manual_seed(seed)
    h = [torch.randn(pairs, width, generator=draw, dtype=torch.float64) for _ in range(2)]
    return [one.requires_grad_() for one in h]


def test_total_is_preference_plus_lambda_times_penalty():
    chosen, rejected = states()
    w = f64([0.5, -1.0, 0.2, 0.3])
    weights = {"W": torch.randn(2, 4, dtype=torch.float64), "b": f64([0.1, -0.2])}
    labels = [1, 0, 1, 1, 0, 0]
    found = total_loss(chosen, rejected, chosen @ w, rejected @ w, labels, lam=3.0, head=weights)
    logits = (chosen - rejected) @ weights["W"].T + weights["b"]
    expected = -nn.functional.logsigmoid((chosen - rejected) @ w).mean()
    assert torch.allclose(found.loss_preference, expected)
    assert torch.allclose(found.mi, naive_club(logits, torch.tensor(labels)))
    assert torch.allclose(found.total, expected + 3 * found.mi)
    found.mi.backward()
    assert torch.allclose(chosen.grad, -rejected.grad)
    assert chosen.grad.abs().max() > 0


def test_a_head_is_a_function_or_weights_either_way_round():
    chosen, rejected = states()
    head = BiasHead(4, hidden=8).double()
    head.forward = lambda x: head.second(torch.relu(head.first(x)))
    table = {
        "W1": head.first.weight, "b1": head.first.bias,
        "W2": head.second.weight.T, "b2": head.second.bias,
    }  # fmt: skip
    given_to = {"bias_label": [1, 0, 1, 1, 0, 0], "r_chosen": [0.0] * 6, "r_rejected": [0.0] * 6}
    one = total_loss(chosen, rejected, head=head, **given_to)
    assert torch.allclose(one.mi, total_loss(chosen, rejected, head=table, **given_to).mi)
    wide = nn.Linear(8, 2).double()
    both = total_loss(chosen, rejected, representation="concat", head=wide, **given_to)
    assert both.mi.item() != one.mi.item()


def test_lambda_0_is_bradley_terry_itself():
    chosen, rejected = states()
    found = total_loss(
        chosen, rejected, chosen[:, 0], rejected[:, 0], [1, 0, 1, 1, 0, 0], lam=0.0,
        head=nn.Linear(4, 2).double(),
    )  # fmt: skip
    assert found.total is found.loss_preference


def test_logits_that_are_not_finite_drop_the_penalty():
    chosen, rejected = states()
    found = total_loss(
        chosen, rejected, chosen[:, 0], rejected[:, 0], [1, 0, 1, 1, 0, 0],
        head=lambda x: x[:, :2] / 0,
    )  # fmt: skip
    assert found.mi is None
    assert found.total is found.loss_preference
    found.total.backward()
    assert chosen.grad.isfinite().all()


# Heads and the penalty in training.


def one_batch(seed=0, pairs=64, width=6, dtype=torch.float32):
    """The label is the sign of the first feature of the difference."""
    draw = torch.Generator().manual_seed(seed)
    chosen, rejected = (torch.randn(pairs, width, generator=draw).to(dtype) for _ in range(2))
    return chosen, rejected, (chosen[:, 0] > rejected[:, 0]).long()


def make(width=6, **changes):
    fast = {"head_width": 16, "head_learning_rate": 1e-2} | changes
    return BiasPenalty("length", BiasSettings(**fast), width)


def penalised(penalty, chosen, rejected, labels):
    """The penalty of one step, and its metrics."""
    pairs = represent(chosen, rejected)
    metrics = penalty.prepare(pairs.detach(), labels)
    return penalty.part(pairs, torch.arange(len(pairs))), metrics


def test_the_head_learns_and_only_the_model_feels_the_penalty():
    penalty = make()
    for step in range(40):
        chosen, rejected, labels = one_batch(step)
        chosen.requires_grad_()
        loss, metrics = penalised(penalty, chosen, rejected, labels)
    assert metrics["probe_auc"] > 0.9
    assert metrics["mi"] > 0.5
    before = {name: v.clone() for name, v in penalty.head.tensors().items()}
    loss.backward()
    assert chosen.grad.abs().max() > 0
    assert all(p.grad is None for p in penalty.head.parameters())
    after = penalty.head.tensors()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_a_penalty_resumes_bit_for_bit():
    batches = [one_batch(step) for step in range(6)]
    whole, first = make(target_auc=0.55), make(target_auc=0.55)
    values = [penalised(whole, *batch) for batch in batches]
    for batch in batches[:3]:
        penalised(first, *batch)
    second = make(target_auc=0.55)
    second.load({name: values.clone() for name, values in first.tensors().items()})
    for batch, (loss, metrics) in zip(batches[3:], values[3:], strict=True):
        again = penalised(second, *batch)
        assert torch.equal(again[0], loss)
        assert again[1] == metrics


@pytest.mark.parametrize("queue", [3, 256])
def test_a_step_seen_again_has_the_penalty_that_it_had(queue):
    """The queue of before, and not one that holds the step's own labels."""
    penalty = make(queue=queue)
    places = torch.arange(5)
    for step in range(3):
        chosen, rejected, labels = one_batch(step, 5)
        pairs, classes = chosen - rejected, torch.as_tensor(labels).long()
        first = penalty.prepare(pairs, classes)
        wanted = penalty.part(pairs, places)
    again = make(queue=queue)
    again.load({name: values.clone() for name, values in penalty.tensors().items()})
    for one in (penalty, again):
        found = one.prepare(pairs, classes, learn=False)
        assert found["mi"] == first["mi"]
        assert torch.equal(one.part(pairs, places), wanted)


def test_one_class_teaches_the_head_nothing():
    penalty = make(queue=0)
    chosen, rejected, _ = one_batch()
    before = {name: v.clone() for name, v in penalty.head.tensors().items()}
    loss, metrics = penalised(penalty, chosen, rejected, torch.ones(64))
    assert loss.item() == 0
    assert "head_loss" not in metrics
    after = penalty.head.tensors()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[name], after[name]) for name in before)


def test_one_pair_is_warned_of_once_and_a_queue_helps(caplog):
    chosen, rejected, labels = one_batch(pairs=1)
    penalty = make(queue=0)
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            assert penalised(penalty, chosen, rejected, labels)[0].item() == 0
    assert [r.message for r in caplog.records if "MI batch too small" in r.message] != []
    assert len(caplog.records) == 1
    queued = make(queue=8)
    losses = [penalised(queued, *one_batch(s, 1))[0] for s in range(8)]
    assert any(loss.item() != 0 for loss in losses[1:])
    assert len(queued.past[1]) == 8
    assert queued.newest == 1


def test_a_broken_batch_is_counted_and_harms_nothing():
    penalty = make()
    chosen, rejected, labels = one_batch()
    penalised(penalty, chosen, rejected, labels)
    before = penalty.tensors()
    broken = chosen.clone()
    broken[0, 0] = math.inf
    loss, metrics = penalised(penalty, broken, rejected, labels)
    assert loss is None
    assert penalty.dropped == 1
    assert metrics["dropped"] == 1
    after = penalty.tensors()
    assert all(torch.equal(before[n], after[n]) for n in before if n != "dropped")


def test_missing_labels_are_none_and_odd_ones_are_named():
    penalty = make(classes=3, lam=0.5)
    chosen, rejected, _ = one_batch(pairs=4)
    loss, metrics = penalised(penalty, chosen, rejected, [0, None, 2, 1])
    assert metrics["pairs"] == 3
    assert loss.item() == pytest.approx(0.5 * metrics["mi"])
    with pytest.raises(UserError, match="length: got 3"):
        penalised(penalty, chosen, rejected, [3, 0, 1, 1])


def test_dual_ascent_moves_lambda_towards_its_target():
    assert dual_lambda(1.0, 0.75, 0.55, rate=0.5) == pytest.approx(1.1)
    assert dual_lambda(0.01, 0.5, 0.55, rate=1.0) == 0
    assert dual_lambda(9.99, 1.0, 0.55, rate=1.0) == 10


# Attributes.


def test_labels_of_the_shipped_attributes():
    pairs = [
        Pair("p", "long answer", "short", {"chosen_first": True}),
        Pair("p", "You are right. No.", "# Title\n- a\n- b: **bold**"),
        Pair("p", "same", "even", {"chosen_first": False}),
        Pair("p", "plain", "I completely agree with you. Plain"),
    ]
    found = {name: attribute_labels(one, pairs) for name, one in ATTRIBUTES.items()}
    assert found["length"] == [1, 0, None, 0]
    assert found["markdown"] == [None, 0, None, None]
    assert found["agreement"] == [0, 1, 0, 2]
    assert found["position"] == [1, None, 0, None]
    assert length_label(5, 5) == 0
    assert length_label(5, 5, ties="drop") is None
    assert length_label([3, 1], torch.tensor([1, 3])) == [1, 0]


def test_the_report_says_how_far_an_attribute_predicts():
    pairs = [Pair("p", "aaa", "b")] * 3 + [Pair("p", "b", "aaa")] + [Pair("p", "cc", "dd")]
    constant = Attribute("constant", lambda pair: 1)
    length, same = attribute_report(pairs, [ATTRIBUTES["length"], constant])
    assert length.shares == (0.25, 0.75)
    assert length.ties == pytest.approx(0.2)
    assert length.predicts == 0.75
    assert same.predicts == 0.5
    assert same.shares == (0.0, 1.0)


def test_an_attribute_that_fails_is_named_with_its_pair():
    fails = Attribute("mine", lambda pair: 1 // len(pair.chosen), path="mine.py:f")
    with pytest.raises(
        UserError, match=r"attribute 'mine' \(mine.py:f\) failed on pair rows/17: ZeroDivisionError"
    ):
        attribute_labels(fails, [Pair("p", "a", "b"), Pair("p", "", "b", id="rows/17")])
    with pytest.raises(
        UserError, match="'mine': pair rows/5 got 7, expected None or a whole number from 0 to 1"
    ):
        attribute_labels(Attribute("mine", lambda pair: 7), [Pair("p", "a", "b", id="rows/5")])


def test_contamination_keeps_its_two_rates():
    pairs = [Pair("p", "a", "b")] * 4000
    found = contaminate(pairs, gamma=0.4, alpha=0.8, seed=3)
    sides = [one.side for one in found]
    assert sides.count("none") / 4000 == pytest.approx(0.6, abs=0.03)
    assert sides.count("chosen") / sides.count("rejected") == pytest.approx(4, abs=0.7)
    labels = attribute_labels(ATTRIBUTES["agreement"], [one.pair for one in found])
    assert labels == [{"none": 0, "chosen": 1, "rejected": 2}[side] for side in sides]
    assert contaminate(pairs[:5], gamma=0.4, alpha=0.8, seed=3) == found[:5]


# Measures.


def test_pairs_by_group():
    found = grouped_pair_metrics([1.0, 0.2, 1.0], [0.5, 0.2, 2.0], [0, 0, 1])
    assert found["natural_accuracy"] == 0.5  # a tie is wrong
    assert found["natural_margin"] == 0.25
    assert (found["adversarial_accuracy"], found["adversarial_margin"]) == (0, -1.0)
    assert found["accuracy"] == pytest.approx(1 / 3)
    assert grouped_pair_metrics([1.0], [0.0], [0])["adversarial_accuracy"] is None


def test_accuracy_by_group():
    found = accuracy_by_group([1, 0, 1], [1, 1, 1], ["b", "a", "a"])
    assert found == {"overall": pytest.approx(2 / 3), "a": 0.5, "b": 1.0}


def test_worked_numbers_of_rmbench():
    # Chosen 1, 2, 3 against rejected 0, 2, 5: chosen i beats rejected j where it is larger.
    chat = [(1, 0), (2, 2), (3, 5)]
    found = rmbench_metrics(["chat"] * 3, chat)
    assert found["hard"] == 0  # 1>2, 1>5, 2>5
    assert found["normal"] == pytest.approx(1 / 3)  # 1>0, 2>2, 3>5
    assert found["easy"] == 1  # 2>0, 3>0, 3>2
    assert found["chat"] == found["total"] == pytest.approx(4 / 9)
    assert "math" not in found
    domains = ["chat", "safety-refuse", "safety-response"]
    both = rmbench_metrics(domains, chat + [(9, 0)] * 3 + [(0, 9)] * 3)
    assert both["safety"] == 0.5
    assert both["total"] == pytest.approx((4 / 9 + 0.5) / 2)


def test_correlation_and_auc():
    assert attribute_correlation([1.0, 2.0, 3.0], [2.0, 4.0, 6.0]) == pytest.approx(1)
    assert attribute_correlation([1.0, 1.0], [2.0, 4.0]) is None
    assert auc([0.1, 0.4, 0.35, 0.8], [0, 0, 1, 1]) == 0.75
    assert auc([1.0, 1.0], [0, 1]) == 0.5
    assert auc([1.0], [1]) is None


@settings(max_examples=20)
@given(st.lists(st.tuples(st.integers(-3, 3), st.integers(0, 1)), min_size=2, max_size=12))
def test_auc_counts_pairs(rows):
    ones, zeros = [v for v, b in rows if b], [v for v, b in rows if not b]
    found = auc([v for v, _ in rows], [b for _, b in rows])
    if not ones or not zeros:
        assert found is None
    else:
        wins = sum((a > b) + 0.5 * (a == b) for a in ones for b in zeros)
        assert found == pytest.approx(wins / (len(ones) * len(zeros)))


def test_a_linear_probe_finds_what_is_there_and_nothing_else():
    chosen, rejected, labels = one_batch(pairs=400)
    assert probe_auc(chosen - rejected, labels) > 0.97
    assert abs(probe_auc((chosen - rejected)[:, 1:], labels) - 0.5) < 0.1
    assert probe_auc(chosen, torch.ones(400)) is None


def test_large_logits_lose_no_digits_in_float32():
    draw = torch.Generator().manual_seed(3)
    logits = (3e4 + torch.randn(16, 3, generator=draw, dtype=torch.float64)).float()
    labels = torch.arange(16) % 3
    past = torch.tensor([0, 0, 1, 2, 2, 2, 2])
    for past_labels in (None, past):
        one = club(logits, labels, past_labels)
        exact = club(logits.double(), labels, past_labels)
        torch.testing.assert_close(one.double(), exact, rtol=1e-5, atol=1e-6)


def test_an_attribute_predicts_the_side_that_the_target_prefers():
    """Rows of answers A and B with a probability; a tie of the label says nothing of either."""
    pairs = [Pair("q", "long one", "one")._replace(target=target) for target in (1.0, 0.9)]
    turned = [Pair("q", "one", "long one")._replace(target=target) for target in (0.0, 0.2)]
    ties = [Pair("q", "one", "long one")._replace(target=0.5)] * 3
    (row,) = attribute_report([*pairs, *turned, *ties], [ATTRIBUTES["length"]])
    assert row.predicts == 1.0
    assert row.shares == (5 / 7, 2 / 7), "classes are those of the pairs as they stand"
    (row,) = attribute_report(ties, [ATTRIBUTES["length"]])
    assert row.predicts is None
