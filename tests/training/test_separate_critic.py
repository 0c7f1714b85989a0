import copy
import dataclasses
import json

import pytest
import torch
from safetensors.torch import load_file
from test_ppo_run import DIGITS, PPO, steps_of
from test_reward_model import run_of
from training_cases import (
    assert_continues,
    assert_same_curves,
    finish,
    merged,
    one_and_two,
    outcome,
    shipped,
    stop_after,
    trainer,
)

from burnish.errors import GuardTripped
from burnish.lm.folder import load_model
from burnish.lm.model_input import ModelInput
from burnish.policy import gae, terminal_rewards, value_loss
from burnish.training.checkpoint import replay
from burnish.training.critic import CriticModel
from burnish.training.events import StepDone

OWN = merged(PPO, {"policy": {"critic": {"kind": "separate", "learning_rate": 3e-3}}})
ONE_UPDATE = {"update": {"epochs": 1, "minibatches": 1}, "steps": 1}


def critic_table(**settings):
    return {"policy": {"critic": {"kind": "separate", **settings}}}


def checkpoint(folder):
    return sorted((folder / "checkpoints").glob("step-*"))[-1]


def state_of(folder):
    """The critic's tensors in the newest checkpoint."""
    found = load_file(checkpoint(folder) / "trainer" / "algorithm.safetensors")
    return {name: one for name, one in found.items() if name.startswith("critic/")}


def test_it_learns_with_one_answer_a_prompt(tmp_path):
    table = merged(shipped("ppo"), DIGITS, critic_table(learning_rate=1e-3))
    metrics = steps_of(finish(trainer(tmp_path, table)))
    rewards = [one["reward/total"] for one in metrics]
    assert sum(rewards[-5:]) / 5 > sum(rewards[:5]) / 5 + 0.2
    assert metrics[0]["critic/value"] == 0, "the head starts at 0"
    assert metrics[-1]["critic/value"] > 0.3, "and comes to expect the reward"
    assert metrics[-1]["loss/value"] < metrics[0]["loss/value"]
    assert metrics[0]["critic/learning_rate"] == 1e-3
    assert all(one["critic/gradient_norm"] > 0 for one in metrics)
    outcome(tmp_path / "run")  # every metric is in the catalogue


def test_one_step_by_the_book(tmp_path):
    """Values, returns, loss and the step of AdamW, computed one answer at a time."""
    tables = (OWN, ONE_UPDATE, {"model": {"dtype": "float64"}}, critic_table(learning_rate=0.01))
    run = trainer(tmp_path, *tables, {"optimiser": {"clip_norm": 0.0}})
    critic = run.algorithm.critic
    with torch.no_grad():  # a head that says something
        critic.head.weight.copy_(torch.linspace(-0.1, 0.1, critic.head.weight.shape[1])[None])
    module, head = copy.deepcopy(critic.loaded.module), copy.deepcopy(critic.head)
    batch = run.algorithm.batch(0)
    rows, wanted_values = batch.trajectories, []
    for one in rows:
        ids = torch.tensor([one.token_ids])
        hidden = module(ModelInput(ids, torch.arange(ids.shape[1])[None]))[0]
        wanted_values.append(head(hidden[one.prompt_length - 1 : -1]))
    width = max(len(one) for one in wanted_values)
    short = [width - len(one) for one in wanted_values]
    values = torch.stack(
        [torch.nn.functional.pad(v, (0, n)) for v, n in zip(wanted_values, short, strict=True)]
    )
    mask = torch.tensor([[1.0] * (width - n) + [0.0] * n for n in short])
    reading = run.algorithm.computer.reading
    torch.testing.assert_close(reading.values_BT, values.detach(), rtol=1e-9, atol=1e-12)
    rewards = [scored.reward.value for scored in run.algorithm.scored]
    found = gae(
        terminal_rewards(rewards, mask, 0.05 * reading.kl_BT), values.detach(), mask, 1.0, 0.95
    )
    loss = value_loss(values, values.detach(), found.returns, mask, clip=0.2)
    loss.backward()
    wanted = {}
    for name, parameter in [*module.named_parameters(), ("score.weight", head.weight)]:
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        # AdamW's first step, whatever its betas: the gradient over its own size.
        moved = gradient / (gradient.abs() + run.config.optimiser.eps)
        wanted[name] = parameter.detach() - 0.01 * moved
    result = run.stage.updater.run(0, batch, 1e-3)
    assert result.losses["value"] == pytest.approx(float(loss.detach()))
    after = dict(zip(critic.optimiser.names, critic.optimiser.masters, strict=True))
    assert set(after) <= set(wanted)
    for name, weight in after.items():
        torch.testing.assert_close(weight, wanted[name], rtol=1e-5, atol=1e-6, msg=name)
    run.store.close()


