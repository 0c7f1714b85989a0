"""The policy's numbers beside those of TRL and verl: where they agree, and each listed difference.

The functions of both libraries run on the same tensors. The table of differences is in
docs/recipes.md; a test here fails when a release of theirs makes a row of it untrue.
"""

from __future__ import annotations

import inspect
import math
import textwrap
from collections import defaultdict
from dataclasses import replace
from importlib.util import find_spec
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from policy_cases import loss_batch, reward_batch

from burnish.lm.folder import load_model
from burnish.lm.model_input import ModelInput
from burnish.lm.tiny import tiny_model
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
close = torch.testing.assert_close


@pytest.fixture(scope="module")
def trainer():
    """TRL's GRPOTrainer as a class; its methods are called on objects that hold settings alone."""
    if find_spec("trl") is None:
        pytest.skip("needs trl (a dev dependency)")
    from trl.trainer.grpo_trainer import GRPOTrainer

    return GRPOTrainer


@pytest.fixture(scope="module")
def algorithms():
    """verl's module of advantages, losses and KL estimates."""
    if find_spec("verl") is None or find_spec("ray") is None:
        pytest.skip("needs verl and ray (make test installs them)")
    from verl.trainer.ppo import core_algos

    return core_algos


def trl_advantages(trainer, rewards_BK, samples, weights=None, **settings):
    """The advantages of TRL's own lines, which stand inside a long method."""
    source = inspect.getsource(trainer._generate_and_score_completions)
    begin = source.index("        unscorable_mask = ")
    end = source.index("        advantages = torch.nan_to_num(advantages, nan=0.0)\n")
    lines = textwrap.dedent(source[begin:end]) + "advantages = torch.nan_to_num(advantages)\n"
    weights_K = torch.tensor(weights or [1.0] * rewards_BK.shape[1])
    told = {
        "multi_objective_aggregation": "sum_then_normalize",
        "scale_rewards": "group",
        "reward_weights": weights_K,
        "reward_funcs": [None] * rewards_BK.shape[1],
        **settings,
    }
    names = {
        **vars(inspect.getmodule(trainer)),
        "self": SimpleNamespace(**told),
        "rewards_per_func": rewards_BK.clone(),
        "num_generations": samples,
        "device": torch.device("cpu"),
    }
    exec(lines, names)
    return names["advantages"]


def trl_loss(trainer, batch, *, accumulation=1, **settings):
    """TRL's loss of a micro-batch whose log-probs are given; settings are those of GRPOConfig."""
    told = {
        "loss_type": "dapo",
        "beta": 0.0,
        "epsilon": 0.2,
        "epsilon_high": None,
        "delta": None,
        "use_bias_correction_kl": True,
        "importance_sampling_level": "token",
        "entropy_coef": 0.0,
        "max_completion_length": batch.mask_BT.shape[1],
        "items": batch.mask_BT.sum(),
        **settings,
    }
    mask_BT = batch.mask_BT.long()
    high = told["epsilon"] if told["epsilon_high"] is None else told["epsilon_high"]
    self = SimpleNamespace(
        args=SimpleNamespace(
            delta=told["delta"],
            use_bias_correction_kl=told["use_bias_correction_kl"],
            steps_per_generation=accumulation,
        ),
        loss_type=told["loss_type"],
        beta=told["beta"],
        epsilon_low=told["epsilon"],
        epsilon_high=high,
        importance_sampling_level=told["importance_sampling_level"],
        entropy_coef=told["entropy_coef"],
        max_completion_length=told["max_completion_length"],
        aux_loss_enabled=False,
        top_entropy_quantile=1.0,
        off_policy_mask_threshold=None,
        use_vllm=False,
        vllm_importance_sampling_correction=True,
        current_gradient_accumulation_steps=accumulation,
        use_adaptive_entropy=False,
        _entropy_bonus_enabled=told["entropy_coef"] != 0,
        model=SimpleNamespace(training=True),
        accelerator=SimpleNamespace(
            num_processes=1,
            sync_gradients=True,
            gather=lambda values: values,
            reduce=lambda values, reduction: values,
        ),
        _metrics={"train": defaultdict(list)},
        _get_per_token_logps_and_entropies=lambda *_, **__: (batch.logp_BT, batch.entropy_BT, None),
    )
    ids_BT = torch.zeros_like(mask_BT)
    inputs = {
        "prompt_ids": ids_BT[:, :1],
        "prompt_mask": torch.ones_like(ids_BT[:, :1]),
        "completion_ids": ids_BT,
        "completion_mask": mask_BT,
        "advantages": batch.advantages_B,
        "old_per_token_logps": batch.old_logp_BT,
        "ref_per_token_logps": batch.ref_logp_BT,
        "num_items_in_batch": told["items"],
    }
    return trainer._compute_loss(self, None, inputs)


