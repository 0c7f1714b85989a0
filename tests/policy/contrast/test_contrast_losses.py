import itertools
import math

import pytest
import torch
from contrast_cases import LOSSES, batch, by_definition

from burnish.policy.contrast.losses import contrastive_losses

# Rollouts 0, 1 and 3 are right. At temperature 0.5 the scores of 0 are 1.2 with 1, 0 with 2, -2 with 3.
WORKED = [[1.0, 0.0], [0.6, 0.8], [0.0, 1.0], [-1.0, 0.0]]
RIGHT = [1, 1, 0, 1]


def assert_close(left, right, tolerance=1e-9):
    torch.testing.assert_close(
        torch.as_tensor(left, dtype=torch.float64),
        torch.as_tensor(right, dtype=torch.float64),
        rtol=tolerance,
        atol=tolerance,
    )


def test_the_four_losses_by_hand():
    # e^1.2 = 3.320117, e^-2 = 0.135335: positives 3.455452, everything 4.455452.
    values = {
        "soft_nn": math.log(4.455452 / 3.455452),
        "supcon_in": math.log(4.455452 / 3.455452) + math.log(2),
        "supcon_out": math.log(4.455452) - (1.2 - 2) / 2,
    }
    for loss, expected in values.items():
        result = contrastive_losses(WORKED, RIGHT, [7] * 4, loss, 0.5)
        assert_close(result.per_sample[0], expected, 1e-6)
    drawn = {
        round(contrastive_losses(WORKED, RIGHT, [7] * 4, "infonce", 0.5, seed=seed)[0][0].item(), 5)
        for seed in range(20)
    }
    assert drawn == {round(math.log(4.455452) - 1.2, 5), round(math.log(4.455452) + 2, 5)}


def test_one_positive_makes_the_four_losses_one():
    for loss in LOSSES:
        result = contrastive_losses(WORKED[:3], RIGHT[:3], [0] * 3, loss, 0.5)
        first, second = math.log(1 + math.exp(-1.2)), math.log(1 + math.exp(1.6 - 1.2))
        assert_close(result.per_sample, [first, second, 0.0])
        assert_close(result.mean, (first + second) / 2)
        assert result.anchors.tolist() == [True, True, False]


@pytest.mark.parametrize("kind", [torch.float32, torch.float64])
def test_orthogonal_vectors_give_the_log_of_the_others(kind):
    # The published code gives 2.06 here: its constant inside the logarithm outweighs all three.
    for loss in LOSSES:
        result = contrastive_losses(torch.eye(4, dtype=kind), [1, 1, 0, 0], [0] * 4, loss, 0.05)
        assert_close(result.per_sample[:2], [math.log(3)] * 2, 1e-6)


def test_equal_positives_and_orthogonal_negatives_have_a_closed_form():
    positives, negatives, tau = 3, 5, 0.25
    embeddings = torch.eye(9, dtype=torch.float64)
    embeddings[: positives + 1] = embeddings[0]
    labels = [1] * (positives + 1) + [0] * negatives
    result = contrastive_losses(embeddings, labels, [0] * 9, "supcon_out", tau)
    expected = math.log(1 + negatives / positives * math.exp(-1 / tau)) + math.log(positives)
    assert_close(result.per_sample[: positives + 1], [expected] * (positives + 1))


def test_a_tiny_loss_keeps_its_digits_in_float32():
    # log(1 + e^-40) is 4e-18, far below what a difference of two numbers near 20 can show.
    embeddings = torch.tensor([[1.0, 0.0], [1.0, 0.0], [-1.0, 0.0]])
    result = contrastive_losses(embeddings, [1, 1, 0], [0] * 3, "soft_nn", 0.05)
    torch.testing.assert_close(
        result.per_sample[:2], torch.full((2,), math.exp(-40)), rtol=1e-4, atol=0
    )


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("scope", ["group", "batch", "cross"])
def test_every_setting_is_its_definition(loss, scope):
    embeddings, labels, groups = batch([5, 3, 1, 5, 2, 7], seed=3)
    embeddings[4] = embeddings[1] * 2
    duplicate_ids = [f"text {i % 11}" for i in range(len(groups))]
    settings = itertools.product(
        ("correct_only", "all"),
        (True, False),
        ("cosine", "negative_cosine", "distance"),
        (False, True),
    )
    for anchors, skip_trivial, similarity, dedup in settings:
        result = contrastive_losses(
            embeddings,
            labels,
            groups,
            loss,
            0.3,
            scope,
            anchors,
            skip_trivial,
            similarity=similarity,
            duplicate_ids=duplicate_ids,
            dedup=dedup,
            dedup_cos=0.8,
        )
        removed = {"duplicate_ids": duplicate_ids, "dedup_cos": 0.8} if dedup else {}
        expected = by_definition(
            embeddings,
            labels,
            groups,
            loss,
            0.3,
            scope,
            anchors,
            skip_trivial,
            similarity,
            **removed,
        )
        assert result.anchors.tolist() == [bool(values) for values in expected]
        for got, values in zip(result.per_sample.tolist(), expected, strict=True):
            assert min(abs(got - value) for value in values or [0.0]) < 1e-7
        total = result.per_sample.sum() / max(sum(map(bool, expected)), 1)
        assert_close(result.mean, total)


