"""Recipes of ours inside the real trainers of others: TRL's GRPOTrainer, verl's registries."""

from importlib.util import find_spec

import pytest
import torch

from burnish.engines import as_trl, as_trl_trainer, as_verl_advantage, as_verl_loss
from burnish.errors import UserError
from burnish.lm.new_model import tiny_model
from burnish.policy import (
    KL,
    AdaptiveEntropy,
    Aggregate,
    BatchWhiten,
    Elastic,
    GeneralisedAdvantage,
    InformativeGroups,
    LossBatch,
    NormaliseThenSum,
    OverlongPenalty,
    Recipe,
    RewardBatch,
    SharedCritic,
    SnrConflict,
    StaticRegion,
    SumThenNormalise,
    advantages,
    loss,
)
from burnish.rewards import from_function

close = torch.testing.assert_close

ETR = Recipe(trust_region=Elastic(strength=0.5), aggregate=Aggregate("token-mean"))
GD2PO = Recipe(
    advantage=NormaliseThenSum(),
    select=SnrConflict(),
    post_scale=BatchWhiten(),
    trust_region=Elastic(),
    aggregate=Aggregate("token-mean", keep_denominator=True),
)
DAPO = Recipe(
    shaping=(OverlongPenalty(limit=8, buffer=4, reward="parity"),),
    select=InformativeGroups(refill=False),
    trust_region=StaticRegion(high=0.28),
    aggregate=Aggregate("token-mean"),
)
GSPO = Recipe(ratio="sequence", trust_region=StaticRegion(3e-4, 4e-4), auxiliary=(KL(),))

# TRL


def size(completion_ids, **_):
    return [float(sum(ids) % 3) for ids in completion_ids]


def parity(completion_ids, **_):
    """None for some: TRL marks them, and a recipe leaves them out."""
    return [None if sum(ids) % 7 == 0 else float(sum(ids) % 2) for ids in completion_ids]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tiny_model(tmp_path_factory.mktemp("recipes") / "model")


def trained(kind, folder, rewards, **settings):
    """Three updates on two groups of four a generation, in two updates of two passes each."""
    from datasets import Dataset
    from transformers import AutoModelForCausalLM, AutoTokenizer
    from trl import GRPOConfig

    prompts = [[{"role": "user", "content": f"{n} + 4?"}] for n in range(8)]
    given = {"beta": 0.0, "max_steps": 3, "gradient_accumulation_steps": 2, **settings}
    config = GRPOConfig(
        output_dir=str(folder / "out"), per_device_train_batch_size=2, steps_per_generation=4,
        num_generations=4, max_completion_length=8, learning_rate=0.1, optim="sgd", report_to=[], use_cpu=True,
        bf16=False, gradient_checkpointing=False, save_strategy="no", disable_tqdm=True, **given,
    )  # fmt: skip
    torch.manual_seed(0)
    trainer = kind(
        model=AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32),
        reward_funcs=rewards,
        args=config,
        train_dataset=Dataset.from_dict({"prompt": prompts}),
        processing_class=AutoTokenizer.from_pretrained(folder),
    )
    trainer.train()
    return trainer


needs_trl = pytest.mark.skipif(find_spec("trl") is None, reason="needs trl (a dev dependency)")


@pytest.mark.peers
@needs_trl
@pytest.mark.parametrize(
    ("recipe", "settings"),
    [
        ({"auxiliary": (KL(),)}, {"loss_type": "grpo", "beta": 0.04}),
        ({"aggregate": Aggregate("token-mean")}, {"loss_type": "dapo", "epsilon_high": 0.28}),
        ({"ratio": "sequence"}, {"loss_type": "grpo", "importance_sampling_level": "sequence"}),
    ],
)
def test_a_recipe_that_trl_has_too_gives_trls_weights(folder, monkeypatch, recipe, settings):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    from trl import GRPOTrainer

    region = StaticRegion(high=settings.get("epsilon_high", 0.2))
    ours = Recipe(advantage=SumThenNormalise(eps=1e-4), trust_region=region, **recipe)
    settings = {"use_bias_correction_kl": False, **settings}
    theirs = trained(GRPOTrainer, folder, [size], **settings)
    own = trained(as_trl_trainer(ours), folder, [size], **settings)
    for one, other in zip(own.model.parameters(), theirs.model.parameters(), strict=True):
        close(one, other, rtol=0, atol=1e-6)  # Adam would scale rounding up
    before, after = (trainer.state.log_history[-1]["train_loss"] for trainer in (theirs, own))
    assert after == pytest.approx(before, abs=1e-6)


