import itertools
import json

import pytest
import torch
from training_cases import SMALL, assert_same, finish, merged, outcome, stop_after

from burnish.config import Config, load
from burnish.lm.model_input import ModelInput
from burnish.lm.scalar_head import scored_ids
from burnish.records import Message
from burnish.rewards.models import bradley_terry_loss, centring_loss
from burnish.rewards.models.card import read_card
from burnish.store import RunStore
from burnish.training import build
from burnish.training.algorithms.reward_model import RewardModelAlgorithm
from burnish.training.devices import World
from burnish.training.events import HeldOut, StepDone
from burnish.training.pairs import pair_micro_batches
from burnish.view.pages.pairs import pair_view

WORDS = ("red", "green", "blue")


def pair_rows(count=12):
    """Pairs whose preferred answer is the one in capitals, which is shorter or longer in turn.

    Every third prompt has two pairs, with one chosen answer.
    """
    rows = []
    for i in range(count):
        word = WORDS[i % 3]
        chosen, rejected = word.upper() * (1 + i % 2), f"{word} {word}"
        row = {"question": f"ball {i}?", "chosen": chosen, "rejected": rejected}
        rows.append(row | {"strength": i % 3 / 2, "is_tie": i % 4 == 3})
        if i % 3 == 0:
            rows.append(rows[-1] | {"rejected": f"{word}!"})
    return rows


def write_pairs(folder, rows=None):
    path = folder / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows or pair_rows()))
    names = ("chosen", "rejected", "strength", "is_tie")
    return {
        "kind": "file",
        "path": str(path),
        "prompt": "question",
        "fields": {name: name for name in names},
        "optional": ["strength", "is_tie"],
        "held_out": {"by": "share", "share": 0.3},
    }


def run_of(folder, *tables, run="run", rows=None, **train):
    small = {key: value for key, value in SMALL.items() if key != "rewards"}
    table = merged(small, {"train": {"kind": "reward_model", "batch": 6, **train}}, *tables)
    table = {"task": write_pairs(folder, rows), **table}
    return build(load(Config, table), folder / run, root=folder)


def plain_score(algorithm, pair, text):
    """The score by the book: one conversation alone."""
    loaded = algorithm.setup.trainable.loaded
    ids = scored_ids(loaded.tokenizer, (*pair.task.messages, Message("assistant", text)))
    hidden = loaded.module(ModelInput(torch.tensor([ids]), torch.arange(len(ids))[None]))
    return (hidden[0, -1] * algorithm.head.weight[0]).sum()


def plain_loss(algorithm, batch):
    pairs = batch.rendered.pairs
    chosen = torch.stack([plain_score(algorithm, pair, pair.chosen) for pair in pairs])
    rejected = torch.stack([plain_score(algorithm, pair, pair.rejected) for pair in pairs])
    margins, targets = [p.margin for p in pairs], [p.target for p in pairs]
    loss = bradley_terry_loss(chosen, rejected, margin=margins, target=targets)
    if coefficient := algorithm.settings.centring:
        loss = loss + coefficient * centring_loss(chosen, rejected)
    return loss


SETTINGS = {
    "plain": {},
    "margins": {"margin": "strength"},
    "ties": {"tie": "is_tie", "ties": "half"},
    "centred": {"centring": 0.1},
}
CUTS = [("plain", tokens, share) for tokens in (1, 100, 100_000) for share in (True, False)]


@pytest.mark.parametrize(
    ("name", "tokens", "share"), CUTS + [(name, 100, True) for name in SETTINGS if name != "plain"]
)
def test_loss_and_gradient_are_those_of_the_whole_batch(tmp_path, name, tokens, share):
    tables = {"model": {"dtype": "float64"}, "update": {"share_prompts": share}}
    trainer = run_of(tmp_path, tables, **SETTINGS[name])
    algorithm: RewardModelAlgorithm = trainer.algorithm
    module = trainer.trainable.module
    batch = algorithm.batch(0)
    trained = [*module.parameters(), algorithm.head.weight]
    wanted = plain_loss(algorithm, batch)
    gradients = torch.autograd.grad(wanted, trained)
    losses = [algorithm.loss(module, micro) for micro in algorithm.micro_batches(batch, tokens)]
    assert (len(losses) == 1) == (tokens == 100_000)
    total = sum(loss.total for loss in losses)
    torch.testing.assert_close(total, wanted)
    found = torch.autograd.grad(total, trained)
    torch.testing.assert_close(found, gradients, rtol=1e-6, atol=1e-9)
    trainer.store.close()


