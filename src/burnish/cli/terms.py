"""The advantages and loss terms that training would make of some rewards."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
from rich.table import Table
from rich.text import Text

from burnish.cli.console import number, one_line, out, say
from burnish.cli.needs import policy_room
from burnish.cli.rewards import value_style
from burnish.errors import UserError
from burnish.records import Finish, Reward, Trajectory

if TYPE_CHECKING:
    from burnish.config import Config
    from burnish.lm.tokenizer import Tokenizer
    from burnish.policy import Advantages, Recipe, RewardBatch


class Group(NamedTuple):
    """The answers to one prompt."""

    labels: Sequence[str]
    trajectories: Sequence[Trajectory]
    rewards: Sequence[Reward]


def print_terms(groups: Sequence[Group], config: Config, tokenizer: Tokenizer) -> None:
    """One line an answer: reward, advantage, clip bounds and pull; then the loss by part."""
    say()
    try:
        policy = policy_room()
    except UserError as error:
        say(str(error), style="yellow")
        return
    rollouts = [item for group in groups for item in zip(*group, strict=True)]
    recipe = _without_model(config.policy)
    batch = _rewards(policy, groups, recipe, tokenizer)
    values = policy.advantages(recipe, batch)
    out_of_loss, pulls = _loss(policy, config, [t for _, t, _ in rollouts], values)
    say("what training would make of these answers, each prompt a group of its own", style="bold")
    table = Table(box=None, pad_edge=False, header_style="bright_black")
    for title in ("answer", "reward", "advantage", "kept", "ratio may be", "pull on log-prob"):
        table.add_column(title, justify="left" if title == "answer" else "right")
    per_rollout = values.per_rollout().tolist()
    for row, (label, trajectory, reward) in enumerate(rollouts):
        advantage = per_rollout[row]
        low, high = _mean(values.low_B[row]), _mean(values.high_B[row])
        table.add_row(
            Text(one_line(f"{trajectory.task_id} {label}")),
            number(reward.value) if reward.value is not None else reward.status.value,
            Text(f"{advantage:+.3f}", style=value_style(advantage)),
            "yes" if bool(values.keep_B[row]) else "no",
            f"{1 - low:.2f} .. {1 + high:.2f}",
            f"{pulls[row]:+.4f}",
        )
    out.print(table)
    parts = "  ".join(f"{name} {number(float(v), 4)}" for name, v in out_of_loss.parts.items())
    say(
        f"loss terms at the first update: {parts}  (total {number(float(out_of_loss.total.detach()), 4)})"
    )
    say(
        "The ratio is 1 there, so a surrogate near 0 is no sign of nothing learned: the pull, "
        "minus the loss's gradient summed over an answer's tokens, is what moves the model.",
        style="bright_black",
    )


def _without_model(recipe: Recipe) -> Recipe:
    """The recipe as far as it can be played without a model; a line says what is left out."""
    if recipe.contrastive:
        say("The contrastive reward reads hidden states: left out here.", style="yellow")
    if recipe.calibration:
        say("The unit of the rewards is these answers, not the start model's.", style="yellow")
    if recipe.imitation:
        say("The imitation of experts needs a model: its term is 0 here.", style="yellow")
    kept = tuple(piece for piece in recipe.shaping if piece is not recipe.contrastive)
    return msgspec.structs.replace(recipe, shaping=kept)


def _rewards(
    policy: Any, groups: Sequence[Group], recipe: Recipe, tokenizer: Tokenizer
) -> RewardBatch:
    """The named reward vectors of all answers, NaN where there is no value."""
    import torch

    from burnish.training.segments import Segmenter, pad_segments

    trajectories = [t for group in groups for t in group.trajectories]
    rewards = [r for group in groups for r in group.rewards]
    weights = {part.name: part.weight for r in rewards for part in (r.parts or (r,))}
    rows = [[_or_nan(r.components.get(name)) for name in weights] for r in rewards]
    numbers = [index for index, group in enumerate(groups) for _ in group.rewards]
    segments_BT = None
    if recipe.stepwise:
        number = Segmenter(tokenizer, recipe.stepwise.headings)
        segments_BT = pad_segments([number(trajectory) for trajectory in trajectories])
    batch: RewardBatch = policy.RewardBatch(
        rewards_BK=torch.tensor(rows, dtype=torch.float64),
        weights_K=torch.tensor(list(weights.values()), dtype=torch.float64),
        groups_B=torch.tensor(numbers),
        lengths_B=torch.tensor([sum(t.loss_mask) for t in trajectories]),
        truncated_B=torch.tensor([t.finish is Finish.LENGTH for t in trajectories]),
        names=tuple(weights),
        segments_BT=segments_BT,
    )
    return batch


def _loss(
    policy: Any, config: Config, trajectories: Sequence[Trajectory], values: Advantages
) -> tuple[Any, list[float]]:
    """The loss where trainer, sampler and reference agree, and each answer's pull."""
    import torch

    longest = max(len(t.logprobs) for t in trajectories)
    mask_BT = torch.tensor([[i < len(t.logprobs) for i in range(longest)] for t in trajectories])
    if values.counted_BT is not None:
        mask_BT &= values.counted_BT
    logp_BT = torch.zeros(mask_BT.shape, dtype=torch.float64, requires_grad=True)
    same_BT = torch.zeros_like(logp_BT).detach()
    batch = policy.LossBatch(
        logp_BT=logp_BT,
        old_logp_BT=same_BT,
        mask_BT=mask_BT,
        advantages_B=values.values_B,
        low_B=values.low_B,
        high_B=values.high_B,
        keep_B=values.keep_B,
        ref_logp_BT=same_BT,
        entropy_BT=torch.zeros_like(same_BT),
        max_tokens=config.rollout.max_tokens,
    )
    result = policy.loss(config.policy, batch)
    result.total.backward()
    gradient_BT = logp_BT.grad if logp_BT.grad is not None else same_BT
    return result, (-gradient_BT).sum(1).tolist()


def _mean(value: Any) -> float:
    """A bound of an answer; its mean where credit is given token by token."""
    return float(value.double().mean())


def _or_nan(value: float | None) -> float:
    return float("nan") if value is None else value
