"""Responses to IFEval prompts that keep every demand, or all but one, made by rule.

    good, bad, broken = pair_for(instructions, seed)

No model wrote them: they are plain filler with the demanded features built in. The official checks
decide what they are worth; a prompt for which no such pair comes about is left out and counted.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from burnish.rewards.checks.instructions import Instruction, check_instruction
from burnish.seeds import derive

FILLER = (
    "this topic has a long past and people still talk about it today because it shows how small "
    "steps add up over time while others note that results vary with place and season so a careful "
    "look at each part helps before one draws any firm line between them"
)
WORDS = FILLER.split()
WORST = 60
"""Drafts before a prompt is given up."""


class Made(NamedTuple):
    """Two responses, and the demand that the second breaks."""

    good: str
    bad: str
    broken: str


def pair_for(instructions: Sequence[Instruction], seed: int) -> Made | None:
    """A response that keeps all demands and one that breaks exactly one; None where none is found."""
    rng = random.Random(derive("variants", seed))
    good = _draft_that(rng, instructions, None)
    if good is None:
        return None
    for place in rng.sample(range(len(instructions)), len(instructions)):
        bad = _draft_that(rng, instructions, place)
        if bad is not None:
            return Made(good, bad, instructions[place].id)
    return None


def _draft_that(
    rng: random.Random, instructions: Sequence[Instruction], broken: int | None
) -> str | None:
    for _ in range(WORST):
        wanted = [one for place, one in enumerate(instructions) if place != broken]
        over = instructions[broken] if broken is not None else None
        count = _sentence_count(rng, wanted, over)
        parts = [_sentence(rng, wanted) for _ in range(count)]
        text = " ".join(parts)
        for one in sorted(wanted, key=lambda one: ORDER.index(one.id) if one.id in ORDER else -1):
            make = MAKERS.get(one.id)
            text = make(text, one.arguments, rng) if make else text
        if over is not None and over.id in BREAKERS:
            text = BREAKERS[over.id](text, over.arguments)
        kept = [bool(check_instruction(text, *one).obeyed) for one in instructions]
        if kept == [place != broken for place in range(len(instructions))]:
            return text
    return None


def _sentence(rng: random.Random, wanted: Sequence[Instruction]) -> str:
    avoided = [
        one.arguments["letter"].lower()
        for one in wanted
        if one.id == "keywords:letter_frequency" and one.arguments["let_relation"] == "less than"
    ]
    pool = [word for word in WORDS if not any(letter in word for letter in avoided)] or ["so"]
    words = rng.choices(pool, k=rng.randint(6, 14))
    comma = any(one.id == "punctuation:no_comma" for one in wanted)
    joined = " ".join(words) if comma else ", ".join((" ".join(words[:4]), " ".join(words[4:])))
    return joined.capitalize() + "."


def _sentence_count(
    rng: random.Random, wanted: Sequence[Instruction], over: Instruction | None
) -> int:
    low, high = 2, 12
    for one in wanted:
        bound = one.arguments.get("num_sentences") or 0
        if one.id == "length_constraints:number_words":
            bound = max(1, one.arguments["num_words"] // 9)
        if not bound:
            continue
        if one.arguments["relation"] == "less than":
            high = min(high, max(1, bound - 2))
            low = min(low, high)
        else:
            low, high = max(low, bound + 2), max(high, bound * 2 + 4)
    if over is not None and over.arguments.get("relation") == "less than":
        bound = over.arguments.get("num_sentences") or over.arguments.get("num_words", 0) // 6
        low, high = max(low, bound + 1), max(high, bound + 6)
    return rng.randint(low, max(low, high))


def _keywords(text: str, given: dict[str, Any], rng: random.Random) -> str:
    return f"{text} Notes on {' and '.join(given['keywords'])}."


def _frequency(text: str, given: dict[str, Any], rng: random.Random) -> str:
    if given["relation"] == "less than":
        return text
    return f"{text} {' '.join([given['keyword']] * (given['frequency'] + 1))}."


def _letter(text: str, given: dict[str, Any], rng: random.Random) -> str:
    if given["let_relation"] == "less than":
        return text
    missing = given["let_frequency"] - text.lower().count(given["letter"].lower())
    return f"{text} Also {given['letter'] * max(0, missing)}." if missing > 0 else text


def _paragraphs(text: str, given: dict[str, Any], rng: random.Random) -> str:
    return "\n***\n".join(_split(text, given["num_paragraphs"]))


def _nth_word(text: str, given: dict[str, Any], rng: random.Random) -> str:
    parts = _split(text, given["num_paragraphs"])
    place = given["nth_paragraph"] - 1
    parts[place] = f"{given['first_word']} {parts[place]}"
    return "\n\n".join(parts)


def _split(text: str, count: int) -> list[str]:
    sentences = re.findall(r"[^.]+\.", text) or [text]
    while len(sentences) < count:
        sentences.append("And so on.")
    return [" ".join(sentences[place::count]).strip() for place in range(count)]


def _sections(text: str, given: dict[str, Any], rng: random.Random) -> str:
    word = given["section_spliter"]
    parts = _split(text, given["num_sections"])
    return "\n".join(f"{word} {place}\n{part}" for place, part in enumerate(parts, start=1))


Maker = Callable[[str, dict[str, Any], random.Random], str]
MAKERS: dict[str, Maker] = {
    "keywords:existence": _keywords,
    "keywords:frequency": _frequency,
    "keywords:letter_frequency": _letter,
    "length_constraints:number_paragraphs": _paragraphs,
    "length_constraints:nth_paragraph_first_word": _nth_word,
    "detectable_format:multiple_sections": _sections,
    "detectable_content:number_placeholders": lambda t, a, r: (
        t + " " + " ".join(f"[item {i}]" for i in range(a["num_placeholders"]))
    ),
    "detectable_format:number_highlighted_sections": lambda t, a, r: (
        t + " " + " ".join(f"*point {i}*" for i in range(a["num_highlights"]))
    ),
    "detectable_format:number_bullet_lists": lambda t, a, r: (
        t + "".join(f"\n* entry {i}" for i in range(a["num_bullets"]))
    ),
    "change_case:capital_word_frequency": lambda t, a, r: (
        t
        if a["capital_relation"] == "less than"
        else f"{t} {' '.join(['NOTE'] * (a['capital_frequency'] + 1))}."
    ),
    "detectable_content:postscript": lambda t, a, r: (
        f"{t}\n{a['postscript_marker']} One more thing."
    ),
    "detectable_format:title": lambda t, a, r: f"<<A short title>>\n{t}",
    "detectable_format:constrained_response": lambda t, a, r: "My answer is maybe.",
    "combination:two_responses": lambda t, a, r: f"{t}\n******\nIn other words {t.lower()}",
    "combination:repeat_prompt": lambda t, a, r: f"{a['prompt_to_repeat']}\n{t}",
    "startend:end_checker": lambda t, a, r: f"{t} {a['end_phrase']}",
    "punctuation:no_comma": lambda t, a, r: t.replace(",", ""),
    "detectable_format:json_format": lambda t, a, r: json.dumps({"answer": t}),
    "change_case:english_capital": lambda t, a, r: t.upper(),
    "change_case:english_lowercase": lambda t, a, r: t.lower(),
    "startend:quotation": lambda t, a, r: f'"{t}"',
}
ORDER = list(MAKERS)
"""Later ones are applied to what earlier ones made."""

BREAKERS: dict[str, Callable[[str, dict[str, Any]], str]] = {
    "punctuation:no_comma": lambda t, a: t.replace(" and ", ", and ", 1) + ", yes",
    "keywords:forbidden_words": lambda t, a: f"{t} {a['forbidden_words'][0]}",
    "keywords:frequency": lambda t, a: (
        f"{t} {' '.join([a['keyword']] * a['frequency'])}" if a["relation"] == "less than" else t
    ),
    "keywords:letter_frequency": lambda t, a: (
        f"{t} {a['letter'] * a['let_frequency']}" if a["let_relation"] == "less than" else t
    ),
    "change_case:capital_word_frequency": lambda t, a: (
        f"{t} {' '.join(['NOTE'] * a['capital_frequency'])}"
        if a["capital_relation"] == "less than"
        else t
    ),
}
"""How a demand is broken that filler would keep by itself."""