def test_accuracy_rises_and_both_scores_of_a_pair_are_stored(tmp_path):
    tables = {"steps": 14, "optimiser": {"learning_rate": 3e-3}}
    events = finish(run_of(tmp_path, tables, batch=8))
    scores = [event.score for event in events if isinstance(event, HeldOut)]
    assert scores[-1].value == 1.0
    assert scores[-1].low < 1.0
    steps = [event.metrics for event in events if isinstance(event, StepDone)]
    assert steps[0]["loss/total"] == pytest.approx(0.693, abs=0.05)
    assert steps[-1]["loss/total"] < 0.3
    assert steps[-1]["rewards/accuracies"] == 1.0
    with RunStore.open(tmp_path / "run", read_only=True) as store:
        last = store.rollouts(13)
    assert all(sample.trajectory.text.isupper() for sample in last)
    parts = [sample.reward.components for sample in last]
    shown = last[0].reward.parts[1].evidence[0].observation
    assert shown == last[0].task.fields["rejected"]
    assert "chosen is better with probability 0.9" in last[0].reward.reason
    margin = sum(p["chosen"] - p["rejected"] for p in parts) / 8
    assert margin == pytest.approx(steps[-1]["rewards/margins"])
    with RunStore.open(tmp_path / "run", read_only=True) as store:
        held_out = list(store.samples(step=14, split="eval:held_out"))
    for sample in held_out:
        texts = [sample.task.fields[side] for side in ("chosen", "rejected")]
        record = sample.trajectory.info["pair"]
        assert (record["target"], record["margin"]) == (1.0, 0.0)
        assert record["attributes"]["characters"] == [len(text) for text in texts]
        assert record["attributes"]["tokens"][0] == sample.trajectory.trained_tokens
        assert pair_view(sample)["outcome"] == "right"
    # A training step counts no texts: only what it knows already is stored.
    assert list(last[0].trajectory.info["pair"]["attributes"]) == ["tokens"]
    card = read_card(tmp_path / "run" / "checkpoints" / "step-000014")
    assert card.step == 14
    assert card.accuracy[0] == 1.0
    assert sum(cell.count for cell in card.bins) == card.pairs == scores[-1].size
    assert card.percentile(card.percentiles[50]) == pytest.approx(50)


def test_pairs_of_one_prompt_are_drawn_together_and_a_shared_answer_is_computed_once(tmp_path):
    trainer = run_of(tmp_path)
    seen = []
    for step in range(3):
        answers = trainer.algorithm.batch(step).rendered
        seen += [pair.task.prompt for pair in answers.pairs]
        different = {(p.task.prompt, text) for p in answers.pairs for text in p[1:3]}
        assert len(answers.trajectories) == len(different)
    changes = sum(a != b for a, b in itertools.pairwise(seen))
    assert changes < len(seen) - 1  # some prompts have two pairs, side by side
    trainer.store.close()


def test_processes_with_other_budgets_still_share_out_each_pair_once(tmp_path):
    """A process whose device was full once takes smaller passes than the others."""
    rows = [
        {"question": f"ball {i}?", "chosen": "RED" * (k + 1), "rejected": "blue " * (k + 2)}
        for i in range(3)
        for k in range(4)
    ]
    trainer = run_of(tmp_path, {"evaluation": {"prompts": 0}}, rows=rows, batch=7)
    answers = trainer.algorithm.batch(0).rendered
    for budgets in ((1000, 150), (150, 1000), (1000, 1)):
        found = []
        for rank, tokens in enumerate(budgets):
            given = {"share": False, "world": World(rank, 2), "device": torch.device("cpu")}
            for micro in pair_micro_batches(answers, tokens, **given):
                found += micro.places_P.tolist()
        assert sorted(found) == list(range(7)), budgets
    trainer.store.close()


