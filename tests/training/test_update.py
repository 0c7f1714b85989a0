import math
from contextlib import nullcontext
from dataclasses import replace
from functools import cache

import msgspec
import pytest
import torch
from training_cases import finish, rollout, trainer

from burnish.config import Config, load, rooted
from burnish.config.recipes import all_recipes
from burnish.config.schema import DiffusionPolicyTrain, Optimiser, Update as UpdateConfig
from burnish.errors import ArgumentError, UserError
from burnish.lm.folder import load_model
from burnish.lm.model_input import ModelInput
from burnish.lm.new_model import tiny_model
from burnish.lm.scalar_head import ScalarHead
from burnish.policy import (
    Aggregate,
    Cispo,
    Entropy,
    GeneralisedAdvantage,
    KlCov,
    Sapo,
    SharedCritic,
    StaticRegion,
)
from burnish.policy.batch import LossBatch, RewardBatch
from burnish.policy.compute import advantages, loss
from burnish.policy.contrast.component import Contrastive
from burnish.policy.recipe import Recipe
from burnish.rewards.config import build_all
from burnish.seeds import Seeds
from burnish.training.algorithms import policy_update as policy_room
from burnish.training.algorithms.policy_update import PolicyBatch, PolicyUpdate
from burnish.training.events import StepDone
from burnish.training.optimiser import MasterAdamW
from burnish.training.packing import make_rows, pack, token_scores
from burnish.training.update import MicroBatcher, Updater

RECIPES = {
    name: rooted(load(Config, path).value, path.parent) for name, path in all_recipes().items()
}
# Ratios of a diffusion model are of whole answers under masks: tests/training/test_diffusion_policy.py.
RECIPES = {
    name: config
    for name, config in RECIPES.items()
    if config.rewards and not isinstance(config.train, DiffusionPolicyTrain)
}
POLICIES = {name: config.policy for name, config in RECIPES.items()} | {
    "entropy_and_dual_clip": Recipe(
        dual_clip=1.05,
        ratio="sequence_token",
        trust_region=StaticRegion(low=0.02, high=0.02),
        aggregate=Aggregate(mode="token-mean", keep_denominator=True),
        auxiliary=(Entropy(coefficient=0.01),),
    ),
    "ppo_with_kl_in_the_reward": Recipe(
        advantage=GeneralisedAdvantage(gamma=0.9, lam=0.8, whiten=False, kl=0.3),
        critic=SharedCritic(coefficient=0.7, clip=0.5),
    ),
}
MAX_TOKENS = 16
PROMPTS = {"a": [5, 6, 7, 8, 9], "b": [10, 11], "c": [12, 13, 14], "d": [15, 16, 17, 18]}
LENGTHS = [3, 1, 7, 14, 5, 16, 2, 4, 6, 6, 1, 9, 2, 8, 3, 5]
# Group c agrees and teaches nothing; one rollout of group d has no reward.
REWARDS = [1, 0, 0, 1, 0.5, 0, 0.25, 1, 1, 1, 1, 1, 0, math.nan, 1, 0]
BRIEF = [0.1, 0.9, 0.4, 0.2, 0.5, 0.6, 0.3, 0.8, 0.7, 0.7, 0.7, 0.7, 0.2, math.nan, 0.1, 0.4]


