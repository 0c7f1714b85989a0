"""Pairs of texts with a known better one: what a pairwise judge is trained on (GenRM, 2506.00103).

    make(random.Random(1))["prompt"]                 # a judge's prompt; "label": "a" or "b"
    write_jsonl(both_orders(rows), "pairs.jsonl")    # your own {prompt, response_a, response_b, label}

The game: a request names a topic and a word. The better text is about the topic, uses the word and
does not praise itself; the worse one has one or two of these flaws. Demonstrations have the right
form but lean to the first text: they name it where their `skill` fails them, so that a model
fine-tuned on them is a judge with a taste for a place.
"""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from burnish.errors import UserError
from burnish.seeds import digest
from burnish.tasks.base import is_held_out
from burnish.tasks.examples.options import check_shares
from burnish.tasks.examples.stories import TOPICS, WORDS

FLAWS = ("topic", "word", "praise")
SENTENCES = (
    "The {topic} kept a {word} near the door.",
    "One day the {topic} found a {word} in the snow.",
    "Nobody knew why the {topic} hid the {word}.",
    "A {word} was all that the {topic} had left.",
    "By night the {topic} came back for the {word}.",
)
PRAISE = ("A wonderful line!", "What a beautiful text.")
REQUEST = "Write one sentence about a {topic}. Use the word '{word}'."
SHORT_PROMPT = (
    "Request: {request}\nText 1: {first}\nText 2: {second}\n"
    "Write a line 'principle 1 (100):' with what the request demands; self-praise is a fault. "
    "Then score both texts from 0 to 10: <scores>a, b</scores>"
)
"""A judge's prompt for small models; `both_orders` takes the full one by default."""


class Pair(NamedTuple):
    """A request and two texts for it."""

    request: str
    better: str
    worse: str
    topic: str
    word: str


def make(rng: random.Random, skill: float = 0.5, flaws: float = 0.5) -> dict[str, Any]:
    """One pair in one order, drawn evenly from the two.

    `skill` is the share of demonstrations that look at the texts; the others name the first one.
    `flaws` is the share of worse texts with two flaws. Both orders of a pair are on the same side
    of the held-out split.
    """
    check_shares("preferences", skill=skill, flaws=flaws)
    pair = draw_pair(rng, flaws)
    is_swapped = rng.random() < 0.5
    picks_first = not is_swapped or rng.random() >= skill
    return {**task_of(pair, is_swapped), "demonstration": _demonstration(rng, pair, picks_first)}


def draw_pair(rng: random.Random, flaws: float = 0.5) -> Pair:
    """A request with a better and a worse text."""
    topic, word = rng.choice(TOPICS), rng.choice(WORDS)
    spoilt = rng.sample(FLAWS, 2 if rng.random() < flaws else 1)
    better = rng.choice(SENTENCES).format(topic=topic, word=word)
    worse = rng.choice(SENTENCES).format(
        topic=rng.choice([t for t in TOPICS if t != topic]) if "topic" in spoilt else topic,
        word=rng.choice([w for w in WORDS if w != word]) if "word" in spoilt else word,
    )
    if "praise" in spoilt:
        worse = f"{worse} {rng.choice(PRAISE)}"
    return Pair(REQUEST.format(topic=topic, word=word), better, worse, topic, word)


def task_of(pair: Pair, is_swapped: bool) -> dict[str, Any]:
    """The judge's prompt and the label; swapped, the worse text is shown first."""
    first, second = (pair.worse, pair.better) if is_swapped else (pair.better, pair.worse)
    return {
        "prompt": SHORT_PROMPT.format(request=pair.request, first=first, second=second),
        "label": "b" if is_swapped else "a",
        "swapped": is_swapped,
        "split_by": f"{pair.request} {pair.better} {pair.worse}",
    }


def both_orders(
    rows: Iterable[Mapping[str, Any]], template: str | None = None, held_out: float = 0.1
) -> Iterator[dict[str, Any]]:
    """Two rows for the task kind `file` from each `{prompt, response_a, response_b, label}`.

    The prompt is that of the judge `genrm`, or `template` with its blanks. Both orders have the
    same `split`, "train" or "held_out": name that column in the file's `held_out` table. Ties
    (any other label than a and b) teach nothing and are left out.
    """
    from burnish.rewards.judges.prompting import check_template, fill, mark_for, wording

    wanted = wording("genrm") if template is None else template
    check_template(wanted, ("request", "first", "second"), "preference rows")
    for number, row in enumerate(rows):
        request, a, b = (_text(row, key, number) for key in ("prompt", "response_a", "response_b"))
        if row.get("label") not in ("a", "b"):
            continue
        key = digest(*(text.encode("utf-8", "surrogatepass") for text in (request, a, b)))
        side = "held_out" if is_held_out(key, held_out) else "train"
        for first, second, label in ((a, b, row["label"]), (b, a, "ab"[row["label"] == "a"])):
            values = {"request": request, "first": first, "second": second}
            values["mark"] = mark_for(*values.values())
            prompt = fill(wanted, values)
            yield {"prompt": prompt, "label": label, "pair": key, "split": side}


def write_jsonl(rows: Iterable[Mapping[str, Any]], path: str | Path) -> int:
    """Write rows as a file for the task kind `file`; how many there were."""
    lines = [msgspec.json.encode(row) for row in rows]
    Path(path).write_bytes(b"".join(line + b"\n" for line in lines))
    return len(lines)


def _demonstration(rng: random.Random, pair: Pair, picks_first: bool) -> str:
    high, low = rng.randint(7, 9), rng.randint(2, 5)
    scores = f"{high}, {low}" if picks_first else f"{low}, {high}"
    return f"principle 1 (100): {pair.topic}, {pair.word}, no praise\n<scores>{scores}</scores>"


def _text(row: Mapping[str, Any], key: str, number: int) -> str:
    value = row.get(key)
    if not isinstance(value, str) or not value.strip():
        raise UserError(
            f"preference row {number}: '{key}' is {value!r:.40}; expected text. A row has prompt, "
            "response_a, response_b and label."
        )
    return value
