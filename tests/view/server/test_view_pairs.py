"""Pairs of a reward model and rubrics with their proxy: worked numbers, orders, and refusals."""

from __future__ import annotations

import pytest
from viewed_runs import open_client

from pair_runs import LEAK, LONG, MARKUP, TRAINED, paired_run, rubric_run


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    runs = tmp_path_factory.mktemp("paired")
    paired_run(runs / "model")
    rubric_run(runs / "judge")
    return runs


@pytest.fixture
def looking(folder):
    with open_client(folder) as opened:
        yield opened


def places(page: dict[str, list[dict[str, str]]]) -> list[int]:
    return [int(line["task"].removeprefix("pair-")) for line in page["pairs"]]


@pytest.mark.parametrize(
    ("sort", "order"),
    [
        ("", [1, 5, 3, 0, 2, 4]), ("wrong", [1, 5, 3, 0, 2, 4]), ("close", [3, 5, 4, 0, 2, 1]),
        ("right", [2, 0, 3, 5, 1, 4]),
    ],
)  # fmt: skip
def test_pairs_are_ordered_by_how_wrong_they_are(looking, sort, order):
    page = looking.run("model", "/pairs", sort=sort)
    assert places(page) == order
    assert (page["step"], page["number"], page["steps"]) == (TRAINED, TRAINED, [0, TRAINED])
    assert (page["score"]["value"], page["score"]["doubt"]) == (0.5, "too few to say")
    assert page["outcomes"] == {"wrong": 2, "right": 2, "equal": 1, "tie": 1}
    first = looking.run("model", "/pairs", sort=sort, limit=4)
    rest = looking.run("model", "/pairs", sort=sort, limit=4, after=first["next"])
    assert places(first) + places(rest) == order
    assert (first["next"], rest["next"]) == (4, None)


def test_a_pair_has_both_answers_scores_label_and_attributes(looking):
    line = looking.run("model", "/pairs", outcome="wrong")["pairs"][0]
    pair = line["pair"]
    assert (line["name"], line["prompt"]) == ("held_out-4-2-1", "Question 1?")
    assert pair["chosen"] == {"text": "Mars.", "of": 5, "score": -1.0}
    assert pair["rejected"] == {"text": LONG, "of": len(LONG), "score": 1.0}
    assert (pair["margin"], pair["target"], pair["outcome"]) == (-2.0, 1.0, "wrong")
    assert pair["probability"] == pytest.approx(0.11920292)
    assert pair["attributes"] == [
        {"name": "tokens", "chosen": 2, "rejected": 9},
        {"name": "characters", "chosen": 5, "rejected": len(LONG)},
        {"name": "markdown", "chosen": 0, "rejected": 3},
        {"name": "agreement", "chosen": 0, "rejected": 0},
    ]
    sample = looking.run("model", "/sample", id=line["name"])
    assert sample["pair"] == pair
    assert sample["why"] == "an evaluation is not trained on"


def test_what_the_scores_go_with_by_hand(looking):
    """The label prefers the longer answer in pairs 2, 3 and 5, the shorter one in 0 and 1."""
    lines = {line["name"]: line for line in looking.run("model", "/pairs")["attributes"]}
    assert lines["characters"] == {
        "name": "characters", "pairs": 5,
        "label_more": pytest.approx(3 / 5),
        # Longer and higher: pair 1 and 2 wholly, pair 3 half.
        "score_more": pytest.approx(2.5 / 5), "right_more": pytest.approx(1.5 / 3),
        "right_less": pytest.approx(1 / 2),
    }  # fmt: skip
    assert "agreement" not in lines


def test_a_training_pair_is_one_too_and_its_attributes_are_counted_when_asked(looking):
    page = looking.run("model", "/pairs", split="train", step=0)
    assert (page["number"], page["attributes"][0]["name"]) == (1, "tokens")
    sample = looking.run("model", "/sample", id="train-1-1-1")
    named = {one["name"]: one["rejected"] for one in sample["pair"]["attributes"]}
    assert named == {"tokens": 9, "characters": len(LONG), "markdown": 3, "agreement": 0}
    assert sample["why"] == "a pair has no advantage: the loss moves its two scores apart"


def test_other_runs_have_no_pairs_and_mistakes_get_one_line(looking):
    assert looking.run("model")["has_pairs"] is True
    assert looking.run("judge")["has_pairs"] is False
    assert "no pairs of eval:held_out" in looking.run("judge", "/pairs", 404)["error"]
    assert (
        "no pairs of eval:held_out at step 3"
        in looking.run("model", "/pairs", 404, step=3)["error"]
    )
    assert "sort is 'best'" in looking.run("model", "/pairs", 400, sort="best")["error"]


def test_a_rubric_with_what_guard_and_proxy_made_of_it(looking):
    fine, leak, failed, none = (
        looking.run("judge", "/sample", id=f"train-1-1-{n}")["rubric"] for n in (1, 2, 3, 4)
    )
    assert (fine["rubric"], fine["guard"], fine["leaks"]) == ("Facts 100%", "names no winner", [])
    assert (fine["choice"], fine["accuracy"], fine["value"], fine["total"]) == (1, 1.0, 1.0, 2.5)
    assert fine["saw"] == (
        "from the rubric alone the proxy is right; it saw the two responses in the opposite order"
    )
    assert (fine["proxy"], fine["said"]) == ("by_facts", f"{MARKUP} <answer>2</answer>")
    assert [(p["name"], p["value"], p["weight"]) for p in fine["parts"]] == [
        ("accuracy", 1.0, 1.0),
        ("proxy", 1.0, 1.0),
        ("format", 1.0, 0.5),
    ]
    assert leak["leaks"] == [LEAK]
    assert leak["guard"] == "names a winner: counted as wrong, and the proxy is not asked"
    assert (leak["value"], leak["said"], leak["total"]) == (-1.0, "", 0.5)
    assert (failed["value"], failed["total"], failed["status"]) == (None, None, "reward_error")
    assert "no route" in failed["saw"]
    assert (none["rubric"], none["guard"], none["choice"]) == ("", "nothing to look at", None)
    assert looking.run("model", "/sample", id="train-1-1-1")["rubric"] is None
