import json

import pytest
import torch
from test_dir_term import dir_term, steps_of
from training_cases import (
    SMALL,
    assert_same,
    assert_same_curves,
    finish,
    merged,
    one_and_two,
    outcome,
    stop_after,
)

from burnish.config import Config, load
from burnish.lm.model_input import ModelInput
from burnish.rewards.models import club_categorical
from burnish.store import RunStore
from burnish.training import build

WORDS = ("red", "green", "blue")


def write_pairs(folder, count=12):
    """Pairs whose preferred answer, in capitals, is longer or shorter in turn."""
    rows = [
        {
            "question": f"ball {i}?",
            "chosen": WORDS[i % 3].upper() * (1 + 3 * (i % 2)),
            "rejected": f"{WORDS[i % 3]} {WORDS[i % 3]}",
        }
        for i in range(count)
    ]
    path = folder / "pairs.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return {
        "kind": "file",
        "path": str(path),
        "prompt": "question",
        "fields": {"chosen": "chosen", "rejected": "rejected"},
        "held_out": {"by": "share", "share": 0.3},
    }


def table_of(folder, *tables, **train):
    small = {key: value for key, value in SMALL.items() if key != "rewards"}
    table = merged(small, {"train": {"kind": "dpo", "batch": 4, **train}}, *tables)
    return {"task": write_pairs(folder), **table}


def run_of(folder, *tables, run="run", **train):
    return build(load(Config, table_of(folder, *tables, **train)), folder / run, root=folder)


def last_state(module, one):
    """The hidden state of an answer's last token, computed alone."""
    ids = torch.tensor([one.token_ids])
    return module(ModelInput(ids, torch.arange(ids.shape[1])[None]))[0, -1]


@pytest.mark.parametrize("loss", ["sigmoid", "ipo"])
def test_lambda_0_changes_no_bit(tmp_path, loss):
    finish(run_of(tmp_path, run="without", loss=loss))
    finish(run_of(tmp_path, run="with", loss=loss, terms=[dir_term(lam=0.0)]))
    one, two = outcome(tmp_path / "without"), outcome(tmp_path / "with")
    assert one["weights"] == two["weights"]
    assert one["optimiser"] == two["optimiser"]
    for name in ("rewards/margins", "loss/total", "optimiser/gradient_norm"):
        assert one["metrics"][name] == two["metrics"][name]


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("representation", ["difference", "concat"])
def test_the_penalty_is_that_of_the_last_tokens_of_the_whole_batch(tmp_path, representation, share):
    terms = [dir_term(queue=0, lam=2.0, representation=representation)]
    tables = {"model": {"dtype": "float64"}, "update": {"share_prompts": share}}
    trainer = run_of(tmp_path, tables, batch=6, terms=terms)
    algorithm, module = trainer.algorithm, trainer.trainable.module
    (batch,) = algorithm.updates(algorithm.batch(0))
    # By the book: one answer at a time, its last token's state, CLUB over all pairs.
    states = [last_state(module, one) for one in batch.rendered.trajectories]
    chosen_ND, rejected_ND = torch.stack(states[::2]), torch.stack(states[1::2])
    if representation == "concat":
        pairs_ND = torch.cat([chosen_ND, rejected_ND], 1)
    else:
        pairs_ND = chosen_ND - rejected_ND
    encode = trainer.trainable.loaded.tokenizer.encode
    counts = [(len(encode(p.chosen)), len(encode(p.rejected))) for p in batch.rendered.pairs]
    labels = [-1 if a == b else int(a > b) for a, b in counts]
    assert {0, 1} <= set(labels)
    head = algorithm.terms["dir"].penalty.head
    weights = {name: one.detach().double() for name, one in head.named_parameters()}
    hidden = torch.relu(pairs_ND @ weights["first.weight"].T + weights["first.bias"])
    logits = hidden @ weights["second.weight"].T + weights["second.bias"]
    penalty = 2.0 * club_categorical(logits, torch.tensor(labels))
    wanted = torch.autograd.grad(penalty, list(module.parameters()), allow_unused=True)
    for tokens in (1, 100, 100_000):
        losses = [algorithm.loss(module, micro) for micro in algorithm.micro_batches(batch, tokens)]
        found = sum(loss.parts["dir"] for loss in losses)
        torch.testing.assert_close(found.float(), penalty.detach().float(), rtol=1e-4, atol=1e-6)
        total = sum(loss.total for loss in losses)
        # The policy is its own reference: DPO's loss is log 2, and its gradient by the book.
        own = sum(loss.parts["preference"] for loss in losses)
        assert float(own) == pytest.approx(0.6931471805599453)
        whole = torch.autograd.grad(total, list(module.parameters()), allow_unused=True)
        plain = [
            algorithm._score(module, micro, module(micro.packed.inputs)).loss.sum() / micro.total
            for micro in algorithm.micro_batches(batch, tokens)
        ]
        pair = torch.autograd.grad(sum(plain), list(module.parameters()), allow_unused=True)
        for all_of_it, of_dpo, of_dir in zip(whole, pair, wanted, strict=True):
            of_dir = torch.zeros_like(of_dpo) if of_dir is None else of_dir
            torch.testing.assert_close(all_of_it, of_dpo + of_dir, rtol=1e-3, atol=2e-6)
    trainer.store.close()


