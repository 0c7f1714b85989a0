"""The policy's numbers beside those of TRL and verl: where they agree, and each listed difference.

The functions of both libraries run on the same tensors. The table of differences is in
docs/recipes.md; a test here fails when a release of theirs makes a row of it untrue.
"""

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from peer_libraries import (
    both_agree,
    close,
    gradient,
    trl_advantages,
    trl_loss,
    verl_gdpo,
    verl_grpo,
    verl_loss,
    whole_batch,
)
from policy_cases import reward_batch

from burnish.lm.folder import load_model
from burnish.lm.model_input import ModelInput
from burnish.lm.new_model import tiny_model
from burnish.policy import (
    KL,
    Aggregate,
    BatchWhiten,
    Entropy,
    NormaliseThenSum,
    Recipe,
    StaticRegion,
    advantages,
    aggregate_loss,
    gdpo_advantage,
    grpo_advantage,
    kl_penalty,
    loss,
    overlong_penalty,
)

pytestmark = pytest.mark.peers

NAN = math.nan
SEEDS = range(20)


@pytest.mark.parametrize("level", ["token", "sequence"])
@pytest.mark.parametrize("correction", [False, True])
def test_kl_term_of_trl(trainer, level, correction):
    for seed in SEEDS:
        batch = whole_batch(seed)
        recipe = Recipe(
            ratio=level,
            aggregate=Aggregate(mode="token-mean"),
            auxiliary=(KL(0.3, correction=correction),),
        )
        both_agree(
            recipe,
            lambda b: trl_loss(
                trainer,
                b,
                beta=0.3,
                use_bias_correction_kl=correction,
                importance_sampling_level=level,
            ),
            batch,
        )


def test_trl_corrects_unless_told_otherwise_and_has_no_kl_by_default(trainer):
    from trl import GRPOConfig

    defaults = GRPOConfig.__dataclass_fields__
    assert defaults["use_bias_correction_kl"].default is True
    assert defaults["beta"].default == 0.0
    batch = whole_batch(0)
    recipe = Recipe(aggregate=Aggregate(mode="token-mean"), auxiliary=(KL(0.3),))
    assert (loss(recipe, batch).total - trl_loss(trainer, batch, beta=0.3)).abs() > 1e-4


@pytest.mark.parametrize("kind", ["k1", "k2", "k3", "k1+", "k3+"])
def test_kl_estimates_of_verl(algorithms, kind):
    for seed in SEEDS:
        batch = whole_batch(seed)
        ours = kl_penalty(batch.logp_BT, batch.ref_logp_BT, kind)
        close(ours, algorithms.kl_penalty(batch.logp_BT, batch.ref_logp_BT, kind))
        slopes = [
            gradient(lambda b, f=f: f(b.logp_BT, b.ref_logp_BT, kind).sum(), batch)
            for f in (kl_penalty, algorithms.kl_penalty)
        ]
        close(*slopes)


def test_verl_cuts_k3_off_at_10(algorithms):
    logp = torch.tensor([-6.0], requires_grad=True)
    theirs = algorithms.kl_penalty(logp, torch.tensor([-1.0]), "k3")
    assert theirs.item() == 10.0
    assert torch.autograd.grad(theirs.sum(), logp)[0].item() == 0.0
    ours = kl_penalty(logp, torch.tensor([-1.0]), "k3")
    assert ours.item() == pytest.approx(math.exp(5) - 6)
    assert torch.autograd.grad(ours.sum(), logp)[0].item() == pytest.approx(1 - math.exp(5))


@pytest.mark.parametrize("scale", ["group_std", "batch_std", "none"])
def test_advantages_agree_with_the_eps_of_the_peer(trainer, algorithms, scale):
    trl_word = {"group_std": "group", "batch_std": "batch", "none": "none"}[scale]
    for seed in SEEDS:
        draw = torch.Generator().manual_seed(seed)
        rewards_BK = torch.rand(12, 2, generator=draw, dtype=torch.float64)
        groups = [0] * 4 + [1] * 4 + [2] * 4
        theirs = trl_advantages(trainer, rewards_BK, 4, [1.0, 0.5], scale_rewards=trl_word)
        weights = [1.0, 0.5]
        close(grpo_advantage(rewards_BK, groups, scale, eps=1e-4, weights=weights), theirs)
        if scale != "batch_std":
            total_B = rewards_BK @ torch.tensor(weights, dtype=torch.float64)
            is_scaled = scale == "group_std"
            theirs = verl_grpo(algorithms, total_B, groups, norm_adv_by_std_in_grpo=is_scaled)
            ours = grpo_advantage(total_B, groups, scale)
            close(ours, theirs, rtol=1e-4, atol=1e-5)  # verl computes in float32


