"""Hints for what newcomers type: flags, other libraries' names, misspelt files."""

from __future__ import annotations

import pytest

import burnish
from burnish.config import peers
from burnish.errors import UserError


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("train --steps 4", "Settings are typed without dashes: steps=4."),
        ("train tiny --steps=4", "Settings are typed without dashes: steps=4."),
        ("train --num_generations 4", "TRL's num_generations is rollout.samples=4 here."),
        ("train --steps", "steps=...."),
    ],
)
def test_a_flag_that_is_a_setting(typed, line, said):
    shown = typed(*line.split())
    assert shown.code == 2
    assert said in shown.err
    assert shown.err.count("\n") == 1


@pytest.mark.parametrize(
    ("word", "said"),
    [
        ("num_generations=4", "TRL's num_generations is rollout.samples=4 here."),
        ("beta=0.1", 'TRL\'s beta is policy.auxiliary=[{kind="kl",coefficient=0.04}] here'),
        ("actor_rollout_ref.rollout.n=4", "verl's actor_rollout_ref.rollout.n is rollout.samples"),
        ("data.train_batch_size=64", "verl's data.train_batch_size is rollout.prompts=64 here."),
        ("learning_rate=1", "Did you mean 'optimiser.learning_rate'?"),
    ],
)
def test_names_of_other_libraries(typed, word, said):
    shown = typed("train", "tiny", word)
    assert shown.code == 2
    assert said in shown.err


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"num_generations": 4}, 'is rollout={"samples": 4} here.'),
        ({"beta": 0.1}, 'policy={"auxiliary": [{"kind": "kl", "coefficient": 0.04}]} here'),
        ({"processing_class": "a"}, "has no counterpart here"),
    ],
)
def test_names_of_other_libraries_in_python(given, said):
    with pytest.raises(UserError) as caught:
        burnish.train("tiny", **given)
    assert said in str(caught.value)


def test_every_row_of_the_pages_has_a_hint():
    known = peers.settings()
    assert len(known) > 90
    for name in known:
        assert peers.hint(name).startswith((" TRL's ", " verl's "))
        assert peers.hint(name, in_python=True).endswith(".")


def test_errors_in_python_are_spelled_as_python(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    row = [{"prompt": "Write a digit."}]
    with pytest.raises(UserError) as caught:
        burnish.train("tiny", data=row, rewards=[len], steps=1, show=False)
    assert "give held_out=0." in str(caught.value)
    assert "{" not in str(caught.value)


def test_rows_that_repeat_a_prompt_say_what_became_of_them(typed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)

    def size(text: str) -> float:
        return float(len(text))

    rows = [{"prompt": "Write a digit."}] * 2 + [{"prompt": f"Write {n}."} for n in range(9)]
    given = {"data": rows, "held_out": [{"prompt": "Write 77."}], "rewards": [size]}
    run = burnish.train("tiny", "steps=1", "run.name=mine", show=False, **given)
    (note,) = run.notes
    assert "1 of 11 rows repeat a prompt in training, where each row is a task" in note
    assert f"data      {note}" in typed("show", "mine").out
    burnish.train("tiny", "steps=1", "run.name=mine", show=False, **given)
    assert run.notes == [note]
