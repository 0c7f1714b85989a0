"""No pattern is quadratic on the text of models, tools and foreign files."""

import importlib
import itertools
import pkgutil
import re
import re._constants as c
import re._parser as parser
import signal
import time
from pathlib import Path

import pytest

import burnish

BOUNDED = {
    "burnish.config.given": "settings that the user writes",
    "burnish.tasks.gym.GRAMMARS": "matched as a whole, 200 characters at most",
}
LENGTH = 8000
MOST_S = 0.25
"""A linear pattern takes a hundredth of that, a quadratic one ten times as much or never ends."""
CLASSES = {c.CATEGORY_DIGIT: "1", c.CATEGORY_SPACE: " ", c.CATEGORY_WORD: "a"}


def patterns(room):
    """Every compiled pattern that stands in a module of a room, with the methods it is called by."""
    top = importlib.import_module(room)
    inside = pkgutil.walk_packages(getattr(top, "__path__", ()), f"{room}.")
    names = [module.name for module in inside if "vllm_" not in module.name]  # imports vLLM
    found = {}
    for home in (top, *map(importlib.import_module, names)):
        for name, value in vars(home).items():
            values = value.values() if isinstance(value, dict) else [value]
            nested = [one for one in values if isinstance(one, re.Pattern)]
            place = f"{home.__name__}.{name}"
            if any(place.startswith(known) for known in BOUNDED):
                continue
            uses = re.findall(rf"\b{name}(?:\[[^\]]*\])?\.(\w+)\(", Path(home.__file__).read_text())
            for one in nested:
                if isinstance(one.pattern, str):
                    found.setdefault((one.pattern, one.flags), (place, one, set(uses)))
    return list(found.values())


def parts(token):
    """The sub-patterns of a token."""
    op, value = token
    if op in (c.MAX_REPEAT, c.MIN_REPEAT, c.POSSESSIVE_REPEAT):
        return [value[2]]
    if op is c.SUBPATTERN:
        return [value[3]]
    if op in (c.ATOMIC_GROUP, c.BRANCH):
        return value[1] if op is c.BRANCH else [value]
    return [value[1]] if op in (c.ASSERT, c.ASSERT_NOT) else []


def characters(tree):
    """One character of every literal and class."""
    for op, value in tree:
        if op is c.LITERAL:
            yield chr(value)
        elif op in (c.ANY, c.NOT_LITERAL) or (op is c.IN and value[0][0] is c.NEGATE):
            yield from "x "
        elif op is c.IN:
            for kind, one in value:
                yield (
                    CLASSES.get(one, "-")
                    if kind is c.CATEGORY
                    else chr(one if kind is c.LITERAL else one[0])
                )
        for inner in parts((op, value)):
            yield from characters(inner)


def shortest(tree):
    """A text that the pattern begins to match, by its first branches."""
    text = ""
    for op, value in tree:
        if op in (c.LITERAL, c.IN, c.ANY, c.NOT_LITERAL):
            text += next(characters([(op, value)]))
        elif op in (c.MAX_REPEAT, c.MIN_REPEAT, c.POSSESSIVE_REPEAT):
            text += shortest(value[2]) * value[0]
        elif op not in (c.ASSERT, c.ASSERT_NOT) and (inner := parts((op, value))):
            text += shortest(inner[0])
    return text


def repetitions(pattern):
    """Long texts that repeat what the pattern knows, alone and behind a beginning that matches."""
    tree = parser.parse(pattern.pattern, pattern.flags)
    letters = list(dict.fromkeys([*characters(tree), " ", "\n", "a"]))
    word = shortest(tree)
    units = letters[:14] + ["".join(pair) for pair in itertools.permutations(letters[:7], 2)]
    for unit in dict.fromkeys([*units, word, word[:-1], word[: len(word) // 2]]):
        if unit:
            long = (unit * (LENGTH // len(unit) + 1))[:LENGTH]
            yield from (long, f"{word[:-1]}{long}\0")
    yield from (word[:i] + word[i] * LENGTH for i in range(1, len(word)))


def seconds(pattern, uses, text):
    whole = uses and uses <= {"match", "fullmatch"}
    calls = [getattr(pattern, use) for use in uses] if whole else [pattern.finditer]
    began = time.process_time()
    for call in calls:
        found = call(text)
        if not whole:
            for _ in found:
                pass
    return time.process_time() - began


@pytest.fixture
def limited():
    """A pattern that never ends is stopped: `re` looks at signals."""

    def stop(*_):
        raise TimeoutError

    before = signal.signal(signal.SIGALRM, stop)
    signal.alarm(120)
    yield
    signal.alarm(0)
    signal.signal(signal.SIGALRM, before)


@pytest.mark.parametrize(
    "room", [one.name for one in pkgutil.iter_modules(burnish.__path__, "burnish.")]
)
def test_patterns_are_linear_on_the_worst_repetition_of_what_they_know(room, limited):
    slow = {}
    for place, pattern, uses in patterns(room):
        for text in repetitions(pattern):
            # The least of two: another program may take the core.
            if min(seconds(pattern, uses, text) for _ in range(2)) > MOST_S:
                slow[place] = f"{text[:40]!r} ... {text[-5:]!r}"
    assert slow == {}
