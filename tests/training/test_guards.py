import json
import math

import pytest
import torch
from method_cases import SHOWN
from safetensors.torch import load_file
from training_cases import HERE, finish, reward, rollout, stop_after, trainer

from burnish.config.schema import Optimiser
from burnish.errors import GuardTripped, UserError
from burnish.store import RunStatus, RunStore
from burnish.training import replay
from burnish.training.events import Finished, StepDone
from burnish.training.guards import Watch, check_tensors
from burnish.training.optimiser import MasterAdamW

NO_EVALUATION = {"evaluation": {"prompts": 0}}


def piece(function):
    return {"kind": "function", "path": f"{HERE / 'policy_functions.py'}:{function}"}


def weights_of(trained):
    return [p.detach().clone() for p in trained.optimiser.parameters]


def same_weights(trained, before):
    """Whether no weight has moved; NaNs that were put in on purpose count as themselves."""
    pairs = zip(trained.optimiser.parameters, before, strict=True)
    return all(torch.equal(p.nan_to_num(nan=7e7), old.nan_to_num(nan=7e7)) for p, old in pairs)


def trip_at(trained, step, prepare=lambda trained: None):
    """Run until the guard trips, doing `prepare` before the step; the error and the crash folder."""
    events = trained.run()
    while trained.state.step < step:
        next(events)
    prepare(trained)
    before = weights_of(trained)
    with pytest.raises(GuardTripped) as caught:
        list(events)
    assert trained.state.step == step, "the guard tripped at another step"
    assert same_weights(trained, before), "the step moved the weights"
    trained.store.close()
    return caught.value, trained.folder / "crash" / f"step-{step + 1:06d}"


def assert_evidence(error, place, stage):
    """The line, the report, the event and the run's status agree."""
    line = str(error).split(" Saved; ")[0]
    report = json.loads((place / "report.json").read_text())
    assert report["message"] == line
    assert report["stage"] == error.stage == stage
    assert report["step"] == error.step
    assert str(error) == f"{line} Saved; see it again: burnish replay {place}"
    assert "\n" not in str(error)
    with RunStore.open(place.parent.parent, read_only=True) as store:
        assert [e.message for e in store.events("guard")] == [line]
        assert store.status() is RunStatus.STOPPED
        assert store.summary().result["reason"] == line
    return line, report


@pytest.mark.parametrize(
    ("function", "expected"),
    [
        (
            "nan",
            "reward guard at step 1: reward 'nan' returned nan for sample train-1-1-1; expected a finite "
            "number, a bool, None or a Reward. Return None if it cannot judge.",
        ),
        (
            "words",
            "reward guard at step 1: reward 'words' returned str 'good' for sample train-1-1-1; expected "
            "a finite number, a bool, None or a Reward. Return None if it cannot judge.",
        ),
        (
            "too_few",
            "reward guard at step 1: reward 'too_few' returned list of 3 for the group of sample "
            "train-1-1-1; expected a list of 4 values, one for each response.",
        ),
        (
            "one_for_all",
            "reward guard at step 1: reward 'one_for_all' returned float for the group of sample "
            "train-1-1-1; expected a list of 4 values, one for each response.",
        ),
    ],
)
def test_a_reward_that_breaks_its_contract(tmp_path, function, expected):
    trained = trainer(tmp_path, NO_EVALUATION, {"rewards": [reward(function)]})
    error, place = trip_at(trained, 0)
    line, _ = assert_evidence(error, place, "reward")
    assert line == expected
    kept = (place / "samples.jsonl").read_text().splitlines()
    assert len(kept) == 8
    assert replay(place) == line


def test_an_infinite_reward_names_the_sample_that_got_it(tmp_path):
    trained = trainer(tmp_path, NO_EVALUATION, {"rewards": [reward("infinite")]})
    error, place = trip_at(trained, 0)
    line, _ = assert_evidence(error, place, "reward")
    name = line.split("for sample ")[1].split(";")[0]
    assert error.names == (name,)
    texts = {
        item["trajectory"]["id"]: item["trajectory"]["text"]
        for item in map(json.loads, (place / "samples.jsonl").read_text().splitlines())
    }
    assert any(c in "abcdefghijklm" for c in texts[error.samples[0]])
    assert "returned inf" in line


