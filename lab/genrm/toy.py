"""A pairwise judge in training on a small policy: what the order of pairs and the place weight do.

A pair is the difference of two texts in six features, of which three decide. The judge is a softmax
over six replies: two margins for each text, a tie, and a reply without scores. It begins with some
skill and a strong taste for the first place. In the data as it comes three quarters of the better
texts stand first and a tenth of the labels is wrong; with both orders every pair is asked twice. The
reward is `genrm_reward`, its rate that of the step, or plain accuracy (1 or -1).
"""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from burnish.policy import Aggregate, Recipe, SumThenNormalise
from burnish.rewards import genrm_reward
from lab.plan import Column
from lab.toy import Rollouts, Scored, Toy, ToyArm, generator

FEATURES, DECIDING = 6, 3
REPLIES: tuple[tuple[float, float] | None, ...] = (
    (9.0, 3.0), (6.0, 5.5), (5.0, 5.0), (5.5, 6.0), (3.0, 9.0), None,
)  # fmt: skip
FIRST, SECOND = [0, 1], [3, 4]
PAIRS = 64
BETTER_FIRST, WRONG_LABELS = 0.75, 0.1
TASTE, SKILL = 1.5, 0.3
MEASURED = 2000

Pay = Literal["accuracy", "genrm", "genrm, place weight"]


def differences(count: int, draw: torch.Generator) -> Tensor:
    """First text minus second text, (count, FEATURES)."""
    return torch.randn(count, FEATURES, generator=draw, dtype=torch.float64)


def is_first_better(shown_BF: Tensor) -> Tensor:
    """The truth: the sum of the deciding features."""
    return shown_BF[:, :DECIDING].sum(1) > 0


