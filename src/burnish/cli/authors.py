"""Tokens as text, coloured by who wrote them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from rich.text import Text

from burnish.cli.console import AUTHOR_STYLES
from burnish.records import Span, Task, Trajectory
from burnish.texts import safe

if TYPE_CHECKING:
    from burnish.lm.tokenizer import Tokenizer


def coloured(spans: Sequence[Span], tokenizer: Tokenizer) -> Text:
    """All tokens as text, special ones included; trained tokens are underlined."""
    text = Text()
    for span in spans:
        shown = tokenizer.decode(span.token_ids, skip_special=False)
        text.append(safe(shown), style=style_of(span))
    return text


def coloured_messages(trajectory: Trajectory, task: Task) -> Text:
    """The conversation by author without a tokenizer: role names stand for the template."""
    text = Text()
    for message in task.messages:
        text.append(f"[{safe(message.role)}] ", style=AUTHOR_STYLES["template"])
        author = "tool" if message.role == "tool" else "prompt"
        text.append(safe(message.content) + "\n", style=AUTHOR_STYLES[author])
    text.append("[assistant] ", style=AUTHOR_STYLES["template"])
    text.append(safe(trajectory.text), style=f"{AUTHOR_STYLES['model']} underline")
    return text


def style_of(span: Span) -> str:
    """The author's colour; underlined where the tokens are trained."""
    return AUTHOR_STYLES[span.author.value] + (" underline" if span.trainable else "")


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