def test_a_reward_that_never_judges_stops_the_run_with_a_reason(tmp_path):
    trained = trainer(tmp_path, NO_EVALUATION, {"rewards": [reward("none")]})
    before = weights_of(trained)
    events = finish(trained)
    last = events[-1]
    assert isinstance(last, Finished)
    assert last.status == "stopped"
    assert last.reason == (
        "100% of the rewards of step 1 have no value (most: abstain, part 'none' has no value: the "
        "function returned None); guards.failed_share allows 50%. The step is not counted: the same "
        f"command takes it again. See why: burnish show {trained.folder} --failed 3"
    )
    assert same_weights(trained, before)
    with RunStore.open(trained.folder, read_only=True) as store:
        assert store.metrics() == {}
        assert store.steps() == []
        (tried,) = store.evaluations("unscored")
        assert tried.summary["statuses"]["status/abstain"] == 1.0


def test_a_plugin_advantage_that_is_nan(tmp_path):
    trained = trainer(tmp_path, NO_EVALUATION, {"policy": {"advantage": piece("nan_advantage")}})
    error, place = trip_at(trained, 0)
    line, report = assert_evidence(error, place, "advantage")
    path = piece("nan_advantage")["path"]
    assert line == (
        f"advantage guard: advantage function '{path}' is nan at step 1 (samples train-1-1-3). Check the "
        "recipe's advantage component and the rewards of these samples."
    )
    assert report["samples"] == ["0.0.2"]
    assert replay(place) == line


def put_nan(trained):
    with torch.no_grad():
        trained.optimiser.parameters[0][:] = math.nan


def test_a_weight_that_is_nan_is_found_in_the_samplers_logprobs(tmp_path):
    error, place = trip_at(trainer(tmp_path, NO_EVALUATION), 2, put_nan)
    line, report = assert_evidence(error, place, "logprob")
    assert line == (
        "logprob guard: sampled logprobs is nan at step 3 (samples train-3-1-1). The model's output is "
        "not finite: lower optimiser.learning_rate or use model.dtype=float32."
    )
    assert report["tensor"] == "sampled logprobs"
    assert replay(place) == line


def test_a_weight_that_turns_nan_after_sampling_is_found_in_the_trainers(tmp_path):
    trained = trainer(tmp_path, NO_EVALUATION)
    update = trained.stage.updater.run
    before = []

    def broken(*arguments, **more):
        put_nan(trained)
        before.extend(weights_of(trained))
        return update(*arguments, **more)

    events = trained.run()
    while trained.state.step < 1:
        next(events)
    trained.stage.updater.run = broken
    with pytest.raises(GuardTripped) as caught:
        list(events)
    trained.store.close()
    assert same_weights(trained, before)
    place = trained.folder / "crash" / "step-000002"
    line, report = assert_evidence(caught.value, place, "logprob")
    assert report["tensor"] == "logprobs"
    with RunStore.open(trained.folder, read_only=True) as store:
        moving = [s.trajectory.id for s in store.samples(step=1) if s.advantage]
    assert sorted(report["samples"]) == moving
    assert line.startswith("logprob guard: logprobs is nan at step 2 (samples ")
    assert replay(place) == line


def test_a_model_that_broke_is_not_evaluated(tmp_path):
    trained = trainer(tmp_path, {"evaluation": {"prompts": 2, "every": 1}})
    events = trained.run()
    while trained.state.step < 1:
        next(events)
    put_nan(trained)
    with pytest.raises(GuardTripped) as caught:
        next(events)
    trained.store.close()
    assert caught.value.stage == "logprob"
    assert caught.value.samples == ("eval.1.0",)
    with RunStore.open(trained.folder, read_only=True) as store:
        assert [e.step for e in store.evaluations()] == [0]
        assert store.status() is RunStatus.STOPPED


def test_an_infinite_term_of_the_loss(tmp_path):
    trained = trainer(tmp_path, NO_EVALUATION, {"policy": {"auxiliary": [piece("infinite_term")]}})
    error, place = trip_at(trained, 0)
    line, report = assert_evidence(error, place, "loss")
    assert line == (
        "loss guard: infinite_term is inf at step 1 (samples train-1-1-1, train-1-1-2, train-1-1-3 and 5 more). "
        "Check the recipe's trust region and auxiliary terms, or train.terms."
    )
    assert len(report["samples"]) == 8
    assert replay(place) == line


