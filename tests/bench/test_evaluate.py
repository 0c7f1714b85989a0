"""Evaluation when some answers never come: the others count, and the gaps are counted."""

import anyio
import pytest

from burnish.bench import evaluate
from burnish.errors import ModelError, UserError
from burnish.lm import Sampling, ScriptedLM
from burnish.lm.failures import Refused, TimedOut
from burnish.records import Finish, Message, Status, Task
from burnish.rewards import from_function
from burnish.training import metrics as ledger
from burnish.training.algorithm import HeldOutScores


def tasks(*words):
    return [
        Task(id=f"t{i}", messages=(Message("user", word),), fields={"answer": "yes"})
        for i, word in enumerate(words)
    ]


def right(text: str, answer: str) -> float | None:
    return None if text == "?" else float(text == answer)


def evaluated(script, *words):
    return anyio.run(evaluate, ScriptedLM(script), tasks(*words), from_function(right), Sampling())


def failing(error):
    def script(messages, index):
        if messages[-1].content == "bad":
            raise error
        return messages[-1].content

    return script


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (ModelError("the server is gone"), Status.INFRA_ERROR),
        (TimedOut("too late"), Status.TIMEOUT),
        (Refused("I will not"), Status.REFUSED),
    ],
)
def test_a_model_that_fails_on_one_task_costs_that_task_alone(error, status):
    result = evaluated(failing(error), "yes", "bad", "no", "?", "yes")
    assert result.marks == [1.0, None, 0.0, None, 1.0]
    lost = result.items[1]
    assert (lost.trajectory.finish, lost.trajectory.text) == (Finish.ERROR, "")
    assert (lost.reward.status, lost.reward.value, lost.reward.reason) == (status, None, str(error))
    assert result.items[3].reward.status is Status.ABSTAIN
    assert result.score.size == 3
    assert result.decided == result.score.value == pytest.approx(2 / 3)
    assert result.all == pytest.approx(2 / 5)
    assert result.valid == pytest.approx(3 / 5)


def test_what_is_stored_counts_the_lost_item():
    result = evaluated(failing(ModelError("gone")), "yes", "bad")
    stored = ledger.summary(HeldOutScores(result.marks))
    assert (stored["valid"], stored["count"], stored["marks"]) == (1, 2, [1.0, None])
    assert ledger.estimate(stored) == result.score
    assert [item.trajectory.finish for item in result.items] == [Finish.STOP, Finish.ERROR]


def test_a_model_that_never_answers_has_no_score():
    result = evaluated(failing(ModelError("gone")), "bad", "bad")
    assert (result.score, result.decided, result.all, result.valid) == (None, None, 0.0, 0.0)


def test_no_tasks_no_numbers():
    result = evaluated({})
    assert (result.items, result.score, result.all, result.valid) == ([], None, None, None)


def test_a_mistake_of_the_user_is_no_gap():
    with pytest.raises(UserError, match="check the key"):
        evaluated(failing(UserError("check the key")), "yes", "bad")
