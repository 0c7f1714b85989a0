"""The samples of a run on the screen: a step's groups, a list of samples, or one sample whole."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from burnish.cli.console import number, one_line, out, say, share, surrogate_text
from burnish.cli.drawing import (
    coloured,
    coloured_messages,
    counts,
    legend,
    part_text,
    parts_text,
    print_media,
    reward_cell,
    reward_tree,
    value_style,
)
from burnish.metrics import CLIPPED, ENTROPY, KL, LENGTH, MISMATCH
from burnish.records import Finish, Reward
from burnish.store import RunStore, StoredSample, manifest
from burnish.texts import counted
from burnish.view.pages.tokens import authored, newest_tokenizer, unmasked_steps

SHOWN_STEPS = 24
"""Tokens whose step is shown."""
REASON = 160
"""Characters of a reason in a step's list."""
WIDE = 100
"""Columns from which the parts of a reward fit beside the answer."""
FAILURES = 5
"""Reasons that a step shows."""


def print_step(store: RunStore, step: int, samples: Sequence[StoredSample]) -> None:
    """Every group of a step: its prompt, then its answers with reward, parts and advantage.

    An evaluation asks each prompt once, so it is one list.
    """
    if all(sample.split.startswith("eval:") for sample in samples):
        when = "before training" if step == 0 else f"after {counted(step, 'step')}"
        print_list(store, f"{samples[0].split} {when} of run '{store.name}'", samples)
        return
    groups = by_group(samples)
    say(f"step {step + 1} of run '{store.name}': {len(samples)} samples", style="bold")
    if line := "  ".join(filter(None, (useful_groups(groups), _numbers(store, step)))):
        say(line)
    for group in groups.values():
        say()
        print_group(store, group)
    reasons = Counter(
        f"{reward.name}: {reward.status.value}: {one_line(reward.reason)}"
        for sample in samples
        for reward in (sample.reward.parts or (sample.reward,))
        if reward.value is None
    )
    if reasons:
        say()
    for reason, count in reasons.most_common(FAILURES):
        say(f"no value x {count}  {reason}", style="yellow")
    say()
    say(f"one answer whole: burnish show {store.folder} --sample {store.names(samples[:1])[0]}")


def print_group(store: RunStore, group: Sequence[StoredSample]) -> None:
    """One prompt and its answers."""
    head = Text()
    if is_game := any(
        sample.trajectory.role != "policy" and not is_given(sample) for sample in group
    ):
        head.append(f"{one_line(group[0].trajectory.role)}  ", style="bold")
    head.append("prompt ", style="bright_black")
    prompt = one_line(group[0].task.prompt)
    head.append(_ends(prompt, 2 * out.width) if is_game else prompt, style="cyan")
    answer = group[0].task.fields.get("answer")
    if answer is not None:
        head.append(f"   answer {one_line(str(answer))}", style="bright_black")
    out.print(head)
    if is_game or (out.width < WIDE and any(_says_more(sample.reward) for sample in group)):
        _print_lines(store, group, is_game=is_game)
    else:
        out.print(_table(store, group))


def _print_lines(store: RunStore, group: Sequence[StoredSample], *, is_game: bool) -> None:
    """Answers of a group with what their rewards rest on below, for which a table has no room."""
    names = [one_line(name) for name in store.names(group)]
    width = max(map(len, names))
    turns = "  turns" if is_game else ""
    head = f"{'sample':<{width}}   reward  advantage{turns}  answer"
    out.print(Text(head, style="bright_black"), no_wrap=True, overflow="ellipsis")
    for name, sample in zip(names, group, strict=True):
        line = Text(f"{name:<{width}}")
        for cell, size in ((reward_cell(sample.reward), 9), (_advantage(sample), 11)):
            line.append(" " * max(1, size - cell.cell_len)).append(cell)
        if is_game:
            line.append(f"{sum(m.role == 'assistant' for m in sample.trajectory.messages):>7}")
        finish = sample.trajectory.finish
        line.append("  ").append(_answer(sample))
        out.print(line, no_wrap=True, overflow="ellipsis")
        notes = [] if finish is Finish.STOP else [f"ended by {finish.value}"]
        # Rewarded parts with their reasons, then those of weight 0, which are only measured.
        reward = sample.reward
        found = []
        for part in reward.parts or (reward,):
            if part.weight and (part.reason or _says_more(reward)):
                why = f": {_ends(one_line(part.reason), REASON)}" if part.reason else ""
                found.append(f"{part_text(part)}{why}")
        if measured := ", ".join(part_text(part) for part in reward.parts if not part.weight):
            found.append(f"measured: {measured}")
        if why := "; ".join([*found, *notes]):
            out.print(Padding(Text(why, style="bright_black"), (0, 0, 0, 2), expand=False))


