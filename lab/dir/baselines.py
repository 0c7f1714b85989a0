"""What DIR is compared with on real pairs: a straight line, a correlation, a second expert."""

from __future__ import annotations

import math
from collections.abc import Sequence
from statistics import linear_regression, stdev

import torch
from torch import Tensor

from burnish.bench.bias_report import PROBED
from burnish.records import Message
from burnish.rewards.models.term import (
    Pair,
    PairStates,
    Term,
    TermContext,
    TermLoss,
    bradley_terry_loss,
)
from burnish.rewards.models.trained_model import RewardModelReward

FITTED = 1000
"""Training pairs from which a line or a slope is taken."""


def pearson_penalty(rewards: Tensor, attribute: Tensor) -> Tensor:
    """`|correlation|` of rewards and an attribute over a batch, with its gradient: (N,) twice -> ().

    ODIN's length loss (arXiv 2402.07319). It sees straight lines only; 0 where one of the two does
    not vary.
    """
    values_N = attribute.to(rewards)
    if _is_constant(rewards) or _is_constant(values_N):
        return rewards.sum() * 0.0
    left, right = rewards - rewards.mean(), values_N - values_N.mean()
    scale: Tensor = torch.linalg.vector_norm(left) * torch.linalg.vector_norm(right)
    return ((left * right).sum() / scale).abs()


def product_of_experts_loss(
    r_chosen: Tensor, r_rejected: Tensor, bias_chosen: Tensor, bias_rejected: Tensor
) -> Tensor:
    """Bradley-Terry of reward plus a second expert that sees the attribute alone: (N,) -> ().

    Both are trained by it; later the reward is used without the other (arXiv 2310.05199).
    """
    return bradley_terry_loss(r_chosen + bias_chosen, r_rejected + bias_rejected)


def _is_constant(values_N: Tensor) -> bool:
    if not len(values_N):
        return True
    low, high = values_N.detach().aminmax()
    return bool(high - low <= 1e-6 * max(1.0, float(high.abs())))


class PearsonTerm(Term):
    """The baseline: correlation of the scores with the attribute's amount, of each micro-batch."""

    def __init__(self, context: TermContext, attribute: str, coefficient: float) -> None:
        super().__init__(context)
        self.amount = {one.name: one.amount for one in PROBED}[attribute]
        self.coefficient = coefficient

    def loss(self, states: PairStates, total: int) -> TermLoss:
        """(2 P,) scores and amounts -> their absolute correlation, by the share of pairs."""
        texts = [text for pair in states.pairs for text in (pair.chosen, pair.rejected)]
        scores = torch.stack([states.chosen_P, states.rejected_P], 1).flatten()
        amounts = torch.tensor([float(self.amount(text)) for text in texts]).to(scores)
        share = self.coefficient * len(states.pairs) / total
        return TermLoss((share * pearson_penalty(scores, amounts)).to(scores.dtype))


class ExpertTerm(Term):
    """The baseline: a second expert that sees the attribute alone, fitted before the first step.

    It turns Bradley-Terry's loss into that of the product of both; the model is used without it.
    """

    def __init__(self, context: TermContext, attribute: str) -> None:
        super().__init__(context)
        self.amount = {one.name: one.amount for one in PROBED}[attribute]
        leads = [self.lead(pair) for pair in context.pairs(FITTED)]
        self.unit = max(stdev(leads), 1e-9)
        self.slope = logistic_slope([lead / self.unit for lead in leads])

    def lead(self, pair: Pair) -> float:
        """How much more of the attribute the preferred answer has."""
        return float(self.amount(pair.chosen)) - float(self.amount(pair.rejected))

    def loss(self, states: PairStates, total: int) -> TermLoss:
        """What the second expert changes in the loss of these pairs."""
        margin = states.chosen_P - states.rejected_P
        leads = torch.tensor([self.lead(pair) / self.unit for pair in states.pairs]).to(margin)
        changed = product_of_experts_loss(
            states.chosen_P, states.rejected_P, self.slope * leads, torch.zeros_like(leads)
        ) - bradley_terry_loss(states.chosen_P, states.rejected_P)
        return TermLoss(changed * (len(states.pairs) / total))


def logistic_slope(leads: Sequence[float]) -> float:
    """The slope by which a lead alone best tells the preferred answer, by Newton's steps."""
    slope = 0.0
    for _ in range(50):
        right = [1 / (1 + math.exp(-max(-50.0, min(50.0, slope * lead)))) for lead in leads]
        gradient = sum(lead * (1 - p) for lead, p in zip(leads, right, strict=True))
        curve = sum(lead * lead * p * (1 - p) for lead, p in zip(leads, right, strict=True))
        if curve < 1e-12:
            break
        slope += max(-1.0, min(1.0, gradient / curve))
    return slope


class Penalised(RewardModelReward):
    """The baseline after training: the straight line by length is taken off every score."""

    slope = 0.0

    def fit(self, pairs: Sequence[Pair]) -> None:
        """Take the line from answers to training questions; those too long for the model are left out."""
        talks = [
            (*pair.task.messages, Message("assistant", text))
            for pair in pairs
            for text in (pair.chosen, pair.rejected)
        ]
        seen = [
            (float(len(talk[-1].text)), score)
            for talk, score in zip(talks, super().scores(talks), strict=True)
            if isinstance(score, float)  # A whole number is the length in tokens.
        ]
        self.slope = linear_regression(*zip(*seen, strict=True)).slope

    def scores(self, talks: Sequence[tuple[Message, ...]]) -> list[float | int]:
        """The model's scores without what the length alone adds; a whole number is no score."""
        found = zip(super().scores(talks), talks, strict=True)
        return [
            score if isinstance(score, int) else score - self.slope * len(talk[-1].text)
            for score, talk in found
        ]