class Judging:
    """A linear judge of feature differences."""

    names: tuple[str, ...] = ("judged",)

    def __init__(self, seed: int, pay: Pay = "genrm", both_orders: bool = True) -> None:
        self.pay, self.both_orders = pay, both_orders
        draw = generator(seed, "genrm world")
        start_FV = 0.1 * torch.randn(
            FEATURES + 1, len(REPLIES), generator=draw, dtype=torch.float64
        )
        start_FV[:DECIDING, FIRST] += SKILL
        start_FV[:DECIDING, SECOND] -= SKILL
        start_FV[-1, FIRST] += TASTE
        self.weights_FV = start_FV.requires_grad_()
        self.measured_BF = differences(MEASURED, generator(seed, "genrm measure"))
        self.labels_B = torch.empty(0)

    def parameters(self) -> list[Tensor]:
        return [self.weights_FV]

    def sample(self, samples: int, draw: torch.Generator) -> Rollouts:
        count = PAIRS // 2 if self.both_orders else PAIRS
        one_BF = differences(count, draw)
        turn_B = is_first_better(one_BF) != (torch.rand(count, generator=draw) < BETTER_FIRST)
        one_BF = torch.where(turn_B[:, None], -one_BF, one_BF)
        shown_BF = torch.cat([one_BF, -one_BF]) if self.both_orders else one_BF
        wrong_B = torch.rand(len(shown_BF) // (1 + self.both_orders), generator=draw) < WRONG_LABELS
        wrong_B = wrong_B.repeat(1 + self.both_orders)
        self.labels_B = torch.where(is_first_better(shown_BF) ^ wrong_B, 1.0, -1.0)
        groups_B = torch.arange(len(shown_BF)).repeat_interleave(samples)
        with torch.no_grad():
            logp_BV = self._logp(shown_BF[groups_B])
            tokens_BT = logp_BV.exp().multinomial(1, generator=draw)
        return Rollouts(groups_B, tokens_BT, logp_BV.gather(1, tokens_BT), shown_BF[groups_B])

    def logp(self, rollouts: Rollouts) -> Tensor:
        assert rollouts.shown_BF is not None
        return self._logp(rollouts.shown_BF).gather(1, rollouts.tokens_BT)

    def score(self, rollouts: Rollouts, draw: torch.Generator) -> Scored:
        picked = rollouts.tokens_BT[:, 0]
        first = sum(int((picked == reply).sum()) for reply in FIRST)
        second = sum(int((picked == reply).sum()) for reply in SECOND)
        rate = first / (first + second) if first + second and "place" in self.pay else 0.5
        table = torch.tensor([self._worth(rate, label) for label in (1.0, -1.0)])
        row_B = (self.labels_B[rollouts.groups_B] < 0).long()
        return Scored(table[row_B, picked][:, None].double())

    def _worth(self, rate: float, label: float) -> list[float]:
        if self.pay != "accuracy":
            return [genrm_reward(scores, label, rate) for scores in REPLIES]
        ahead = [0.0 if scores is None else scores[0] - scores[1] for scores in REPLIES]
        return [1.0 if one * label > 0 else -1.0 for one in ahead]

    def experts(self, draw: torch.Generator) -> Tensor | None:
        return None

    @torch.no_grad()
    def measure(self) -> dict[str, float]:
        """Chances over pairs of which each is shown in both orders."""
        probs_BV = self._logp(self.measured_BF).exp()
        swapped_BV = self._logp(-self.measured_BF).exp()
        better_B = is_first_better(self.measured_BF)
        first_B, second_B = probs_BV[:, FIRST].sum(1), probs_BV[:, SECOND].sum(1)
        first_S, second_S = swapped_BV[:, FIRST].sum(1), swapped_BV[:, SECOND].sum(1)
        right_B = torch.where(better_B, first_B, second_B)
        right_S = torch.where(better_B, second_S, first_S)
        picks = torch.cat([first_B, first_S]) / torch.cat([first_B + second_B, first_S + second_S])
        sure_right = probs_BV[:, [0, 4]].gather(1, (~better_B).long()[:, None])[:, 0]
        sure = probs_BV[:, [0, 4]].sum()
        return {
            "accuracy": float((right_B.mean() + right_S.mean()) / 2),
            "first_pick_rate": float(picks.mean()),
            "same_text": float((first_B * second_S + second_B * first_S).mean()),
            "no_verdict": float((probs_BV[:, 2] + probs_BV[:, 5]).mean()),
            "right_when_sure": float(sure_right.sum() / sure),
        }

    def _logp(self, shown_BF: Tensor) -> Tensor:
        ones_B1 = torch.ones(len(shown_BF), 1, dtype=shown_BF.dtype)
        return (torch.cat([shown_BF, ones_B1], 1) @ self.weights_FV).log_softmax(-1)


def _arm(pay: Pay, both_orders: bool) -> ToyArm:
    recipe = Recipe(
        advantage=SumThenNormalise(scale="none"), aggregate=Aggregate(mode="token-mean")
    )
    orders = "both orders" if both_orders else "as the data comes"
    return ToyArm(f"{pay}; {orders}", recipe, {"pay": pay, "both_orders": both_orders})


PAYS: tuple[Pay, ...] = ("accuracy", "genrm", "genrm, place weight")

TOYS = (
    Toy(
        name="genrm_places",
        about="64 questions a step, 8 replies each, 150 steps. All figures are chances over 2,000 "
        "new pairs, each shown in both orders. `same text` is the chance that the judge names the "
        "same text in both orders, `right when sure` that a reply with the large margin is right.",
        world=Judging,
        arms=tuple(_arm(pay, both) for both in (False, True) for pay in PAYS),
        columns=(
            Column("accuracy", "accuracy"),
            Column("first_pick_rate", "first picked"),
            Column("same_text", "same text"),
            Column("right_when_sure", "right when sure"),
            Column("no_verdict", "tie or no scores"),
            Column("cpu_s", "CPU s", 1),
        ),
        panels=(
            Column("accuracy", "accuracy"),
            Column("first_pick_rate", "share of first picks"),
            Column("same_text", "same text in both orders"),
        ),
        steps=150,
        learning_rate=0.03,
        samples=8,
    ),
)
