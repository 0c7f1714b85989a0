import json
import math
import random

import pytest
import torch
from safetensors.torch import load_file
from training_cases import SMALL, assert_same, finish, merged, one_and_two, outcome, stop_after

from burnish.bench import calibrated_f1, first_flagged
from burnish.config import Config, load
from burnish.config.schema import ProcessRewardModelTrain
from burnish.errors import UserError
from burnish.lm.model_input import ModelInput
from burnish.lm.scalar_head import step_row
from burnish.records import Message, Task
from burnish.rewards.models.card import ProcessCard, read_process_card
from burnish.store import RunStore
from burnish.training import build
from burnish.training.algorithms.process_reward_model import (
    ScoredSolution,
    Solution,
    _meaning,
    held_out_report,
    read_solution,
    step_loss,
)
from burnish.training.events import HeldOut, StepDone

WORDS = ("red", "green", "blue")


def solution_rows(count=24):
    """Solutions whose wrong step is the one in capitals; every third prompt has two solutions."""
    rng = random.Random(5)
    rows = []
    for i in range(count):
        steps = [rng.choice(WORDS) for _ in range(rng.randint(1, 4))]
        wrong = rng.randrange(len(steps)) if i % 2 else None
        if wrong is not None:
            steps[wrong] = steps[wrong].upper()
        labels = [1 if wrong is None or k < wrong else 0 for k in range(len(steps))]
        labels = [None if wrong is not None and k > wrong else a for k, a in enumerate(labels)]
        row = {"question": f"ball {i - (i % 3 == 2)}?", "steps": steps}
        rows.append(row | {"labels": labels, "first_wrong": wrong})
    return rows


def write_solutions(folder, rows=None):
    path = folder / "solutions.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows or solution_rows()))
    names = ("steps", "labels", "first_wrong")
    return {
        "kind": "file",
        "path": str(path),
        "prompt": "question",
        "fields": {name: name for name in names},
        "optional": list(names),
        "held_out": {"by": "share", "share": 0.3},
    }


def run_of(folder, *tables, run="run", rows=None, **train):
    small = {key: value for key, value in SMALL.items() if key != "rewards"}
    kind = {"kind": "process_reward_model", "batch": 6, **train}
    table = merged(small, {"train": kind, "evaluation": {"prompts": 20}}, *tables)
    table = {"task": write_solutions(folder, rows), **table}
    return build(load(Config, table), folder / run, root=folder)


def plain_loss(algorithm, solutions):
    """The loss by the book: every labelled step alone, as the end of what stands before it."""
    loaded = algorithm.setup.trainable.loaded
    found = []
    for one in solutions:
        for number, label in enumerate(one.labels):
            if label is None:
                continue
            steps = one.steps[: number + 1]
            ids = step_row(loaded.tokenizer, one.task.messages, steps, "\n\n").ids
            hidden = loaded.module(ModelInput(torch.tensor([ids]), torch.arange(len(ids))[None]))
            score = (hidden[0, -1] * algorithm.head.weight[0]).sum()
            wanted = torch.tensor(float(label), dtype=score.dtype)
            found.append(torch.nn.functional.binary_cross_entropy_with_logits(score, wanted))
    return torch.stack(found).mean()


@pytest.mark.parametrize(("tokens", "share"), [(1, True), (100, True), (100, False), (10**5, True)])
def test_loss_and_gradient_are_those_of_the_whole_batch(tmp_path, tokens, share):
    tables = {"model": {"dtype": "float64"}, "update": {"share_prompts": share}}
    trainer = run_of(tmp_path, tables)
    algorithm, module = trainer.algorithm, trainer.trainable.module
    batch = algorithm.batch(0)
    assert any(None in one.labels for one in batch.rendered.solutions)
    trained = [*module.parameters(), algorithm.head.weight]
    wanted = plain_loss(algorithm, batch.rendered.solutions)
    gradients = torch.autograd.grad(wanted, trained)
    losses = [algorithm.loss(module, micro) for micro in algorithm.micro_batches(batch, tokens)]
    assert (len(losses) == 1) == (tokens == 10**5)
    total = sum(loss.total for loss in losses)
    torch.testing.assert_close(total, wanted)
    found = torch.autograd.grad(total, trained)
    torch.testing.assert_close(found, gradients, rtol=1e-6, atol=1e-9)
    trainer.store.close()


def test_cross_entropy_by_hand():
    score, label = torch.tensor([0.0, math.log(3), math.log(3), 7.0]), torch.tensor([1.0, 1, 0, -1])
    wanted = [math.log(2), math.log(4 / 3), math.log(4), 0.0]
    assert step_loss(score, label).tolist() == pytest.approx(wanted)