def test_the_critics_loss_never_reaches_the_policy_nor_the_policys_the_critic(tmp_path):
    run = trainer(tmp_path, OWN)
    algorithm, module = run.algorithm, run.trainable.module
    critic = algorithm.critic
    with torch.no_grad():  # a fresh head of 0 has no gradient for the body
        critic.head.weight.fill_(0.01)
    own = {p.data_ptr() for p in critic.loaded.module.parameters()}
    assert not own & {p.data_ptr() for p in module.parameters()}, "no weight is shared"
    update = algorithm.updates(algorithm.batch(0))[0]
    kinds = {}
    for micro in algorithm.micro_batches(update, 4096):
        loss = algorithm.loss(module, micro)
        loss.total.backward()
        moved = [p for p in module.parameters() if p.grad is not None]
        learnt = [p for p in critic.optimiser.parameters if p.grad is not None]
        kinds[type(micro).__name__] = (len(moved), len(learnt))
        module.zero_grad(set_to_none=True)
        critic.optimiser.clear()
    assert kinds["Rolled"][0] > 0
    assert kinds["Rolled"][1] == 0
    assert kinds["Valued"][0] == 0
    assert kinds["Valued"][1] == len(critic.optimiser.parameters)
    run.store.close()


def test_a_frozen_critic_and_a_learning_one_leave_the_first_update_of_the_policy_the_same(tmp_path):
    """What the critic learns in a step moves the policy only through the next step's advantages."""
    for name, rate in (("still", 0.0), ("moving", 1e-2)):
        finish(trainer(tmp_path, OWN, {"steps": 1}, critic_table(learning_rate=rate), run=name))
    weights = [
        load_file(checkpoint(tmp_path / n) / "model.safetensors") for n in ("still", "moving")
    ]
    assert all(torch.equal(one, weights[1][key]) for key, one in weights[0].items())
    still, moving = (state_of(tmp_path / name) for name in ("still", "moving"))
    assert any(not torch.equal(one, moving[key]) for key, one in still.items() if "/master/" in key)


@pytest.mark.parametrize(("stop", "every"), [(1, 1), (3, 2)])
def test_stopped_and_continued_equals_uninterrupted(tmp_path, stop, every):
    assert_continues(tmp_path, OWN, stop, every)
    whole, resumed = state_of(tmp_path / "whole"), state_of(tmp_path / "run")
    assert {key.split("/")[1] for key in whole} == {"first", "second", "count", "master"}
    assert whole.keys() == resumed.keys()
    for key, one in whole.items():
        assert torch.equal(one, resumed[key]), key


def test_neither_micro_batches_nor_shared_prompts_change_a_step(tmp_path):
    found = []
    for name, tokens, share in (("a", 64, True), ("b", 4096, True), ("c", 4096, False)):
        update = {"micro_batch_tokens": tokens, "share_prompts": share}
        table = merged(OWN, {"steps": 2, "rollout": {"samples": 3}, "update": update})
        metrics = steps_of(finish(trainer(tmp_path, table, run=name)))
        found.append((metrics, state_of(tmp_path / name)))
    for metrics, tensors in found[1:]:
        for name in ("critic/value", "critic/return", "critic/kl", "loss/value"):
            given = [[one[name] for one in many] for many in (metrics, found[0][0])]
            assert given[0] == pytest.approx(given[1], rel=1e-3, abs=1e-5), name
        for key, value in tensors.items():
            if "/first/" in key:
                torch.testing.assert_close(value, found[0][1][key], rtol=1e-2, atol=1e-4, msg=key)


