import json

import pytest
import torch
from training_cases import SMALL, assert_same, finish, merged, outcome, stop_after

from burnish.config import Config, load
from burnish.errors import GuardTripped, UserError
from burnish.lm.model_input import ModelInput
from burnish.policy import completion_logp, dpo_loss, ipo_loss
from burnish.store import RunStore
from burnish.training import build
from burnish.training.algorithms.dpo import DPOAlgorithm
from burnish.training.data import Experts
from burnish.training.events import Finished, HeldOut, StepDone

WORDS = ("red", "green", "blue")
SETTINGS = {
    "plain": {},
    "means": {"length_normalised": True, "beta": 2.0},
    "ld": {"ld_alpha": 0.3},
    "ipo": {"loss": "ipo", "beta": 0.4},
}


def write_pairs(folder, count=12):
    """Pairs whose preferred answer is the one in capitals, which is shorter or longer in turn."""
    rows = []
    for i in range(count):
        word = WORDS[i % 3]
        chosen, rejected = word.upper() * (1 + i % 2), f"{word} {word}"
        rows.append({"question": f"ball {i}?", "chosen": chosen, "rejected": rejected})
    path = folder / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    held = {"by": "share", "share": 0.3}
    fields = {"chosen": "chosen", "rejected": "rejected"}
    return {
        "kind": "file",
        "path": str(path),
        "prompt": "question",
        "fields": fields,
        "held_out": held,
    }


def run_of(folder, *tables, run="run", change=None, **train):
    small = {key: value for key, value in SMALL.items() if key != "rewards"}
    table = merged(small, {"train": {"kind": "dpo", "batch": 4, **train}}, *tables)
    task = write_pairs(folder)
    if change is not None:
        rows = [json.loads(line) for line in (folder / "pairs.jsonl").read_text().splitlines()]
        text = "".join(json.dumps(change(row)) + "\n" for row in rows)
        (folder / "pairs.jsonl").write_text(text)
    return build(load(Config, {"task": task, **table}), folder / run, root=folder)


def plain_loss(algorithm, batch):
    """The loss by the book: one answer at a time through the whole vocabulary."""
    module, settings = algorithm.setup.trainable.module, algorithm.settings

    def logp(model, one, other):
        ids = torch.tensor([one.token_ids])
        logits = model.logits(model(ModelInput(ids, torch.arange(ids.shape[1])[None])))[0]
        start = one.prompt_length
        found = logits[start - 1 : -1].log_softmax(-1).gather(1, ids[0, start:, None])[:, 0]
        shared = [min(one.trained_tokens, other.trained_tokens)]
        mean = settings.loss == "ipo" or settings.length_normalised
        mask = torch.ones(1, len(found))
        return completion_logp(
            found[None], mask, mean=mean, shared=shared, ld_alpha=settings.ld_alpha
        )

    own, other = [], []
    answers = batch.rendered.trajectories
    for place, one in enumerate(answers):
        beside = answers[place ^ 1]
        own.append(logp(module, one, beside))
        with torch.no_grad(), algorithm.setup.trainable.reference() as reference:
            other.append(logp(reference, one, beside))
    own, other = torch.cat(own), torch.cat(other)
    given = (own[::2], own[1::2], other[::2], other[1::2])
    if settings.loss == "ipo":
        return ipo_loss(*given, settings.beta)
    return dpo_loss(*given, settings.beta)


CUTS = [("plain", tokens, share) for tokens in (1, 100, 100_000) for share in (True, False)]


