import math

import pytest
import torch
from contrast_cases import LOSSES, batch
from hypothesis import given, settings, strategies as st

from burnish.policy.contrast import losses as pairs
from burnish.policy.contrast.losses import ContrastRule, contrast, contrastive_losses

SIZES = st.lists(st.integers(1, 7), min_size=1, max_size=5)
SEEDS = st.integers(0, 10_000)
TEMPERATURES = st.sampled_from([0.02, 0.05, 0.3, 1.0])


def assert_close(left, right, tolerance=1e-9):
    torch.testing.assert_close(left, right, rtol=tolerance, atol=tolerance)


@given(SIZES, SEEDS, st.sampled_from(LOSSES), st.sampled_from(["group", "batch", "cross"]))
@settings(max_examples=60)
def test_a_permuted_batch_has_permuted_losses(sizes, seed, loss, scope):
    embeddings, labels, groups = batch(sizes, seed=seed)
    keys = torch.arange(len(groups)) * 977 + 5
    order = torch.randperm(len(groups), generator=torch.Generator().manual_seed(seed + 1))
    plain = contrastive_losses(embeddings, labels, groups, loss, scope=scope, keys=keys, seed=4)
    permuted = contrastive_losses(
        embeddings[order],
        labels[order],
        [groups[i] for i in order.tolist()],
        loss,
        scope=scope,
        keys=keys[order],
        seed=4,
    )
    assert_close(permuted.per_sample, plain.per_sample[order])
    assert_close(permuted.mean, plain.mean)
    assert permuted.anchors.tolist() == plain.anchors[order].tolist()


@given(SIZES, SEEDS, st.sampled_from(LOSSES))
@settings(max_examples=60)
def test_groups_do_not_interact(sizes, seed, loss):
    embeddings, labels, groups = batch(sizes, seed=seed)
    first = torch.tensor(groups) == groups[0]
    others, other_labels, _ = batch(sizes, seed=seed + 1)
    changed = torch.where(first[:, None], embeddings, others)
    changed_labels = torch.where(first, labels, other_labels)
    plain = contrastive_losses(embeddings, labels, groups, loss).per_sample[first]
    assert torch.equal(contrastive_losses(changed, changed_labels, groups, loss)[0][first], plain)
    # Alone in its batch, a group keeps its draws by its keys.
    alone = contrastive_losses(
        embeddings[first], labels[first], [0] * int(first.sum()), loss, keys=first.nonzero()[:, 0]
    )
    assert_close(alone.per_sample, plain)


@given(SIZES, SEEDS, TEMPERATURES, st.sampled_from(["group", "batch", "cross"]))
@settings(max_examples=60)
def test_losses_are_ordered_and_never_below_zero(sizes, seed, temperature, scope):
    embeddings, labels, groups = batch(sizes, seed=seed)
    for kind in (torch.float64, torch.float32):
        found = {
            loss: contrastive_losses(embeddings.to(kind), labels, groups, loss, temperature, scope)
            for loss in LOSSES
        }
        assert all((result.per_sample >= 0).all() for result in found.values())
        slack = 1e-12 if kind == torch.float64 else 1e-4
        nearest, inside, outside = (
            found[loss].per_sample for loss in ("soft_nn", "supcon_in", "supcon_out")
        )
        assert (nearest <= inside).all()
        assert (inside <= outside + slack).all()


def test_the_mean_of_infonce_is_supcon_out():
    embeddings = torch.tensor(
        [[1, 0.2, 0], [0.8, 0.6, 0.1], [0.1, 1, 0], [0, 0, 1], [0.5, 0, 0.5], [0.3, 0.1, 0.9]],
        dtype=torch.float64,
    )
    labels, copies = [1, 1, 1, 1, 0, 0], 5000
    expected = contrastive_losses(embeddings, labels, [0] * 6, "supcon_out", 0.5).per_sample
    many = contrastive_losses(
        embeddings.repeat(copies, 1),
        labels * copies,
        torch.arange(copies).repeat_interleave(6),
        "infonce",
        0.5,
        seed=1,
    )
    mean = many.per_sample.reshape(copies, 6).mean(0)
    assert ((mean[:4] - expected[:4]).abs() < 0.01 * expected[:4]).all()


