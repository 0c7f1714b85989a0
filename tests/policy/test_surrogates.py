import math
from dataclasses import replace

import pytest
import torch
from hypothesis import given, strategies as st
from peer_libraries import both_agree, close, gradient, trl_loss, verl_loss, whole_batch
from policy_cases import loss_batch

from burnish.errors import ArgumentError
from burnish.policy import (
    KL,
    AdaptiveEntropy,
    Aggregate,
    Cispo,
    ClipCov,
    Elastic,
    Entropy,
    GeometricMean,
    HighEntropy,
    KlCov,
    PolicyState,
    Recipe,
    Sapo,
    StaticRegion,
    TruncatedImportance,
    adapted_entropy_coefficient,
    cispo_surrogate,
    clip_cov_tokens,
    gmpo_surrogate,
    high_entropy_tokens,
    kl_cov_tokens,
    loss,
    normaliser_of,
    sapo_surrogate,
    token_covariance,
)
from burnish.policy.auxiliary import EntropyState
from burnish.policy.objective import SurrogateTerms
from burnish.policy.tokens import batch_marks

SEEDS = range(20)
SURROGATES = {
    "clipped": Recipe(),
    "cispo": Recipe(surrogate=Cispo()),
    "cispo_floor": Recipe(surrogate=Cispo(floor=True)),
    "sapo": Recipe(surrogate=Sapo()),
    "gmpo": Recipe(surrogate=GeometricMean()),
    "clip_cov": Recipe(surrogate=ClipCov(share=0.3, low=0.0)),
    "kl_cov": Recipe(surrogate=KlCov(share=0.3)),
    "high_entropy": Recipe(tokens=HighEntropy(0.4)),
    "both": Recipe(surrogate=KlCov(share=0.3), tokens=HighEntropy(0.4)),
    "adaptive": Recipe(auxiliary=(AdaptiveEntropy(target=1.0, coefficient=0.2),)),
}


def f64(*values):
    return torch.tensor(values, dtype=torch.float64)


def test_cispo_by_hand():
    logp = f64(-1.0, -2.0, -3.0)[None].requires_grad_(True)
    one = f64(1.0)[None]
    found = cispo_surrogate(logp, f64(3.0, 0.5, 1.0)[None], f64(1.0, 1.0, -2.0)[None], one, one)
    # Weights min(3, 2), 0.5 and 1: -w A log p.
    assert found.loss_BT.tolist() == [[2.0, 1.0, -6.0]]
    assert found.is_clipped_BT.tolist() == [[True, False, False]]
    found.loss_BT.sum().backward()
    assert logp.grad.tolist() == [[-2.0, -0.5, 2.0]], "a clipped token keeps its gradient"
    raised = cispo_surrogate(logp, f64(0.5)[None], one, f64(0.2)[None], one)
    assert raised.loss_BT[0].tolist() == pytest.approx([0.8, 1.6, 2.4])


def test_sapo_by_hand():
    ratio = f64(1.0, 1.0, 2.0)[None].requires_grad_(True)
    found = sapo_surrogate(ratio, f64(1.0, -1.0, 1.0)[None], 1.0, 2.0)
    # At r = 1 the gate is 4 / tau / 2; at r = 2 it is 4 sigmoid(1).
    expected = [-2.0, 1.0, -4 / (1 + math.exp(-1))]
    assert found.loss_BT[0].tolist() == pytest.approx(expected)
    found.loss_BT.sum().backward()
    half = 1 / (1 + math.exp(-1))
    assert ratio.grad[0].tolist() == pytest.approx([-1.0, 1.0, -4 * half * (1 - half)])


def test_gmpo_by_hand():
    change = f64(0.9, 0.1, 5.0)[None]
    bounds = f64(0.4)[None], f64(0.4)[None]
    found = gmpo_surrogate(change, f64(2.0)[None], *bounds, f64(1.0, 1.0, 0.0)[None])
    # 0.9 is cut to 0.4: exp((0.4 + 0.1) / 2), the third token is not there.
    assert found.loss_BT[0].tolist() == pytest.approx([-2 * math.exp(0.25)] * 3)
    assert found.is_clipped_BT[0, :2].tolist() == [True, False]
    # Below 0 for a positive advantage nothing is cut; for a negative one it is.
    down = gmpo_surrogate(-change, f64(2.0)[None], *bounds, f64(1.0, 1.0, 0.0)[None])
    assert down.loss_BT[0, 0].item() == pytest.approx(-2 * math.exp(-0.5))
    down = gmpo_surrogate(-change, f64(-2.0)[None], *bounds, f64(1.0, 1.0, 0.0)[None])
    assert down.loss_BT[0, 0].item() == pytest.approx(2 * math.exp(-0.25))