def test_half_precision_has_master_weights_and_resumes(tmp_path):
    half = {"steps": 3, "model": {"dtype": "bfloat16"}}
    finish(trainer(tmp_path, OWN, half, run="whole"))
    stop_after(trainer(tmp_path, OWN, half, {"checkpoint": {"every": 1}}), 1, saved=True)
    finish(trainer(tmp_path, OWN, half, {"checkpoint": {"every": 1}}))
    whole, resumed = state_of(tmp_path / "whole"), state_of(tmp_path / "run")
    assert all(one.dtype == torch.float32 for one in whole.values())
    assert all(torch.equal(one, resumed[key]) for key, one in whole.items())


def test_it_is_written_as_a_reward_model_and_another_run_begins_with_it(tmp_path):
    finish(trainer(tmp_path, OWN, {"steps": 2}, run="first"))
    place = checkpoint(tmp_path / "first") / "critic"
    config = json.loads((place / "config.json").read_text())
    assert config["architectures"] == ["LlamaForSequenceClassification"]
    loaded = load_model(place)
    tensors = state_of(tmp_path / "first")
    assert torch.equal(loaded.score_head.weight.detach(), tensors["critic/master/score.weight"])
    # The policy of the run stays a plain causal model.
    assert load_model(checkpoint(tmp_path / "first")).score_head is None
    run = trainer(tmp_path, OWN, {"steps": 1}, critic_table(path=str(place)), run="second")
    assert torch.equal(run.algorithm.critic.head.weight, loaded.score_head.weight)
    (first,) = steps_of(finish(run))
    assert first["critic/value"] != 0


def test_a_runs_folder_stands_for_its_newest_checkpoint_and_other_models_do_too(tmp_path):
    finish(trainer(tmp_path, OWN, {"steps": 1}, run="first"))
    for name, path in (("a", str(tmp_path / "first")), ("b", "tiny")):
        run = trainer(tmp_path, OWN, critic_table(path=path), run=name)
        assert not run.algorithm.critic.head.weight.any()
        run.store.close()


def test_the_forecast_counts_it_and_says_what_frees_it(tmp_path):
    run, shared = trainer(tmp_path, OWN), trainer(tmp_path, PPO, run="shared")
    size = run.algorithm.critic.parameters
    assert size > shared.trainable.parameters  # the body, and a head
    assert run.forecast.memory["critic"] == size * (4 + 4 + 8)
    assert "critic" not in shared.forecast.memory
    saved = {saving.change: saving.bytes for saving in run.forecast.savings}
    assert saved["policy.critic=shared"] == size * 16
    run.store.close()
    shared.store.close()


def test_two_processes_come_out_as_one(tmp_path):
    one_and_two(tmp_path, merged(OWN, {"steps": 2}))
    names = ("loss/value", "critic/value", "critic/gradient_norm")
    assert_same_curves(tmp_path, *names, rel=1e-3, abs=1e-5)


def test_a_critic_that_breaks_is_named_and_replayed(tmp_path):
    run = trainer(tmp_path, OWN, {"steps": 3})

    def break_the_head():
        for event in run.run():
            if isinstance(event, StepDone):
                run.algorithm.critic.head.weight.data.fill_(torch.nan)

    with pytest.raises(
        GuardTripped, match="value guard: the critic's value is nan at step 2"
    ) as hit:
        break_the_head()
    run.store.close()
    (place,) = (tmp_path / "run" / "crash").iterdir()
    assert replay(place) in str(hit.value)


def test_gradients_of_the_critic_that_are_not_finite_stop_both(tmp_path):
    run = trainer(tmp_path, OWN, ONE_UPDATE)
    before = {name: p.clone() for name, p in run.trainable.module.named_parameters()}
    critic = run.algorithm.critic
    critic.head.weight.register_hook(lambda gradient: gradient * float("inf"))
    with pytest.raises(
        GuardTripped, match=r"gradient guard: critic/score.weight is (nan|-?inf)"
    ) as hit:
        finish(run)
    assert "Lower policy.critic.learning_rate" in str(hit.value)
    assert "optimiser.learning_rate" not in str(hit.value)
    for name, p in run.trainable.module.named_parameters():
        assert torch.equal(p, before[name])
    assert not critic.head.weight.detach().any()


def test_values_that_break_within_a_step_are_the_critics_and_no_logprobs(tmp_path):
    run = trainer(tmp_path, OWN, ONE_UPDATE)
    batch = run.algorithm.batch(0)
    run.algorithm.critic.head.weight.data.fill_(torch.nan)
    with pytest.raises(GuardTripped, match="value guard: the critic's value is nan") as hit:
        run.stage.updater.run(0, batch, 1e-3)
    assert "policy.critic.learning_rate" in str(hit.value)
    run.store.close()


