"""The role `candidate`: hold the code under test and answer calls with plain data.

It never sees the tests. Requests are `{"call": name or handle, "arguments", "keywords"}` and
`{"attribute" | "items" | "length" | "item": handle, ...}`; answers `{"value"}` or `{"error"}`.
"""

from __future__ import annotations

import sys
import types
from typing import Any

from . import wire
from .order import Order
from .program import offer_exit

MOST_ITEMS = 100_000
"""Items of an iterator that are read before it counts as endless."""


class Desk:
    """The loaded module and the objects that stayed here."""

    def __init__(self) -> None:
        self.module = types.ModuleType("candidate")
        sys.modules["candidate"] = self.module
        self.objects: list[Any] = []

    def keep(self, value: Any) -> int:
        self.objects.append(value)
        return len(self.objects) - 1

    def find(self, target: Any) -> Any:
        if isinstance(target, str):
            return vars(self.module)[target]
        return self.objects[int(target)]

    def answer(self, request: dict[str, Any]) -> Any:
        """Do one request."""
        if "call" in request:
            arguments = [wire.decode(a, self.find) for a in request["arguments"]]
            keywords = {k: wire.decode(a, self.find) for k, a in request["keywords"].items()}
            return self.find(request["call"])(*arguments, **keywords)
        if "attribute" in request:
            return getattr(self.find(request["attribute"]), request["name"])
        if "item" in request:
            return self.find(request["item"])[wire.decode(request["key"], self.find)]
        if "length" in request:
            return len(self.find(request["length"]))
        items = []
        for item in self.find(request["items"]):
            items.append(item)
            if len(items) > MOST_ITEMS:
                raise ValueError(f"more than {MOST_ITEMS} items")
        return items


def serve(order: Order) -> None:
    """Load the code, then answer until the examiner leaves."""
    if order.talk is None:
        raise ValueError("a candidate needs someone to talk to")
    talk = wire.Talk(order.talk)
    offer_exit()
    desk = Desk()
    try:
        exec(compile(order.code, "candidate.py", "exec"), vars(desk.module))
    except BaseException as error:
        talk.send({"error": describe(error)})
        return
    talk.send({"names": [name for name in vars(desk.module) if type(name) is str]})
    while True:
        try:
            request = talk.receive()
        except EOFError:
            return
        try:
            message = {"value": wire.encode(desk.answer(request), desk.keep)}
        except BaseException as error:
            message = {"error": describe(error)}
        try:
            talk.send(message)
        except wire.Broken as error:
            talk.send({"error": describe(error)})


def describe(error: BaseException) -> list[str]:
    """Type and text of an error; its own `__str__` may fail or be endless."""
    try:
        text = str(error)[:500]
    except BaseException:
        text = ""
    return [type(error).__name__[:100], text]