def test_eps_shows_where_rewards_hardly_differ(trainer, algorithms):
    rewards = [0.5, 0.5002, 0.5, 0.5002]
    ours = grpo_advantage(rewards, [0] * 4)
    trl = trl_advantages(trainer, torch.tensor(rewards, dtype=torch.float64)[:, None], 4)
    assert ours[1] == pytest.approx(0.8588, abs=1e-3)
    assert trl[1] == pytest.approx(0.4641, abs=1e-3)
    close(verl_grpo(algorithms, rewards, [0] * 4), ours, rtol=2e-3, atol=0)


def test_a_group_of_equal_rewards_has_no_advantage(trainer, algorithms):
    """The others divide the rounding of a float32 mean by eps."""
    rewards = [0.7] * 8
    assert (grpo_advantage(rewards, [0] * 8) == 0).all()
    trl = trl_advantages(trainer, torch.full((8, 1), 0.7), 8)
    verl = verl_grpo(algorithms, rewards, [0] * 8)
    assert 1e-4 < trl.abs().max() < 1e-2
    assert 1e-2 < verl.abs().max() < 1


def test_a_group_of_one(algorithms):
    assert grpo_advantage([0.7], [0]).tolist() == [0.0]
    assert verl_grpo(algorithms, [0.7], [0]).item() == pytest.approx(0.7, abs=1e-5)


def test_one_missing_reward_of_one(trainer, algorithms):
    rewards = [1.0, 0.0, 1.0, NAN]
    ours = grpo_advantage(rewards, [0] * 4, eps=1e-4)
    close(ours, trl_advantages(trainer, torch.tensor(rewards, dtype=torch.float64)[:, None], 4))
    assert verl_grpo(algorithms, rewards, [0] * 4).isnan().all()
    step = advantages(Recipe(), reward_batch([[r] for r in rewards], [0] * 4))
    assert step.keep_B.tolist() == [True, True, True, False]


def test_one_missing_reward_of_two(trainer):
    rewards_BK = torch.tensor([[1.0, 1.0], [1.0, NAN], [0.0, 1.0], [0.0, 0.0]]).double()
    ours = grpo_advantage(rewards_BK, [0] * 4, "none")
    theirs = trl_advantages(trainer, rewards_BK, 4, scale_rewards="none")
    assert ours.tolist() == [1.0, 0.0, 0.0, -1.0]  # the second has no sum; 2, 1, 0 are left
    assert theirs.tolist() == [1.0, 0.0, 0.0, -1.0]  # its sum is 1: the missing reward counts as 0
    rewards_BK[1] = torch.tensor([0.0, NAN])
    assert grpo_advantage(rewards_BK, [0] * 4, "none").tolist() == [1.0, 0.0, 0.0, -1.0]
    theirs = trl_advantages(trainer, rewards_BK, 4, scale_rewards="none")
    assert theirs.tolist() == [1.25, -0.75, 0.25, -0.75]
    filled_BK = rewards_BK.nan_to_num(nan=0.0)
    assert grpo_advantage(filled_BK, [0] * 4, "none").tolist() == theirs.tolist()


def test_gdpo_agrees_where_every_group_has_signal(trainer, algorithms):
    groups = [0] * 4 + [1] * 4
    for seed in SEEDS:
        draw = torch.Generator().manual_seed(seed)
        rewards_BK = torch.rand(8, 2, generator=draw, dtype=torch.float64)
        lengths = torch.randint(1, 6, (8,), generator=draw).tolist()
        ours = gdpo_advantage(rewards_BK, groups, lengths)
        close(ours, verl_gdpo(algorithms, rewards_BK, groups, lengths), rtol=1e-3, atol=1e-4)
        by_rollout = gdpo_advantage(rewards_BK, groups, eps=1e-4)
        word = "normalize_then_sum"
        theirs = trl_advantages(trainer, rewards_BK, 4, multi_objective_aggregation=word)
        close(by_rollout, theirs, rtol=2e-4, atol=1e-6)  # TRL adds 1e-4 to the batch's deviation


def test_constant_groups_in_gdpo(trainer, algorithms):
    rewards_BK = torch.tensor([[1.0, 0.2], [0.0, 0.1], [1.0, 0.9], [1.0, 1.0], [1.0, 1.0]]).double()
    rewards_BK = torch.cat([rewards_BK, torch.ones(1, 2, dtype=torch.float64)])
    groups, lengths = [0, 0, 0, 1, 1, 1], [1, 2, 5, 3, 3, 3]
    ours = gdpo_advantage(rewards_BK, groups, lengths)
    assert (ours[3:] == 0).all()
    published = gdpo_advantage(rewards_BK, groups, lengths, ignore_zero_signal=False)
    theirs = verl_gdpo(algorithms, rewards_BK, groups, lengths)
    close(published, theirs, rtol=1e-3, atol=1e-4)
    assert (theirs[3:].abs() > 0.1).all()  # pushed away from what they wrote
    recipe = Recipe(advantage=NormaliseThenSum(), post_scale=BatchWhiten(ignore_zero_signal=False))
    batch = reward_batch(rewards_BK, groups, lengths=lengths)
    close(advantages(recipe, batch).values_B, published)