@pytest.mark.parametrize(
    ("labels", "groups"),
    [
        ([0, 0, 0, 0], [0] * 4),
        ([1, 1, 1, 1], [0] * 4),
        ([1, 0, 0, 0], [0] * 4),
        ([1, 1, 0, 0], [0, 1, 2, 3]),
    ],
    ids=["none right", "all right", "one right", "groups of one"],
)
@pytest.mark.parametrize("loss", LOSSES)
def test_trivial_groups_have_no_anchors_and_no_gradient(loss, labels, groups):
    embeddings = torch.randn(4, 3, dtype=torch.float64, requires_grad=True)
    result = contrastive_losses(embeddings, labels, groups, loss)
    assert not result.anchors.any()
    assert result.per_sample.tolist() == [0.0] * 4
    assert result.mean.item() == 0.0
    (gradient,) = torch.autograd.grad(result.mean, embeddings)
    assert gradient.count_nonzero() == 0


def test_an_empty_batch_has_an_empty_answer():
    for scope in ("group", "batch", "cross"):
        result = contrastive_losses(torch.zeros(0, 4), [], [], scope=scope)
        assert result.per_sample.shape == (0,)
        assert result.mean.item() == 0.0


@pytest.mark.parametrize("scope", ["group", "batch", "cross"])
@pytest.mark.parametrize("broken", [math.nan, math.inf, 0.0])
def test_a_rollout_without_a_direction_is_as_if_it_were_not_there(broken, scope):
    embeddings, labels, groups = batch([4, 4], seed=6)
    labels = torch.tensor([1, 1, 0, 1, 0, 1, 1, 0])
    rest = [0, 1, 2, 4, 5, 6, 7]
    alone = contrastive_losses(
        embeddings[rest], labels[rest], [groups[i] for i in rest], "supcon_out", scope=scope
    )
    embeddings[3] = broken
    embeddings.requires_grad_(True)
    result = contrastive_losses(embeddings, labels, groups, "supcon_out", scope=scope)
    assert result.per_sample[3].item() == 0.0
    assert not result.anchors[3]
    assert_close(result.per_sample[rest], alone.per_sample)
    (gradient,) = torch.autograd.grad(result.mean, embeddings)
    assert gradient.isfinite().all()
    assert gradient[3].count_nonzero() == 0


def test_a_rollout_that_is_not_usable_is_as_if_it_were_not_there():
    embeddings, _, _ = batch([5])
    labels, usable = [1, 1, 1, 0, 0], [1, 1, 0, 1, 1]
    kept = [0, 1, 3, 4]
    result = contrastive_losses(embeddings, labels, [0] * 5, "soft_nn", usable=usable)
    alone = contrastive_losses(embeddings[kept], [1, 1, 0, 0], [0] * 4, "soft_nn")
    assert_close(result.per_sample[kept], alone.per_sample)
    assert result.per_sample[2].item() == 0.0


def test_copies_are_not_each_others_positives_with_dedup():
    embeddings = torch.tensor([[1.0, 0, 0], [1, 0, 0], [0, 1, 0], [0, 0, 1]], dtype=torch.float64)
    labels, groups = [1, 1, 1, 0], [0] * 4
    plain = contrastive_losses(embeddings, labels, groups, "soft_nn", 0.05)
    assert plain.per_sample[0] < 1e-6
    # Without its copy, rollout 0 has one positive and one negative, both at cosine 0.
    deduped = contrastive_losses(embeddings, labels, groups, "soft_nn", 0.05, dedup=True)
    assert_close(deduped.per_sample[:2], [math.log(2)] * 2)
    texts = [(5, 6), (7,), (5, 6), (5, 6, 7)]
    by_text = contrastive_losses(
        embeddings, labels, groups, "soft_nn", 0.05, dedup=True, dedup_cos=1.0, duplicate_ids=texts
    )
    # 0 and 2 are the same tokens: 2 is left with positive 1 and negative 3.
    assert_close(by_text.per_sample[2], math.log(2))


def test_only_copies_are_no_anchors():
    same = torch.ones(3, 2, dtype=torch.float64)
    result = contrastive_losses(same, [1, 1, 0], [0] * 3, duplicate_ids=["a", "a", "b"], dedup=True)
    assert not result.anchors.any()


def test_lengths_of_embeddings_change_nothing():
    embeddings, labels, groups = batch([6, 6])
    scaled = embeddings * torch.linspace(0.1, 40, 12, dtype=torch.float64)[:, None]
    for loss in LOSSES:
        assert_close(
            contrastive_losses(scaled, labels, groups, loss).per_sample,
            contrastive_losses(embeddings, labels, groups, loss).per_sample,
        )


def test_half_precision_is_compared_in_float32():
    embeddings, labels, groups = batch([8])
    half = embeddings.to(torch.bfloat16)
    result = contrastive_losses(half, labels, groups, "supcon_out")
    assert result.per_sample.dtype == torch.float32
    assert_close(
        result.per_sample.double(),
        contrastive_losses(half.double(), labels, groups, "supcon_out").per_sample,
        1e-4,
    )