@pytest.mark.parametrize(
    ("name", "tokens", "share"), CUTS + [(name, 100, True) for name in SETTINGS if name != "plain"]
)
def test_loss_and_gradient_are_those_of_the_whole_batch(tmp_path, name, tokens, share):
    tables = {"model": {"dtype": "float64"}, "update": {"share_prompts": share}}
    trainer = run_of(tmp_path, tables, **SETTINGS[name])
    algorithm: DPOAlgorithm = trainer.algorithm
    module = trainer.trainable.module
    with torch.no_grad():  # away from the reference, where every margin is 0
        for p in module.parameters():
            p.add_(0.1 * p * torch.linspace(-1, 1, p.shape[-1], dtype=p.dtype))
    batch = algorithm.batch(0)
    wanted = plain_loss(algorithm, batch)
    gradients = torch.autograd.grad(wanted, list(module.parameters()))
    losses = [algorithm.loss(module, micro) for micro in algorithm.micro_batches(batch, tokens)]
    assert len(losses) == {1: 4, 100: len(losses), 100_000: 1}[tokens]
    total = sum(loss.total for loss in losses)
    torch.testing.assert_close(total, wanted)
    found = torch.autograd.grad(total, list(module.parameters()))
    torch.testing.assert_close(found, gradients, rtol=1e-6, atol=1e-9)
    trainer.store.close()