@pytest.mark.parametrize(
    ("mode", "word"),
    [
        ("token-mean", "dapo"),
        ("token-mean", "bnpo"),
        ("seq-mean-token-mean", "grpo"),
        ("seq-mean-token-sum-norm", "dr_grpo"),
        ("seq-mean-token-sum", "luspo"),
    ],
)
@pytest.mark.parametrize("level", ["token", "sequence"])
def test_losses_of_trl(trainer, mode, word, level):
    for seed in SEEDS:
        batch = replace(whole_batch(seed), max_tokens=5)
        recipe = Recipe(ratio=level, aggregate=Aggregate(mode=mode))
        both_agree(
            recipe,
            lambda b: trl_loss(trainer, b, loss_type=word, importance_sampling_level=level),
            batch,
        )


@pytest.mark.parametrize("mode", ["token-mean", "seq-mean-token-mean", "seq-mean-token-sum"])
def test_losses_of_verl(algorithms, mode):
    for seed in SEEDS:
        batch = whole_batch(seed)
        dual = Recipe(dual_clip=3.0, aggregate=Aggregate(mode=mode))
        both_agree(dual, lambda b: verl_loss(algorithms, b, aggregation=mode), batch)
        tight = replace(batch, low_B=batch.low_B * 0 + 3e-4, high_B=batch.high_B * 0 + 4e-4)
        gspo = Recipe(ratio="sequence_token", aggregate=Aggregate(mode=mode))
        both_agree(
            gspo,
            lambda b: verl_loss(
                algorithms, b, "gspo", mode, clip_ratio_low=3e-4, clip_ratio_high=4e-4
            ),
            tight,
        )


def test_the_dual_clip_is_on_in_verl_and_called_delta_in_trl(trainer, algorithms):
    batch = whole_batch(0)
    batch = replace(
        batch,
        logp_BT=batch.old_logp_BT + math.log(5),
        advantages_B=torch.full_like(batch.advantages_B, -1.0),
    )
    assert loss(Recipe(), batch).total.item() == pytest.approx(5)
    assert trl_loss(trainer, batch).item() == pytest.approx(5)
    assert verl_loss(algorithms, batch).item() == pytest.approx(3)
    assert loss(Recipe(dual_clip=3.0), batch).total.item() == pytest.approx(3)
    assert trl_loss(trainer, batch, delta=3.0).item() == pytest.approx(3)


def test_the_pad_token_as_input_learns_here(tmp_path):
    """transformers gives the embedding of the pad token no gradient where it is an input.

    With a tied head the row still learns as an output there; here it learns from both.
    """
    from transformers import AutoModelForCausalLM

    folder = tiny_model(tmp_path / "model")
    ours = load_model(folder, dtype="float32").module
    theirs = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    pad = theirs.config.pad_token_id
    ids = torch.tensor([[5, pad, 6, 7, pad, 8]])

    def slope(weight, logits):
        logits.log_softmax(-1)[0, :-1].gather(1, ids[0, 1:, None]).sum().backward()
        return weight.grad.clone()

    positions = torch.arange(6)[None]
    a = slope(ours.model.embed_tokens.weight, ours.logits(ours(ModelInput(ids, positions))))
    b = slope(theirs.get_input_embeddings().weight, theirs(ids).logits)
    others = torch.arange(len(a)) != pad
    close(a[others], b[others], rtol=1e-4, atol=1e-5)
    assert (a[pad] - b[pad]).abs().max() > 1e-3


def test_the_wider_upper_clip(trainer, algorithms):
    recipe = Recipe(
        trust_region=StaticRegion(0.2, 0.28), dual_clip=3.0, aggregate=Aggregate(mode="token-mean")
    )
    for seed in SEEDS:
        batch = whole_batch(seed)
        batch = replace(batch, high_B=torch.full_like(batch.high_B, 0.28))
        both_agree(
            recipe, lambda b: verl_loss(algorithms, b, clip_ratio_high=0.28, rollout_n=1), batch
        )
        both_agree(recipe, lambda b: trl_loss(trainer, b, epsilon_high=0.28, delta=3.0), batch)