def _ends(text: str, most: int) -> str:
    """The beginning and the end of a text that is longer than `most`, cut between words."""
    if len(text) <= most:
        return text
    first, last = text[: most // 2], text[-(most // 2 - 5) :]
    return f"{first.rpartition(' ')[0] or first} ... {last.partition(' ')[2] or last}"


def print_list(store: RunStore, title: str, samples: Sequence[StoredSample]) -> None:
    """Samples of several prompts, one line each, and why some have no reward."""
    say(title, style="bold")
    out.print(_table(store, samples, with_prompt=True))
    reasons: dict[str, StoredSample] = {}
    for sample in samples:
        if sample.reward.value is None and sample.reward.reason:
            reasons.setdefault(sample.reward.reason, sample)
    names = store.names(list(reasons.values()))
    for name, reason in zip(names, reasons, strict=True):
        say(f"{name}  {one_line(reason)}", style="yellow")


def print_sample(store: RunStore, sample: StoredSample) -> None:
    """Everything the store knows of one rollout."""
    trajectory = sample.trajectory
    (name,) = store.names([sample])
    say(f"sample {name} of run '{store.name}' (stored as {sample.id})", style="bold")
    tokenizer = newest_tokenizer(store.folder).tokenizer
    if tokenizer is None:
        spans, text = trajectory.spans, coloured_messages(trajectory, sample.task)
    else:
        spans = authored(sample, tokenizer)
        text = coloured(spans, tokenizer)
    out.print(legend())
    out.print(text)
    say()
    print_media(sample.task, store.blobs)
    role = "" if trajectory.role == "policy" else f"  role {trajectory.role}"
    say(f"tokens    {counts(spans)}; {sum(trajectory.loss_mask)} trained")
    say(f"finish    {trajectory.finish.value}   weight version {trajectory.weight_version}{role}")
    if steps := unmasked_steps(sample, spans):
        say(f"written   {_order(steps)}")
    if trajectory.logprobs and not is_given(sample):
        mean = sum(trajectory.logprobs) / len(trajectory.logprobs)
        if steps:
            say(f"bound     {number(mean)} a token: a lower bound of the answer's log-prob")
        else:
            say(f"log-prob  {number(mean)} a token, lowest {number(min(trajectory.logprobs))}")
    shown = {k: one_line(str(v))[:80] for k, v in sample.task.fields.items()}
    fields = "".join(f"  {key}={value}" for key, value in shown.items())
    say(f"task      {sample.task.id}{fields}")
    out.print(reward_tree(sample.reward))
    if not is_given(sample):
        _print_advantage(store, sample)


def _order(steps: Sequence[int | None]) -> str:
    """`in 8 steps: 3 1 2 ...`: at which step a diffusion model wrote each token."""
    own = [step for step in steps if step is not None]
    more = " ..." if len(own) > SHOWN_STEPS else ""
    return f"in {max(own, default=0)} steps: {' '.join(map(str, own[:SHOWN_STEPS]))}{more}"


def is_given(sample: StoredSample) -> bool:
    """True for a labelled pair or solution: not sampled, so it has no log-probs and no advantage."""
    return sample.trajectory.role in ("pair", "solution")


def useful_groups(groups: Mapping[str, Sequence[StoredSample]]) -> str:
    """`useful groups 2/4`; empty where samples were given with labels, and no group is compared."""
    if all(is_given(sample) for group in groups.values() for sample in group):
        return ""
    return f"useful groups {sum(map(teaches, groups.values()))}/{len(groups)}"


def by_group(samples: Sequence[StoredSample]) -> dict[str, list[StoredSample]]:
    """Samples under their group's key, in the order they were stored."""
    groups: dict[str, list[StoredSample]] = {}
    for sample in samples:
        groups.setdefault(sample.trajectory.group, []).append(sample)
    return groups


def teaches(group: Sequence[StoredSample]) -> bool:
    """True where some answer of the group has an advantage other than 0."""
    return any(sample.advantage for sample in group)


def _numbers(store: RunStore, step: int) -> str:
    metrics = {
        name: points[0].value
        for name, points in (
            (name, [p for p in curve if p.step == step]) for name, curve in store.metrics().items()
        )
        if points
    }
    shown = [
        ("surrogate", surrogate_text(metrics)),
        ("kl", number(metrics.get(KL), 4)),
        ("kept", "-" if metrics.get("kept") == 1.0 else share(metrics.get("kept"))),
        ("gradient", number(metrics.get("optimiser/gradient_norm"))),
        ("entropy", number(metrics.get(ENTROPY), 2)),
        ("clipped", share(metrics.get(CLIPPED))),
        ("sampler mismatch", number(metrics.get(MISMATCH), 4)),
        ("length", number(metrics.get(LENGTH), 1)),
    ]
    return "  ".join(f"{name} {text}" for name, text in shown if text != "-")


def _table(store: RunStore, samples: Sequence[StoredSample], *, with_prompt: bool = False) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bright_black")
    has_parts = any(_says_more(sample.reward) for sample in samples)
    has_cut = any(sample.trajectory.finish is not Finish.STOP for sample in samples)
    table.add_column("sample", no_wrap=True)
    table.add_column("reward", justify="right", no_wrap=True)
    if has_parts:
        table.add_column("parts", overflow="fold", max_width=20 if with_prompt else 36)
    has_advantage = not all(map(is_given, samples))
    if has_advantage:
        table.add_column("advantage", justify="right", no_wrap=True)
    if has_cut:
        table.add_column("finish", style="yellow", no_wrap=True)
    if with_prompt:
        table.add_column("prompt", no_wrap=True, overflow="ellipsis", min_width=14, ratio=1)
    table.add_column("answer", no_wrap=True, overflow="ellipsis", min_width=10, ratio=1)
    table.expand = True
    for name, sample in zip(store.names(samples), samples, strict=True):
        cells: list[Text | str] = [Text(one_line(name)), reward_cell(sample.reward)]
        if has_parts:
            cells.append(Text(parts_text(sample.reward)))
        if has_advantage:
            cells.append(_advantage(sample))
        if has_cut:
            finish = sample.trajectory.finish
            cells.append("" if finish is Finish.STOP else finish.value)
        if with_prompt:
            cells.append(Text(one_line(sample.task.prompt), style="cyan"))
        cells.append(_answer(sample))
        table.add_row(*cells)
    return table


def _says_more(reward: Reward) -> bool:
    """False where the only part is the reward once more."""
    return len(reward.parts) > 1 or any(part.value != reward.value for part in reward.parts)


def _advantage(sample: StoredSample) -> Text:
    if sample.advantage is None:
        return Text("dropped" if sample.split == "dropped" else "-", style="bright_black")
    text = f"{sample.advantage:+.3f}" if sample.advantage else "0"
    return Text(text, style=value_style(sample.advantage))


def _answer(sample: StoredSample) -> Text:
    text = one_line(sample.trajectory.text)
    if text:
        return Text(text, style="green")
    return Text("(blank)" if sample.trajectory.text else "(empty)", style="bright_black")


def _print_advantage(store: RunStore, sample: StoredSample) -> None:
    if sample.split.startswith("eval:"):
        say("advantage none: an evaluation is not trained on")
        return
    others = list(
        store.samples(step=sample.step, split=sample.split, group=sample.trajectory.group)
    )
    own = "none" if sample.advantage is None else f"{sample.advantage:+.4f}"
    line = Text(f"advantage {own}")
    line.append(f"   rewards of its group of {len(others)}: ", style="bright_black")
    for other in others:
        value = other.reward.value
        shown = number(value) if value is not None else other.reward.status.value
        line.append(f"{shown} ", style="bold reverse" if other.id == sample.id else "")
    out.print(line)
    say(f"          {_why(sample, others, manifest.read(store.folder).config)}")


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
    if advantage == "gae":
        return (
            f"reward {number(sample.reward.value)} at its last token, against what the critic "
            f"expected of each token; the mean over them{left_out}."
        )
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
