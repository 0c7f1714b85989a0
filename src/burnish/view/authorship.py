"""Who wrote which token of a rollout, and the tokenizer that turns its ids into text.

found = newest_tokenizer(folder)
authored(sample, found.tokenizer)      # spans: template, prompt, model, tool
"""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from burnish.errors import BurnishError
from burnish.records import Author, Span
from burnish.store import StoredSample

if TYPE_CHECKING:
    from burnish.lm.tokenizer import Tokenizer

FILE_BYTES = 64 << 20
"""A larger tokenizer.json is not loaded."""


class Found(NamedTuple):
    """A run's tokenizer and where it lies, or why there is none."""

    tokenizer: Tokenizer | None
    line: str


def tokenizer_place(folder: Path) -> Path | None:
    """The newest checkpoint or stage of a run that has a tokenizer."""
    newest = sorted((folder / "checkpoints").glob("step-*"), reverse=True)
    places = [*newest, *sorted((folder / "stages").glob("*/*"), reverse=True)]
    return next((place for place in places if (place / "tokenizer.json").is_file()), None)


def newest_tokenizer(folder: Path) -> Found:
    """The tokenizer in a run's newest checkpoint."""
    place = tokenizer_place(folder)
    if place is None:
        return Found(None, "no checkpoint of this run has a tokenizer: ids only")
    if (place / "tokenizer.json").stat().st_size > FILE_BYTES:
        return Found(None, f"{place.name}/tokenizer.json is too large to load here: ids only")
    try:
        from burnish.lm.tokenizer import Tokenizer

        return Found(Tokenizer.from_folder(place), f"tokenizer of checkpoint {place.name}")
    except ModuleNotFoundError as error:
        return Found(None, f"token texts need the package '{error.name}': ids only")
    except BurnishError as error:
        return Found(None, f"ids only: {error}")


def authored(sample: StoredSample, tokenizer: Tokenizer | None) -> tuple[Span, ...]:
    """The spans, the prompt cut into what the template and what the task wrote.

    A rollout may store its whole prompt as one span. Where the task's messages render to just
    these tokens, the tokenizer knows which of them are the template's.
    """
    spans = sample.trajectory.spans
    if tokenizer is None or not spans:
        return spans
    first, *rest = spans
    if first.author is not Author.PROMPT or first.trainable:
        return spans
    try:
        cut = tokenizer.render_spans(sample.task.messages)
    # Boundary: a model's chat template may refuse a conversation in any way it likes.
    except Exception:
        return spans
    ids = tuple(itertools.chain.from_iterable(span.token_ids for span in cut))
    return (*cut, *rest) if ids == first.token_ids else spans
