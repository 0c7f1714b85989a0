"""A reward as a tree on the screen: values, weights, statuses, reasons and evidence."""

from __future__ import annotations

from rich.text import Text
from rich.tree import Tree

from burnish.cli.console import number, one_line
from burnish.records import Reward, Status

LIMIT = 400
"""Characters of one observation or reason."""


def reward_tree(reward: Reward) -> Tree:
    """The whole reward."""
    tree = Tree(_title(reward, is_root=True), guide_style="bright_black")
    _fill(tree, reward)
    return tree


def reward_cell(reward: Reward) -> Text:
    """A reward's value, or the status that says why there is none."""
    if reward.value is None:
        return Text(reward.status.value, style="red")
    return Text(number(reward.value), style=value_style(reward.value))


def parts_text(reward: Reward) -> str:
    """`correct 1.000, format 0.500`; a part without a value shows its status."""
    return ", ".join(
        f"{one_line(part.name)} {number(part.value) if part.value is not None else part.status.value}"
        for part in reward.parts
    )


def value_style(value: float) -> str:
    """Green above zero, plain at zero, red below."""
    return "green" if value > 0 else "red" if value < 0 else ""


def _fill(tree: Tree, reward: Reward) -> None:
    for evidence in reward.evidence:
        seen = f"{one_line(evidence.source)}: {_cut(evidence.observation)}"
        note = Text(seen, style="bright_black")
        if evidence.visibility.value != "visible":
            note.append(f" ({evidence.visibility.value})", style="yellow")
        if evidence.error:
            note.append(f" {_cut(evidence.error)}", style="red")
        tree.add(note)
    for verdict in reward.verdicts:
        said = number(verdict.value) if verdict.value is not None else "undecided"
        reason = f": {_cut(verdict.reason)}" if verdict.reason else ""
        told = f"verdict on {one_line(verdict.criterion)}: {said}{reason}"
        tree.add(Text(told, style="bright_black"))
    for part in reward.parts:
        _fill(tree.add(_title(part)), part)


def _title(reward: Reward, *, is_root: bool = False) -> Text:
    title = Text(one_line(reward.name), style="bold").append(" ")
    title.append(reward_cell(reward))
    if not is_root:
        title.append(f"  weight {reward.weight:g}", style="bright_black")
    if reward.reason:
        style = "red" if reward.status is not Status.OK else ""
        title.append(f"  {_cut(reward.reason)}", style=style)
    return title


def _cut(text: str) -> str:
    line = one_line(text)
    return line if len(line) <= LIMIT else line[: LIMIT - 1] + "…"
