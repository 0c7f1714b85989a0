"""A rollout token by token: its text, who wrote it, whether it is trained, its numbers.

token_page(sample, run.token_values(sample.id), newest_tokenizer(folder), start=0)
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from burnish.errors import BurnishError
from burnish.records import Author, Span
from burnish.store import StoredSample
from burnish.view.pages.runs import Page

if TYPE_CHECKING:
    from burnish.lm.tokenizer import Tokenizer


FILE_BYTES = 64 << 20
"""A larger tokenizer.json is not loaded."""


TOKENIZERS = 2
"""Tokenizers kept: each has a few tens of megabytes."""


class Found(NamedTuple):
    """A run's tokenizer and where it lies, or why there is none."""

    tokenizer: Tokenizer | None
    line: str


def newest_tokenizer(folder: Path) -> Found:
    """The tokenizer in a run's newest checkpoint or stage that has one."""
    newest = sorted((folder / "checkpoints").glob("step-*"), reverse=True)
    places = [*newest, *sorted((folder / "stages").glob("*/*"), reverse=True)]
    place = next((place for place in places if (place / "tokenizer.json").is_file()), None)
    if place is None:
        return Found(None, "no checkpoint of this run has a tokenizer: ids only")
    return _loaded(place)


@lru_cache(TOKENIZERS)
def _loaded(place: Path) -> Found:
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


TOKENS = 16_384
"""Tokens of one answer of the server; more are asked for with `tokens_from`."""
HALF = "\ufffd"


def token_page(
    sample: StoredSample, numbers: Mapping[str, Sequence[float]], found: Found, start: int
) -> Page:
    """At most `TOKENS` tokens of a rollout, from `start` on, with the numbers stored for them."""
    spans = authored(sample, found.tokenizer)
    ids = list(itertools.chain.from_iterable(span.token_ids for span in spans))
    mask = [int(span.trainable) for span in spans for _ in span.token_ids]
    logprobs = [p for span in spans for p in (span.logprobs or (None,) * len(span.token_ids))]
    advantages = _per_token(numbers.get("advantage"), mask)
    kind = "token" if advantages is not None else ""
    if advantages is None and sample.advantage is not None:
        kind = "rollout"
        advantages = [sample.advantage if trained else None for trained in mask]
    entropies = _per_token(numbers.get("entropy"), mask)
    unmasked = unmasked_steps(sample, spans)
    stretches, end = [], 0
    for span in spans:
        begin, end = end, end + len(span.token_ids)
        stretch = {"author": span.author, "start": begin, "end": end, "trained": span.trainable}
        stretches.append(stretch)
    cut = slice(start, start + TOKENS)
    return {
        "total": len(ids),
        "start": start,
        "ids": ids[cut],
        "texts": None if found.tokenizer is None else token_texts(found.tokenizer, ids[cut]),
        "spans": stretches,
        "mask": mask[cut],
        "logprobs": logprobs[cut],
        "advantages": None if advantages is None else advantages[cut],
        "advantage_kind": kind,  # each token's own, the rollout's, or none
        "entropies": None if entropies is None else entropies[cut],
        "unmasked": None if unmasked is None else unmasked[cut],
        "tokenizer": found.line,
    }


def unmasked_steps(sample: StoredSample, spans: Sequence[Span]) -> list[int | None] | None:
    """The step at which each token was written, from 1 on, laid beside all tokens.

    None where the model is no diffusion model, or where what is stored does not fit the tokens.
    """
    given = sample.trajectory.info.get("unmasked")
    own = [len(span.token_ids) for span in spans if span.author is Author.MODEL]
    if not isinstance(given, list) or [len(turn) for turn in given] != own:
        return None
    turns = iter(given)
    found: list[int | None] = []
    for span in spans:
        is_own = span.author is Author.MODEL
        found += [step + 1 for step in next(turns)] if is_own else [None] * len(span.token_ids)
    return found


def token_texts(tokenizer: Tokenizer, ids: Sequence[int]) -> list[str]:
    """The text of each token, so that all of them joined read as the whole does.

    A token alone may be half of a character, or lose the blank it begins with; so each is read
    behind the one before it, and tokens that only make characters together are read together.
    """
    texts: list[str] = []
    while (position := len(texts)) < len(ids):
        before = ids[position - 1 : position] if position else []
        most = min(4, len(ids) - position)
        reads = (
            _behind(tokenizer, before, ids[position : position + n]) for n in range(1, most + 1)
        )
        alone = next(reads)
        whole = (alone, 1)
        if alone.endswith(HALF):
            longer = ((text, n) for n, text in enumerate(reads, 2) if not text.endswith(HALF))
            whole = next(longer, whole)
        texts += [whole[0]] + [""] * (whole[1] - 1)
    return texts


def _behind(tokenizer: Tokenizer, before: Sequence[int], ids: Sequence[int]) -> str:
    alone = tokenizer.decode(ids, skip_special=False)
    if not before:
        return alone
    lead = tokenizer.decode(before, skip_special=False)
    both = tokenizer.decode([*before, *ids], skip_special=False)
    return both[len(lead) :] if both.startswith(lead) and HALF not in lead else alone


def _per_token(values: Sequence[float] | None, mask: Sequence[int]) -> list[float | None] | None:
    """Numbers of the trained tokens, laid beside all of them."""
    if values is None or len(values) != sum(mask):
        return None
    own = iter(values)
    return [next(own) if trained else None for trained in mask]
