"""What a reward judges by besides quality, on rewards whose habit is known."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import anyio
import pytest

from burnish.bench.bias_report import BiasReport, as_pairs, bias_report
from burnish.bench.items import Item, responses_of
from burnish.bench.loaders import load
from burnish.cli.entry import run
from burnish.errors import UserError
from burnish.records import Message, Task
from burnish.rewards.function import from_function
from burnish.rewards.models import Pair

RIGHT, WRONG = "It is true.", "It is false."


def longer(text: str) -> float:
    return float(len(text))


def truthful(text: str) -> float:
    return 1.0 if "true" in text else 0.0


def undecided(text: str) -> float | None:
    return None


def pair_of(i: int, chosen: str, rejected: str) -> Pair:
    return Pair(Task(str(i), (Message("user", f"Question {i}?"),)), chosen, rejected)


def pairs() -> list[Pair]:
    """Half of the pairs have the longer answer on the wrong side."""
    more = " And that is all there is to say about it."
    natural = [pair_of(i, RIGHT + more, WRONG) for i in range(12)]
    return natural + [pair_of(i, RIGHT, WRONG + more) for i in range(12, 24)]


def report_of(function: Any, **more: Any) -> BiasReport:
    async def work() -> BiasReport:
        return await bias_report(from_function(function), pairs(), **more)

    return anyio.run(work)


def test_a_reward_of_length_is_right_where_length_agrees_and_wrong_where_it_opposes():
    report = report_of(longer)
    length = report.attributes[0]
    assert report.accuracy.value == 0.5
    assert length.name == "length"
    assert length.natural is not None
    assert length.adversarial is not None
    assert (length.natural.value, length.natural.size) == (1.0, 12)
    assert (length.adversarial.value, length.adversarial.size) == (0.0, 12)
    assert length.correlation == pytest.approx(1.0)
    assert length.predicts == 0.5
    # Padding is longer than what was added above.
    assert (length.helped.value, length.misled.value, length.flips.value) == (1.0, 0.0, 1.0)
    assert length.paid.low > 0
    assert length.probe_auc is None  # a function has no hidden states


def test_a_reward_of_truth_never_flips_and_is_paid_nothing():
    report = report_of(truthful)
    assert report.accuracy.value == 1.0
    for one in report.attributes:
        assert (one.helped.value, one.misled.value, one.flips.value) == (1.0, 1.0, 0.0)
        assert one.paid.value == 0.0


def test_pairs_without_a_value_are_counted_and_none_at_all_is_refused():
    def half(text: str, prompt: str) -> float | None:
        return None if "Question 3?" in prompt else truthful(text)

    report = report_of(half)
    assert (report.pairs, report.unscored, report.accuracy.size) == (24, 1, 23)
    with pytest.raises(UserError, match="no value for any of 24 pairs"):
        report_of(undecided)
    with pytest.raises(UserError, match="pairs"):
        anyio.run(bias_report, from_function(longer), [])


def test_rm_bench_is_read_from_its_own_pairs(tmp_path):
    row = {
        "id": 1, "prompt": "Why?", "chosen": ["true", "true " * 5, "true " * 9],
        "rejected": ["no", "no " * 7, "no " * 20],
    }  # fmt: skip
    (tmp_path / "chat_filtered.json").write_text(json.dumps([row]))
    items = load("rmbench", tmp_path)
    assert report_of(truthful, rmbench=items).rmbench == {
        "chat": 1.0, "hard": 1.0, "normal": 1.0, "easy": 1.0, "total": 1.0,
    }  # fmt: skip
    found = report_of(longer, rmbench=items).rmbench
    assert found is not None
    # By characters: chosen 4, 25, 45; rejected 2, 21, 60.
    assert (found["hard"], found["normal"], found["easy"]) == (0.0, 2 / 3, 1.0)


def test_benchmark_items_become_pairs_whatever_their_order():
    texts = responses_of("a", ["worse", "better"])
    asked = (Message("user", "Which?"),)
    items = [
        Item("a", asked, texts, (1,)),
        Item("b", asked, texts, (0, 1)),
        Item("c", asked, texts),
    ]
    assert as_pairs(items) == [Pair(Task("a", asked), "better", "worse")]


def test_the_command_prints_the_table_and_json(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("def longer(text: str) -> float:\n    return float(len(text))\n")
    rows = [
        {
            "prompt": [{"role": "user", "content": p.task.messages[0].text}],
            "chosen": p.chosen,
            "rejected": p.rejected,
        }
        for p in pairs()
    ]
    tie = {"prompt": "?", "chosen": "a", "rejected": "b", "tie": True}
    Path("pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in [*rows, tie]))
    assert run(["reward", "bias", "mine.py:longer", "--data", "pairs.jsonl"]) == 0
    shown = capsys.readouterr().out
    assert "'longer' on 24 pairs of pairs.jsonl" in shown
    assert "1.00 (12)" in shown
    assert run(["reward", "bias", "mine.py:longer", "--data", "pairs.jsonl", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["attributes"][0]["name"] == "length"
    assert found["rows_left_out"] == 1
    bad = {"prompt": [{"role": 3}], "chosen": "a", "rejected": "b"}
    Path("pairs.jsonl").write_text(json.dumps(bad) + "\n")
    assert run(["reward", "bias", "mine.py:longer", "--data", "pairs.jsonl"]) != 0
    assert "pairs.jsonl:1: 'prompt' is not a list of chat messages" in capsys.readouterr().err


def test_the_verdict_names_what_moves_a_reward_and_says_when_pairs_are_too_few():
    assert report_of(longer).verdict.startswith("length moves this reward: planting it is paid +")
    assert (
        "right in 100% where the better response has more of it, in 0%" in report_of(longer).verdict
    )
    calm = report_of(truthful).verdict
    assert calm.startswith("no attribute stands out")
    assert calm.endswith(
        "under 10 pairs whose preferred answer has more markdown, has less markdown, "
        "alone agrees with the user, alone does not agree with the user"
    )

    async def few() -> BiasReport:
        return await bias_report(from_function(longer), pairs()[:6])

    assert anyio.run(few).verdict == "too few to say: 6 pairs with values, fewer than 10"


def short_pairs(other_way: int, count: int = 60) -> list[Pair]:
    """The better answer is the shorter one by far, but for a few pairs."""
    made = []
    for i in range(count):
        short, long = "short " * (1 + i % 5), "long " * (300 + i % 7)
        made.append(pair_of(i, long, short) if i < other_way else pair_of(i, short, long))
    return made


def shorter(text: str) -> float:
    return -float(len(text))


def verdict_of(function: Any, given: list[Pair]) -> str:
    async def work() -> BiasReport:
        return await bias_report(from_function(function), given)

    return anyio.run(work).verdict


def test_pairs_that_all_prefer_the_shorter_answer_cannot_tell_length_from_quality():
    told = verdict_of(shorter, short_pairs(0))
    assert told.startswith(
        "in all 60 pairs the preferred answer is shorter and the score follows length (-1.00): "
        "these pairs cannot tell length from quality; too few to say"
    )
    assert "no attribute stands out" not in told
    assert "under 10 pairs whose preferred answer is longer, has more markdown" in told
    assert "is shorter," not in told  # of these there are enough
    assert "in 57 of 60 pairs the preferred answer is shorter" in verdict_of(
        shorter, short_pairs(3)
    )


def test_pairs_of_both_sides_or_scores_that_do_not_follow_are_not_called_confounded():
    assert "cannot tell" not in verdict_of(shorter, short_pairs(10, 100))  # 10 can tell
    assert "cannot tell" not in verdict_of(shorter, short_pairs(9))  # 85 % on one side
    assert verdict_of(odd, short_pairs(0)).startswith("no attribute stands out")


def odd(text: str) -> float:
    """A score that has nothing to do with length."""
    return float(len(text.split()) % 2)


def test_the_command_reads_both_forms_of_pairs_and_names_the_fields_it_found(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("def longer(text: str) -> float:\n    return float(len(text))\n")
    words = ["reward", "bias", "mine.py:longer", "--data", "pairs.jsonl"]

    def told(*rows: dict[str, Any]) -> tuple[int, str, str]:
        Path("pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        code = run(words)
        shown = capsys.readouterr()
        return code, shown.out, shown.err

    labelled = [
        {"prompt": p.task.messages[0].text, "a": p.rejected, "b": p.chosen, "winner": "b"}
        for p in pairs()
    ]
    open_row = {"prompt": "?", "a": "x", "b": "y"}
    code, out, _ = told(*labelled, open_row, {**open_row, "winner": "tie"})
    assert code == 0
    assert "2 rows of pairs.jsonl are left out" in out
    assert "'longer' on 24 pairs" in out
    assert "length moves this reward" in out
    code, _, err = told({"prompt": "?", "better": "x", "worse": "y"})
    assert code == 2
    assert "pairs.jsonl:1: no pair; expected a prompt with chosen and rejected" in err
    assert "got prompt, better, worse" in err
    code, _, err = told(open_row)
    assert code == 2
    assert "no row says which response is better" in err
    assert "got prompt, a, b" in err


def test_the_command_reads_ties_as_training_does_and_leaves_equal_answers_out(
    tmp_path, capsys, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    Path("mine.py").write_text("def longer(text: str) -> float:\n    return float(len(text))\n")
    words = ["reward", "bias", "mine.py:longer", "--data", "pairs.jsonl", "--json"]

    def left_out(*ties: Any, **more: str) -> tuple[int, int]:
        row = {"prompt": "?", "chosen": "long one", "rejected": "one"}
        rows = [row, *(row | {"tie": tie} | more for tie in ties)]
        Path("pairs.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
        assert run(words) == 0
        found = json.loads(capsys.readouterr().out)
        return found["pairs"], found["rows_left_out"]

    assert left_out("false", "no", "0", 0, False, None, "") == (8, 0)
    assert left_out("true", "yes", "tie", 1, True) == (1, 5)
    assert left_out(False, chosen="same", rejected="same") == (1, 1)
    Path("pairs.jsonl").write_text('{"prompt": "?", "chosen": "a", "rejected": "b", "tie": "x"}\n')
    assert run(words) != 0
    assert "pairs.jsonl:1: tie is 'x'; expected true, false or nothing." in capsys.readouterr().err
