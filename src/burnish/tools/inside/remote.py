"""The candidate as the tests see it: functions and objects that live in another process.

What the candidate raises is rebuilt here, so that a test may expect it. Control flow
(`StopIteration`, `SystemExit` and their like) is never rebuilt: it is a `CandidateFault`.
"""

from __future__ import annotations

import builtins
import functools
import reprlib
import threading
import traceback
from collections.abc import Callable, Iterator
from typing import Any

from . import wire

SHORT = reprlib.Repr()
SHORT.maxstring = SHORT.maxother = SHORT.maxlong = 120
SHORT.maxlist = SHORT.maxtuple = SHORT.maxdict = SHORT.maxset = 12

EXPECTING = {("unittest", "handle"), ("_pytest", "raises")}
"""Functions that call others because the tests expect an error: `assertRaises(ValueError, f, -1)`."""
ANSWERS_OF = {"attribute": (AttributeError,), "length": (TypeError,), "item": (LookupError,)}
"""Errors that are the ordinary answer to a question: there is no such attribute, length or item."""
NO_FORM = "the answer is not in the expected form"


class BrokenTests(BaseException):
    """The tests themselves cannot be run; no `except Exception` of theirs hides it."""


class CandidateFault(BaseException):
    """The code under test left, broke off, or answered with what cannot be used.

    No `except Exception` of the tests hides it, and catching it does not undo the failure.
    """


class Connection:
    """Requests to the candidate, and what it has raised that no test has caught so far."""

    def __init__(self, talk: wire.Talk, arrived: Callable[[], None]) -> None:
        """`arrived` is called when the candidate has sent something, or has ended."""
        self.talk, self.arrived = talk, arrived
        self.last = ""
        """The last request and its answer, as evidence."""
        self.calls = 0
        self.is_open = True
        self.is_answered = False
        """Whether the tests have an answer in hand, from which an argument may follow."""
        self.uncaught: list[BaseException] = []
        self._turn = threading.Lock()  # invariant: a request is followed by its own answer

    def defined_names(self) -> list[str]:
        """The names that the code defines; raises where it cannot be loaded."""
        names = self._exchange({}, "names")
        if not isinstance(names, list):
            raise self.fault("the code did not say what it defines")
        return [name for name in names if isinstance(name, str)]

    def ask(self, what: str, **request: Any) -> Any:
        """One request; what it gave is remembered as evidence."""
        self.calls += 1
        answer = self._exchange(request, "value", what)
        try:
            value = wire.decode(answer, self._remote)
        except (wire.Broken, MemoryError) as error:
            raise self.fault(f"the answer cannot be read: {error}") from None
        self.is_answered = True
        self.last = f"{what} gave {show(value)}"
        return value

    def fault(self, why: str) -> CandidateFault:
        """A failure of the candidate that no test can undo."""
        fault = CandidateFault(why)
        self.uncaught.append(fault)
        return fault

    def caught(self, error: BaseException | None) -> None:
        """A test caught an error by its own words: that, and what led to it, was expected."""
        expected = {id(one) for one in _family(error) if not isinstance(one, CandidateFault)}
        self.uncaught = [one for one in self.uncaught if id(one) not in expected]

    def swallowed(self) -> BaseException | None:
        """An error of the candidate's that no test caught by name; forgotten afterwards."""
        left, self.uncaught = self.uncaught, []
        return left[0] if left else None

    def unsendable(self, what: str, error: Exception, by_answer: bool) -> BaseException:
        """Whose fault it is that an argument cannot be sent: an answer's, or that of the tests.

        Tests that could never send it are broken. Too large or too deep is a matter of values, which
        follow from answers once there are any.
        """
        said = f"an argument of {what[:200]} cannot be sent: {error}"
        return self.fault(f"with these answers {said}") if by_answer else BrokenTests(said)

    def _exchange(self, request: dict[str, Any], wanted: str, what: str = "") -> Any:
        """The body of an answer of the wanted kind; an empty request only listens."""
        with self._turn:
            answer = self._told(request, what)
        if not isinstance(answer, dict) or len(answer) != 1:
            raise self.fault(NO_FORM)
        if wanted in answer:
            return answer[wanted]
        if "error" in answer:
            raise self._error(answer["error"], what, ANSWERS_OF.get(next(iter(request), ""), ()))
        self._remember(what, f": {str(answer.get('fault'))[:200]}")
        raise self.fault(str(answer.get("fault", NO_FORM))[:500])

    def _told(self, request: dict[str, Any], what: str) -> Any:
        if not self.is_open:
            raise self.fault("the code is no longer running")
        try:
            if request:
                self._send(request, what)
            return self.talk.receive(self.arrived)
        except (EOFError, BrokenPipeError, wire.Broken, MemoryError) as error:
            self.is_open = False
            why = f"sent {error}" if isinstance(error, wire.Broken) else "ended"
            self._remember(what, f": the process of the code {why}")
            self.arrived()
            raise self.fault(f"the process of the code {why}") from None

    def _send(self, request: dict[str, Any], what: str) -> None:
        try:
            self.talk.send(request)
        except wire.Broken as error:
            raise self.unsendable(what, error, self.is_answered) from None

    def _remote(self, body: Any) -> RemoteObject:
        number, *abilities = body
        kind = kind_of(frozenset(abilities) & frozenset(METHODS))
        return kind(self, int(number), "the object")

    def _error(self, said: Any, what: str, answers: tuple[type[Exception], ...]) -> BaseException:
        """What the candidate raised; `answers` are errors that need not be caught."""
        if not (
            isinstance(said, list) and len(said) == 3 and all(isinstance(s, str) for s in said)
        ):
            return self.fault(NO_FORM)
        name, base, text = said
        self._remember(what, f" raised {name}: {text[:200]}")
        error = rebuilt(name, base, text)
        if error is None:
            return self.fault(f"{name}: {text}")
        if not isinstance(error, answers) and not _is_inside_assert_raises():
            self.uncaught.append(error)
        return error

    def _remember(self, what: str, outcome: str) -> None:
        self.last = f"{what}{outcome}" if what else ""