@pytest.mark.peers
@needs_trl
@pytest.mark.parametrize("recipe", [ETR, GD2PO, DAPO, GSPO], ids=["etr", "gd2po", "dapo", "gspo"])
def test_a_recipe_of_ours_computes_in_trl_what_it_computes_here(folder, monkeypatch, recipe):
    """The passes of each update add up to `loss` of the update, as far as its share of tokens goes."""
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    kind = as_trl_trainer(recipe)
    seen, passes, rewards = [], [], []

    class Listening(kind):
        def _calculate_rewards(self, *given):
            rewards.append(super()._calculate_rewards(*given))
            return rewards[-1]

        def _generate_and_score_completions(self, inputs):
            seen.append(super()._generate_and_score_completions(inputs))
            return seen[-1]

        def _loss_batch(self, *given):
            passes.append(super()._loss_batch(*given))
            return passes[-1]

        def _compute_loss(self, *given):
            total = super()._compute_loss(*given)
            passes[-1] = (passes[-1], total.detach())
            return total

    beta = 0.04 if recipe is GSPO else 0.0
    trainer = trained(Listening, folder, [size, parity], beta=beta, max_steps=2)
    (output,), (rewards_BK,) = seen, rewards
    lengths_B = output["completion_mask"].sum(1)
    batch = RewardBatch(
        rewards_BK.double(),
        torch.ones(2, dtype=torch.float64),
        torch.tensor([0] * 4 + [1] * 4),
        lengths_B,
        lengths_B == 8,
        ("size", "parity"),
        max_tokens=8,
    )
    step = advantages(recipe, batch)
    assert rewards_BK.isnan().any()
    assert step.values_B.abs().sum() > 0
    close(output["advantages"], step.values_B.float(), rtol=0, atol=1e-6)
    close(output["burnish_low"], step.low_B.float(), rtol=0, atol=1e-6)
    assert output["burnish_keep"].tolist() == step.keep_B.tolist()
    assert list(trainer._logs["advantages"]) == step.values_B.tolist()
    # The first update: both its passes have the weights that sampled.
    first, total = [batch for batch, _ in passes[:2]], sum(value for _, value in passes[:2])
    whole = LossBatch(
        *(
            torch.cat([getattr(one, name) for one in first])
            for name in LossBatch.__match_args__[:7]
        ),
        normaliser=first[0].normaliser,
        ref_logp_BT=torch.cat([one.ref_logp_BT for one in first]) if beta else None,
    )
    close(total, loss(recipe, whole).total.detach(), rtol=0, atol=1e-6)
    everyone = lengths_B if recipe.aggregate.keep_denominator else lengths_B * step.keep_B
    assert first[0].normaliser.tokens == everyone.sum() / 2  # two updates share what was sampled


@pytest.mark.peers
@needs_trl
def test_trl_is_told_the_kl_by_its_own_setting(folder, monkeypatch):
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    with pytest.raises(UserError, match=r"beta is 0.0, and the recipe's kl has 0.04"):
        trained(as_trl_trainer(GSPO), folder, [as_trl(from_function(lambda text: 1.0, "one"))])


def test_what_cannot_live_elsewhere_is_named_in_one_line():
    critic = Recipe(advantage=GeneralisedAdvantage(), critic=SharedCritic())
    with pytest.raises(UserError, match=r"^TRL cannot compute this recipe: critic"):
        as_trl_trainer(critic)
    with pytest.raises(UserError, match=r"select.refill.*policy.select.refill=false"):
        as_trl_trainer(Recipe(select=InformativeGroups()))
    both = Recipe(auxiliary=(AdaptiveEntropy(target=0.2),), select=InformativeGroups())
    with pytest.raises(UserError, match=r"adaptive_entropy.*; select.refill"):
        as_trl_trainer(both)


# verl


@pytest.fixture(scope="module")
def core():
    if find_spec("verl") is None or find_spec("ray") is None:
        pytest.skip("needs verl and ray (make test installs them)")
    from verl.trainer.ppo import core_algos

    registries = core_algos.ADV_ESTIMATOR_REGISTRY, core_algos.POLICY_LOSS_REGISTRY
    before = [dict(one) for one in registries]
    yield core_algos
    for one, own in zip(registries, before, strict=True):
        one.clear()
        one.update(own)


