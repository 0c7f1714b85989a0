"""The study of DIR on real pairs without its models: a length in tokens never becomes a score."""

import math
from types import SimpleNamespace

import pytest
import torch
from lab.dir.baselines import Penalised, pearson_penalty, product_of_experts_loss
from lab.dir.real_pairs import score_answers

from burnish.errors import UserError
from burnish.records import Message, Task
from burnish.rewards.models.term import Pair
from burnish.rewards.models.trained_model import RewardModelReward


def scores(talks):
    """Half a point a letter; of more than nine letters only their number, as of a text too long."""
    sizes = [len(talk[-1].text) for talk in talks]
    return [size if size > 9 else size / 2 for size in sizes]


def test_an_answer_that_the_model_cannot_read_is_refused():
    scorer = SimpleNamespace(scores=scores)
    assert score_answers(scorer, [("q", "a" * 4), ("q", "a" * 7)]) == [2.0, 3.5]
    with pytest.raises(UserError, match=r"has 30 tokens, more than the model reads: 'why\?'"):
        score_answers(scorer, [("q", "a"), ("why?", "a" * 30)])


def test_the_line_by_length_is_taken_from_scores_alone(monkeypatch):
    monkeypatch.setattr(RewardModelReward, "scores", lambda self, talks: scores(talks))
    task = Task("t", (Message("user", "q"),))
    penalised = object.__new__(Penalised)
    penalised.fit([Pair(task, "a" * 8, "a" * 2), Pair(task, "a" * 30, "a" * 5)])
    assert penalised.slope == pytest.approx(0.5)
    talks = [(Message("assistant", "a" * n),) for n in (4, 30)]
    assert penalised.scores(talks) == [pytest.approx(0.0), 30]


def test_worked_numbers_of_the_baselines():
    rising, falling = torch.tensor([1.0, 2.0, 3.0]), torch.tensor([6.0, 4.0, 2.0])
    assert pearson_penalty(rising, falling).item() == pytest.approx(1.0)
    assert pearson_penalty(torch.ones(3), falling).item() == 0
    one, none, half, more = (torch.tensor([x]) for x in (1.0, 0.0, 0.5, 1.5))
    assert product_of_experts_loss(one, none, half, more).item() == pytest.approx(math.log(2))