def rebuilt(name: str, base: str, text: str) -> Exception | None:
    """An ordinary error by its name and the built-in one below it; None for control flow.

    `StopIteration` would end a loop of the tests instead of failing it; `SystemExit` and its like
    would end the tests.
    """
    kind = getattr(builtins, base, None)
    if not (isinstance(kind, type) and issubclass(kind, Exception)):
        return None
    if issubclass(kind, StopIteration | StopAsyncIteration):
        return None
    if name != base:
        name = name if name.isidentifier() and name.isascii() else "CandidateError"
        kind = type(name, (kind,), {})
    for plainer in kind.__mro__:
        try:
            error: Exception = plainer(text)
        except TypeError:  # UnicodeDecodeError and others take more arguments
            continue
        return error
    return None


def _family(error: BaseException | None) -> Iterator[BaseException]:
    """An error, what it was raised from or during, and the members of a group."""
    waiting = [error]
    seen: set[int] = set()
    while waiting:
        one = waiting.pop()
        if one is None or id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        waiting += [one.__cause__, one.__context__]
        if isinstance(one, BaseExceptionGroup):
            waiting += one.exceptions


def _is_inside_assert_raises() -> bool:
    """Whether unittest or pytest makes the call, and catches what the tests told it to expect."""
    frames = traceback.walk_stack(None)
    places = ((f.f_globals.get("__name__", ""), f.f_code.co_name) for f, _ in frames)
    return any((str(module).partition(".")[0], name) in EXPECTING for module, name in places)


class Remote:
    """Something of the candidate's that stays in its process."""

    def __init__(self, connection: Connection, target: str | int, name: str) -> None:
        self._connection, self._target, self.__name__ = connection, target, name
        self._is_plain_method = False
        """Whether it stands where plain data has a method: `answer.sort` on what is no list."""

    def _call(self, /, *arguments: Any, **keywords: Any) -> Any:
        shown = [show(a) for a in arguments]
        shown += [f"{key}={show(a)}" for key, a in keywords.items()]
        what = f"{self.__name__}({', '.join(shown)})"
        sent = [self._sent(what, a) for a in arguments]
        named = {key: self._sent(what, a) for key, a in keywords.items()}
        return self._connection.ask(what, call=self._target, arguments=sent, keywords=named)

    def _sent(self, what: str, argument: Any) -> Any:
        try:
            return wire.encode(argument, _target)
        except wire.NotPlain as error:
            is_deep = isinstance(error, wire.TooDeep)
            by_answer = self._connection.is_answered if is_deep else self._is_plain_method
            raise self._connection.unsendable(what, error, by_answer) from None


class RemoteFunction(Remote):
    # A function of the candidate's, called in its own process; the docstring is its own.
    __call__ = Remote._call
    __doc__ = property(
        lambda self: self._connection.ask("doc", attribute=self._target, name="__doc__")
    )


class RemoteObject(Remote):
    """An object that is not plain data: usable, but never the outcome of a comparison."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = self._connection.ask(f"its attribute {name}", attribute=self._target, name=name)
        if isinstance(found, RemoteObject):
            found.__name__ = f"its method {name}"
            found._is_plain_method = name in PLAIN_METHODS
        return found

    def __repr__(self) -> str:
        return "<an object that is not plain data>"

    def __bool__(self) -> bool:
        raise self._connection.fault(
            "the answer is not plain data, so it is neither true nor false"
        )

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = None  # type: ignore[assignment]

    def _items(self) -> Any:
        return iter(self._connection.ask("its items", items=self._target))

    def _length(self) -> int:
        size = self._connection.ask("its length", length=self._target)
        return size if type(size) is int and size >= 0 else 0

    def _item(self, key: Any) -> Any:
        parts = [key.start, key.stop, key.step] if isinstance(key, slice) else [key]
        try:
            sent = [wire.encode(part, _target) for part in parts]
        except wire.NotPlain as error:  # plain data in its place could have been asked for it
            raise self._connection.fault(f"the answer is not plain data: {error}") from None
        return self._connection.ask("its item", item=self._target, key=sent)


METHODS = {
    "call": ("__call__", Remote._call),
    "iterate": ("__iter__", RemoteObject._items),
    "measure": ("__len__", RemoteObject._length),
    "index": ("__getitem__", RemoteObject._item),
}
"""What an object may be able to do, as the candidate says, and the method for it."""

PLAIN_METHODS = {
    name
    for kind in (list, dict, str, set, tuple, int, float, bytes)
    for name in dir(kind)
    if not name.startswith("_")
}


@functools.cache
def kind_of(abilities: frozenset[str]) -> type[RemoteObject]:
    """The class for some abilities, so that `callable` and `Iterable` tell the truth."""
    methods = dict(METHODS[ability] for ability in abilities)
    return type("RemoteObject", (RemoteObject,), methods)


def _target(value: Any) -> int | str:
    if isinstance(value, Remote):
        return value._target
    raise wire.NotPlain(f"a {type(value).__name__} is not plain data")


def show(value: Any) -> str:
    """A short text of a value; an integer may be too long to be written at all."""
    try:
        return SHORT.repr(value)
    except ValueError:
        return f"<a {type(value).__name__}>"