def test_a_gradient_that_is_infinite_is_named_and_honestly_not_seen_again(tmp_path):
    def hook(trained):
        name = trained.optimiser.names.index("model.layers.1.mlp.up_proj.weight")
        trained.optimiser.parameters[name].register_hook(lambda grad: grad * math.inf)

    error, place = trip_at(trainer(tmp_path, NO_EVALUATION), 1, hook)
    line, report = assert_evidence(error, place, "gradient")
    assert report["tensor"] == "model.layers.1.mlp.up_proj.weight"
    assert "model.layers.1.mlp.up_proj.weight is " in line
    assert "at step 2" in line
    assert line.endswith("Lower optimiser.learning_rate or set optimiser.clip_norm.")
    assert replay(place) == "the gradient guard of step 2 did not trip again"


def test_the_replay_goes_on_from_the_mini_batch_that_tripped(tmp_path):
    """The first of two mini-batches moves the weights; the second one overflows."""
    more = {
        "policy": {
            "auxiliary": [piece("overflow_away_from_start"), {"kind": "kl", "coefficient": 0.1}]
        },
        "update": {"minibatches": 2},
    }
    trained = trainer(tmp_path, NO_EVALUATION, more)
    before = weights_of(trained)
    with pytest.raises(GuardTripped) as caught:
        list(trained.run())
    trained.store.close()
    assert not same_weights(trained, before)
    assert all(bool(torch.isfinite(p).all()) for p in trained.optimiser.parameters)
    place = trained.folder / "crash" / "step-000001"
    line, report = assert_evidence(caught.value, place, "loss")
    assert report["update"] == 1
    assert len(report["samples"]) == 4
    assert replay(place) == line


def test_a_run_that_learns_nothing_says_so_and_stops(tmp_path):
    more = {"rewards": [reward("constant")], "guards": {"useless_steps": 3}, "steps": 9}
    trained = trainer(tmp_path, NO_EVALUATION, more)
    before = weights_of(trained)
    events = finish(trained)
    assert [e.useful_groups for e in events if isinstance(e, StepDone)] == [0, 0, 0]
    assert events[-1].status == "stopped"
    assert events[-1].reason == (
        "no group had both better and worse answers for 3 steps, so nothing was learned. Make the "
        "task easier or harder, raise rollout.samples or rollout.temperature, or check the reward: "
        f"burnish show {trained.folder}"
    )
    assert same_weights(trained, before)
    with RunStore.open(trained.folder, read_only=True) as store:
        assert store.status() is RunStatus.STOPPED
        assert [p.value for p in store.metrics()["optimiser/updates"]] == [0.0, 0.0, 0.0]


def test_a_kl_term_alone_moves_nothing_where_no_group_has_signal(tmp_path):
    """Away from the reference the KL has a gradient; a step without signal must not follow it."""
    more = {
        "rewards": [reward("constant")],
        "policy": {"auxiliary": [{"kind": "kl", "coefficient": 1.0}]},
        "guards": {"useless_steps": 2},
    }
    trained = trainer(tmp_path, NO_EVALUATION, more)
    with torch.no_grad():
        for p in trained.optimiser.parameters:
            p.mul_(1.1)
    before = weights_of(trained)
    finish(trained)
    assert same_weights(trained, before)


def test_the_useless_streak_survives_a_restart(tmp_path):
    more = {
        "rewards": [reward("constant")],
        "guards": {"useless_steps": 4},
        "checkpoint": {"every": 1},
    }
    stop_after(trainer(tmp_path, NO_EVALUATION, more), 3, saved=True)
    events = finish(trainer(tmp_path, NO_EVALUATION, more))
    assert len([e for e in events if isinstance(e, StepDone)]) == 1
    assert events[-1].status == "stopped"


JUDGE = {"rewards": [reward("out_half_the_time")], "rollout": {"prompts": 4}, "steps": 6}


