"""Tokens as text, coloured by who wrote them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from rich.text import Text

from burnish.cli.console import AUTHOR_STYLES, safe
from burnish.errors import BurnishError
from burnish.records import Author, Span, Task, Trajectory

if TYPE_CHECKING:
    from burnish.lm.tokenizer import Tokenizer


def run_tokenizer(folder: Path) -> Tokenizer | None:
    """The tokenizer that lies in a run's newest checkpoint; None where there is none to read."""
    for place in sorted((folder / "checkpoints").glob("step-*"), reverse=True):
        if (place / "tokenizer.json").is_file():
            try:
                from burnish.lm.tokenizer import Tokenizer

                return Tokenizer.from_folder(place)
            except (ModuleNotFoundError, BurnishError):
                return None
    return None


def authored(trajectory: Trajectory, task: Task, tokenizer: Tokenizer) -> tuple[Span, ...]:
    """The spans, the prompt cut into what the template and what the task wrote.

    A rollout may store its whole prompt as one span. Where the task's messages render to just
    these tokens, the tokenizer knows which of them are the template's.
    """
    first, *rest = trajectory.spans
    if first.author is not Author.PROMPT or first.trainable:
        return trajectory.spans
    spans = tokenizer.render_spans(task.messages)
    ids = tuple(id_ for span in spans for id_ in span.token_ids)
    return (*spans, *rest) if ids == first.token_ids else trajectory.spans


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