def test_covariance_and_its_tokens_by_hand():
    # Means 1 and -2: (A - 1)(log p + 2).
    found = token_covariance([3.0, 1.0, -1.0, 1.0], [-1.0, -2.0, -4.0, -1.0])
    assert found.tolist() == [2.0, 0.0, 4.0, 0.0]
    assert kl_cov_tokens([0.5, 3.0, 3.0, 1.0], 0.25).tolist() == [False, True, False, False]
    assert kl_cov_tokens([0.5, 3.0, 3.0, 1.0], 0.5).tolist() == [False, True, True, False]
    in_range = [0.5, 2.0, 5.0, 4.0]
    assert clip_cov_tokens(in_range, share=0.5).tolist() == [False, True, False, True]
    assert clip_cov_tokens(in_range, share=0.1).sum() == 1, "at least one"
    assert not clip_cov_tokens([0.0, 9.0]).any(), "none in range"


def test_kl_cov_by_hand():
    marked = torch.tensor([[True, False]])
    terms = SurrogateTerms(
        change_BT=f64(-0.5, 0.5)[None],
        logp_BT=f64(-1.0, -1.0)[None],
        advantages_BT=f64(2.0)[None],
        low_BT=f64(0.2)[None],
        high_BT=f64(0.2)[None],
        used_BT=torch.ones_like(marked),
        marked_BT=marked,
        dual_clip=None,
    )
    found = KlCov(coefficient=3.0).token_losses(terms).loss_BT[0].tolist()
    # No clip at 1.2, and 3 |log r| on the first alone.
    assert found == pytest.approx([1.5 - 2 * math.exp(-0.5), -2 * math.exp(0.5)])


def test_high_entropy_by_hand():
    entropies = [0.1, 2.0, 0.3, 1.0, 0.2]
    assert high_entropy_tokens(entropies, 0.2).tolist() == [False, True, False, False, False]
    # The 0.5 quantile is 0.3.
    assert high_entropy_tokens(entropies, 0.5).tolist() == [False, True, True, True, False]
    assert high_entropy_tokens(entropies, 1.0).all()
    assert high_entropy_tokens([1.0, 1.0], 0.2).all(), "equal ones are in together"
    assert high_entropy_tokens([], 0.2).tolist() == []


def test_adaptive_entropy_by_hand():
    assert adapted_entropy_coefficient(0.1, 0.3, 0.5, 0.02) == pytest.approx(0.12)
    assert adapted_entropy_coefficient(0.1, 0.5, 0.5, 0.02) == pytest.approx(0.12)
    assert adapted_entropy_coefficient(0.1, 0.6, 0.5, 0.02) == pytest.approx(0.08)
    assert adapted_entropy_coefficient(0.01, 0.6, 0.5, 0.02) == 0.0
    assert adapted_entropy_coefficient(0.99, 0.1, 0.5, 0.02) == 1.0
    bonus = AdaptiveEntropy(target=0.5, coefficient=0.1, step=0.02)
    assert bonus.current(None) == 0.0
    state = bonus.after(None, 0.3)
    assert state == EntropyState(pytest.approx(0.12), 0.3)
    assert bonus.current(state) == pytest.approx(0.12)
    state = bonus.after(state, 0.6)
    assert bonus.current(state) == 0.0, "no bonus above the target"
    assert bonus.after(state, 0.4).coefficient == pytest.approx(0.12)
    kept = PolicyState(steps=3, entropy=state)
    assert PolicyState.from_tensors(kept.tensors()) == kept


@pytest.mark.parametrize("name", SURROGATES)
def test_nothing_to_train_is_a_loss_of_0(name):
    batch = loss_batch()
    for nothing in (
        replace(batch, mask_BT=torch.zeros_like(batch.mask_BT)),
        replace(batch, keep_B=torch.zeros_like(batch.keep_B)),
    ):
        assert loss(SURROGATES[name], nothing).total.item() == 0.0
        assert (gradient(lambda b: loss(SURROGATES[name], b).total, nothing) == 0).all()


@pytest.mark.parametrize("name", SURROGATES)
def test_what_stands_on_padding_never_matters(name):
    batch = loss_batch()
    used_BT = batch.mask_BT & batch.keep_B[:, None]

    def spoilt(bad):
        keys = ("logp_BT", "old_logp_BT", "entropy_BT")
        changed = {k: getattr(batch, k).detach().masked_fill(~used_BT, bad) for k in keys}
        return replace(batch, **changed)

    whole = gradient(lambda b: loss(SURROGATES[name], b).total, batch)
    assert (whole[~used_BT] == 0).all()
    for bad in (0.0, -1e30, math.nan, math.inf):
        found = spoilt(bad)
        assert loss(SURROGATES[name], found).total.item() == pytest.approx(
            loss(SURROGATES[name], batch).total.item(), rel=1e-12
        )
        assert torch.equal(gradient(lambda b: loss(SURROGATES[name], b).total, found), whole)