def test_an_outage_of_the_judge_leaves_its_groups_alone_and_training_goes_on(tmp_path):
    trained = trainer(tmp_path, NO_EVALUATION, JUDGE, {"guards": {"failed_share": 0.8}})
    events = finish(trained)
    assert events[-1].status == "finished"
    with RunStore.open(trained.folder, read_only=True) as store:
        shares = {p.step: p.value for p in store.metrics()["status/reward_error"]}
        samples = list(store.samples(split="train"))
        updates = [p.value for p in store.metrics()["optimiser/updates"]]
        means = {p.step: p.value for p in store.metrics()["reward/total"]}
    assert updates == [1.0] * 6
    for step in range(6):
        mine = [s for s in samples if s.step == step]
        out = [s for s in mine if s.reward.value is None]
        assert shares[step] == len(out) / len(mine)
        assert all(s.advantage == 0.0 and not s.keep for s in out)
        assert all("judge unreachable" in s.reward.reason for s in out)
        fine = [s.reward.value for s in mine if s.reward.value is not None]
        assert means[step] == pytest.approx(sum(fine) / len(fine))
    assert all(0 < shares[step] < 1 for step in (2, 3, 4))
    assert all(shares[step] == 0 for step in (0, 1, 5))


def test_an_outage_counts_for_nothing_in_the_update(tmp_path):
    """The step with half of its groups out moves the weights as the other half alone would."""
    trained = trainer(tmp_path, NO_EVALUATION, JUDGE, {"guards": {"failed_share": 0.8}})
    events = trained.run()
    while trained.state.step < 2:
        next(events)
    start = [m.clone() for m in trained.optimiser.masters]
    state = {k: v.clone() for k, v in trained.optimiser.state().items()}
    next(events)
    ended = weights_of(trained)
    trained.store.close()
    with RunStore.open(trained.folder, read_only=True) as store:
        samples = [s for s in store.samples(step=2, split="train") if s.reward.value is not None]
    assert 0 < len(samples) < 16

    from burnish.training.algorithms.policy_update import PolicyBatch
    from burnish.training.collect import Scored, reward_batch
    from burnish.training.guards import weigh

    trained.optimiser.load(state)
    assert all(torch.equal(m, s) for m, s in zip(trained.optimiser.masters, start, strict=True))
    scored = [Scored(s.task, s.trajectory, s.reward) for s in samples]
    trajectories = [s.trajectory for s in scored]
    values = weigh(trained.config.policy, reward_batch(scored), [t.id for t in trajectories], 2)
    batch = PolicyBatch(2, trajectories, values)
    trained.stage.updater.run(2, batch, rate=1e-3)
    assert same_weights(trained, ended)


def test_too_large_an_outage_stops_before_the_weights_move(tmp_path):
    trained = trainer(tmp_path, NO_EVALUATION, JUDGE, {"guards": {"failed_share": 0.2}})
    events = finish(trained)
    last = events[-1]
    assert last.status == "stopped"
    assert last.reason.startswith(("50% of the rewards of step", "75% of", "25% of"))
    assert "(most: reward_error, part 'out_half_the_time' has no value: Conn" in last.reason
    assert "); guards.failed_share allows 20%. The step is not counted: the same" in last.reason
    with RunStore.open(trained.folder, read_only=True) as store:
        assert store.metrics()["optimiser/updates"] == [(0, 1.0), (1, 1.0)]
        assert (store.end().status, store.end().step) == ("stopped", 2)
    assert (trained.folder / "checkpoints" / "step-000002").is_dir()


def test_a_group_past_its_deadline_does_not_take_the_step_with_it(tmp_path):
    more = {
        "rewards": [reward("slow_first_group", deadline_s=20.0)],
        "rollout": {"score_timeout_s": 1.5},
        "steps": 1,
    }
    trained = trainer(tmp_path, NO_EVALUATION, more)
    events = finish(trained)
    done = next(e for e in events if isinstance(e, StepDone))
    assert (done.useful_groups, done.groups) == (1, 2)
    assert done.metrics["status/timeout"] == 0.5
    assert done.metrics["optimiser/updates"] == 1.0
    with RunStore.open(trained.folder, read_only=True) as store:
        late = [s.reward for s in store.samples(status="timeout")]
    assert [part.name for part in late[0].parts] == ["slow_first_group"]
    assert late[0].parts[0].status.value == "timeout"


def no_gradient():
    raise AssertionError("the gradient was asked for")


