import json
import shutil

import pytest
import torch
from safetensors.torch import load_file
from test_reward_model import pair_rows, run_of, term, write_pairs
from training_cases import finish, one_and_two, stop_after

from burnish.config.schema import RewardModelTrain
from burnish.errors import UserError
from burnish.training.events import Finished
from burnish.training.labelled import UnusableRow
from burnish.training.pairs import are_alike, conversation, read_pair

GOOD = pair_rows()
BAD = {
    "equal": ({"chosen": "same", "rejected": "same"}, "two equal answers"),
    "empty": ({"rejected": "  "}, "an empty 'rejected'"),
    "list": ({"chosen": [5]}, "a 'chosen' that is neither text nor chat messages"),
    "long": ({"chosen": "long " * 400}, "more than 1024 tokens"),
    "label": ({"strength": "much"}, "a 'strength' that is no finite number"),
    "tie": ({"is_tie": "maybe"}, "a 'is_tie' that is neither true nor false"),
}


@pytest.mark.parametrize("name", BAD)
def test_bad_pairs_are_refused_in_one_line_or_dropped(tmp_path, name, caplog):
    change, why = BAD[name]
    rows = [*GOOD, {"question": "odd one?", "chosen": "YES", "rejected": "no", **change}]
    train = {"label": {"margin": "strength"}, "tie": {"tie": "is_tie", "ties": "half"}}.get(
        name, {}
    )
    tables = {"steps": 1, "task": {"held_out": {"by": "share", "share": 0.0}}}
    task = write_pairs(tmp_path, rows) | tables.pop("task")
    with pytest.raises(UserError) as refused:
        run_of(tmp_path, {**tables, "task": task}, rows=rows, **train)
    line = str(refused.value)
    assert f"1 of {len(rows)} pairs cannot be used: 1 with {why}" in line
    assert "(first: pairs/17)" in line
    assert "train.bad_pairs = 'drop'" in line
    assert "\n" not in line
    tables = {**tables, "task": task}
    run = run_of(tmp_path, tables, rows=rows, run="again", bad_pairs="drop", **train)
    assert run.algorithm.pairs.size == len(GOOD)
    assert isinstance(finish(run)[-1], Finished)
    assert why in caplog.text


def test_ties_are_dropped_or_kept(tmp_path):
    without = run_of(tmp_path, run="a", tie="is_tie")
    kept = run_of(tmp_path, run="b", tie="is_tie", ties="half")
    targets = [pair.target for pair in kept.algorithm.pairs.first(100)]
    assert without.algorithm.pairs.size == targets.count(1.0)
    assert kept.algorithm.pairs.size == len(targets) > targets.count(1.0)
    for trainer in (without, kept):
        trainer.store.close()


def test_answers_may_be_messages(tmp_path):
    turns = [{"role": "assistant", "content": "YES"}]
    whole = [{"role": "user", "content": "ball 0?"}, *turns]
    run = run_of(tmp_path)
    task = run.algorithm.pairs.first(1)[0].task
    run.store.close()
    for given in (turns, whole):
        talk = conversation(task, given)
        assert talk[-1].text == "YES"
        assert len(talk) == 2
    rows = [row | {"chosen": [{"role": "assistant", "content": row["chosen"]}]} for row in GOOD]
    for name in ("text", "turns"):
        finish(run_of(tmp_path, {"steps": 2}, rows=GOOD if name == "text" else rows, run=name))
    same = [
        load_file(tmp_path / name / "checkpoints" / "step-000002" / "model.safetensors")
        for name in ("text", "turns")
    ]
    assert all(torch.equal(same[0][key], same[1][key]) for key in same[0])


UNFIT = {
    "an unknown option": ("    pass", "failed when it was made: TypeError"),
    "an error at the start": (
        "    def __init__(self, context, **options):\n        raise ValueError('no file')",
        "failed when it was made: ValueError: no file",
    ),
    "a number for a loss": (
        "    def loss(self, states, total): return TermLoss(1.0)",
        "failed: AttributeError",
    ),
    "a tensor for a loss": (
        "    def loss(self, states, total): return states.chosen_P.sum()",
        "failed: AttributeError",
    ),
    "a loss for each pair": (
        "    def loss(self, states, total): return TermLoss(states.chosen_P)",
        "failed: RuntimeError: shape",
    ),
    "no loss": (
        "    def loss(self, states, total): pass",
        "failed: AttributeError",
    ),
    "a word for a metric": (
        "    def finish(self, step, sums): return {'x': 'much'}",
        "failed at step 1: ValueError: could not convert",
    ),
    "no metrics": ("    def finish(self, step, sums): pass", "failed at step 1: AttributeError"),
    "a state that is no JSON": (
        "    def state(self): return TermState({'x': object()}, {})",
        "failed when its state was asked for: TypeError",
    ),
    "no state": (
        "    def state(self): pass",
        "failed when its state was asked for: AttributeError",
    ),
    "a state of numbers": (
        "    def state(self): return TermState({}, {'x': 1.0})",
        "failed when its state was asked for: AttributeError",
    ),
}