def make_rollouts():
    generator = torch.Generator().manual_seed(3)
    made = []
    for i, length in enumerate(LENGTHS):
        group = "abcd"[i // 4]
        answer = torch.randint(20, 250, (length,), generator=generator).tolist()
        made.append(rollout(f"0.{i // 4}.{i % 4}", group, PROMPTS[group], answer))
    return made


ROLLOUTS = make_rollouts()
NOISE = [
    torch.randn(n, generator=torch.Generator().manual_seed(n + i), dtype=torch.float64)
    for i, n in enumerate(LENGTHS)
]


HIDDEN_BD = torch.randn(16, 8, generator=torch.Generator().manual_seed(0))
# The first token, three sections in turn, and now and then a token of none.
VALUES_BT = torch.randn(16, 16, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
KL_BT = 0.1 * torch.randn(16, 16, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
SEGMENTS_BT = torch.tensor([[0, 1, 1, 2, -1, 2, 1, 0] * 2] * 16)
# A score a step, the same for all steps of group c.
STEPS_BJ = torch.tensor(
    [[brief + k * (i // 4 != 2) for k in (0.0, 0.3, -0.2)] for i, brief in enumerate(BRIEF)],
    dtype=torch.float64,
)


def names_and_weights(policy):
    """The rewards of the recipe file that a policy is from."""
    config = next(
        (RECIPES[name] for name, p in POLICIES.items() if p is policy and name in RECIPES), None
    )
    if config is None:
        return ["correct"], [1.0]
    scorer = build_all(config.rewards)
    return [child.name for child in scorer.children], list(scorer.weights)


def values_of(policy, members=range(16)):
    members = list(members)
    names, weights = names_and_weights(policy)
    groups = {name: k for k, name in enumerate(dict.fromkeys(ROLLOUTS[i].group for i in members))}
    # The first reward is REWARDS, the second BRIEF, further ones something of both.
    rows = [
        [(REWARDS if (i * k) % 3 == 0 and k != 1 else BRIEF)[i] for k in range(len(names))]
        for i in members
    ]
    batch = RewardBatch(
        rewards_BK=torch.tensor(rows, dtype=torch.float64),
        weights_K=torch.tensor(weights, dtype=torch.float64),
        groups_B=torch.tensor([groups[ROLLOUTS[i].group] for i in members]),
        lengths_B=torch.tensor([LENGTHS[i] for i in members]),
        truncated_B=torch.tensor([LENGTHS[i] == MAX_TOKENS for i in members]),
        names=tuple(names),
        max_tokens=MAX_TOKENS,
        run_steps=1,
        hidden_BD=HIDDEN_BD[members],
        segments_BT=SEGMENTS_BT[members, : max(LENGTHS[i] for i in members)],
        steps_BJ=STEPS_BJ[members],
        baselines_BK=torch.full((len(members), len(names)), 0.3, dtype=torch.float64),
        values_BT=VALUES_BT[members, : max(LENGTHS[i] for i in members)],
        kl_BT=KL_BT[members, : max(LENGTHS[i] for i in members)],
    )
    return advantages(policy, batch)


class Recorder(MasterAdamW):
    """Keeps every gradient instead of following it."""

    def step(self, rate, norm):
        self.taken = [*getattr(self, "taken", []), [s.clone() for s in self.sums]]


@pytest.fixture(scope="module")
def models(tmp_path_factory):
    """The tiny model in float64, and another one as the reference."""
    folder = tiny_model(tmp_path_factory.mktemp("reference"), seed=1)
    model = load_model("tiny", dtype="float64", device="cpu").module.requires_grad_(True)
    reference = load_model(folder, dtype="float64", device="cpu").module.requires_grad_(False)
    return model, reference


class Given(PolicyUpdate):
    """Updates of batches that the test gives."""

    def batch(self, step):
        raise AssertionError("the test gives its batches")


class PolicyUpdater(Updater):
    """The updates of a recipe, by its rollouts and advantages."""

    def update(self, step, trajectories, values, rate, old=None):
        batch = PolicyBatch(step, trajectories, values, old=old or {})
        result = self.run(step, batch, rate)
        losses = {f"loss/{name}": value for name, value in result.losses.items()}
        metrics = {**losses, **policy_room.monitored(result)} if result.updates else {}
        return metrics, result.updates


def make_updater(models, policy, *, kind=Given, temperature=1.3, **settings):
    model, reference = models
    config = UpdateConfig(**settings)
    batches = MicroBatcher(
        model,
        torch.device("cpu"),
        share_prompts=config.share_prompts,
        tokens=config.micro_batch_tokens,
    )
    algorithm = kind(
        batches,
        policy,
        config,
        Seeds(0),
        temperature=temperature,
        max_tokens=MAX_TOKENS,
        reference=(lambda: nullcontext(reference)) if policy.needs_reference else None,
        value_head=value_head(model) if policy.gae else None,
    )
    head = [("critic.weight", algorithm.value_head.weight)] if policy.gae else []
    named = [*model.named_parameters(), *head]
    return PolicyUpdater(algorithm, Recorder(named, Optimiser()), batches)


@cache
def value_head(model):
    """A critic's head that is not 0, so that its gradient reaches the trunk."""
    return ScalarHead.fresh(std=0.3, seed=0, like=model.head_weight)


def plain_values(model, head):
    """What the critic says before each trained token, each rollout on its own: (B, T)."""
    rows = []
    for item in ROLLOUTS:
        ids = torch.tensor([item.token_ids])
        hidden = model(ModelInput(ids, torch.arange(ids.shape[1])[None]))[0]
        rows.append((hidden[item.prompt_length - 1 : -1] * head.weight).sum(-1))
    return torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)


def plain_logprobs(model, temperature):
    """Each rollout on its own: (B, T) with zeros behind."""
    rows = []
    for item in ROLLOUTS:
        ids = torch.tensor([item.token_ids])
        logits = (
            model.logits(model(ModelInput(ids, torch.arange(ids.shape[1])[None])))[0] / temperature
        )
        logp = logits.log_softmax(-1)[:-1].gather(1, ids[0, 1:, None])[:, 0]
        entropy = torch.distributions.Categorical(logits=logits).entropy()[:-1]
        start = item.prompt_length - 1
        rows.append((logp[start:], entropy[start:]))
    pad = torch.nn.utils.rnn.pad_sequence
    return (
        pad([r[0] for r in rows], batch_first=True),
        pad([r[1] for r in rows], batch_first=True),
    )


@cache
def own_logprobs(model):
    with torch.no_grad():
        return plain_logprobs(model, 1.3)[0]


def old_logprobs(model, policy):
    """The model's own, moved enough for some tokens (or sequences) to leave the trust region."""
    scale = 0.001 if policy.ratio == "sequence" else 0.25
    logp_BT = own_logprobs(model)
    return {i: logp_BT[i, :n] + scale * NOISE[i] for i, n in enumerate(LENGTHS)}


@cache
def whole_batch_gradient(models, name):
    """The definition: one loss over all rollouts, each computed by itself."""
    policy = POLICIES[name]
    model, reference = models
    values = values_of(policy)
    logp_BT, entropy_BT = plain_logprobs(model, 1.3)
    old = old_logprobs(model, policy)
    old_BT = torch.nn.utils.rnn.pad_sequence([old[i] for i in range(16)], batch_first=True)
    with torch.no_grad():
        ref_BT = plain_logprobs(reference, 1.3)[0] if policy.needs_reference else None
    mask_BT = torch.arange(logp_BT.shape[1])[None] < torch.tensor(LENGTHS)[:, None]
    if values.counted_BT is not None:
        mask_BT = mask_BT & values.counted_BT
    out = loss(
        policy,
        LossBatch(
            logp_BT=logp_BT,
            old_logp_BT=old_BT,
            mask_BT=mask_BT,
            advantages_B=values.values_B,
            low_B=values.low_B,
            high_B=values.high_B,
            keep_B=values.keep_B,
            ref_logp_BT=ref_BT,
            entropy_BT=entropy_BT,
            max_tokens=MAX_TOKENS,
            values_BT=plain_values(model, value_head(model)) if policy.gae else None,
            old_values_BT=values.critic.values_BT if values.critic else None,
            returns_BT=values.critic.returns_BT if values.critic else None,
        ),
    )
    head = [value_head(model).weight] if policy.gae else []
    return torch.autograd.grad(out.total, [*model.parameters(), *head]), out


def off_policy_update(models, policy, **settings):
    """Gradient and metrics away from the sampling policy: two epochs that take no step."""
    updater = make_updater(models, policy, epochs=2, **settings)
    old = old_logprobs(models[0], policy)
    metrics, _ = updater.update(0, ROLLOUTS, values_of(policy), 0.0, old)
    first, second = updater.optimiser.taken
    assert all(torch.equal(a, b) for a, b in zip(first, second, strict=True))
    return first, metrics


def assert_close(ours, theirs, tolerance=1e-10):
    for a, b in zip(ours, theirs, strict=True):
        torch.testing.assert_close(a, b, rtol=0, atol=tolerance)


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("budget", [1, 40, 100_000])
@pytest.mark.parametrize("name", POLICIES)
def test_micro_batches_add_up_to_the_whole_batch(models, name, budget, share):
    theirs, out = whole_batch_gradient(models, name)
    ours, metrics = off_policy_update(
        models, POLICIES[name], micro_batch_tokens=budget, share_prompts=share
    )
    assert max(float(g.abs().max()) for g in theirs) > 1e-4
    assert_close(ours, theirs)
    assert metrics["loss/total"] == pytest.approx(float(out.total.detach()), abs=1e-12)
    if name == "brpo":
        # The whole batch also has rollouts of advantage 0, which an update leaves out.
        assert 1 < metrics["policy/ratio_max"] < out.ratio_max
    else:
        assert metrics["policy/ratio_max"] == pytest.approx(float(out.ratio_max), abs=1e-9)


# CISPO's weight has no gradient, so its gradient is not the slope of its value.
@pytest.mark.parametrize("name", [n for n, p in POLICIES.items() if p.surrogate != Cispo()])
def test_gradients_follow_finite_differences(models, name):
    model, _ = models
    policy = POLICIES[name]
    old = old_logprobs(model, policy)
    ours, metrics = off_policy_update(models, policy)
    if not isinstance(policy.surrogate, Sapo | KlCov):
        assert metrics["policy/clipped_share"] > 0, "no token left the trust region: a weak test"
    updater = make_updater(models, policy, epochs=2)
    values = values_of(policy)

    def objective():
        found, _ = updater.update(0, ROLLOUTS, values, 0.0, old)
        return found["loss/total"]

    generator = torch.Generator().manual_seed(11)
    parameters = list(model.parameters())
    largest = 0.0
    for pick in range(8):
        k = int(torch.randint(len(parameters), (1,), generator=generator))
        flat = parameters[k].detach().view(-1)
        # Half of the picks fall on the entry that matters most; a random one is often nearly 0.
        top = int(ours[k].abs().argmax())
        i = top if pick % 2 else int(torch.randint(flat.numel(), (1,), generator=generator))
        start = flat[i].item()
        sides = []
        for side in (1e-6, -1e-6):
            flat[i] = start + side
            sides.append(objective())
        flat[i] = start
        slope = (sides[0] - sides[1]) / 2e-6
        assert float(ours[k].view(-1)[i]) == pytest.approx(slope, abs=2e-8, rel=1e-6)
        largest = max(largest, abs(slope))
    assert largest > 1e-4


class Stubborn(Given):
    """Computes every rollout, also those that cannot move anything."""

    def _moving(self, values):
        return set(range(len(values.keep_B)))


@pytest.mark.parametrize("name", ["grpo", "dapo", "dr_grpo", "gspo", "gdpo"])
def test_rollouts_without_advantage_are_skipped_and_change_nothing(models, name, monkeypatch):
    policy = msgspec.structs.replace(POLICIES[name], auxiliary=())
    if name == "gdpo":
        monkeypatch.setitem(POLICIES, "gdpo", policy)
    values = values_of(policy)
    computed = []
    real = policy_room.token_scores

    def counting(model, packed, *arguments, **more):
        computed.extend(packed.members)
        return real(model, packed, *arguments, **more)

    monkeypatch.setattr(policy_room, "token_scores", counting)
    lazy = make_updater(models, policy)
    lazy.update(0, ROLLOUTS, values, 0.0)
    moving = [i for i in range(16) if values.keep_B[i] and values.values_B[i] != 0]
    assert sorted(computed) == moving
    assert len(moving) < 13
    stubborn = make_updater(models, policy, kind=Stubborn)
    stubborn.update(0, ROLLOUTS, values, 0.0)
    assert_close(lazy.optimiser.taken[0], stubborn.optimiser.taken[0], 1e-13)


@pytest.mark.parametrize("name", [n for n in POLICIES if n != "entropy_and_dual_clip"])
def test_a_rollout_without_a_reward_counts_for_nothing(models, name):
    policy = POLICIES[name]
    everyone = make_updater(models, policy)
    everyone.update(0, ROLLOUTS, values_of(policy), 0.0)
    present = [i for i in range(16) if i != 13]
    rest = make_updater(models, policy)
    rest.update(0, [ROLLOUTS[i] for i in present], values_of(policy, present), 0.0)
    assert_close(everyone.optimiser.taken[0], rest.optimiser.taken[0], 1e-13)


def test_with_keep_denominator_a_masked_rollout_still_divides(models):
    plain = Recipe(aggregate=Aggregate(mode="seq-mean-token-mean"))
    counted = Recipe(aggregate=Aggregate(mode="seq-mean-token-mean", keep_denominator=True))
    gradients = []
    for policy in (plain, counted):
        updater = make_updater(models, policy)
        updater.update(0, ROLLOUTS, values_of(policy), 0.0)
        gradients.append(updater.optimiser.taken[0])
    assert_close([g * 15 / 16 for g in gradients[0]], gradients[1], 1e-13)


def test_a_step_without_signal_takes_no_update(models):
    policy = POLICIES["grpo"]
    updater = make_updater(models, policy)
    metrics, updates = updater.update(0, ROLLOUTS[8:12], values_of(policy, range(8, 12)), 0.0)
    assert (metrics, updates) == ({}, 0)
    assert not hasattr(updater.optimiser, "taken")


def test_mini_batches_are_whole_groups_and_shuffle_by_their_own_seed(models):
    updater = make_updater(models, Recipe(), epochs=3, minibatches=2)
    batch = PolicyBatch(4, ROLLOUTS, values_of(Recipe()))

    def deal(batch):
        return [part for epoch in range(3) for part in updater.algorithm._deal(batch, epoch)]

    dealt = deal(batch)
    assert len(dealt) == 6
    for epoch in range(3):
        pair = dealt[2 * epoch : 2 * epoch + 2]
        assert sorted(pair[0] + pair[1]) == list(range(16))
        for members in pair:
            assert len(members) == 8
            assert all(len([m for m in members if m // 4 == i // 4]) == 4 for i in members)
    assert len({tuple(members) for members in dealt}) > 2, "the epochs were dealt alike"
    assert dealt == deal(batch)
    assert dealt != deal(replace(batch, step=5))


@pytest.mark.parametrize("dtype", ["float64", "float32", "bfloat16"])
@pytest.mark.parametrize(("epochs", "minibatches"), [(2, 1), (1, 2), (1, 4)])
def test_with_several_updates_the_first_ratio_is_exactly_one(dtype, epochs, minibatches):
    """Also in half precision, and although the sampler's log-probs (a constant) are far off."""
    policy = POLICIES["gspo"]
    model = load_model("tiny", dtype=dtype, device="cpu").module.requires_grad_(True)
    with torch.no_grad():
        for p in model.parameters():
            p.mul_(3.0)  # far from uniform, so that rounding shows
    updater = make_updater((model, None), policy, epochs=epochs, minibatches=minibatches)
    metrics, updates = updater.update(0, ROLLOUTS, values_of(policy), 0.0)
    assert updates == (3 if minibatches == 4 else 2), "one mini-batch of four has no signal"
    assert metrics["policy/ratio_max"] == 1.0
    assert metrics["policy/clipped_share"] == 0.0
    assert metrics["mismatch/mean_abs"] > 0.01


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_with_and_without_gradients_the_numbers_are_the_same(dtype):
    """Old and reference log-probs need no gradient; they are compared with some that have one."""
    model = load_model("tiny", dtype=dtype, device="cpu").module.requires_grad_(True)
    packed = pack(make_rows(ROLLOUTS, True), ROLLOUTS, torch.device("cpu"))
    own = token_scores(model, packed, 1.0).logp_BT
    with torch.no_grad():
        assert torch.equal(token_scores(model, packed, 1.0).logp_BT, own)
    model.requires_grad_(False)
    assert torch.equal(token_scores(model, packed, 1.0).logp_BT, own)


def test_later_updates_are_measured_against_the_first(tmp_path):
    more = {"update": {"epochs": 3}, "optimiser": {"learning_rate": 5e-3}, "steps": 1}
    done = next(e for e in finish(trainer(tmp_path, more)) if isinstance(e, StepDone))
    assert done.metrics["optimiser/updates"] == 3.0
    assert done.metrics["policy/ratio_max"] > 1.01
    assert done.metrics["policy/clipped_share"] > 0.0


@pytest.mark.parametrize("temperature", [1.0, 0.7])
def test_sampler_and_trainer_agree_on_one_device(tmp_path, temperature):
    more = {"rollout": {"temperature": temperature, "max_tokens": 12}}
    for done in finish(trainer(tmp_path, more)):
        if isinstance(done, StepDone):
            assert done.metrics["mismatch/mean_abs"] < 1e-6
            assert done.metrics["mismatch/kl"] < 1e-11
            assert done.metrics["mismatch/max_ratio"] < 1 + 1e-5
            assert done.metrics["policy/ratio_max"] == 1.0


def test_noise_in_the_samplers_logprobs_is_measured(models):
    policy = POLICIES["quickstart"]
    logp_BT = own_logprobs(models[0])
    noisy = []
    for i, item in enumerate(ROLLOUTS):
        said = tuple((logp_BT[i, : LENGTHS[i]] + 0.1 * NOISE[i]).tolist())
        prompt, answer = item.spans
        spans = (prompt, msgspec.structs.replace(answer, logprobs=said))
        noisy.append(msgspec.structs.replace(item, spans=spans))
    values = values_of(policy)
    metrics, _ = make_updater(models, policy).update(0, noisy, values, 0.0)
    moving = [i for i in range(16) if values.keep_B[i] and values.values_B[i] != 0]
    gap = -0.1 * torch.cat([NOISE[i] for i in moving])
    assert metrics["mismatch/mean_abs"] == pytest.approx(float(gap.abs().mean()), rel=1e-5)
    assert metrics["mismatch/kl"] == pytest.approx(float((gap.exp() - 1 - gap).mean()), rel=1e-4)
    assert metrics["mismatch/max_ratio"] == pytest.approx(float(gap.abs().max().exp()), rel=1e-5)


def run_out_of_memory(monkeypatch, calls):
    """Fail at the given calls of the forward pass."""
    real = policy_room.token_scores
    count = iter(range(10_000))

    def failing(*arguments, **more):
        if next(count) in calls:
            raise torch.OutOfMemoryError("no room")
        return real(*arguments, **more)

    monkeypatch.setattr(policy_room, "token_scores", failing)


@pytest.mark.parametrize("failing", [{0}, {2}, {0, 1}, {1, 4}])
def test_out_of_memory_halves_the_passes_and_keeps_the_gradient(models, monkeypatch, failing):
    policy = POLICIES["grpo"]
    values = values_of(policy)
    calm = make_updater(models, policy, epochs=2)
    expected, _ = calm.update(0, ROLLOUTS, values, 0.0)
    run_out_of_memory(monkeypatch, failing)
    tight = make_updater(models, policy, epochs=2, micro_batch_tokens=2048)
    found, updates = tight.update(0, ROLLOUTS, values, 0.0)
    assert updates == 2
    assert tight.batches.tokens == 2048 // 2 ** len(failing)
    for ours, theirs in zip(tight.optimiser.taken, calm.optimiser.taken, strict=True):
        assert_close(ours, theirs)
    assert found == pytest.approx(expected, abs=1e-10), "a failed pass was counted"


def test_the_samplers_memory_is_asked_for_before_passes_get_smaller(models, monkeypatch):
    policy = Recipe()
    values = values_of(policy)
    calm = make_updater(models, policy)
    calm.update(0, ROLLOUTS, values, 0.0)
    # Forward pass 1 is the first update, 4 and on the second.
    run_out_of_memory(monkeypatch, {0, 2, 3})
    tight = make_updater(models, policy, micro_batch_tokens=2048)
    asked = []
    tight.batches.release = lambda: asked.append(tight.batches.tokens)
    tight.update(0, ROLLOUTS, values, 0.0)
    assert (asked, tight.batches.tokens) == ([2048], 2048), "the sampler's memory was enough"
    tight.update(1, ROLLOUTS, values, 0.0)
    assert asked == [2048, 2048], "once an update"
    assert tight.batches.tokens == 512, (
        "halved with the second update that asks, and again after it"
    )
    for taken in tight.optimiser.taken:
        assert_close(taken, calm.optimiser.taken[0])


def test_the_least_budget_is_tried_again_with_the_samplers_memory(models, monkeypatch):
    run_out_of_memory(monkeypatch, {0, 2})
    updater = make_updater(models, Recipe(), micro_batch_tokens=256)
    asked = []
    updater.batches.release = lambda: asked.append(1)
    for step in range(2):
        _, updates = updater.update(step, ROLLOUTS, values_of(Recipe()), 0.0)
        assert updates == 1
    assert (len(asked), updater.batches.tokens) == (2, 256)


def test_out_of_memory_at_the_least_budget_says_what_saves_most(models, monkeypatch):
    run_out_of_memory(monkeypatch, set(range(1000)))
    updater = make_updater(models, Recipe())
    updater.batches.advise = lambda tokens: f"the knobs at {tokens} tokens"
    with pytest.raises(UserError) as caught:
        updater.update(0, ROLLOUTS, values_of(Recipe()), 0.0)
    assert str(caught.value) == (
        "out of device memory with micro-batches of 256 tokens; what saves most, in order: "
        "the knobs at 256 tokens"
    )


def test_a_warm_up_that_is_a_share_needs_the_length_of_the_run():
    piece = Contrastive(warmup="0.5x")
    two = torch.zeros(2, dtype=torch.float64)
    batch = RewardBatch(
        rewards_BK=torch.tensor([[1.0], [0.0]], dtype=torch.float64),
        weights_K=torch.ones(1, dtype=torch.float64),
        groups_B=torch.zeros(2, dtype=torch.int64),
        lengths_B=torch.ones(2, dtype=torch.int64),
        truncated_B=two.bool(),
        names=("correct",),
        hidden_BD=torch.ones(2, 3),
    )
    recipe = Recipe(shaping=(piece,))
    with pytest.raises(ArgumentError, match="run_steps: got 0, expected the steps of the run"):
        advantages(recipe, batch)
    assert advantages(recipe, replace(batch, run_steps=1)).moves
    assert not advantages(recipe, replace(batch, run_steps=4)).moves