def test_a_watch_names_the_first_bad_number_and_its_samples():
    """A bad log-prob spoils the loss of its pass and the gradient of all: it is the one to name."""
    bad = torch.zeros(2, 3)
    bad[1, 0] = math.nan
    watch = Watch(4)
    watch.rows("logprob", "logprobs", torch.zeros(2, 3), ["a", "b"])
    watch.rows("logprob", "logprobs", bad, ["c", "d"])
    watch.tensors("loss", [("loss", torch.tensor(math.nan))], ["c", "d"])
    with pytest.raises(GuardTripped) as caught:
        watch.settle(torch.tensor(math.nan), no_gradient, ["a"])
    assert (caught.value.stage, caught.value.samples, caught.value.step) == ("logprob", ("d",), 4)


def test_a_norm_beyond_its_range_trips_though_every_gradient_is_finite():
    weight = torch.nn.Parameter(torch.zeros(3))
    optimiser = MasterAdamW([("w", weight)], Optimiser())
    weight.grad = torch.full((3,), 1e20)  # squares of 1e40, beyond float32

    def gradients():
        check_tensors("gradient", [("w", optimiser.sums[0])], ["a"], 4)

    gradients()
    watch = Watch(4)
    watch.rows("logprob", "logprobs", torch.zeros(2, 3), ["a", "b"])
    with pytest.raises(GuardTripped) as caught:
        watch.settle(optimiser.gradient_norm(), gradients, ["a", "b"])
    assert (caught.value.stage, caught.value.tensor) == ("gradient", "gradient norm")
    assert caught.value.samples == ("a", "b")
    assert "gradient norm is inf at step 5" in str(caught.value)


def test_a_span_may_carry_no_logprobs():
    from burnish.training.guards import check_sampled

    check_sampled([rollout("a", "g", [5], [6, 7])], 0)
    with pytest.raises(GuardTripped):
        check_sampled([rollout("a", "g", [5], [6, 7], math.nan)], 0)


def test_which_sample_is_named_is_not_a_matter_of_timing(tmp_path):
    """Every group breaks the contract, the first one last; the line names the first all the same."""
    trained = trainer(tmp_path, NO_EVALUATION, {"rewards": [reward("nan_slowly_at_first")]})
    error, place = trip_at(trained, 0)
    line, _ = assert_evidence(error, place, "reward")
    assert "for sample train-1-1-1;" in line


def test_a_bad_imitation_names_its_demonstrations_and_is_seen_again(tmp_path):
    # Finite, and more than float32 holds.
    huge = {"kind": "sft", "coefficient": 1e39, "batch": 2}
    table = {"task": SHOWN, "policy": {"auxiliary": [huge]}, **NO_EVALUATION}
    error, place = trip_at(trainer(tmp_path, table), 0)
    line, _ = assert_evidence(error, place, "loss")
    assert "loss guard: sft is inf" in str(error)
    assert all(".expert" in sample for sample in error.samples)
    assert replay(place) == line


def saved_numbers(folder):
    """Every floating-point tensor of every safetensors file below a folder."""
    for path in folder.rglob("*.safetensors"):
        for name, tensor in load_file(path).items():
            yield path, name, tensor


def assert_only_finite(folder):
    for path, name, tensor in saved_numbers(folder):
        assert torch.isfinite(tensor).all(), f"{name} of {path}"


@pytest.mark.parametrize("updates", [{}, {"update": {"minibatches": 2}}], ids=["one", "two"])
def test_an_update_that_breaks_the_weights_names_the_tensor_and_saves_nothing(
    tmp_path, monkeypatch, updates
):
    trained = trainer(tmp_path, NO_EVALUATION, {"checkpoint": {"every": 1}}, updates)
    events = trained.run()
    while trained.state.step < 1:
        next(events)
    next(events)  # the checkpoint of step 1
    monkeypatch.setattr("burnish.training.trainer.learning_rate", lambda *_: math.inf)
    with pytest.raises(GuardTripped) as caught:
        list(events)
    trained.store.close()
    assert caught.value.stage == "weight"
    assert caught.value.tensor in trained.optimiser.names
    line = str(caught.value)
    assert line.startswith(f"weight guard: {caught.value.tensor} is ")
    assert "at step 2 (samples train-2-" in line
    assert "Lower optimiser.learning_rate or optimiser.weight_decay" in line
    assert [p.name for p in (trained.folder / "checkpoints").iterdir()] == ["step-000001"]
    assert_only_finite(trained.folder)
    with RunStore.open(trained.folder, read_only=True) as store:
        assert store.status() is RunStatus.STOPPED
        assert [e.message for e in store.events("guard")] == [line]