def test_a_term_gets_the_implicit_rewards_as_scores(tmp_path):
    path = tmp_path / "mine.py"
    path.write_text(
        "from burnish.rewards.models import Term, TermLoss\n"
        "class Margin(Term):\n"
        "    def loss(self, states, total):\n"
        "        margin = (states.chosen_P - states.rejected_P).sum() / total\n"
        "        return TermLoss(0.0 * margin, {'margin': margin.detach()})\n"
        "    def finish(self, step, sums):\n"
        "        return {'margin': float(sums['margin'])}\n"
    )
    terms = [{"kind": "function", "path": f"{path}:Margin", "name": "margin"}]
    steps = steps_of(finish(run_of(tmp_path, terms=terms)))
    assert steps[-1]["rewards/margins"] != 0
    for step in steps:
        assert step["terms/margin/margin"] == pytest.approx(step["rewards/margins"], abs=1e-6)


def test_it_takes_the_attribute_out_of_the_states(tmp_path):
    found = {}
    for name, warmup in (("never", 100), ("always", 0)):
        term = dir_term(lam=5.0, head_steps=20, warmup_steps=warmup)
        run = run_of(tmp_path, {"steps": 15}, run=name, batch=8, terms=[term])
        found[name] = [step["terms/dir/mi"] for step in steps_of(finish(run))]
    assert sum(found["always"][-5:]) < 0.5 * sum(found["never"][-5:])


def test_stopped_and_continued_equals_uninterrupted(tmp_path):
    terms = [dir_term(target_auc=0.55), dir_term(name="marks", attribute="markdown", lam=0.5)]
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    events = finish(run_of(tmp_path / "a", terms=terms))
    more = {"checkpoint": {"every": 1, "keep": 1}}
    stop_after(run_of(tmp_path / "b", more, terms=terms), 2, saved=True)
    finish(run_of(tmp_path / "b", more, terms=terms))
    assert_same(outcome(tmp_path / "b" / "run"), outcome(tmp_path / "a" / "run"))
    kept = [
        (sorted((tmp_path / name / "run" / "checkpoints").iterdir())[-1] / "trainer").joinpath(
            "algorithm.safetensors"
        )
        for name in "ab"
    ]
    assert kept[0].read_bytes() == kept[1].read_bytes()
    steps = steps_of(events)
    assert {"loss/dir", "loss/marks", "loss/preference", "loss/total"} <= set(steps[-1])
    assert {"terms/dir/mi", "terms/dir/lam"} <= set(steps[-1])
    assert 0 <= steps[0]["terms/dir/ties"] <= 1


def test_a_warm_up_teaches_the_head_and_leaves_the_policy_alone(tmp_path):
    term = dir_term(lam=3.0, warmup_steps=2)
    plain = steps_of(finish(run_of(tmp_path, run="plain")))
    steps = steps_of(finish(run_of(tmp_path, run="warm", terms=[term])))
    assert [step["terms/dir/lam"] for step in steps] == [0.0, 0.0, 3.0, 3.0, 3.0, 3.0]
    assert any("terms/dir/head_loss" in step for step in steps[:2])
    assert [step["loss/dir"] == 0 for step in steps] == [True, True] + [False] * 4
    losses = [[step["loss/preference"] for step in steps], [step["loss/total"] for step in plain]]
    assert losses[0][:3] == losses[1][:3]  # the third loss is still that of the same weights
    assert losses[0][3:] != losses[1][3:]


def test_as_a_stage_it_has_its_own_head_and_curves(tmp_path):
    stage = {"name": "likes", "steps": 2, "train": {"kind": "dpo", "batch": 4}}
    stage["train"]["terms"] = [dir_term()]
    trainer = run_of(tmp_path, {"stages": [stage], "steps": 2})
    finish(trainer)
    with RunStore.open(tmp_path / "run", read_only=True) as store:
        names = set(store.metrics())
    assert any(name.startswith("stage/likes/terms/dir/") for name in names)


def test_two_processes_learn_what_one_does(tmp_path):
    more = {"steps": 3, "rewards": []}
    one_and_two(tmp_path, table_of(tmp_path, more, batch=6, terms=[dir_term(lam=3.0)]))
    scores = []
    for name in ("one", "two"):
        with RunStore.open(tmp_path / name, read_only=True) as store:
            scores.append(store.evaluations("held_out")[-1].summary)
    assert scores[0]["count"] == scores[1]["count"]
    names = ("loss/dir", "loss/total", "terms/dir/mi", "rewards/margins")
    assert_same_curves(tmp_path, *names, rel=1e-3, abs=1e-6)