def test_a_batch_rendered_ahead_is_the_same(tmp_path):
    """What a GPU's host does while it waits, and not at the run's last step."""
    trainer = run_of(tmp_path, {"steps": 3})
    algorithm = trainer.algorithm
    plain = [algorithm.batch(step) for step in range(3)]
    for step in range(3):
        assert algorithm.batch(step) == plain[step]
        algorithm.meanwhile()
        assert (algorithm._ahead is None) == (step == 2)
    assert algorithm.batch(0) == plain[0]
    trainer.store.close()


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run without a stop."""
    folder = tmp_path_factory.mktemp("whole")
    finish(run_of(folder, {"evaluation": {"every": 2}}, terms=[term(folder)]))
    return outcome(folder / "run")


TERM = '''
import torch
from burnish.rewards.models import Term, TermLoss, TermState

class Drift(Term):
    """Has weights, a memory and an optimiser of its own: what a seam must carry."""

    def __init__(self, context, weight=1.0):
        super().__init__(context)
        self.weight, self.step, self.mean = weight, -1, torch.zeros(context.width)

    def begin(self, step, pairs, hidden):
        chosen, rejected = hidden()
        assert chosen.shape == (len(pairs), self.context.width)
        if step > self.step:
            self.mean = 0.9 * self.mean + 0.1 * (chosen - rejected).mean(0)
            self.step = step

    def loss(self, states, total):
        along = (states.chosen_PD - states.rejected_PD) @ self.mean.to(states.chosen_PD)
        return TermLoss(self.weight * along.square().sum() / total, {"along": along.detach().sum()})

    def finish(self, step, sums):
        return {"along": float(sums["along"])}

    def state(self):
        return TermState({"step": self.step}, {"mean": self.mean})

    def restore(self, state):
        self.step, self.mean = state.values["step"], state.tensors["mean"]
'''


def term(folder, **options):
    (folder / "my_term.py").write_text(TERM)
    path = str(folder / "my_term.py") + ":Drift"
    return {"kind": "function", "name": "drift", "path": path, "options": options}


@pytest.mark.parametrize(("every", "stop"), [(1, 3), (2, 3), (0, 2)])
def test_stopped_and_continued_equals_uninterrupted(tmp_path, whole, every, stop):
    more = {"checkpoint": {"every": every, "keep": 1}, "evaluation": {"every": 2}}
    stop_after(run_of(tmp_path, more, terms=[term(tmp_path)]), stop, saved=every == 1)
    finish(run_of(tmp_path, more, terms=[term(tmp_path)]))
    assert_same(outcome(tmp_path / "run"), whole)


def test_a_term_has_its_loss_and_metrics_and_does_not_depend_on_the_cut(tmp_path):
    events = finish(run_of(tmp_path, run="a", terms=[term(tmp_path)]))
    steps = [event.metrics for event in events if isinstance(event, StepDone)]
    assert all(m["loss/drift"] > 0 for m in steps)
    total = steps[2]["loss/preference"] + steps[2]["loss/drift"]
    assert steps[2]["loss/total"] == pytest.approx(total)
    small = {"update": {"micro_batch_tokens": 64}}
    other = finish(run_of(tmp_path, small, run="b", terms=[term(tmp_path)]))
    cut = [event.metrics for event in other if isinstance(event, StepDone)]
    for one, two in zip(steps, cut, strict=True):
        assert one["terms/drift/along"] == pytest.approx(two["terms/drift/along"], rel=1e-3)
        assert one["loss/total"] == pytest.approx(two["loss/total"], rel=1e-4)


def test_hidden_states_are_computed_once_a_step_for_all_terms(tmp_path, monkeypatch):
    terms = [term(tmp_path), term(tmp_path) | {"name": "second"}]
    trainer = run_of(tmp_path, terms=terms)
    calls, compute = [], trainer.algorithm.hidden_states
    monkeypatch.setattr(
        trainer.algorithm, "hidden_states", lambda answers: calls.append(1) or compute(answers)
    )
    for step in range(2):
        trainer.algorithm.updates(trainer.algorithm.batch(step))
        assert len(calls) == step + 1
    first, second = trainer.algorithm.terms.by_name.values()
    assert torch.equal(first.mean, second.mean)
    trainer.store.close()


def test_a_term_of_weight_0_changes_no_bit(tmp_path):
    finish(run_of(tmp_path, run="without"))
    finish(run_of(tmp_path, run="with", terms=[term(tmp_path, weight=0.0)]))
    one, two = outcome(tmp_path / "without"), outcome(tmp_path / "with")
    assert one["weights"] == two["weights"]
    assert one["optimiser"] == two["optimiser"]