def verl_batch(rows=8, width=5):
    draw = torch.Generator().manual_seed(1)
    rewards_B = torch.randint(0, 3, (rows,), generator=draw).float()
    mask_BT = torch.arange(width)[None] < torch.randint(1, width + 1, (rows, 1), generator=draw)
    rewards_BT = torch.zeros(rows, width)
    rewards_BT[torch.arange(rows), mask_BT.sum(1) - 1] = rewards_B
    old_BT = -torch.rand(rows, width, generator=draw)
    logp_BT = (old_BT + 0.3 * torch.randn(rows, width, generator=draw)).requires_grad_()
    uids = [f"u{row // 4}" for row in range(rows)]
    return rewards_BT, mask_BT, old_BT, logp_BT, uids


def actor(**info):
    from verl.workers.config import ActorConfig

    config = ActorConfig(ppo_micro_batch_size_per_gpu=1, rollout_n=1, strategy="fsdp")
    config.global_batch_info.update(info)
    return config


@pytest.mark.peers
def test_the_default_recipe_is_verls_grpo_and_vanilla(core):
    import numpy

    rewards_BT, mask_BT, old_BT, logp_BT, uids = verl_batch()
    recipe = Recipe(dual_clip=3.0, aggregate=Aggregate("token-mean"))
    as_verl_advantage(recipe)
    as_verl_loss(recipe)
    given = {
        "token_level_rewards": rewards_BT,
        "response_mask": mask_BT,
        "index": numpy.array(uids),
    }
    ours, returns = core.get_adv_estimator_fn("burnish")(**given, config=None)
    theirs, _ = core.get_adv_estimator_fn("grpo")(
        **{**given, "token_level_rewards": rewards_BT + 0}
    )
    close(ours, theirs, rtol=0, atol=2e-6)
    assert torch.equal(ours, returns)
    for info in ({}, {"dp_size": 2, "batch_num_tokens": 60, "global_batch_size": 16}):
        found = [
            core.get_policy_loss_fn(name)(
                old_BT,
                logp_BT,
                theirs,
                mask_BT,
                "token-mean",
                actor(**info),
                torch.ones_like(old_BT),
            )[0]
            for name in ("burnish", "vanilla")
        ]
        close(*found, rtol=0, atol=1e-6)
        close(*(torch.autograd.grad(one, logp_BT)[0] for one in found), rtol=0, atol=1e-6)


@pytest.mark.peers
def test_recipes_of_ours_compute_in_verl_what_they_compute_here(core):
    import numpy

    rewards_BT, mask_BT, old_BT, logp_BT, uids = verl_batch()
    first_B, second_B = rewards_BT.sum(1), torch.tensor([1.0, 0, 0, 1, 0, 0, 1, 1])
    as_verl_advantage(GD2PO, "gdpo")
    as_verl_loss(GD2PO, "gd2po")
    valid = [1.0] * 7 + [0.0]  # the last answer has no second reward, whatever number stands there
    table = {"first": first_B.tolist(), "second": second_B.tolist(), "second_valid": valid}
    found_BT, _ = core.get_adv_estimator_fn("gdpo")(
        token_level_rewards=rewards_BT,
        response_mask=mask_BT,
        index=numpy.array(uids),
        config={"gdpo_reward_keys": ["first", "second"]},
        non_tensor_batch={key: numpy.array(values) for key, values in table.items()},
        batch=None,
    )
    second_B[7] = torch.nan
    rewards_BK = torch.stack([first_B, second_B], 1).double()
    lengths_B, groups_B = mask_BT.sum(1), torch.tensor([0] * 4 + [1] * 4)
    batch = RewardBatch(
        rewards_BK, torch.ones(2, dtype=torch.float64), groups_B, lengths_B, lengths_B == 5
    )
    step = advantages(GD2PO, batch)
    assert not step.keep_B.all()
    close(found_BT, step.values_B.float()[:, None] * mask_BT, rtol=0, atol=1e-6)
    total, shown = core.get_policy_loss_fn("gd2po")(
        old_BT, logp_BT, found_BT, mask_BT, "token-mean", actor()
    )
    own = (logp_BT, old_BT, mask_BT, step.values_B.float(), step.low_B, step.high_B, step.keep_B)
    here = loss(GD2PO, LossBatch(*own))
    close(total, here.total, rtol=0, atol=1e-6)
    assert shown["actor/clip_fraction"] > 0
    assert len(set(step.low_B.tolist())) > 2  # and in verl they follow from the advantages


@pytest.mark.peers
def test_verl_has_no_word_for_some_components(core):
    for recipe, told in (
        (GSPO, "auxiliary: set verl's own use_kl_loss"),
        (DAPO, "select: verl divides by all"),
        (Recipe(trust_region=Elastic(macro=0.5, range=(0.0, 1.0))), "trust_region"),
    ):
        for make in (as_verl_advantage, as_verl_loss):
            with pytest.raises(UserError, match=told):
                make(recipe)