def test_contradictions_are_refused():
    for surrogate in (GeometricMean(), ClipCov(), KlCov()):
        with pytest.raises(ArgumentError, match="use ratio 'token'"):
            Recipe(surrogate=surrogate, ratio="sequence")
    for surrogate in (Cispo(), Sapo(), GeometricMean(), KlCov()):
        with pytest.raises(ArgumentError, match="dual_clip: belongs to the clipped loss"):
            Recipe(surrogate=surrogate, dual_clip=3.0)
    for surrogate, region in ((Sapo(), StaticRegion(0.1)), (KlCov(), Elastic())):
        with pytest.raises(ArgumentError, match=r"trust_region: .* has no clip to bound"):
            Recipe(surrogate=surrogate, trust_region=region)
    with pytest.raises(ArgumentError, match="name one"):
        Recipe(auxiliary=(Entropy(0.1), AdaptiveEntropy(target=0.3)))
    with pytest.raises(ArgumentError, match="expected at most high"):
        ClipCov(low=2.0, high=1.0)
    with pytest.raises(ArgumentError, match="coefficient: got 2"):
        AdaptiveEntropy(target=0.3, coefficient=2.0)
    with pytest.raises(ArgumentError, match="entropy_BT: got none"):
        loss(Recipe(tokens=HighEntropy()), replace(loss_batch(), entropy_BT=None))


@given(st.integers(0, 100), st.sampled_from(sorted(SURROGATES)))
def test_micro_batches_add_up_to_the_whole(seed, name):
    recipe = SURROGATES[name]
    batch = loss_batch(seed=seed)
    batch = replace(batch, normaliser=normaliser_of(batch.mask_BT, batch.keep_B), seed=seed)
    marks = batch_marks(recipe.token_markers, batch)
    keys = [
        "logp_BT",
        "old_logp_BT",
        "mask_BT",
        "advantages_B",
        "low_B",
        "high_B",
        "keep_B",
        "entropy_BT",
    ]

    def total(b):
        parts = []
        for rows in (slice(0, 1), slice(1, 4), slice(4, 6)):
            own = {slot: marked_BT[rows] for slot, marked_BT in marks.items()}
            part = replace(b, **{key: getattr(b, key)[rows] for key in keys}, marks=own)
            parts.append(loss(recipe, part).total)
        return sum(parts)

    close(total(batch), loss(recipe, batch).total, rtol=1e-12, atol=1e-14)
    mine = gradient(lambda b: loss(recipe, b).total, batch)
    # To the last bit but one: torch's exp and sigmoid round by a token's place in the vector.
    close(gradient(total, batch), mine, rtol=1e-14, atol=0)


@pytest.mark.parametrize("name", SURROGATES)
def test_gradients(name):
    recipe = SURROGATES[name]
    batch = loss_batch(seed=3)
    batch = replace(batch, marks=batch_marks(recipe.token_markers, batch))
    if name.startswith("cispo"):
        # Its gradient is that of the log-prob at a weight that stands still.
        low = 0.2 if recipe.surrogate.floor else 1.0
        ratio = (batch.logp_BT - batch.old_logp_BT).exp().clamp(1 - low, 1.2)
        each = -ratio * batch.advantages_B[:, None]
        expected = gradient(lambda b: recipe.aggregate.total(each.detach() * b.logp_BT, b), batch)
        close(gradient(lambda b: loss(recipe, b).total, batch), expected)
        return
    leaf = batch.logp_BT.detach().clone().requires_grad_(True)
    assert torch.autograd.gradcheck(lambda x: loss(recipe, replace(batch, logp_BT=x)).total, leaf)


@given(st.integers(0, 100))
def test_on_policy_every_surrogate_but_sapos_gate_is_the_policy_gradient(seed):
    """Where the ratio is 1, the gradient of each is -A; SAPO's gate has slope 1 there too."""
    batch = whole_batch(seed)
    batch = replace(batch, old_logp_BT=batch.logp_BT.detach())
    plain = gradient(lambda b: loss(Recipe(), b).total, batch)
    for name in ("cispo", "cispo_floor", "sapo", "gmpo", "kl_cov"):
        found = gradient(lambda b, r=SURROGATES[name]: loss(r, b).total, batch)
        close(found, plain, rtol=1e-12, atol=1e-14)