def test_an_update_of_demonstrations_alone_leaves_the_critic_as_it_is(tmp_path):
    """AdamW moves by its momentum even where there is no gradient."""
    run = trainer(tmp_path, OWN, ONE_UPDATE)
    critic, batch = run.algorithm.critic, run.algorithm.batch(0)
    run.stage.updater.run(0, batch, 1e-3)
    before = [one.clone() for one in critic.optimiser.masters]
    alone = dataclasses.replace(run.algorithm.updates(batch)[0], members=[])
    assert not list(run.algorithm.micro_batches(alone, 4096))
    run.algorithm.gradients(alone, [])
    assert all(map(torch.equal, before, critic.optimiser.masters))
    run.store.close()


def test_a_device_that_was_full_once_changes_no_gradient(tmp_path, monkeypatch):
    """Passes that are done again forget what the critic had gathered before."""
    found = []
    for fails in (False, True):
        run = trainer(tmp_path, OWN, ONE_UPDATE, run=f"fails-{fails}")
        critic, left = run.algorithm.critic, [fails]
        with torch.no_grad():
            critic.head.weight.fill_(0.01)
        collect = critic.optimiser.collect

        def once(collect=collect, left=left):
            collect()
            if left and left.pop():
                raise torch.OutOfMemoryError("no room")

        monkeypatch.setattr(critic.optimiser, "collect", once)
        monkeypatch.setattr(run.stage.setup.batches, "release", lambda: None)
        run.stage.updater.run(0, run.algorithm.batch(0), 1e-3)
        found.append([one.clone() for one in critic.optimiser.masters])
        run.store.close()
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


def test_under_adapters_the_critic_is_whole_and_resumes(tmp_path):
    pytest.importorskip("peft", reason="adapters need peft")
    lora = {"model": {"lora": {"rank": 2, "alpha": 4.0}}, "steps": 2}
    run = trainer(tmp_path, OWN, lora, {"checkpoint": {"every": 1}})
    assert not any("lora" in name for name in run.algorithm.critic.optimiser.names)
    stop_after(run, 1, saved=True)
    finish(trainer(tmp_path, OWN, lora, {"checkpoint": {"every": 1}}))
    finish(trainer(tmp_path, OWN, lora, run="whole"))
    whole, resumed = state_of(tmp_path / "whole"), state_of(tmp_path / "run")
    assert all(torch.equal(one, resumed[key]) for key, one in whole.items())


def test_under_adapters_it_begins_with_what_they_have_learnt(tmp_path):
    """As after an earlier stage: the base model and the adapters' product."""
    pytest.importorskip("peft", reason="adapters need peft")
    run = trainer(tmp_path, OWN, {"model": {"lora": {"rank": 2, "alpha": 4.0}}})
    base = {name: one.clone() for name, one in run.trainable.weights().items()}
    with torch.no_grad():
        for name, one in run.trainable.module.named_parameters():
            if "lora_" in name:
                one.fill_(0.1)
    critic = CriticModel.open(run.stage.setup, run.config.policy.critic)
    wanted, found = run.trainable.weights(), critic.loaded.module.weights_to_save()
    assert wanted.keys() == found.keys()
    assert any(not torch.equal(one, base[name]) for name, one in wanted.items())
    assert all(torch.equal(one, found[name]) for name, one in wanted.items())
    ids = ModelInput(torch.tensor([[1, 2, 3]]), torch.arange(3)[None])
    states = [module(ids).detach() for module in (run.trainable.module, critic.loaded.module)]
    torch.testing.assert_close(*states, rtol=1e-4, atol=1e-5)
    run.store.close()


def test_it_takes_over_a_reward_model_by_its_run(tmp_path):
    finish(run_of(tmp_path, {"steps": 1, "evaluation": {"prompts": 0}}, run="rewards"))
    head = load_model(checkpoint(tmp_path / "rewards")).score_head
    run = trainer(tmp_path, OWN, critic_table(path=str(tmp_path / "rewards")), run="policy")
    assert torch.equal(run.algorithm.critic.head.weight.detach(), head.weight.detach())
    assert head.weight.any()
    run.store.close()
