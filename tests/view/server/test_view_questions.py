"""Questions of search self-play with their success rate over steps."""

import pytest
from viewed_runs import open_client

from pair_runs import rubric_run
from played_runs import played_run, refused_run


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    runs = tmp_path_factory.mktemp("played")
    played_run(runs / "game")
    rubric_run(runs / "other")
    refused_run(runs / "refused")
    return runs


@pytest.fixture
def looking(folder):
    with open_client(folder) as opened:
        yield opened


@pytest.mark.parametrize(
    ("sort", "order"),
    [
        ("", "cab"), ("newest", "cab"), ("hardest", "bac"), ("easiest", "abc"),
        ("most_played", "acb"),
    ],
)  # fmt: skip
def test_questions_are_ordered(looking, sort, order):
    page = looking.run("game", "/questions", sort=sort)
    assert "".join(line["answer"][0] for line in page["questions"]) == order
    assert (page["count"], page["replayed"], page["next"]) == (3, 1, None)
    first = looking.run("game", "/questions", sort=sort, limit=2)
    assert first["next"] == 2


def test_a_question_has_its_rate_in_every_step_it_was_played(looking):
    (line,) = [
        line
        for line in looking.run("game", "/questions")["questions"]
        if line["answer"] == ["a", "x"]
    ]
    assert line["question"] == "Which <b>a</b>?"
    assert [(p["number"], p["success"], p["attempts"], p["origin"]) for p in line["plays"]] == [
        (1, 0.5, 2, "proposed"),
        (2, 1.0, 2, "replayed"),
    ]
    assert line["plays"][0]["group"] == "0.0.solver"
    assert line["success"] == 1.0


def test_only_runs_of_the_game_lead_to_questions(looking):
    assert looking.run("game")["has_questions"] is True
    assert looking.run("other")["has_questions"] is False
    assert "no questions" in str(looking.run("other", "/questions", 404))


def test_a_game_without_an_accepted_question_has_an_empty_page(looking):
    page = looking.run("refused", "/questions")
    assert (page["count"], page["questions"]) == (0, [])