def test_the_first_wrong_step_is_learned_and_every_step_is_stored(tmp_path):
    tables = {"steps": 30, "optimiser": {"learning_rate": 3e-3}}
    events = finish(run_of(tmp_path, tables, batch=8))
    scores = [event for event in events if isinstance(event, HeldOut)]
    assert scores[-1].measure == "accuracy"
    assert scores[-1].score.value == 1.0
    assert scores[-1].score.value > scores[0].score.value
    steps = [event.metrics for event in events if isinstance(event, StepDone)]
    assert steps[0]["loss/steps"] == pytest.approx(0.693, abs=0.1)
    assert steps[-1]["loss/steps"] < 0.2
    assert steps[-1]["steps/accuracy"] == 1.0
    assert steps[-1]["steps/right"] > 0.8 > 0.2 > steps[-1]["steps/wrong"]
    with RunStore.open(tmp_path / "run", read_only=True) as store:
        last = store.rollouts(29)
    for sample in last:
        parts = sample.reward.parts
        assert [part.evidence[0].observation for part in parts] == sample.task.fields["steps"]
        seen = [(part.value, part.evidence[0]) for part in parts]
        judged = [(value > 0.5, e.source) for value, e in seen if e.source != "not labelled"]
        assert all((source == "right") == is_right for is_right, source in judged)
        assert "by the model (below 0.5): " in sample.reward.reason
    card = read_process_card(tmp_path / "run" / "checkpoints" / "step-000030")
    assert (card.separator, card.step, card.solutions) == ("\n\n", 30, scores[-1].count)
    assert card.f1[0] == card.wrong[0] == card.right[0] == card.auc == card.step_accuracy[0] == 1.0
    assert card.f1[1] < 1.0
    assert 0 < card.threshold < 1


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    folder = tmp_path_factory.mktemp("whole")
    finish(run_of(folder, {"evaluation": {"every": 2, "prompts": 20}}))
    card = read_process_card(folder / "run" / "checkpoints" / "step-000006")
    return outcome(folder / "run"), card


@pytest.mark.parametrize(("every", "stop"), [(1, 3), (2, 3), (0, 2)])
def test_stopped_and_continued_equals_uninterrupted(tmp_path, whole, every, stop):
    more = {"checkpoint": {"every": every, "keep": 1}, "evaluation": {"every": 2, "prompts": 20}}
    stop_after(run_of(tmp_path, more), stop, saved=every == 1)
    finish(run_of(tmp_path, more))
    wanted, card = whole
    assert_same(outcome(tmp_path / "run"), wanted)
    assert read_process_card(tmp_path / "run" / "checkpoints" / "step-000006") == card


def test_adapters_are_trained_and_a_run_without_evaluation_has_a_card(tmp_path):
    finish(
        run_of(tmp_path, {"model": {"lora": {"rank": 2}}, "evaluation": {"prompts": 0}, "steps": 2})
    )
    folder = tmp_path / "run" / "checkpoints" / "step-000002"
    card = read_process_card(folder)
    assert (card.solutions, card.f1, card.threshold) == (0, None, 0.5)
    assert json.loads((folder / "config.json").read_text())["architectures"][0].endswith(
        "ForSequenceClassification"
    )


def test_labels_follow_from_the_first_wrong_step(tmp_path):
    rows = solution_rows()
    without = [{**row, "labels": None} for row in rows]
    finish(run_of(tmp_path, {"steps": 2}, run="labels", rows=rows))
    finish(run_of(tmp_path, {"steps": 2}, run="first", rows=without))
    one, two = outcome(tmp_path / "labels"), outcome(tmp_path / "first")
    assert one["weights"] == two["weights"]


def solution(labels=None, **fields):
    given = {"steps": ["a", "b", "c"], **({} if labels is None else {"labels": labels}), **fields}
    return read_solution(Task("t", (Message("user", "q"),), given), ProcessRewardModelTrain())


def test_labels_by_hand():
    assert solution(first_wrong=None).labels == (1, 1, 1)
    assert solution(first_wrong=1).labels == (1, 0, None)
    assert solution(first_wrong=2.0).labels == (1, 1, 0)
    # Labels behind the first wrong step count where they are given.
    given = solution([1, 0, True], first_wrong=0)
    assert given.labels == (1, 0, 1)
    known = {(1, 1, 1): None, (1, 0, None): 1, (0, None, 1): 0}
    for labels, first in known.items():
        assert solution(list(labels)).is_known
        assert solution(list(labels)).first_wrong == first
    for labels in ([1, None, 0], [1, 1, None], [None, 1, 1]):
        assert not solution(labels).is_known