@given(st.integers(0, 100), st.floats(0.01, 1.0))
def test_marked_shares(seed, share):
    values = torch.randn(50, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    count = max(1, int(share * 50))
    held = kl_cov_tokens(values, share)
    assert held.sum() == count
    assert values[held].min() >= (values[~held].max() if count < 50 else -torch.inf)
    drawn = clip_cov_tokens(values, share, -0.5, 0.5, seed)
    is_open = (values > -0.5) & (values < 0.5)
    assert drawn.sum() == min(count, int(is_open.sum()))
    assert not (drawn & ~is_open).any()
    assert torch.equal(drawn, clip_cov_tokens(values, share, -0.5, 0.5, seed)), "by the seed"
    high = high_entropy_tokens(values.abs(), share)
    assert high.sum() >= 1
    assert values.abs()[high].min() >= (values.abs()[~high].max() if not high.all() else 0)


def test_every_open_token_has_the_same_chance():
    counts = sum(clip_cov_tokens([2.0] * 4 + [9.0], 0.2, seed=s).double() for s in range(2000))
    assert counts[4] == 0
    assert (counts[:4] - 500).abs().max() < 80


@pytest.mark.parametrize("name", ["clip_cov", "kl_cov", "high_entropy"])
def test_the_share_of_marked_tokens_is_told(name):
    batch = loss_batch()
    found = loss(SURROGATES[name], batch)
    ((slot, share),) = found.marked.items()
    marks = batch_marks(SURROGATES[name].token_markers, batch)[slot]
    used = batch.mask_BT & batch.keep_B[:, None]
    assert not (marks & ~used).any()
    assert share.item() == pytest.approx((marks.sum() / used.sum()).item())
    assert 0 < share < 1


def test_left_out_tokens_keep_their_place_in_the_denominator_and_the_auxiliary_terms():
    batch = whole_batch(1)
    recipe = Recipe(tokens=HighEntropy(0.3), auxiliary=(KL(0.5),))
    found = loss(recipe, batch)
    plain = loss(Recipe(auxiliary=(KL(0.5),)), batch)
    assert found.parts["kl"] == plain.parts["kl"]
    weights = batch_marks(recipe.token_markers, batch)["tokens"]
    zeroed = replace(batch, advantages_B=batch.advantages_B[:, None] * weights)
    close(found.parts["surrogate"], loss(Recipe(), zeroed).total.detach())


def test_a_correction_multiplies_what_is_left():
    batch = replace(whole_batch(2), sampler_logp_BT=whole_batch(3).old_logp_BT)
    both = Recipe(tokens=HighEntropy(0.3), correction=TruncatedImportance())
    marks = batch_marks(both.token_markers, batch)["tokens"]
    only = Recipe(correction=TruncatedImportance())
    zeroed = replace(batch, advantages_B=batch.advantages_B[:, None] * marks)
    close(loss(both, batch).total, loss(only, zeroed).total)


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean"])
def test_cispo_of_verl(algorithms, mode):
    recipe = Recipe(surrogate=Cispo(floor=True), aggregate=Aggregate(mode=mode))
    for seed in SEEDS:
        both_agree(recipe, lambda b: verl_loss(algorithms, b, "cispo", mode), whole_batch(seed))


@pytest.mark.parametrize("level", ["token", "sequence"])
def test_cispo_of_trl(trainer, level):
    """TRL's `epsilon_high` is the cap itself, ours how far it is above 1."""
    recipe = Recipe(surrogate=Cispo(), ratio=level, aggregate=Aggregate(mode="token-mean"))
    told = {"loss_type": "cispo", "epsilon_high": 1.2, "importance_sampling_level": level}
    for seed in SEEDS:
        both_agree(recipe, lambda b: trl_loss(trainer, b, **told), whole_batch(seed))


def test_sapo_of_both(trainer, algorithms):
    # 1.25 and not the default 1.05, which TRL rounds to float32.
    recipe = Recipe(surrogate=Sapo(tau_positive=1.0, tau_negative=1.25))
    trl = {"loss_type": "sapo", "sapo_temperature_pos": 1.0, "sapo_temperature_neg": 1.25}
    verl = {"tau_pos": 1.0, "tau_neg": 1.25}
    for seed in SEEDS:
        batch = whole_batch(seed)
        both_agree(recipe, lambda b: trl_loss(trainer, b, **trl), batch)
        both_agree(recipe, lambda b: verl_loss(algorithms, b, "sapo", **verl), batch)


def test_gmpo_of_verl(algorithms):
    """verl adds 1e-8 to the count of tokens."""
    told = {"clip_ratio_low": 0.4, "clip_ratio_high": 0.4}
    recipe = Recipe(surrogate=GeometricMean())
    for seed in SEEDS:
        batch = whole_batch(seed)
        batch = replace(batch, low_B=batch.low_B * 2, high_B=batch.high_B * 2)
        theirs = verl_loss(algorithms, batch, "geo_mean", **told)
        close(loss(recipe, batch).total, theirs, rtol=1e-6, atol=1e-8)
        close(
            gradient(lambda b: loss(recipe, b).total, batch),
            gradient(lambda b: verl_loss(algorithms, b, "geo_mean", **told), batch),
            rtol=1e-6,
            atol=1e-8,
        )


def cov_settings(**settings):
    from verl.workers.config import PolicyLossConfig

    return {"policy_loss": PolicyLossConfig(**settings)}


def clip_cov(share):
    """Our recipe and verl's settings."""
    told = cov_settings(clip_cov_ratio=share, clip_cov_lb=-1.0, clip_cov_ub=2.0)
    surrogate = ClipCov(share=share, low=-1.0, high=2.0)
    return Recipe(surrogate=surrogate, aggregate=Aggregate(mode="token-mean")), told


def test_clip_cov_of_verl(algorithms, monkeypatch):
    """Where all tokens in range are left out, and where verl draws the tokens that we drew."""
    (recipe, told), (few, told_few) = clip_cov(1.0), clip_cov(0.1)
    for seed in SEEDS:
        batch = replace(whole_batch(seed, 8, 9), seed=seed)
        both_agree(recipe, lambda b: verl_loss(algorithms, b, "clip_cov", **told), batch)
        in_range = batch_marks(recipe.token_markers, batch)["surrogate"].nonzero().tolist()
        drawn = batch_marks(few.token_markers, batch)["surrogate"].nonzero().tolist()
        assert len(in_range) > len(drawn) == int(0.1 * batch.mask_BT.sum())
        first = [in_range.index(place) for place in drawn]
        order = torch.tensor(first + [i for i in range(len(in_range)) if i not in first])
        with monkeypatch.context() as patch:
            patch.setattr(torch, "randperm", lambda _, order=order: order)
            both_agree(few, lambda b: verl_loss(algorithms, b, "clip_cov", **told_few), batch)


@pytest.mark.parametrize("share", [0.1, 0.5])
def test_kl_cov_of_verl(algorithms, share):
    recipe = Recipe(
        surrogate=KlCov(share=share, coefficient=0.7), aggregate=Aggregate(mode="token-mean")
    )
    for seed in SEEDS:
        told = cov_settings(kl_cov_ratio=share, ppo_kl_coef=0.7)
        both_agree(
            recipe, lambda b, t=told: verl_loss(algorithms, b, "kl_cov", **t), whole_batch(seed)
        )


@pytest.mark.parametrize("share", [0.2, 0.5, 0.8])
def test_high_entropy_tokens_of_trl(trainer, share):
    recipe = Recipe(tokens=HighEntropy(share), aggregate=Aggregate(mode="token-mean"))
    for seed in SEEDS:
        batch = whole_batch(seed)
        batch = replace(batch, entropy_BT=batch.entropy_BT.float().double())
        told = {"top_entropy_quantile": share}
        both_agree(recipe, lambda b, t=told: trl_loss(trainer, b, **t), batch)


def test_the_adaptive_bonus_of_trl(trainer):
    """TRL's controller runs update by update; our state goes from step to step beside it."""
    ours = AdaptiveEntropy(target=0.8, coefficient=0.1, step=0.03, low=0.0, high=0.15)
    recipe = Recipe(auxiliary=(ours,), aggregate=Aggregate(mode="token-mean"))
    told = {"entropy_target": 0.8, "entropy_coef_delta": 0.03}
    told |= {"entropy_coef_min": 0.0, "entropy_coef_max": 0.15}
    state, held = None, {"entropy_coef": 0.1, "_last_world_entropy": math.inf}
    applied = []
    for seed in range(12):
        batch = whole_batch(seed)
        batch = replace(batch, entropy_BT=batch.entropy_BT * (0.5 if seed % 4 else 2.0))
        batch = replace(batch, entropy_coefficient=ours.current(state))
        applied.append(batch.entropy_coefficient)
        close(loss(recipe, batch).total, trl_loss(trainer, batch, held=held, **told))
        state = ours.after(state, batch.entropy_BT[batch.mask_BT].mean().item())
        assert state.coefficient == pytest.approx(held["entropy_coef"])
    assert applied[0] == 0
    assert max(applied) == 0.15
    assert 0.0 in applied[1:]