@pytest.mark.parametrize("what", ["masters", "second"])
def test_what_is_not_finite_is_not_saved(tmp_path, what):
    trained = trainer(tmp_path, NO_EVALUATION, {"steps": 1})
    events = trained.run()
    while trained.state.step < 1:
        next(events)
    with torch.no_grad():
        getattr(trained.optimiser, what)[3].view(-1)[0] = math.inf
    with pytest.raises(GuardTripped) as caught:
        list(events)
    trained.store.close()
    name = f"{'master' if what == 'masters' else what}/{trained.optimiser.names[3]}"
    assert str(caught.value).startswith(f"weight guard: {name} is inf at step 1. The update broke")
    assert list((trained.folder / "checkpoints").iterdir()) == []


def test_a_warm_start_that_breaks_the_weights_is_not_kept(tmp_path, monkeypatch):
    table = {"task": SHOWN, "stages": [{"steps": 3}], **NO_EVALUATION}
    monkeypatch.setattr("burnish.training.trainer.learning_rate", lambda *_: math.inf)
    trained = trainer(tmp_path, table)
    with pytest.raises(GuardTripped) as caught:
        finish(trained)
    assert caught.value.stage == "weight"
    assert not list((trained.folder / "stages").rglob("*"))


def test_a_guard_on_a_full_disk_still_says_what_tripped(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("burnish.training.trainer.save_crash", full)
    trained = trainer(tmp_path, NO_EVALUATION, {"rewards": [reward("nan")]})
    with pytest.raises(GuardTripped) as caught:
        finish(trained)
    line = str(caught.value)
    assert line.startswith("reward guard at step 1: reward 'nan' returned nan")
    assert "It could not be recorded: cannot write " in line
    assert "No space left on device" in line


def test_a_mended_reward_does_not_trip_again(tmp_path):
    file = tmp_path / "own.py"
    file.write_text("def own(text):\n    return float('nan')\n")
    own = {"kind": "function", "path": f"{file}:own"}
    trained = trainer(tmp_path, NO_EVALUATION, {"rewards": [own]})
    _, place = trip_at(trained, 0)
    file.write_text("def own(text):\n    return float(len(text))\n")
    assert replay(place) == "the reward guard of step 1 did not trip again"


def test_replay_of_another_folder(tmp_path):
    with pytest.raises(UserError, match="is no crash folder"):
        replay(tmp_path)


def test_a_watch_names_the_part_of_the_loss():
    watch = Watch(0)
    parts = [("loss", torch.tensor(1.0)), ("kl", torch.tensor(-math.inf))]
    watch.tensors("loss", parts, ["a", "b"])
    with pytest.raises(GuardTripped, match="kl is -inf"):
        watch.settle(torch.tensor(1.0), no_gradient, ["a"])


def test_half_precision_weights_are_looked_at_as_they_are_saved(tmp_path):
    """The largest float32 numbers are infinite in bfloat16."""
    trained = trainer(tmp_path, NO_EVALUATION, {"steps": 1, "model": {"dtype": "bfloat16"}})
    events = trained.run()
    while trained.state.step < 1:
        next(events)
    with torch.no_grad():
        trained.optimiser.masters[2].view(-1)[5] = 3.4e38
        trained.optimiser.publish()
    with pytest.raises(GuardTripped) as caught:
        list(events)
    trained.store.close()
    assert "weight guard: " in str(caught.value)
    assert list((trained.folder / "checkpoints").iterdir()) == []


def test_a_tripped_run_trips_again_when_it_is_continued(tmp_path):
    more = {"policy": {"auxiliary": [piece("infinite_term")]}}
    first, _ = trip_at(trainer(tmp_path, NO_EVALUATION, more), 0)
    second, _ = trip_at(trainer(tmp_path, NO_EVALUATION, more), 0)
    assert str(first) == str(second)
