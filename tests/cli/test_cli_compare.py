"""`burnish compare` on runs made by hand, and on two real runs of the tiny model."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from burnish.cli.entry import run
from burnish.records import Author, Message, Reward, Span, Status, Task, Trajectory
from burnish.store import RunStore, StoredSample

CONFIG = {
    "steps": 4, "task.kind": "arithmetic", "rewards.0.kind": "numeric", "rewards.0.name": "right",
    "rewards.0.weight": 1.0, "evaluation.part": "", "evaluation.max_tokens": 0,
    "rollout.max_tokens": 16, "optimiser.learning_rate": 1e-5, "run.name": "x",
}  # fmt: skip

Marks = dict[str, float | None]


def make(
    folder: Path,
    evaluations: dict[int, Marks],
    changes: dict[str, object] | None = None,
    answers: dict[str, str] | None = None,
) -> RunStore:
    """A run that is still open, with these marks of these prompts after these steps."""
    store = RunStore.create(folder, CONFIG | (changes or {}), {}, recipe="small")
    for step, marks in evaluations.items():
        samples = [_answer(step, i, *item, answers or {}) for i, item in enumerate(marks.items())]
        store.append_evaluation(step, "held_out", samples, {"marks": list(marks.values())})
    for step in range(3):
        store.append_metrics(step, {"reward/total": 0.25 * step, "length/mean": 8.0 - step})
    return store


def _answer(
    step: int, index: int, key: str, mark: float | None, answers: dict[str, str]
) -> StoredSample:
    failed = Reward.failed("total", Status.TIMEOUT, "late")
    return StoredSample(
        step=step, split="eval:held_out", index=index,
        task=Task(key, (Message("user", f"What is {key}?"),), {"answer": "1"}),
        trajectory=Trajectory(
            f"eval.{step}.{index}", key, f"eval.{step}.{index}", (Span(Author.MODEL, (1,)),),
            answers.get(key, f"mark {mark}"),
        ),
        reward=failed if mark is None else Reward("total", mark), keep=False,
    )  # fmt: skip


def prompts(marks: str) -> Marks:
    """`10?` is a right, a wrong and an unmarked answer to prompts p00, p01 and p02."""
    values: dict[str, float | None] = {"1": 1.0, "0": 0.0, "?": None}
    return {f"p{i:02d}": values[letter] for i, letter in enumerate(marks)}


FIRST = "1100000000000000?1"
SECOND = "11111111000000001"


@pytest.fixture
def two(tmp_path):
    """`first` has 18 prompts, `second` the first 17; one has no mark; `second` wins 6 to 0."""
    make(tmp_path / "first", {0: prompts("0" * 18), 4: prompts(FIRST)}).close()
    backwards = dict(reversed(prompts(SECOND).items()))
    changes = {"optimiser.learning_rate": 2e-5, "policy.ratio": "sequence"}
    answers = {"p02": "one\x1b[2J\n\n two\nthree\nfour\n", "p03": "\n\n"}
    make(tmp_path / "second", {0: prompts("0" * 17), 4: backwards}, changes, answers).close()
    return tmp_path


def test_text_says_what_differs_the_test_the_gaps_and_the_verdict(typed, two):
    shown = typed("compare", "first", "second", "--runs", two)
    assert (shown.code, shown.err) == (0, "")
    lines = [line.rstrip() for line in shown.out.splitlines()]
    assert lines[0] == "A  first: recipe small, crashed, 3 steps, held out after 4 steps"
    table = [line.split() for line in lines]
    assert ["optimiser.learning_rate", "1e-05", "2e-05"] in table
    assert ["policy.ratio", "-", "sequence"] in table
    assert "run.name" not in shown.out
    assert "right in  both 2, only A 0, only B 6, neither 8" in lines
    assert "test      exact McNemar test, two-sided: p = 0.031, over 16 prompts" in lines
    assert "left out  1 that only A answered: p17" in lines
    assert "left out  1 without a mark: p16 (A timeout)" in lines
    assert lines[-1].startswith("B is better by 37.5 points [")
    assert lines[-1].endswith("], p = 0.031, over 16 prompts")


@pytest.mark.parametrize("second", ["first", "fir", "{runs}/first", "{runs}/../{name}/first"])
def test_a_run_is_not_compared_with_itself(typed, two, second):
    again = second.format(runs=two, name=two.name)
    shown = typed("compare", "first", again, "--runs", two)
    assert (shown.code, shown.out) == (2, "")
    assert shown.err == (
        f"burnish: 'first' and '{again}' are the same run, {two / 'first'}; expected different ones. Its own "
        f"curves and scores: burnish show {two / 'first'}\n"
    )


def test_answers_that_changed_show_their_first_lines_and_steer_nothing(typed, two):
    shown = typed("compare", "first", "second", "--runs", two).out
    lines = [line.rstrip() for line in shown.splitlines()]
    start = lines.index("p02  0.000 -> 1.000  What is p02?")
    assert lines[start + 1 : start + 6] == [
        "  A  mark 0.0", "  B  one\\x1b[2J", "      two", "     three", "     …",
    ]  # fmt: skip
    assert lines[lines.index("p03  0.000 -> 1.000  What is p03?") + 2] == "  B  (blank)"
    assert "prompts that changed most, of 6 that changed" in lines
    assert "p05  " not in shown
    assert "\x1b" not in shown


def test_swapped_runs_flip_the_sign_and_keep_the_p_value(typed, two):
    there, back = (
        json.loads(typed("compare", *pair, "--runs", two, "--json").out)
        for pair in (("first", "second"), ("second", "first"))
    )
    assert there["test"]["difference"]["value"] == 0.375
    assert back["test"]["difference"]["value"] == -0.375
    assert there["test"]["p_value"] == back["test"]["p_value"] == 2 / 64
    assert there["verdict"].removeprefix("B") == back["verdict"].removeprefix("A")
    assert back["only_b"] == ["p17"]


def test_json_holds_every_prompt_and_every_gap(typed, two):
    found = json.loads(typed("compare", "first", two / "second", "--runs", two, "--json").out)
    assert [found[side]["name"] for side in "ab"] == ["first", "second"]
    assert found["a"]["evaluated_after"] == 4
    assert found["differs"] == {
        "optimiser.learning_rate": [1e-5, 2e-5],
        "policy.ratio": [None, "sequence"],
    }
    assert found["test"]["method"] == "mcnemar"
    assert found["test"]["fourfold"] == {"both": 2, "only_a": 0, "only_b": 6, "neither": 8}
    assert [p["id"] for p in found["prompts"]] == [f"p{i:02d}" for i in range(16)]
    assert found["prompts"][2]["answer_b"].startswith("one\x1b[2J\n")
    assert (found["only_a"], found["only_b"]) == (["p17"], [])
    assert found["unmarked"] == [{"id": "p16", "why_a": "timeout", "why_b": ""}]
    assert found["curves"]["length/mean"]["b"] == [[0, 8.0], [1, 7.0], [2, 6.0]]
    assert found["notes"] == []


def test_a_run_against_its_copy(typed, two):
    shutil.copytree(two / "first", two / "copy")
    shown = typed("compare", "first", "copy", "--runs", two).out
    assert "the two configs are the same" in shown
    assert shown.endswith("cannot be told apart: every mark is the same, over 17 prompts\n")


def test_other_steps_are_said_and_can_be_chosen(typed, tmp_path):
    steps = {step: prompts("0" * step + "1" * (20 - step)) for step in (0, 10, 20)}
    make(tmp_path / "long", steps, {"rollout.max_tokens": 64}).close()
    make(tmp_path / "short", {k: v for k, v in steps.items() if k < 20}).close()
    last = json.loads(typed("compare", "long", "short", "--runs", tmp_path, "--json").out)
    assert [last[side]["evaluated_after"] for side in "ab"] == [20, 10]
    assert last["notes"] == [
        "the last evaluation of each is compared: A's after 20 steps, B's after 10; --step N "
        "compares both after N steps: 0, 10",
        "answers had at most 64 tokens in A and 16 in B, which alone can make a difference",
    ]
    assert last["verdict"].startswith("B is better by 50.0 points")
    same = typed("compare", "long", "short", "--step", 10, "--runs", tmp_path).out
    assert "held out after 10 steps" in same
    assert "the last evaluation" not in same
    assert "every mark is the same" in same


def test_runs_that_are_going_on_are_read(typed, tmp_path):
    with make(tmp_path / "one", {0: prompts("01")}) as one, make(tmp_path / "two", {}) as two:
        shown = typed("compare", "one", "two", "--runs", tmp_path)
        assert (shown.code, shown.out) == (2, "")
        assert "run 'two' has no held-out evaluation: it is going on; wait" in shown.err
        samples = [_answer(0, i, key, 1.0, {}) for i, key in enumerate(("p00", "p01"))]
        two.append_evaluation(0, "held_out", samples, {"marks": [1.0, 1.0]})
        shown = typed("compare", "one", "two", "--runs", tmp_path)
        assert shown.out.startswith("A  one: recipe small, running, 3 steps")
        assert "right in  both 1, only A 0, only B 1, neither 0" in shown.out
        one.append_metrics(3, {"reward/total": 1.0})
    assert one.folder.joinpath("config.json").is_file()


def test_marks_that_do_not_fit_the_answers_are_a_damaged_store(typed, two):
    with RunStore.open(two / "first") as store:
        store.append_evaluation(9, "held_out", [_answer(9, 0, "p00", 1.0, {})], {"marks": []})
    shown = typed("compare", "first", "second", "--runs", two)
    assert shown.code == 3
    assert "run 'first' has 0 marks for 1 answers" in shown.err


def test_two_real_runs(typed, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    small = ["rollout.prompts=2", "rollout.samples=4", "evaluation.prompts=12", "--quiet"]
    for name, rate, size in (("still", "0.0", 12), ("moving", "0.001", 10)):
        words = [f"run.name={name}", f"optimiser.learning_rate={rate}", "steps=2"]
        assert run(["train", "tiny", *words, *small, f"evaluation.prompts={size}"]) == 0
    found = json.loads(typed("compare", "still", "moving", "--json").out)
    assert set(found["differs"]) == {"optimiser.learning_rate", "evaluation.prompts"}
    assert len(found["prompts"]) + len(found["unmarked"]) == 10
    assert len(found["only_a"]) == 2
    with RunStore.open(tmp_path / "runs" / "moving", read_only=True) as store:
        score = store.evaluations("held_out")[-1].summary["score"]
    assert found["test"]["mean_b"] == dict(
        zip(("value", "low", "high", "size"), score, strict=True)
    )
    assert set(found["curves"]) == {
        "reward/total", "policy/entropy", "policy/clipped_share", "length/mean", "groups/useful",
        "time/step_s",
    }  # fmt: skip
    start = json.loads(typed("compare", "still", "moving", "--step", 0, "--json").out)
    assert all(pair["answer_a"] == pair["answer_b"] for pair in start["prompts"])
    assert start["test"]["p_value"] == 1.0


def make_losses(folder: Path, losses: list[float], *, data: str = "same") -> Path:
    """A finished run whose held-out evaluation has losses and no answers."""
    store = RunStore.create(folder, CONFIG | {"rewards": []}, {}, recipe="small", data_hash=data)
    store.append_evaluation(4, "held_out", [], {"marks": losses, "measure": "loss"})
    store.finish("finished")
    store.close()
    return folder


def test_runs_scored_by_a_loss_are_compared_item_by_item(tmp_path, capsys):
    a = make_losses(tmp_path / "a", [2.0 + 0.1 * i for i in range(12)])
    b = make_losses(tmp_path / "b", [1.0 + 0.1 * i for i in range(12)])
    assert run(["compare", str(a), str(b), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["verdict"].startswith("B is better by 1")
    assert len(found["prompts"]) == 12


def test_losses_on_other_data_are_not_compared(tmp_path, capsys):
    a = make_losses(tmp_path / "a", [1.0] * 12)
    b = make_losses(tmp_path / "b", [1.0] * 12, data="other")
    assert run(["compare", str(a), str(b)]) == 2
    assert "held-out tasks differ" in capsys.readouterr().err