def test_held_out_accuracy_rises_and_margins_are_stored(tmp_path):
    tables = {"steps": 12, "optimiser": {"learning_rate": 3e-3}}
    events = finish(run_of(tmp_path, tables, batch=8))
    scores = [event.score.value for event in events if isinstance(event, HeldOut)]
    assert {e.measure for e in events if isinstance(e, HeldOut)} == {"accuracy"}
    assert scores[0] == 0.5  # the policy is its own reference
    assert scores[-1] == 1.0
    steps = [event.metrics for event in events if isinstance(event, StepDone)]
    assert steps[0]["rewards/margins"] == 0.0
    assert steps[0]["loss/total"] == pytest.approx(0.6931472, abs=1e-6)
    assert steps[-1]["rewards/accuracies"] == 1.0
    assert steps[-1]["rewards/margins"] > 0.5
    with RunStore.open(tmp_path / "run", read_only=True) as store:
        last = store.rollouts(11)
    assert [sample.trajectory.text.isupper() for sample in last] == [True, False] * 8
    values = [sample.reward.value for sample in last]
    margin = (sum(values[::2]) - sum(values[1::2])) / 8
    assert margin == pytest.approx(steps[-1]["rewards/margins"])


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run without a stop."""
    folder = tmp_path_factory.mktemp("whole")
    finish(run_of(folder, {"evaluation": {"every": 2}}))
    return outcome(folder / "run")


@pytest.mark.parametrize(("every", "stop"), [(1, 3), (2, 3), (0, 2)])
def test_stopped_and_continued_equals_uninterrupted(tmp_path, whole, every, stop):
    more = {"checkpoint": {"every": every, "keep": 1}, "evaluation": {"every": 2}}
    stop_after(run_of(tmp_path, more), stop, saved=every == 1)
    finish(run_of(tmp_path, more))
    assert_same(outcome(tmp_path / "run"), whole)


def test_as_a_stage_the_reference_is_what_the_stage_began_with(tmp_path):
    stage = {"name": "likes", "steps": 2, "train": {"kind": "dpo", "batch": 4}}
    table = {"stages": [stage], "steps": 2, "experts": {"field": "chosen"}}
    trainer = run_of(tmp_path, table)
    events = finish(trainer)
    first = [event for event in events if isinstance(event, StepDone)]
    assert [event.stage for event in first] == ["likes", "likes", "", ""]
    # Both trainings begin at their own reference: a margin of 0, whatever came before.
    assert [event.metrics["rewards/margins"] == 0.0 for event in first] == [True, False] * 2
    assert isinstance(events[-1], Finished)


BAD = {
    "equal": ({"chosen": "same", "rejected": "same"}, "two equal answers"),
    "empty": ({"rejected": "  "}, "an empty 'rejected'"),
    "messages": (
        {"rejected": [{"role": "assistant", "content": "no"}]},
        "a 'rejected' that is not the assistant's words as text",
    ),
    "long": ({"chosen": "long " * 400}, "more than 1024 tokens"),
}


def one_changed(change, ball):
    question = f"ball {ball}?"
    return lambda row: row | change if row["question"] == question else row


@pytest.mark.parametrize("side", ["train", "held_out"])
@pytest.mark.parametrize("name", BAD)
def test_bad_pairs_are_refused_before_step_one_or_dropped(tmp_path, name, side, caplog):
    change, why = BAD[name]
    whole = run_of(tmp_path, run="whole")
    whole.store.close()
    sizes = {"train": whole.algorithm.pairs.size, "held_out": len(whole.algorithm.held_out)}
    first = {"train": whole.algorithm.pairs.first(1), "held_out": whole.algorithm.held_out}[side][0]
    ball = first.task.prompt.removeprefix("ball ").removesuffix("?")
    change = one_changed(change, ball)
    with pytest.raises(UserError) as refused:
        next(
            event for event in run_of(tmp_path, change=change).run() if isinstance(event, StepDone)
        )
    line = f"1 of {sizes[side]} pairs cannot be used: 1 with {why} (first: {first.task.id})"
    assert str(refused.value).endswith(f"{line}. Mend the data, or set train.bad_pairs = 'drop'.")
    caplog.clear()
    run = run_of(tmp_path, {"steps": 1}, run="again", change=change, bad_pairs="drop")
    assert isinstance(finish(run)[-1], Finished)
    assert run.algorithm.pairs.size == sizes["train"] - (side == "train")
    assert len(run.algorithm.held_out) == sizes["held_out"] - (side == "held_out")
    assert [
        record.getMessage().endswith(f"{line}; they are left out.") for record in caplog.records
    ] == [True]


def test_max_tokens_leaves_long_pairs_out(tmp_path):
    with pytest.raises(UserError, match=r"8 of 8 pairs cannot be used: 8 with more than 5 tokens"):
        run_of(tmp_path, max_tokens=5)


def test_with_rewards_held_out_tasks_need_no_pairs(tmp_path):
    def only_training(row):
        return row | ({} if row["question"] in known else {"chosen": "", "rejected": ""})

    pairs = run_of(tmp_path, run="whole").algorithm.pairs
    known = {pair.task.prompt for pair in pairs.first(pairs.size)}
    rewards = {"rewards": [{"kind": "length", "max": 3}]}
    assert run_of(tmp_path, rewards, change=only_training).algorithm.pairs.size == pairs.size
    with pytest.raises(UserError, match="3 of 3 pairs cannot be used"):
        run_of(tmp_path, run="other", change=only_training)


def test_answers_of_one_prompt_are_computed_once_and_stored_pair_by_pair(tmp_path):
    def same(row):
        return row | {"question": "ball?", "rejected": "none"}

    task = {"held_out": {"by": "share", "share": 0.0}}
    table = merged({"task": write_pairs(tmp_path) | task}, {"steps": 1})
    trainer = run_of(tmp_path, table, change=same)
    answers = trainer.algorithm.batch(0).rendered
    assert len(answers.pairs) == 4
    assert len(answers.trajectories) < 8
    assert len(set(answers.rejected)) == 1
    finish(trainer)
    with RunStore.open(tmp_path / "run", read_only=True) as store:
        texts = [sample.trajectory.text for sample in store.rollouts(0)]
    assert texts == [text for pair in answers.pairs for text in (pair.chosen, pair.rejected)]


def test_pairs_are_drawn_in_the_order_of_expert_answers(tmp_path):
    algorithm = run_of(tmp_path).algorithm
    setup = algorithm.setup
    seed = setup.seeds.for_("pairs")
    experts = Experts(setup.data.tasks, setup.trainable.loaded.tokenizer, seed=seed, field="chosen")
    for step in range(4):
        drawn = algorithm.pairs.draw(step, 4)
        assert [pair.task.id for pair in drawn] == [task.id for task in experts.draw(step, 4)]


def test_a_loss_that_is_not_finite_stops_before_the_weights_move(tmp_path):
    trainer = run_of(tmp_path)
    before = {name: p.clone() for name, p in trainer.trainable.module.named_parameters()}
    score = trainer.algorithm._score

    def broken(model, micro, hidden):
        found = score(model, micro, hidden)
        return found._replace(chosen_logp=found.chosen_logp * float("nan"))

    trainer.algorithm._score = broken
    with pytest.raises(GuardTripped, match="logprobs of the pair is nan"):
        finish(trainer)
    for name, p in trainer.trainable.module.named_parameters():
        assert torch.equal(p, before[name])
