"""One sample whole: what the model read and wrote, its reward and why, its advantage and why."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from rich.text import Text

from burnish.cli.authors import coloured, coloured_messages, counts, legend
from burnish.cli.console import number, one_line, out, say
from burnish.cli.rewards import reward_tree
from burnish.store import RunStore, StoredSample, manifest
from burnish.view.authorship import authored, newest_tokenizer


def print_sample(store: RunStore, sample: StoredSample) -> None:
    """Everything the store knows of one rollout."""
    trajectory = sample.trajectory
    say(f"sample {sample.id} of run '{store.name}' (trajectory {trajectory.id})", style="bold")
    tokenizer = newest_tokenizer(store.folder).tokenizer
    if tokenizer is None:
        spans, text = trajectory.spans, coloured_messages(trajectory, sample.task)
    else:
        spans = authored(sample, tokenizer)
        text = coloured(spans, tokenizer)
    out.print(legend())
    out.print(text)
    say()
    role = "" if trajectory.role == "policy" else f"  role {trajectory.role}"
    say(f"tokens    {counts(spans)}; {sum(trajectory.loss_mask)} trained")
    say(f"finish    {trajectory.finish.value}   weight version {trajectory.weight_version}{role}")
    if trajectory.logprobs:
        mean = sum(trajectory.logprobs) / len(trajectory.logprobs)
        say(f"log-prob  {number(mean)} a token, lowest {number(min(trajectory.logprobs))}")
    say(f"task      {sample.task.id}{_fields(sample)}")
    out.print(reward_tree(sample.reward))
    _print_advantage(store, sample)


def _fields(sample: StoredSample) -> str:
    shown = {k: one_line(str(v))[:80] for k, v in sample.task.fields.items()}
    return "".join(f"  {name}={value}" for name, value in shown.items())


def _print_advantage(store: RunStore, sample: StoredSample) -> None:
    if sample.split.startswith("eval:"):
        say("advantage none: an evaluation is not trained on")
        return
    others = list(
        store.samples(step=sample.step, split=sample.split, group=sample.trajectory.group)
    )
    line = Text(f"advantage {_value(sample)}")
    line.append(f"   rewards of its group of {len(others)}: ", style="bright_black")
    for other in others:
        value = other.reward.value
        shown = number(value) if value is not None else other.reward.status.value
        line.append(f"{shown} ", style="bold reverse" if other.id == sample.id else "")
    out.print(line)
    say(f"          {_why(sample, others, manifest.read(store.folder).config)}")


def _value(sample: StoredSample) -> str:
    return "none" if sample.advantage is None else f"{sample.advantage:+.4f}"


def _why(sample: StoredSample, group: list[StoredSample], config: Mapping[str, Any]) -> str:
    """Why this advantage: one sentence, by the pieces of the run's recipe."""
    advantage = config.get("policy.advantage.kind", "")
    select = config.get("policy.select.kind", "")
    left_out = "" if sample.keep else f"; the recipe's select piece ({select}) left it out"
    values = [s.reward.value for s in group if s.reward.value is not None]
    if sample.split == "dropped":
        return "sampled, then put aside by the recipe's select piece; not trained on."
    if sample.reward.value is None:
        return f"no reward ({sample.reward.status.value}), so it is left out of the group."
    if len(values) == 1:
        return "the only answer of its group with a reward: nothing to compare with."
    if advantage == "raw":
        return f"the outcome {number(sample.reward.value)} is the advantage itself{left_out}."
    if max(values) == min(values):
        return "every answer of its group got the same reward: nothing to learn."
    mean = sum(values) / len(values)
    side = "above" if sample.reward.value > mean else "below"
    side = "at" if sample.reward.value == mean else side
    more = "" if _is_plain(config) else " (as scored; the recipe's other pieces act on it too)"
    return (
        f"reward {number(sample.reward.value)} is {side} its group's mean {number(mean)}"
        f"{left_out}{more}."
    )


def _is_plain(config: Mapping[str, Any]) -> bool:
    """True where the group's mean of the total is all that an advantage rests on."""
    is_sum = config.get("policy.advantage.kind", "sum_then_normalise") == "sum_then_normalise"
    is_shaped = any(key.startswith("policy.shaping") for key, value in config.items() if value)
    return is_sum and not is_shaped and config.get("policy.weights.kind", "given") == "given"
