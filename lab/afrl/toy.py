"""AFRL on a small network: a flawed reward makes a policy forget rare rules, demonstrations do not.

A prompt's grade follows the head rule, or one of six tail rules that the prompt names. The policy
first imitates both; then it is rewarded on prompts with 3 % tail by a check that knows the head rule
only. `lambda` is the coefficient of the imitation term beside the policy loss.
"""

from __future__ import annotations

import copy
from functools import cache
from typing import NamedTuple

import torch
from torch import Tensor, nn

from burnish.policy import SFT, Aggregate, Recipe, Stepwise, sft_nll
from lab.plan import Column
from lab.toy import Rollouts, Scored, Toy, ToyArm, generator

GRADES, TAIL_RULES, FEATURES, WIDTH = 5, 6, 6, 64
PROMPTS = 128
DEMONSTRATIONS = 64
IMITATION_STEPS, IMITATION_BATCH, IMITATION_RATE = 400, 256, 1e-2
TAIL_SHOWN, TAIL_ASKED = 0.3, 0.03
"""Share of tail prompts among the demonstrations, and among those that are rewarded."""
MEASURED = 2000


class Prompts(NamedTuple):
    """Prompts with the grade that the head rule alone gives, and the true one."""

    shown_BF: Tensor
    head_B: Tensor
    true_B: Tensor
    is_tail_B: Tensor


def prompts(count: int, tail: float, draw: torch.Generator) -> Prompts:
    """Draw prompts of which a share `tail` names one of the tail rules, each as often."""
    x_BF = torch.rand(count, FEATURES, generator=draw)
    head_B = (x_BF[:, 0] * GRADES).long()
    rule_B = torch.randint(1, TAIL_RULES + 1, (count,), generator=draw)
    rule_B = rule_B * (torch.rand(count, generator=draw) < tail)
    named_BF = nn.functional.one_hot(rule_B, TAIL_RULES + 1)[:, 1:].float()
    # Rule r moves the grade of the second feature by r.
    tail_B = ((x_BF[:, 1] * GRADES).long() + rule_B) % GRADES
    true_B = torch.where(rule_B > 0, tail_B, head_B)
    return Prompts(torch.cat([x_BF, named_BF], 1), head_B, true_B, rule_B > 0)


class Relevance:
    """A network over five grades, after imitation of both kinds of rule."""

    names: tuple[str, ...] = ("grade",)

    def __init__(self, seed: int) -> None:
        self.policy = copy.deepcopy(imitated(seed))
        self.asked = prompts(0, 0.0, torch.Generator())
        self.measured = prompts(MEASURED, 0.5, generator(seed, "afrl measure"))

    def parameters(self) -> list[Tensor]:
        return list(self.policy.parameters())

    def sample(self, samples: int, draw: torch.Generator) -> Rollouts:
        self.asked = prompts(PROMPTS, TAIL_ASKED, draw)
        groups_B = torch.arange(PROMPTS).repeat_interleave(samples)
        shown_BF = self.asked.shown_BF[groups_B]
        with torch.no_grad():
            logp_BV = self._logp(shown_BF)
            tokens_BT = logp_BV.exp().multinomial(1, generator=draw)
            return Rollouts(groups_B, tokens_BT, logp_BV.gather(1, tokens_BT), shown_BF)

    def logp(self, rollouts: Rollouts) -> Tensor:
        assert rollouts.shown_BF is not None
        return self._logp(rollouts.shown_BF).gather(1, rollouts.tokens_BT)

    def score(self, rollouts: Rollouts, draw: torch.Generator) -> Scored:
        by_head_rule_B = self.asked.head_B[rollouts.groups_B]
        return Scored((rollouts.tokens_BT[:, 0] == by_head_rule_B).double()[:, None])

    def experts(self, draw: torch.Generator) -> Tensor | None:
        return demonstrated(self.policy, DEMONSTRATIONS, draw)

    @torch.no_grad()
    def measure(self) -> dict[str, float]:
        logp_BV = self._logp(self.measured.shown_BF)
        is_right_B = (logp_BV.argmax(1) == self.measured.true_B).double()
        is_tail_B = self.measured.is_tail_B
        return {
            "head_accuracy": float(is_right_B[~is_tail_B].mean()),
            "tail_accuracy": float(is_right_B[is_tail_B].mean()),
            "policy/entropy": float(torch.special.entr(logp_BV.exp()).sum(1).mean()),
        }

    def _logp(self, shown_BF: Tensor) -> Tensor:
        return grade_logp(self.policy, shown_BF)


@cache
def imitated(seed: int) -> nn.Module:
    """The policy that every arm of a seed starts from."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        policy = nn.Sequential(
            nn.Linear(FEATURES + TAIL_RULES, WIDTH),
            nn.Tanh(),
            nn.Linear(WIDTH, WIDTH),
            nn.Tanh(),
            nn.Linear(WIDTH, GRADES),
        )
    draw = generator(seed, "afrl imitation")
    adam = torch.optim.Adam(policy.parameters(), IMITATION_RATE)
    for _ in range(IMITATION_STEPS):
        logp_BT = demonstrated(policy, IMITATION_BATCH, draw)
        adam.zero_grad()
        sft_nll(logp_BT, torch.ones_like(logp_BT)).backward()  # type: ignore[no-untyped-call]
        adam.step()
    return policy


def grade_logp(policy: nn.Module, shown_BF: Tensor) -> Tensor:
    """Log-probabilities of the grades, (B, V)."""
    logits_BV: Tensor = policy(shown_BF)
    return logits_BV.log_softmax(-1)


def demonstrated(policy: nn.Module, count: int, draw: torch.Generator) -> Tensor:
    """Log-probabilities of the true grades of prompts of both kinds, (B, 1)."""
    shown = prompts(count, TAIL_SHOWN, draw)
    return grade_logp(policy, shown.shown_BF).gather(1, shown.true_B[:, None])


def _arm(coefficient: float) -> ToyArm:
    recipe = Recipe(
        advantage=Stepwise(("grade",)),
        aggregate=Aggregate(mode="token-mean"),
        auxiliary=(SFT(coefficient, batch=DEMONSTRATIONS),),
    )
    return ToyArm(f"lambda {coefficient:g}", recipe)


TOYS = (
    Toy(
        name="afrl_rules",
        about="A network over 5 grades, a head rule and 6 tail rules; imitation of both (30 % tail), "
        "then 300 steps of a reward that checks the head rule only, on prompts with 3 % tail. "
        "`(start)` is the policy after imitation.",
        world=Relevance,
        arms=tuple(_arm(value) for value in (0.0, 0.03, 0.1, 0.3, 1.0)),
        columns=(
            Column("head_accuracy", "head accuracy"),
            Column("tail_accuracy", "tail accuracy"),
            Column("policy/entropy", "entropy"),
            Column("policy/clipped_share", "clipped share", 4),
            Column("cpu_s", "CPU s", 1),
        ),
        panels=(
            Column("head_accuracy", "head accuracy"),
            Column("tail_accuracy", "tail accuracy"),
            Column("policy/entropy", "entropy"),
        ),
        steps=300,
        learning_rate=3e-3,
        samples=8,
    ),
)
