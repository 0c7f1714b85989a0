"""From scored rollouts to advantages: rewards as tensors, and the inputs of a recipe's components.

A contrastive reward reads hidden states, stepwise credit the section of every token, `gae` the values
of a critic. `AdvantageComputer` adds them to the batch and holds the state of the recipe; `remember` advances it
when a step is done.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from burnish.policy.balance import BalanceState
from burnish.policy.batch import Advantages, RewardBatch
from burnish.policy.recipe import Recipe
from burnish.policy.reference import FEWEST_VALUES
from burnish.policy.state import PolicyState
from burnish.records import Trajectory
from burnish.seeds import Seeds, derive
from burnish.training.collect import Scored, reward_batch
from burnish.training.guards import check_rows, weigh
from burnish.training.segments import Decodes, Segmenter, pad_segments, step_scores

Pooled = Callable[[Sequence[Trajectory]], Tensor]
"""Mean hidden state of each response, (B, D)."""


class CriticReading(NamedTuple):
    """What a critic says of the rollouts of a step before its first update; float64 on the CPU."""

    values_BT: Tensor
    kl_BT: Tensor | None = None
    """Log-probs less the reference model's, where the reward loses them."""


CriticReader = Callable[[Sequence[Trajectory]], CriticReading]


@dataclass
class AdvantageComputer:
    """Computes the advantages of a step by its recipe."""

    recipe: Recipe
    run_steps: int
    max_tokens: int
    seeds: Seeds
    tokenizer: Decodes
    pooled: Pooled
    read_critic: CriticReader
    state: PolicyState = field(default_factory=PolicyState)
    """State of the recipe's components after the last step."""
    reading: CriticReading | None = None
    """The critic's, of the step under way; kept for a guard's report."""
    _segment: Segmenter | None = field(default=None, init=False)

    def __post_init__(self) -> None:
        if self.recipe.stepwise:
            stepwise = self.recipe.stepwise
            self._segment = Segmenter(self.tokenizer, stepwise.headings, stepwise.split)

    def compute_advantages(
        self,
        scored: Sequence[Scored],
        step: int,
        greedy: Sequence[Scored] = (),
        reading: CriticReading | None = None,
        lost: Sequence[Scored] = (),
    ) -> tuple[RewardBatch, Advantages]:
        """The rewards of a step as tensors, and the advantages of its rollouts.

        `greedy` are the greedy answers to its prompts, where the recipe compares with those;
        `reading` is what the critic said of them, where it is not to be asked now; `lost` are rollouts
        that are not trained on.
        """
        self.reading = reading
        batch = self._batch(scored, step, greedy, lost)
        ids = [s.trajectory.id for s in scored]
        return batch, weigh(self.recipe, batch, ids, step, self.state)

    def hold(self, values: Advantages, balance: BalanceState) -> Advantages:
        """The step's values with the coefficient of imitation, so that a crash report has it too."""
        self.state = replace(self.state, balance=balance)
        return replace(values, state=replace(values.state, balance=balance))

    def remember(self, values: Advantages) -> None:
        """Take over the state of a step that is done."""
        self.state = values.state

    def _batch(
        self,
        scored: Sequence[Scored],
        step: int,
        greedy: Sequence[Scored],
        lost: Sequence[Scored],
    ) -> RewardBatch:
        trajectories = [s.trajectory for s in scored]
        batch = replace(
            reward_batch(scored, greedy, lost),
            seed=self.seeds.for_("policy", step),
            run_steps=self.run_steps,
            max_tokens=self.max_tokens,
        )
        if self.recipe.contrastive:
            batch = replace(
                batch,
                hidden_BD=self.pooled(trajectories),
                keys_B=torch.tensor([derive(t.id) for t in trajectories]),
                duplicate_id_B=_duplicate_ids(trajectories),
            )
        if self._segment:
            segments = [self._segment(trajectory) for trajectory in trajectories]
            batch = replace(batch, segments_BT=pad_segments(segments))
            stepwise = self.recipe.stepwise
            if stepwise is not None and stepwise.by_steps:
                found = step_scores([s.reward for s in scored], stepwise.rewards[0], segments)
                batch = replace(batch, **found._asdict())
        if self.recipe.gae:
            self.reading = self.reading or self.read_critic(trajectories)
            ids = [t.id for t in trajectories]
            check_rows("value", "the critic's value", self.reading.values_BT, ids, step)
            if self.reading.kl_BT is not None:
                check_rows("logprob", "the KL in the reward", self.reading.kl_BT, ids, step)
            batch = replace(batch, **self.reading._asdict())
        return batch


def refreeze_note(batch: RewardBatch, values: Advantages) -> tuple[str, dict[str, Any]] | None:
    """A line and its numbers where the unit of the rewards was measured again in this step."""
    reference = values.state.reference
    if reference is None or not values.diagnostics.get("reference/refrozen"):
        return None
    shares = {name: values.diagnostics[f"reference/{name}/saturated"] for name in batch.names}
    kept = [name for name in batch.names if not values.diagnostics[f"reference/{name}/refrozen"]]
    counted = [n for n, w in zip(batch.names, batch.weights_K.tolist(), strict=True) if w]
    most = max((name for name in counted if name not in kept), key=lambda name: shares[name])
    line = (
        f"{shares[most]:.0%} of the values of reward '{most}' stood at the clip: the unit of the "
        f"rewards was measured again on {len(batch.rewards_BK)} answers of this step"
    )
    if kept:
        line += (
            f"; {', '.join(kept)} kept the old one (constant here, or fewer than {FEWEST_VALUES} "
            "values)"
        )
    columns = {"mean": reference.mean_K, "deviation": reference.sd_K, "count": reference.count_K}
    data = {k: dict(zip(batch.names, v.tolist(), strict=True)) for k, v in columns.items()}
    return line, {"saturated": shares, **data, "kept": kept}


def _duplicate_ids(trajectories: Sequence[Trajectory]) -> Tensor:
    """The same number for rollouts with the same trained tokens, (B,)."""
    seen: dict[tuple[int, ...], int] = {}
    return torch.tensor(
        [
            seen.setdefault(
                tuple(token for s in t.spans if s.trainable for token in s.token_ids), len(seen)
            )
            for t in trajectories
        ]
    )