def test_fully_masked_rollouts(trainer, algorithms):
    values_BT, mask_BT = torch.tensor([[1.0, 3.0], [5.0, 7.0]]), torch.tensor([[1, 1], [0, 0]])
    mode = "seq-mean-token-mean"
    assert aggregate_loss(values_BT, mask_BT, mode).item() == 2.0
    assert algorithms.agg_loss(values_BT, mask_BT, mode).item() == pytest.approx(2.0)
    # verl's trainer tells the size of the mini-batch, masked rollouts included.
    told = algorithms.agg_loss(values_BT, mask_BT, mode, global_batch_size=2)
    assert told.item() == pytest.approx(1.0)
    assert aggregate_loss(values_BT, mask_BT, mode, keep_denominator=True).item() == 1.0
    batch = whole_batch(0)
    masked_BT = batch.mask_BT.clone()
    masked_BT[3] = False
    batch = replace(batch, mask_BT=masked_BT)
    recipe = Recipe(aggregate=Aggregate(mode=mode))
    theirs = trl_loss(trainer, batch, loss_type="grpo")
    close(loss(recipe, batch).total * 5 / 6, theirs)
    counted = Recipe(aggregate=Aggregate(mode=mode, keep_denominator=True))
    close(loss(counted, batch).total, theirs)


def test_micro_batches_of_trls_bnpo_weigh_tokens_by_their_company(trainer):
    batch = whole_batch(0)

    def rows(which):
        keys = ("logp_BT", "old_logp_BT", "mask_BT", "advantages_B", "ref_logp_BT", "entropy_BT")
        return replace(batch, **{key: getattr(batch, key)[which] for key in keys})

    halves = [rows(slice(0, 2)), rows(slice(2, 6))]
    whole = loss(Recipe(aggregate=Aggregate(mode="token-mean")), batch).total
    items = batch.mask_BT.sum()
    dapo = [trl_loss(trainer, h, accumulation=2, items=items) for h in halves]
    bnpo = [trl_loss(trainer, h, accumulation=2, loss_type="bnpo") for h in halves]
    close(sum(dapo), whole)
    assert (sum(bnpo) - whole).abs() > 1e-3


def test_the_constant_length_of_verl_is_the_width_unless_told(algorithms):
    values_BT, mask_BT = torch.tensor([[1.0, 3.0]]), torch.ones(1, 2)
    mode = "seq-mean-token-sum-norm"
    assert algorithms.agg_loss(values_BT, mask_BT, mode).item() == 2.0
    told = algorithms.agg_loss(values_BT, mask_BT, mode, loss_scale_factor=8)
    assert told.item() == aggregate_loss(values_BT, mask_BT, mode, max_tokens=8).item() == 0.5


def test_the_entropy_of_trl_is_always_the_mean_over_tokens(trainer, algorithms):
    batch = whole_batch(1)
    recipe = Recipe(auxiliary=(Entropy(0.2),))  # seq-mean-token-mean
    term = -trl_loss(trainer, batch, loss_type="grpo") + trl_loss(
        trainer, batch, loss_type="grpo", entropy_coef=0.2
    )
    token_mean = -0.2 * aggregate_loss(batch.entropy_BT, batch.mask_BT, "token-mean")
    close(term, token_mean)
    ours = loss(recipe, batch).parts["entropy"]
    assert (ours - token_mean).abs() > 1e-4
    mode = "seq-mean-token-mean"
    close(ours, -0.2 * algorithms.agg_loss(batch.entropy_BT, batch.mask_BT, mode))


def test_overlong_beyond_the_limit(trainer):
    from trl.rewards import get_soft_overlong_punishment

    lengths = [80, 90, 100, 120]
    ours = overlong_penalty(lengths, 100, 20).tolist()
    assert ours == get_soft_overlong_punishment(100, 20)([[0] * n for n in lengths])
    assert ours == [0.0, -0.5, -1.0, -1.0]


def test_overlong_of_verl_goes_on_falling(algorithms):
    import asyncio

    from omegaconf import OmegaConf
    from verl import DataProto
    from verl.experimental.reward_loop.reward_manager.dapo import DAPORewardManager

    buffer = {"enable": True, "len": 20, "penalty_factor": 1.0, "log": True}
    given = {"reward_kwargs": {"overlong_buffer_cfg": buffer, "max_resp_len": 100}}
    told = {"data_source": "d", "reward_model": {"ground_truth": ""}}

    def row(length):
        tokens = torch.ones(1, length, dtype=torch.long)
        return DataProto.from_dict(
            tensors={"responses": tokens, "attention_mask": tokens},
            non_tensors={key: np.array([value], dtype=object) for key, value in told.items()},
        )

    async def scores(lengths):
        manager = DAPORewardManager(
            OmegaConf.create({"reward": given}),
            SimpleNamespace(decode=lambda *_, **__: ""),
            lambda **_: {"score": 0.0},
        )
        return [float((await manager.run_single(row(n)))["reward_score"]) for n in lengths]

    assert asyncio.run(scores([80, 90, 100, 120])) == [0.0, -0.5, -1.0, -2.0]