@pytest.mark.parametrize("name", UNFIT)
def test_a_term_that_gives_what_it_should_not_is_one_line(tmp_path, name):
    body, why = UNFIT[name]
    (tmp_path / "my_term.py").write_text(
        "from burnish.rewards.models import Term, TermLoss, TermState\n\n\n"
        "class Plain(Term):\n"
        "    def loss(self, states, total): return TermLoss(states.chosen_P.sum() * 0)\n\n\n"
        f"class Mine(Plain):\n{body}\n"
    )
    settings = {"kind": "function", "name": "mine", "path": f"{tmp_path}/my_term.py:Mine"}
    settings |= {"options": {"x": 1}} if "option" in name else {}
    with pytest.raises(UserError) as refused:
        finish(run_of(tmp_path, {"steps": 1}, terms=[settings]))
    line = str(refused.value)
    assert line.startswith("train.terms: 'mine'")
    assert why in line
    assert "\n" not in line


def test_a_run_is_not_continued_with_another_attribute(tmp_path):
    """Its function may stand in a file, which is looked for beside the config and kept in mind."""
    file = tmp_path / "mine.py"
    file.write_text("def polite(pair):\n    return int('please' in pair.chosen)\n")
    terms = [{"kind": "dir", "head_width": 8, "attribute": "mine.py:polite"}]
    stop_after(run_of(tmp_path, {"checkpoint": {"every": 1}}, terms=terms), 1, saved=True)
    run_of(tmp_path, {"checkpoint": {"every": 1}}, terms=terms).store.close()
    file.write_text("def polite(pair):\n    return int('thanks' in pair.chosen)\n")
    with pytest.raises(UserError, match=r"with other contents of mine.py"):
        run_of(tmp_path, {"checkpoint": {"every": 1}}, terms=terms)


def test_answers_that_are_the_same_tokens_are_refused_or_dropped(tmp_path):
    """As a template makes them that takes white space off; a tie of such answers may stay."""
    folder = shipped_folder(tmp_path)
    rows = [*GOOD, {"question": "odd one?", "chosen": "YES ", "rejected": "YES"}]
    task = write_pairs(tmp_path, rows) | {"held_out": {"by": "share", "share": 0.0}}
    tables = {"task": task, "model": {"path": str(folder)}, "steps": 1}
    why = "1 with two answers that are the same tokens"
    with pytest.raises(UserError, match=why):
        run_of(tmp_path, tables, rows=rows)
    run = run_of(tmp_path, tables, rows=rows, run="dropped", bad_pairs="drop")
    assert run.algorithm.pairs.size == len(GOOD)
    run.store.close()
    rows[-1] = rows[-1] | {"is_tie": True, "strength": 0}
    kept = run_of(tmp_path, tables, rows=rows, run="tie", tie="is_tie", ties="half")
    assert kept.algorithm.pairs.size == len(rows)
    kept.store.close()
    assert are_alike("Ａ b", "ab")
    assert not are_alike("ab", "ac")


def shipped_folder(tmp_path):
    """The tiny model with a chat template that strips each turn."""
    from burnish.lm.folder import find_folder

    folder = tmp_path / "stripping"
    shutil.copytree(find_folder("tiny"), folder)
    file = folder / "tokenizer_config.json"
    (folder / "chat_template.jinja").unlink(missing_ok=True)
    template = (
        "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] | trim }}<|im_end|>\n"
        "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
    )
    file.write_text(json.dumps(json.loads(file.read_text()) | {"chat_template": template}))
    return folder


