"""What a judging job will cost, before it starts."""

import pytest

from burnish.lm.budget import forecast
from burnish.lm.http import Prices
from burnish.records import Message
from burnish.rewards.judges import Budget, Question


def test_from_a_number_of_calls():
    ahead = forecast(
        400, prompt_tokens=700, completion_tokens=200,
        prices=Prices(prompt_usd=0.5, completion_usd=1.5), concurrency=32, call_s=20,
    )  # fmt: skip
    assert (ahead.calls, ahead.prompt_tokens, ahead.completion_tokens) == (400, 280_000, 80_000)
    assert ahead.usd == pytest.approx(0.14 + 0.12)
    assert ahead.seconds == 13 * 20
    assert str(ahead) == ("400 calls, about 280k tokens read and 80k written, $0.26, 4 min 20 s")


def test_from_the_questions_themselves():
    questions = [Question("pair", (Message("user", "x" * 400),))] * 3
    ahead = forecast(questions, completion_tokens=10)
    assert (ahead.calls, ahead.prompt_tokens, ahead.completion_tokens) == (3, 300, 30)
    assert str(ahead) == "3 calls, about 300 tokens read and 30 written, no price given"


def test_a_budget_that_will_not_last_is_said_before():
    ahead = forecast(400, prompt_tokens=700, completion_tokens=200)
    assert ahead.warning(Budget()) == ""
    assert ahead.warning(Budget(calls=400, tokens=360_000)) == ""
    assert ahead.warning(Budget(calls=300)) == "the budget of 300 calls ends after about 75% of it"
    worst = ahead.warning(Budget(calls=300, tokens=36_000))
    assert worst == "the budget of 36000 tokens ends after about 10% of it"
