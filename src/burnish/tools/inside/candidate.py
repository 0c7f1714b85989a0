"""The role `candidate`: hold the code under test and answer calls with plain data.

It never sees the tests. Requests are `{"call": name or handle, "arguments", "keywords"}` and
`{"attribute" | "items" | "length" | "item": handle, ...}`; answers `{"value"}`, `{"error"}` (which
a test may expect) or `{"fault"}` (which it may not).
"""

from __future__ import annotations

import sys
import types
from typing import Any

from . import wire
from .entry import offer_exit
from .run_spec import RunSpec

MOST_ITEMS = 100_000
"""Items of an iterator that are read before it counts as endless."""


class Missing(BaseException):
    """The code does not define what the tests call; no test can have expected that."""


class CandidateServer:
    """The loaded module and the objects that stayed here."""

    def __init__(self) -> None:
        self.module = types.ModuleType("candidate")
        sys.modules["candidate"] = self.module
        self.objects: list[Any] = []

    def keep(self, value: Any) -> list[Any]:
        """A number for an object, and what can be done with it."""
        self.objects.append(value)
        kind = type(value)
        is_indexed = hasattr(kind, "__getitem__")
        capabilities = {
            "call": callable(value),
            "iterate": hasattr(kind, "__iter__") or is_indexed,
            "measure": hasattr(kind, "__len__"),
            "index": is_indexed,
        }
        return [len(self.objects) - 1, *(name for name, has in capabilities.items() if has)]

    def find(self, target: Any) -> Any:
        if not isinstance(target, str):
            return self.objects[int(target)]
        if target not in vars(self.module):
            raise Missing(f"the code does not define {target}")
        return vars(self.module)[target]

    def answer(self, request: dict[str, Any]) -> Any:
        if "call" in request:
            arguments = [wire.decode(a, self.find) for a in request["arguments"]]
            keywords = {k: wire.decode(a, self.find) for k, a in request["keywords"].items()}
            return self.find(request["call"])(*arguments, **keywords)
        if "attribute" in request:
            return getattr(self.find(request["attribute"]), request["name"])
        if "item" in request:
            parts = [wire.decode(part, self.find) for part in request["key"]]
            return self.find(request["item"])[parts[0] if len(parts) == 1 else slice(*parts)]
        if "length" in request:
            return len(self.find(request["length"]))
        items = []
        for item in self.find(request["items"]):
            items.append(item)
            if len(items) > MOST_ITEMS:
                raise ValueError(f"more than {MOST_ITEMS} items")
        return items


def serve(spec: RunSpec) -> None:
    """Load the code, then answer until the examiner leaves."""
    if spec.talk is None:
        raise ValueError("a candidate needs someone to talk to")
    talk = wire.Talk(spec.talk)
    offer_exit()
    server = CandidateServer()
    try:
        exec(compile(spec.code, "candidate.py", "exec", dont_inherit=True), vars(server.module))
    except BaseException as error:
        talk.send({"error": describe(error)})
        return
    talk.send({"names": [name for name in vars(server.module) if type(name) is str]})
    while True:
        try:
            request = talk.receive()
        except EOFError:
            return
        try:
            value = server.answer(request)
        except Missing as error:
            talk.send({"fault": str(error)})
            continue
        except BaseException as error:
            talk.send({"error": describe(error)})
            continue
        try:
            talk.send({"value": wire.encode(value, server.keep)})
        except BaseException as error:
            talk.send({"fault": f"the answer cannot be sent: {describe(error)[2]}"})


def describe(error: BaseException) -> list[str]:
    """An error's type, the built-in type below it, and its text.

    Its own `__str__` may fail or be endless.
    """
    try:
        text = str(error)[:500]
    except BaseException:
        text = ""
    base = next(kind for kind in type(error).__mro__ if kind.__module__ == "builtins")
    return [type(error).__name__[:100], base.__name__, text]
