"""A tool-calling game small enough for a 135M model: read a request, write one JSON call.

    [task]
    kind = "function"
    path = "tool_calls.py:make"

A prompt lists a few of ten tools by their signatures and asks for something in one sentence; the
answer is a JSON object `{"name": ..., "arguments": {...}}` a call, one a line. Calls are held out,
not sentences: a call of the held-out side is not trained in any wording or beside other tools.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from random import Random
from typing import Any, NamedTuple

from burnish.errors import UserError

CITIES = (
    "Athens", "Berlin", "Boston", "Cairo", "Delhi", "Dublin", "Lagos", "Lima", "Lisbon", "London",
    "Madrid", "Miami", "Milan", "Oslo", "Paris", "Prague", "Rome", "Seoul", "Tokyo", "Vienna",
)  # fmt: skip
PEOPLE = (
    "Alice", "Anna", "Ben", "Clara", "David", "Emma", "Eric", "Frank", "Grace", "Henry",
    "Jack", "Julia", "Kate", "Leo", "Maria", "Nina", "Oscar", "Paul", "Rosa", "Sam",
)  # fmt: skip
THINGS = (
    "apples", "beans", "bread", "butter", "candles", "cheese", "coffee", "eggs", "flour", "honey",
    "lemons", "milk", "paper", "pasta", "pens", "rice", "salt", "soap", "sugar", "tea",
)  # fmt: skip
SUBJECTS = (
    "the bill", "the budget", "the car", "the garden", "the game", "the letter", "the meeting",
    "the party", "the photos", "the plan", "the project", "the report", "the trip", "the visit",
)  # fmt: skip
ROOMS = ("attic", "bathroom", "bedroom", "garage", "hall", "kitchen", "library", "office")
STYLES = ("blues", "classical", "country", "dance", "folk", "jazz", "pop", "rock", "soul")
LANGUAGES = ("Arabic", "Danish", "Dutch", "French", "German", "Greek", "Italian", "Spanish")
UNITS = ("celsius", "fahrenheit")


class Parameter(NamedTuple):
    """One typed argument and how its value is drawn."""

    name: str
    type: str
    draw: Callable[[Random], Any]


class Tool(NamedTuple):
    """A tool, and sentences that ask for it."""

    name: str
    parameters: tuple[Parameter, ...]
    requests: tuple[str, ...]

    @property
    def signature(self) -> str:
        shown = ", ".join(f"{parameter.name}: {parameter.type}" for parameter in self.parameters)
        return f"{self.name}({shown})"


def _word(name: str, words: tuple[str, ...]) -> Parameter:
    return Parameter(name, "str", lambda rng: rng.choice(words))


def _number(name: str, low: int, high: int) -> Parameter:
    return Parameter(name, "int", lambda rng: rng.randint(low, high))


TOOLS = (
    Tool(
        "get_weather",
        (_word("city", CITIES), _word("unit", UNITS)),
        (
            "What is the weather in {city} in {unit}?",
            "Tell me in {unit} how warm it is in {city}.",
            "I am going to {city}. Give me the temperature in {unit}.",
        ),
    ),
    Tool(
        "set_alarm",
        (_number("hour", 5, 22), _number("minute", 10, 59)),
        (
            "Wake me at {hour}:{minute}.",
            "Set an alarm for {hour}:{minute}, please.",
            "I must get up at {minute} past {hour}.",
        ),
    ),
    Tool(
        "send_message",
        (_word("to", PEOPLE), _word("about", SUBJECTS)),
        (
            "Write to {to} about {about}.",
            "Send {to} a message about {about}.",
            "Let {to} know about {about}.",
        ),
    ),
    Tool(
        "play_music",
        (_word("style", STYLES), _number("minutes", 5, 90)),
        (
            "Play {style} for {minutes} minutes.",
            "I would like {minutes} minutes of {style}.",
            "Put on some {style} music, {minutes} minutes of it.",
        ),
    ),
    Tool(
        "buy_item",
        (_word("item", THINGS), _number("amount", 2, 40)),
        (
            "Order {amount} packs of {item}.",
            "We need {item}, so buy {amount} of them.",
            "Please get me {item}: {amount} packs.",
        ),
    ),
    Tool(
        "book_train",
        (_word("start", CITIES), _word("end", CITIES)),
        (
            "Book a train from {start} to {end}.",
            "I need to get to {end} by train. I am in {start}.",
            "Buy me a ticket to {end}, leaving from {start}.",
        ),
    ),
    Tool(
        "set_lights",
        (_word("room", ROOMS), _number("percent", 1, 99)),
        (
            "Dim the lights in the {room} to {percent} percent.",
            "Set the {room} lights to {percent} percent.",
            "Make it {percent} percent bright in the {room}.",
        ),
    ),
    Tool(
        "translate",
        (_word("word", THINGS), _word("language", LANGUAGES)),
        (
            "How do you say {word} in {language}?",
            "Translate {word} into {language}.",
            "What is the {language} word for {word}?",
        ),
    ),
    Tool(
        "add_event",
        (_word("guest", PEOPLE), _number("day", 1, 28), _number("hour", 8, 20)),
        (
            "Meet {guest} on day {day} at {hour} o'clock.",
            "Put {guest} in my calendar for day {day}, {hour} o'clock.",
            "On day {day} I see {guest} at {hour} o'clock. Note it.",
        ),
    ),
    Tool(
        "pay_person",
        (_word("person", PEOPLE), _number("euros", 2, 400)),
        (
            "Send {euros} euros to {person}.",
            "I owe {person} {euros} euros. Pay it.",
            "Pay {person} {euros} euros.",
        ),
    ),
)
INSTRUCTION = {
    1: 'Answer with one JSON object: {"name": ..., "arguments": {...}}',
    2: 'Answer with one JSON object a line for each call: {"name": ..., "arguments": {...}}',
}


def make(rng: Random, tools: int = 3, calls: int = 1) -> Mapping[str, Any]:
    """A request for `calls` of the `tools` that the prompt lists.

    Fields: `answer` and `demonstration` (the JSON text of the calls, one a line) and `tool` (the
    names that are called).
    """
    if not 1 <= calls <= tools <= len(TOOLS):
        raise UserError(
            f"tool_calls: tools = {tools} and calls = {calls}; expected 1 <= calls <= tools <= "
            f"{len(TOOLS)}."
        )
    listed = rng.sample(TOOLS, tools)
    wanted = rng.sample(listed, calls)
    requests, answers = [], []
    for tool in wanted:
        arguments = _arguments(tool, rng)
        requests.append(rng.choice(tool.requests).format(**arguments))
        answers.append(json.dumps({"name": tool.name, "arguments": arguments}))
    signatures = "\n".join(tool.signature for tool in listed)
    answer = "\n".join(answers)
    return {
        "prompt": f"Tools:\n{signatures}\nRequest: {' '.join(requests)}\n{INSTRUCTION[min(calls, 2)]}",
        "answer": answer,
        "demonstration": answer,
        "tool": ", ".join(tool.name for tool in wanted),
        "split_by": "\n".join(sorted(answers)),
    }


def _arguments(tool: Tool, rng: Random) -> dict[str, Any]:
    """Values that all differ, so that no argument can be right by a mix-up of two."""
    while True:
        drawn = {parameter.name: parameter.draw(rng) for parameter in tool.parameters}
        if len(set(drawn.values())) == len(drawn):
            return drawn