BAD = {
    "no steps": ({"steps": []}, "a 'steps' that is no list of texts with at least one"),
    "text": ({"steps": "a"}, "a 'steps' that is no list of texts with at least one"),
    "empty": ({"steps": ["a", "  "], "labels": [1, 1]}, "a step that is empty or no text"),
    "short": ({"labels": [1]}, "a 'labels' that is no list with one label for each step"),
    "none": ({"labels": [None, None]}, "no label in 'labels'"),
    "word": ({"labels": [1, "bad"]}, "a label in 'labels' that is none of 1, 0 and null"),
    "half": ({"labels": [1, 0.5]}, "a label in 'labels' that is none of 1, 0 and null"),
    "place": ({"labels": None, "first_wrong": 2}, "a 'first_wrong' that is neither null nor"),
    "long": ({"steps": ["a", "long " * 400]}, "more than 1024 tokens"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_solutions_are_refused_in_one_line_or_dropped(tmp_path, name, caplog):
    change, why = BAD[name]
    good = solution_rows()
    odd = {"question": "odd?", "steps": ["a", "b"], "labels": [1, 0], "first_wrong": 1, **change}
    rows = [*good, odd]
    task = write_solutions(tmp_path, rows) | {"held_out": {"by": "share", "share": 0.0}}
    tables = {"steps": 1, "task": task}
    with pytest.raises(UserError) as refused:
        run_of(tmp_path, tables, rows=rows)
    line = str(refused.value)
    assert f"1 of {len(rows)} solutions cannot be used: 1 with {why}" in line
    assert "train.bad_solutions = 'drop'" in line
    assert "\n" not in line
    run = run_of(tmp_path, tables, rows=rows, run="again", bad_solutions="drop")
    assert run.algorithm.rows.size == len(good)
    assert why in caplog.text
    run.store.close()


def test_halves_of_the_held_out_part_calibrate_each_other():
    rng = random.Random(1)
    scored = []
    for i in range(30):
        task = Task(f"t{i}", (Message("user", f"q{i // 2}"),))
        wrong = rng.choice([None, 0, 1])
        labels = (1, 1) if wrong is None else (0, None) if wrong == 0 else (1, 0)
        one = Solution(task, ("a", "b"), labels)
        scored.append(ScoredSolution(one, [rng.random(), rng.random()]))
    unknown = ScoredSolution(Solution(scored[0].solution.task, ("a", "b"), (None, 0)), [0.5, 0.5])
    report = held_out_report([*scored, unknown])
    assert report.found[-1] is None
    assert sum(report.found[:-1]) == sum(report.first.found)
    # Two solutions of one prompt are never in different halves: as parts, prompts give the same.
    again = held_out_report(scored[::-1])
    assert again.found == report.found[:-1][::-1]
    # The sentence of a solution says what its mark says, by the threshold of its mark.
    said = [
        _meaning(one, border) for one, border in zip(report.scored, report.thresholds, strict=True)
    ]
    assert len(set(report.thresholds[:-1])) == 2
    for text, mark, border in zip(said, report.found, report.thresholds, strict=True):
        assert f"(below {border:.3g})" in text
        by_model, _, by_label = text.partition("): ")[2].partition(", by its label: ")
        assert mark is None or (by_model == by_label) == bool(mark)
    assert any(
        first_flagged(one.probabilities) != first_flagged(one.probabilities, b)
        for one, b in zip(report.scored, report.thresholds, strict=True)
    )
    loose = calibrated_f1(
        [one.probabilities for one in scored],
        [one.solution.first_wrong for one in scored],
        [0] * 30,
    )
    assert loose.found != report.first.found


def test_two_processes_train_and_evaluate_as_one_does(tmp_path):
    train = {"kind": "process_reward_model", "batch": 5}
    task = write_solutions(tmp_path)
    one_and_two(tmp_path, {"steps": 2, "train": train, "task": task, "rewards": []})
    last = [tmp_path / name / "checkpoints/step-000002" for name in ("one", "two")]
    one, two = (load_file(place / "trainer/optimiser.safetensors") for place in last)
    for name in one:
        # The first moment is the gradient itself, times 1 - beta1.
        torch.testing.assert_close(one[name], two[name], rtol=2e-3, atol=1e-6, msg=name)
    cards = [read_process_card(place) for place in last]
    assert cards[0].solutions == cards[1].solutions > 0
    assert cards[0].threshold == pytest.approx(cards[1].threshold, abs=1e-4)


def test_the_interval_of_the_step_accuracy_is_over_prompts():
    task = [Task(f"t{i}", (Message("user", f"q{i}"),)) for i in range(2)]
    long, short = Solution(task[0], ("a",) * 100, (1,) * 100), Solution(task[1], ("a",), (1,))
    scored = [ScoredSolution(long, [0.9] * 100), ScoredSolution(short, [0.1])]
    card = held_out_report(scored).card(ProcessCard(separator="|", max_tokens=7, step=0), 3)
    assert (card.separator, card.max_tokens, card.step, card.steps) == ("|", 7, 3, 101)
    value, low, high = card.step_accuracy
    assert value == 0.5
    assert high - low > 0.8  # Two prompts, not 101 steps.


def test_a_nan_label_of_a_parquet_file_is_named(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = [
        {
            "question": f"q{i}?",
            "steps": ["a", "b"],
            "labels": [1.0, float("nan") if i == 3 else 0.0],
        }
        for i in range(8)
    ]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "solutions.parquet")
    task = write_solutions(tmp_path) | {"path": str(tmp_path / "solutions.parquet")}
    with pytest.raises(
        UserError, match=r"1 with a label in 'labels' that is none of 1, 0 and null"
    ):
        run_of(tmp_path, {"task": task})
