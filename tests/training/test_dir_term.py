import pytest
import torch
from test_reward_model import run_of, write_pairs
from training_cases import assert_same, assert_same_curves, finish, one_and_two, outcome, stop_after

from burnish.errors import ArgumentError, UserError
from burnish.rewards.models.dir import club, represent
from burnish.rewards.models.dir_term import DirTerm
from burnish.training.events import StepDone


def dir_term(**settings):
    return {"kind": "dir", "head_width": 8, "head_learning_rate": 1e-2, "queue": 4, **settings}


def steps_of(events):
    return [event.metrics for event in events if isinstance(event, StepDone)]


def test_lambda_0_changes_no_bit(tmp_path):
    finish(run_of(tmp_path, run="without"))
    finish(run_of(tmp_path, run="with", terms=[dir_term(lam=0.0)]))
    one, two = outcome(tmp_path / "without"), outcome(tmp_path / "with")
    assert one["weights"] == two["weights"]
    assert one["optimiser"] == two["optimiser"]


def test_penalty_and_gradient_are_those_of_the_whole_batch(tmp_path):
    trainer = run_of(tmp_path, {"model": {"dtype": "float64"}}, terms=[dir_term(queue=0)])
    algorithm, module = trainer.algorithm, trainer.trainable.module
    (batch,) = algorithm.updates(algorithm.batch(0))
    term = algorithm.terms["dir"]
    found = []
    for tokens in (1, 100_000):
        micros = list(algorithm.micro_batches(batch, tokens))
        states = [algorithm._states(module, micro) for micro in micros]
        total = sum(term.loss(one, 6).total for one in states)
        found.append((total, torch.autograd.grad(total, list(module.parameters()), allow_unused=True)))  # fmt: skip
    (small, small_gradients), (whole, whole_gradients) = found
    torch.testing.assert_close(small, whole)
    torch.testing.assert_close(small_gradients, whole_gradients, rtol=1e-4, atol=1e-7)
    # The definition, over all pairs at once.
    (micro,) = algorithm.micro_batches(batch, 100_000)
    states = algorithm._states(module, micro)
    pairs_ND = represent(states.chosen_PD, states.rejected_PD)
    logits = term.penalty.head(pairs_ND)
    tokens = algorithm.tokenizer.encode
    counts = [(len(tokens(p.chosen)), len(tokens(p.rejected))) for p in states.pairs]
    classes = [-1 if a == b else int(a > b) for a, b in counts]
    torch.testing.assert_close(
        whole.float(), club(logits.float(), torch.tensor(classes)), atol=1e-5, rtol=1e-4
    )
    trainer.store.close()


def test_stopped_and_continued_equals_uninterrupted(tmp_path):
    terms = [dir_term(target_auc=0.55), dir_term(name="marks", attribute="markdown", lam=0.5)]
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    events = finish(run_of(tmp_path / "a", terms=terms))
    more = {"checkpoint": {"every": 1, "keep": 1}}
    stop_after(run_of(tmp_path / "b", more, terms=terms), 2, saved=True)
    finish(run_of(tmp_path / "b", more, terms=terms))
    assert_same(outcome(tmp_path / "b" / "run"), outcome(tmp_path / "a" / "run"))
    steps = steps_of(events)
    assert {"terms/dir/mi", "terms/dir/lam", "terms/dir/head_loss"} <= set(steps[-1])
    assert 0 <= steps[0]["terms/dir/ties"] <= 1
    assert "terms/dir/ties" not in steps[1]


def test_a_replayed_step_does_not_teach_the_head_again(tmp_path):
    crashed = run_of(tmp_path, terms=[dir_term()])
    crashed.algorithm.updates(crashed.algorithm.batch(2))
    kept = crashed.algorithm.state()
    crashed.store.close()
    again = run_of(tmp_path, run="again", terms=[dir_term()])
    again.algorithm.restore(kept)
    again.algorithm.updates(again.algorithm.batch(2))
    found = again.algorithm.state()
    assert found.values == kept.values
    for key, tensor in kept.tensors.items():
        assert torch.equal(found.tensors[key].nan_to_num(-1), tensor.nan_to_num(-1)), key
    again.algorithm.updates(again.algorithm.batch(3))
    learnt = again.algorithm.state().tensors
    heads = [key for key in kept.tensors if key.endswith("weight")]
    assert heads
    assert all(not torch.equal(learnt[key], kept.tensors[key]) for key in heads)
    again.store.close()


def test_a_function_of_your_own_and_its_mistakes(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text("def loud(pair):\n    return int(pair.chosen.isupper())\n")
    steps = steps_of(finish(run_of(tmp_path, terms=[dir_term(attribute=f"{path}:loud")])))
    assert steps[0]["terms/dir/share_1"] == 1.0  # all chosen ones are in capitals
    assert steps[0]["terms/dir/predicts"] == 1.0
    path.write_text("def fails(pair):\n    return 1 // 0\n")
    with pytest.raises(
        UserError, match=r"'dir' \(.*mine.py:fails\) failed on pair pairs/\d+: Zero"
    ):
        run_of(tmp_path, run="two", terms=[dir_term(attribute=f"{path}:fails")])
    with pytest.raises(UserError, match=r"expected length, markdown.* Did you mean 'length'"):
        run_of(tmp_path, run="three", terms=[dir_term(attribute="lenght")])
    # Refused with the settings: no model was loaded for it.
    with pytest.raises(
        ArgumentError,
        match=r"attribute: got 'lenght', expected length, markdown.* Did you mean 'length'",
    ):
        DirTerm(attribute="lenght")
    with pytest.raises(UserError, match="target_auc"):
        run_of(tmp_path, run="four", terms=[dir_term(target_auc=2.0)])


def test_two_processes_learn_what_one_does(tmp_path):
    train = {"kind": "reward_model", "batch": 6, "terms": [dir_term(lam=3.0)]}
    task = write_pairs(tmp_path)
    one_and_two(tmp_path, {"steps": 3, "train": train, "task": task, "rewards": []})
    # A batch of one class does not train the head.
    names = ("loss/dir", "loss/total", "terms/dir/mi", "terms/dir/head_loss")
    assert_same_curves(tmp_path, *names, rel=1e-3, abs=1e-6)