def test_a_pair_the_other_way_round_has_the_same_loss_and_a_tie_no_margin(tmp_path):
    """A margin is what the preferred answer leads by, whichever side it stands on."""
    row = {"question": "ball?", "chosen": "RED", "rejected": "blue", "strength": 0.75}
    back = row | {"chosen": "blue", "rejected": "RED"}
    tie = row | {"is_tie": True}
    losses = {}
    for name, one in {
        "right": row | {"better": 0.8},
        "back": back | {"better": 0.2},
        "tie": tie | {"better": None},
        "tied back": back | {"is_tie": True, "better": None},
    }.items():
        fields = {k: k for k in ("chosen", "rejected", "strength", "is_tie", "better")}
        task = write_pairs(tmp_path, [one]) | {"fields": fields, "optional": ["is_tie", "better"]}
        task |= {"held_out": {"by": "share", "share": 0.0}}
        train = {"margin": "strength", "tie": "is_tie", "target": "better", "ties": "half"}
        run = run_of(tmp_path, {"task": task, "model": {"dtype": "float64"}}, run=name, **train)
        algorithm, module = run.algorithm, run.trainable.module
        with torch.no_grad():
            algorithm.head.weight.mul_(20)
        (micro,) = algorithm.micro_batches(algorithm.batch(0), 10**6)
        losses[name] = algorithm.loss(module, micro).total.item()
        run.store.close()
    assert losses["right"] == pytest.approx(losses["back"], rel=1e-9)
    assert losses["tie"] == pytest.approx(losses["tied back"], rel=1e-9)


def test_what_the_trainers_own_pass_raises_is_not_blamed_on_a_term(tmp_path, monkeypatch):
    run = run_of(tmp_path, terms=[{"kind": "dir", "head_width": 8}])

    def broken(answers):
        raise RuntimeError("CUDA error: an illegal memory access")

    monkeypatch.setattr(run.algorithm, "hidden_states", broken)
    with pytest.raises(RuntimeError, match=r"^CUDA error: an illegal memory access$") as hit:
        run.algorithm.updates(run.algorithm.batch(0))
    assert type(hit.value) is RuntimeError
    run.store.close()


def test_two_processes_train_as_one_does(tmp_path):
    train = {"kind": "reward_model", "batch": 5, "centring": 0.1, "terms": [term(tmp_path)]}
    # Plain gradient steps would do as well; Adam's first step hides every factor of the gradient.
    task = write_pairs(tmp_path)
    one_and_two(tmp_path, {"steps": 2, "train": train, "task": task, "rewards": []})
    last = "checkpoints/step-000002/trainer/optimiser.safetensors"
    one, two = (load_file(tmp_path / name / last) for name in ("one", "two"))
    for name in one:
        # The first moment is the gradient itself, times 1 - beta1.
        torch.testing.assert_close(one[name], two[name], rtol=2e-3, atol=1e-6, msg=name)


def test_a_nan_label_of_a_parquet_file_is_named(tmp_path):
    pyarrow = pytest.importorskip("pyarrow")
    from pyarrow import parquet

    rows = [row | {"strength": float("nan") if i == 3 else 0.5} for i, row in enumerate(GOOD)]
    parquet.write_table(pyarrow.Table.from_pylist(rows), tmp_path / "pairs.parquet")
    task = write_pairs(tmp_path) | {"path": str(tmp_path / "pairs.parquet")}
    with pytest.raises(UserError, match=r"1 with a 'strength' that is no finite number"):
        run_of(tmp_path, {"task": task}, margin="strength")
    finish(run_of(tmp_path, {"task": task, "steps": 1}, margin="strength", bad_pairs="drop"))


def test_labels_are_read_strictly():
    from burnish.records import Message, Task

    def read(**fields):
        given = {"chosen": "a", "rejected": "b", **fields}
        named = {name: name for name in fields}
        return read_pair(Task("t", (Message("user", "q"),), given), RewardModelTrain(**named))

    assert read(margin=2).margin == 2.0
    ties = (True, 1, 1.0, "1", "true", "Yes", "y", "tie", " Tied", "draw", "both")
    assert {read(tie=x).target for x in ties} == {0.5}
    untied = (False, 0, 0.0, "0", "false", "No", "n", None, "")
    assert {read(tie=x).target for x in untied} == {1.0}
    for odd in (2, -1, 0.5, float("nan"), float("inf"), "a", "maybe", [], ["tie"]):
        with pytest.raises(UnusableRow, match="a 'tie' that is neither true nor false"):
            read(tie=odd)
    assert read(target=0.25).target == 0.25
