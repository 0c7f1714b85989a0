"""What a pairwise judge in training earns: its scores of two texts against the known better one.

    [[rewards]]
    kind = "genrm"            # the judge writes <scores>a, b</scores>; the task's `label` is a or b

    [[rewards]]
    kind = "genrm"
    name = "right"
    value = "right"           # 1, 0.5 for a tie, 0: the judge's accuracy, for evaluation
    weight = 0.0

The reward of Writing-Zero (arXiv 2506.00103), by `genrm_reward`. Here a reply without scores is the
policy's own fault and costs 1; it is no failure of the reward.
"""

from __future__ import annotations

from typing import Literal

from burnish.records import Response, Reward, Task
from burnish.rewards.checks.base import CheckConfig, RuleCheck
from burnish.rewards.checks.extract import short
from burnish.rewards.pairs import genrm_reward, parse_pair_scores


class GenRMConfig(CheckConfig, frozen=True, tag="genrm"):
    """A judge's two scores against the label: from -1 to `pos_weight_max`."""

    field: str = "label"
    """The better text: "a" or 1 for the first, "b" or -1 for the second."""
    value: Literal["reward", "right", "picked_first"] = "reward"
    """`right`: 1, 0.5 for a tie, 0. `picked_first`: 1 or 0, none for a tie or without scores."""
    first_pick_rate: float = 0.5
    """How often the first text is picked; 0.5 weighs both places alike. `position_weight` of the
    policy room measures it in every step instead."""
    margin_scale: float = 2.0
    """Difference of the two scores from which on a verdict counts in full."""
    margin_floor: float = 0.2
    """Least share that a verdict counts, however small the difference."""
    pos_weight_min: float = 0.5
    """Least factor of right verdicts by the place that they picked."""
    pos_weight_max: float = 2.0
    """Greatest factor of right verdicts by the place that they picked."""


class GenRMReward(RuleCheck[GenRMConfig]):
    """Compares a judge's scores with the label."""

    uses_answer = True

    def __init__(self, config: GenRMConfig) -> None:
        super().__init__(config)
        self.needs = frozenset({config.field})
        self._earned([1.0, 0.0], "a")  # refuses settings that have no meaning

    def judge(self, task: Task, response: Response) -> Reward:
        label = task.fields.get(self.config.field)
        if label not in ("a", "b", 1, -1) or isinstance(label, bool):
            given = short(repr(label))
            return self.abstained(f"the field '{self.config.field}' is {given}, not 'a' or 'b'")
        scores = parse_pair_scores(response.text)
        saw = f"no scores in {short(response.text)!r}"
        if scores is not None:
            saw = f"scores {scores[0]:g} to {scores[1]:g}"
        saw = f"{saw}; the better text is {'the first' if label in ('a', 1) else 'the second'}"
        if self.config.value == "reward":
            return self.decided(self._earned(scores, label), saw)
        ahead = 0.0 if scores is None else scores[0] - scores[1]
        if self.config.value == "picked_first":
            return self.decided(float(ahead > 0), saw) if ahead else self.abstained(saw)
        if scores is None:
            return self.decided(0.0, saw)
        picked = (ahead > 0) - (ahead < 0)
        better = 1 if label in ("a", 1) else -1
        return self.decided((1 + picked * better) / 2, saw)

    def _earned(self, scores: list[float] | None, label: float | str) -> float:
        config = self.config
        return genrm_reward(
            scores,
            label,
            config.first_pick_rate,
            config.margin_scale,
            config.margin_floor,
            config.pos_weight_min,
            config.pos_weight_max,
        )
