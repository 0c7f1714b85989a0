"""What several commands draw: tables, rewards as trees, tokens by author, curves."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from burnish.cli.console import AUTHOR_STYLES, number, one_line, out, say
from burnish.errors import BurnishError
from burnish.records import AUDIO_TYPES, Message, Reward, Span, Status, Task, Trajectory
from burnish.texts import safe

if TYPE_CHECKING:
    from burnish.lm.tokenizer import Tokenizer
    from burnish.store.blobs import Blobs
    from burnish.view.curves import RunCurves


REASON_LIMIT = 400
"""Characters of one observation or reason."""


_NUMBER = re.compile(r"[-+]?[\d,.]+%?|-?")


def print_rows(
    titles: Sequence[str], rows: Iterable[Sequence[str | Text]], gives_way: int | None = -1
) -> None:
    """Rows under their titles; cells are text, never markup.

    One column, the last, takes further lines where room is short; of None all do.
    """
    table = Table(box=None, pad_edge=False, header_style="bright_black", show_header=any(titles))
    for title in titles:
        table.add_column(Text(title), no_wrap=gives_way is not None, overflow="ellipsis")
    for column in table.columns if gives_way is None else [table.columns[gives_way]]:
        column.no_wrap, column.overflow = False, "fold"
    for row in rows:
        table.add_row(*(Text(one_line(cell)) if isinstance(cell, str) else cell for cell in row))
    for column in table.columns:
        if all(_NUMBER.fullmatch(str(cell)) for cell in column.cells):
            column.justify = "right"
    out.print(table)


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


def part_text(part: Reward) -> str:
    """`correct 1.000`; a part without a value shows its status."""
    return f"{one_line(part.name)} {number(part.value) if part.value is not None else part.status.value}"


def parts_text(reward: Reward) -> str:
    """`correct 1.000, format 0.500`."""
    return ", ".join(map(part_text, reward.parts))


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
    return line if len(line) <= REASON_LIMIT else line[: REASON_LIMIT - 1] + "…"


def coloured(spans: Sequence[Span], tokenizer: Tokenizer) -> Text:
    """All tokens as text, special ones included; trained tokens are underlined."""
    text = Text()
    for span in spans:
        shown = tokenizer.decode(span.token_ids, skip_special=False)
        text.append(
            safe(shown),
            style=AUTHOR_STYLES[span.author.value] + (" underline" if span.trainable else ""),
        )
    return text


def coloured_messages(trajectory: Trajectory, task: Task) -> Text:
    """The conversation by author without a tokenizer: role names stand for the template."""
    text = Text()
    for message in task.messages:
        text.append(f"[{safe(message.role)}] ", style=AUTHOR_STYLES["template"])
        author = "tool" if message.role == "tool" else "prompt"
        text.append(safe(message.text) + "\n", style=AUTHOR_STYLES[author])
    text.append("[assistant] ", style=AUTHOR_STYLES["template"])
    text.append(safe(trajectory.text), style=f"{AUTHOR_STYLES['model']} underline")
    return text


def print_media(task: Task, blobs: Blobs) -> None:
    """The images and sounds of a task: what they are, and where their files lie."""
    for part in dict.fromkeys(task.media):
        name = Message("user", (part,)).text.strip("[]")
        try:
            data = blobs.read(part)
            what = f"{_size_of(data)}, {max(1, len(data) // 1000):,} kB   {blobs.path(part.sha256)}"
        except BurnishError as error:
            what = one_line(str(error))
        say(f"{name}   {what}", style="bright_black")


def _size_of(data: bytes) -> str:
    """`PNG 800 x 557`, `FLAC 8.39 s at 22050 Hz`."""
    from burnish.media import image_info, media_type_of, sound_info
    from burnish.media.kinds import short_name

    kind = media_type_of(data) or ""
    if kind in AUDIO_TYPES:
        sound = sound_info(data)
        wide = f", {sound.channels} channels" if sound.channels > 1 else ""
        return f"{short_name(kind)} {sound.seconds:.2f} s at {sound.rate} Hz{wide}"
    image = image_info(data)
    return f"{short_name(kind)} {image.width} x {image.height}"


def legend() -> Text:
    """Which colour is whose."""
    text = Text("written by: ", style="bright_black")
    for author, style in AUTHOR_STYLES.items():
        text.append(f"{author} ", style=style)
    text.append("trained", style="underline")
    return text


def counts(spans: Sequence[Span]) -> str:
    """`template 12, prompt 9, model 4` tokens."""
    totals: dict[str, int] = {}
    for span in spans:
        totals[span.author.value] = totals.get(span.author.value, 0) + len(span.token_ids)
    return ", ".join(f"{author} {count}" for author, count in totals.items())


def print_curves(curves: RunCurves) -> None:
    """Reward, or what is learned without one, and length over the steps.

    Two plots stand side by side where the terminal is wide enough.
    """
    rewards = {"reward": curves.reward} if curves.reward else curves.parts
    plots = {f"reward: {k}" if k != "reward" else k: v for k, v in rewards.items()}
    plots = curves.learned | dict(list(plots.items())[:1]) | {"mean length (tokens)": curves.length}
    plots = {title: points for title, points in plots.items() if len(points) > 1}
    titles = list(plots)
    for first in range(0, len(titles), 2):
        _print_plots({title: plots[title] for title in titles[first : first + 2]})


def _print_plots(plots: Mapping[str, Sequence[tuple[float, float]]]) -> None:
    from burnish.view.curves import text_plot

    beside = out.width >= 72 and len(plots) > 1
    width = min((out.width - 4) // 2 if beside else out.width - 2, 60)
    is_ascii = out.options.ascii_only
    blocks = [
        [title, *text_plot(points, width=width, height=7, ascii_only=is_ascii).split("\n")]
        for title, points in plots.items()
    ]
    if not beside:
        for block in blocks:
            say("\n".join(block))
        return
    for lines in zip(*blocks, strict=True):
        say("    ".join(f"{line:<{width}}" for line in lines).rstrip())