def actor_config(batch, **settings):
    """verl's settings of an actor; the whole batch is one mini-batch unless told otherwise."""
    from verl.workers.config import ActorConfig

    info = settings.pop("global_batch_info", {})
    told = {"ppo_micro_batch_size_per_gpu": 1, "rollout_n": 1, "strategy": "fsdp", **settings}
    config = ActorConfig(**told)
    config.global_batch_info.update(info)
    return config


def verl_loss(algorithms, batch, mode="vanilla", aggregation="token-mean", **settings):
    compute = algorithms.get_policy_loss_fn(mode)
    found, _ = compute(
        old_log_prob=batch.old_logp_BT,
        log_prob=batch.logp_BT,
        advantages=batch.advantages_B[:, None].expand_as(batch.mask_BT),
        response_mask=batch.mask_BT,
        loss_agg_mode=aggregation,
        config=actor_config(batch, **settings),
    )
    return found


def verl_grpo(algorithms, rewards, groups, **options):
    rewards_B1 = torch.as_tensor(rewards, dtype=torch.float32)[:, None]
    ones_B1 = torch.ones_like(rewards_B1)
    found, _ = algorithms.compute_grpo_outcome_advantage(
        rewards_B1, ones_B1, np.array(groups), **options
    )
    return found[:, 0].double()


def verl_gdpo(algorithms, rewards_BK, groups, lengths):
    mask_BT = torch.arange(max(lengths))[None] < torch.tensor(lengths)[:, None]
    prompt_B1 = torch.ones(len(lengths), 1, dtype=torch.long)
    found, _ = algorithms.compute_gdpo_outcome_advantage(
        rewards_BK.float().sum(1, keepdim=True) * mask_BT,
        mask_BT.float(),
        np.array(groups),
        config={"gdpo_reward_keys": ["0", "1"]},
        non_tensor_batch={str(k): rewards_BK[:, k].numpy() for k in range(2)},
        batch={"prompts": prompt_B1, "attention_mask": torch.cat([prompt_B1, mask_BT], 1)},
    )
    return found[:, 0].double()


def whole_batch(seed, rollouts=6, tokens=5):
    """Random log-probs with every rollout kept: neither library leaves one out."""
    batch = loss_batch(rollouts, tokens, seed)
    return replace(batch, keep_B=torch.ones(rollouts, dtype=torch.bool))


def gradient(compute, batch):
    leaf = batch.logp_BT.detach().clone().requires_grad_(True)
    compute(replace(batch, logp_BT=leaf)).backward()
    return leaf.grad


def both_agree(recipe, theirs, batch):
    """Value and gradient of our loss beside theirs."""
    close(loss(recipe, batch).total, theirs(batch).double(), rtol=1e-9, atol=1e-12)
    mine = gradient(lambda b: loss(recipe, b).total, batch)
    close(mine, gradient(theirs, batch), rtol=1e-9, atol=1e-12)


# --- the KL term


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


# --- advantages


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


# --- the loss


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