def test_the_hash_is_splitmix64():
    # The first numbers of the published generator from seed 0: its state grows by the golden ratio.
    states = torch.arange(1, 4) * (0x9E3779B97F4A7C15 - 2**64)
    published = [0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F]
    assert [value % 2**64 for value in pairs.mixed(states).tolist()] == published


def test_picks_are_uniform_over_the_mask_and_never_outside_it():
    draws, candidates = 20_000, 7
    mask = torch.tensor([1, 0, 1, 1, 0, 1, 1], dtype=torch.bool).expand(draws, 1, candidates)
    anchors = torch.arange(draws)[:, None]
    others = torch.arange(draws * candidates).reshape(draws, candidates)
    counts = pairs.pick(mask, anchors, others, seed=3).flatten().bincount(minlength=candidates)
    assert counts[~mask[0, 0]].tolist() == [0, 0]
    expected = draws / 5
    chi_square = ((counts[mask[0, 0]] - expected).square() / expected).sum()
    assert chi_square < 18.5  # 4 degrees of freedom, one in a thousand
    again = pairs.pick(mask, anchors, others, seed=3 + 2**64)
    assert torch.equal(again, pairs.pick(mask, anchors, others, seed=3))
    other_seed = pairs.pick(mask, anchors, others, seed=4)
    assert 0.7 < (other_seed != again).double().mean() < 0.9  # 4 of 5 by chance


@pytest.mark.parametrize(
    ("scope", "similarity"),
    [
        ("group", "cosine"),
        ("batch", "cosine"),
        ("cross", "cosine"),
        ("group", "negative_cosine"),
        ("group", "distance"),
    ],
)
@pytest.mark.parametrize("loss", LOSSES)
def test_gradients_through_normalisation(loss, scope, similarity):
    embeddings, labels, groups = batch([5, 3, 1], width=3, seed=9)
    embeddings.requires_grad_(True)

    def mean(values):
        # Trivial anchors too: with nothing in N the gradient must not become NaN.
        return contrastive_losses(
            values, labels, groups, loss, 0.4, scope, "all", False, similarity=similarity
        ).mean

    assert torch.autograd.gradcheck(mean, (embeddings,))


@pytest.mark.parametrize("loss", LOSSES)
def test_no_nan_stands_anywhere_in_the_backward_pass(loss):
    # Empty P, empty N and a rollout without a direction; whoever hunts a NaN must find none here.
    embeddings, _, _ = batch([11])
    embeddings[0] = math.nan
    embeddings.requires_grad_(True)
    groups = [0] * 4 + [1] * 4 + [2] + [3] * 2
    labels = [1, 1, 1, 1, 1, 1, 0, 1, 1, 1, 0]
    with torch.autograd.set_detect_anomaly(True):
        for skip_trivial in (True, False):
            result = contrastive_losses(
                embeddings, labels, groups, loss, anchors="all", skip_trivial=skip_trivial
            )
            (gradient,) = torch.autograd.grad(result.mean, embeddings)
            assert gradient.count_nonzero() > 0


def test_equal_vectors_have_finite_gradients_under_the_distance():
    embeddings = torch.ones(4, 3, dtype=torch.float64, requires_grad=True)
    result = contrastive_losses(
        embeddings, [1, 1, 0, 0], [0] * 4, "supcon_out", similarity="distance"
    )
    assert_close(result.per_sample[:2], torch.full((2,), math.log(3), dtype=torch.float64))
    (gradient,) = torch.autograd.grad(result.mean, embeddings)
    assert gradient.isfinite().all()


@pytest.mark.parametrize("scope", ["group", "batch", "cross"])
@pytest.mark.parametrize("loss", LOSSES)
def test_small_blocks_give_the_same_losses_and_gradients(loss, scope):
    embeddings, labels, groups = batch([9, 4, 4, 2, 1], seed=2)
    embeddings.requires_grad_(True)
    rule = ContrastRule(loss, scope=scope)

    def run(**size):
        found = contrast(embeddings, labels, torch.tensor(groups), rule, **size)
        (gradient,) = torch.autograd.grad(found.losses.mean, embeddings)
        return found.losses.per_sample, found.positive_cos_B, found.negative_cos_B, gradient

    whole = run()
    assert whole[0].count_nonzero() > 4
    for pairs_a_block in (1, 20, 60):
        for got, expected in zip(run(block_pairs=pairs_a_block), whole, strict=True):
            assert_close(got, expected)
