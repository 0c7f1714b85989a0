"""The role `examiner`: run the tests here, call the candidate there, note what passed.

The tests, their expected values and the verdict live in this process; the code under test lives in
another and sees only the arguments of each call. It can neither read nor patch what judges it,
and leaving (`sys.exit`, `os._exit`) is just an unanswered call.

What the candidate raises is rebuilt here, so that a test may expect it. Two rules keep it from
acting: control flow (`StopIteration`, `SystemExit` and their like) is never rebuilt, and an error
counts as expected only where an `except` or a `with` of the tests caught it. One that Python itself
swallowed (`hasattr`, a loop over `__getitem__`, `Mapping.get`) is a failed test.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import functools
import importlib
import json
import os
import reprlib
import symtable
import sys
import threading
import traceback
from collections.abc import Iterator
from typing import Any, Literal

from . import wire
from .order import Order

SHORT = reprlib.Repr()
SHORT.maxstring = SHORT.maxother = SHORT.maxlong = 120
SHORT.maxlist = SHORT.maxtuple = SHORT.maxdict = SHORT.maxset = 12

LARGE = 1 << 20
"""Bytes of an answer from which on it may be the reason why a later argument cannot be sent."""
EXPECTING = {("unittest", "handle"), ("_pytest", "raises")}
"""Functions that call others because the tests expect an error: `assertRaises(ValueError, f, -1)`."""
ANSWERS_OF = {"attribute": (AttributeError,), "length": (TypeError,), "item": (LookupError,)}
"""Errors that are the ordinary answer to a question: there is no such attribute, length or item."""


class CandidateFault(BaseException):
    """The code under test left, broke off, or answered with what cannot be used.

    No `except Exception` of the tests hides it, and catching it does not undo the failure.
    """


class BrokenTests(BaseException):
    """The tests themselves cannot be run; no `except Exception` of theirs hides it."""


FAILURES = (Exception, CandidateFault)


class Line:
    """The connection to the candidate."""

    def __init__(self, talk: wire.Talk, notes: Notes) -> None:
        self.talk, self.notes = talk, notes
        self.last = ""
        self.calls = 0
        self.is_open = True
        self.has_deep_answer = False
        self.unsettled: list[BaseException] = []
        """What the candidate raised and no test has caught so far."""
        self._turn = threading.Lock()  # invariant: a request is followed by its own answer

    def hello(self) -> list[str]:
        """The names that the code defines; raises where it cannot be loaded."""
        names = self._exchange(None, "names")
        if not isinstance(names, list):
            raise self.fault("the code did not say what it defines")
        return [name for name in names if isinstance(name, str)]

    def ask(self, what: str, **request: Any) -> Any:
        """One request; what it gave is remembered as evidence."""
        self.calls += 1
        expected = ANSWERS_OF.get(next(iter(request)), ())
        answer = self._exchange(request, "value", what, expected)
        try:
            value = self._decoded(answer)
        except (wire.Broken, MemoryError) as error:
            raise self.fault(f"the answer cannot be read: {error}") from None
        self.last = f"{what} gave {show(value)}"
        return value

    def fault(self, why: str) -> CandidateFault:
        """A failure of the candidate that no test can undo."""
        fault = CandidateFault(why)
        self.unsettled.append(fault)
        return fault

    def settle(self, caught: BaseException | None) -> None:
        """A test caught an error by its own words: that, and what led to it, was expected."""
        expected = set(map(id, _family(caught)))
        self.unsettled = [
            error
            for error in self.unsettled
            if isinstance(error, CandidateFault) or id(error) not in expected
        ]

    def swallowed(self) -> BaseException | None:
        """An error of the candidate's that nobody caught by its own words; forgotten afterwards."""
        left, self.unsettled = self.unsettled, []
        return left[0] if left else None

    def _decoded(self, answer: Any) -> Any:
        def stay(body: Any) -> Stay:
            number, *abilities = body
            kind = kind_of(frozenset(abilities) & frozenset(METHODS))
            return kind(self, int(number), "the object")

        try:
            return wire.decode(answer, stay, wire.DEEPEST // 2)
        except wire.Broken:  # once more with all the depth that is allowed
            value = wire.decode(answer, stay)
            self.has_deep_answer = True
            return value

    def _exchange(
        self,
        request: dict[str, Any] | None,
        wanted: Literal["names", "value"],
        what: str = "",
        expected: tuple[type[Exception], ...] = (),
    ) -> Any:
        with self._turn:
            answer = self._told(request, what)
        if not isinstance(answer, dict) or len(answer) != 1:
            raise self.fault("the answer is not in the expected form")
        if wanted in answer:
            return answer[wanted]
        if "error" in answer:
            raise self._error(answer["error"], what, expected)
        self.last = f"{what}: {str(answer.get('fault'))[:200]}" if what else ""
        raise self.fault(str(answer.get("fault", "the answer is not in the expected form"))[:500])

    def _told(self, request: dict[str, Any] | None, what: str) -> Any:
        """The next message of the candidate's."""
        if not self.is_open:
            raise self.fault("the code is no longer running")
        try:
            if request is not None:
                self._send(request, what)
            return self.talk.receive(lambda: self.notes.once(answered=True))
        except (EOFError, BrokenPipeError, wire.Broken, MemoryError) as error:
            self.is_open = False
            why = f"sent {error}" if isinstance(error, wire.Broken) else "ended"
            self.last = f"{what}: the process of the code {why}" if what else ""
            self.notes.once(answered=True)
            raise self.fault(f"the process of the code {why}") from None

    def _send(self, request: dict[str, Any], what: str) -> None:
        try:
            self.talk.send(request)
        except wire.Broken as error:
            raise self.unsendable(what, error, self.talk.largest > LARGE) from None

    def unsendable(self, what: str, error: Exception, by_answer: bool) -> BaseException:
        """Whose fault it is that an argument cannot be sent: an answer inside it, or the tests."""
        said = f"an argument of {what[:200]} cannot be sent: {error}"
        return self.fault(f"with these answers {said}") if by_answer else BrokenTests(said)

    def _error(
        self, said: Any, what: str, expected: tuple[type[Exception], ...] = ()
    ) -> BaseException:
        if not (
            isinstance(said, list) and len(said) == 3 and all(isinstance(s, str) for s in said)
        ):
            return self.fault("the answer is not in the expected form")
        name, base, text = said
        self.last = f"{what} raised {name}: {text[:200]}" if what else ""
        error = rebuilt(name, base, text)
        if error is None:
            return self.fault(f"{name}: {text}")
        if not isinstance(error, expected) and not _is_inside_assert_raises():
            self.unsettled.append(error)
        return error


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


class Owned:
    """Something of the candidate's that stays in its process."""

    def __init__(self, line: Line, target: str | int, name: str) -> None:
        self._line, self._target, self.__name__ = line, target, name
        self._is_plain_method = False
        """Whether it stands where plain data has a method: `answer.sort` on what is no list."""

    def _call(self, *arguments: Any, **keywords: Any) -> Any:
        shown = [show(a) for a in arguments]
        shown += [f"{key}={show(a)}" for key, a in keywords.items()]
        what = f"{self.__name__}({', '.join(shown)})"
        sent = [self._sent(what, a) for a in arguments]
        named = {key: self._sent(what, a) for key, a in keywords.items()}
        return self._line.ask(what, call=self._target, arguments=sent, keywords=named)

    def _sent(self, what: str, argument: Any) -> Any:
        try:
            return wire.encode(argument, _target)
        except wire.TooDeep as error:
            raise self._line.unsendable(what, error, self._line.has_deep_answer) from None
        except wire.NotPlain as error:
            raise self._line.unsendable(what, error, self._is_plain_method) from None


class Remote(Owned):
    # A function of the candidate's, called in its own process; the docstring is its own.
    __call__ = Owned._call
    __doc__ = property(lambda self: self._line.ask("doc", attribute=self._target, name="__doc__"))


class Stay(Owned):
    """An object that is not plain data: usable, but never the outcome of a comparison."""

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        found = self._line.ask(f"its attribute {name}", attribute=self._target, name=name)
        if isinstance(found, Stay):
            found.__name__ = f"its method {name}"
            found._is_plain_method = name in PLAIN_METHODS
        return found

    def __repr__(self) -> str:
        return "<an object that is not plain data>"

    def __bool__(self) -> bool:
        raise self._line.fault("the answer is not plain data, so it is neither true nor false")

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = None  # type: ignore[assignment]

    def _items(self) -> Any:
        return iter(self._line.ask("its items", items=self._target))

    def _length(self) -> int:
        size = self._line.ask("its length", length=self._target)
        return size if type(size) is int and size >= 0 else 0

    def _item(self, key: Any) -> Any:
        parts = [key.start, key.stop, key.step] if isinstance(key, slice) else [key]
        try:
            sent = [wire.encode(part, _target) for part in parts]
        except wire.NotPlain as error:  # plain data in its place could have been asked for it
            raise self._line.fault(f"the answer is not plain data: {error}") from None
        return self._line.ask("its item", item=self._target, key=sent)


METHODS = {
    "call": ("__call__", Owned._call),
    "iterate": ("__iter__", Stay._items),
    "measure": ("__len__", Stay._length),
    "index": ("__getitem__", Stay._item),
}
"""What an object may be able to do, as the candidate says, and the method for it."""


@functools.cache
def kind_of(abilities: frozenset[str]) -> type[Stay]:
    """The class for some abilities, so that `callable` and `Iterable` tell the truth."""
    return type("Stay", (Stay,), dict(METHODS[ability] for ability in abilities))


PLAIN_METHODS = {
    name
    for kind in (list, dict, str, set, tuple, int, float, bytes)
    for name in dir(kind)
    if not name.startswith("_")
}


def _target(value: Any) -> int | str:
    """How the candidate knows an object of its own."""
    if isinstance(value, Owned):
        return value._target
    raise wire.NotPlain(f"a {type(value).__name__} is not plain data")


def show(value: Any) -> str:
    """A short text of a value; an integer may be too long to be written at all."""
    try:
        return SHORT.repr(value)
    except ValueError:
        return f"<a {type(value).__name__}>"


class Notes:
    """Lines of JSON to the parent: each test that passed or failed, as it happens."""

    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.tests = 0
        self._said: set[str] = set()

    def say(self, **line: Any) -> None:
        data = memoryview(json.dumps(line).encode() + b"\n")
        while data:
            data = data[os.write(self.descriptor, data) :]

    def once(self, **line: Any) -> None:
        if self._said.isdisjoint(line):
            self._said |= set(line)
            self.say(**line)


class Hooks(ast.NodeTransformer):
    """Has each `except` and `with` of the tests' own settle the errors that it catches."""

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> ast.AST:
        self.generic_visit(node)
        node.body.insert(0, _placed(ast.Expr(_calling("__caught__")), node))
        return node

    def visit_With(self, node: ast.With | ast.AsyncWith) -> ast.AST:
        """`with a, b: body` one by one, a watch around each and another inside each."""
        self.generic_visit(node)
        body = node.body
        for item in reversed(node.items):
            inside = ast.Attribute(ast.Name("__with__", ast.Load()), "inside", ast.Load())
            inner = ast.With([ast.withitem(inside)], body)
            kept = type(node)([item], [inner])
            watch = ast.withitem(_calling("__watch__"), ast.Name("__with__", ast.Store()))
            body = [ast.With([watch], [kept])]
        return ast.fix_missing_locations(ast.copy_location(body[0], node))

    visit_AsyncWith = visit_With


class Watch:
    """Around a `with` of the tests: an error that went in and did not come out was caught."""

    def __init__(self, line: Line) -> None:
        self.line = line
        self.inside = Inside()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None:
            self.line.settle(self.inside.error)


class Inside:
    """Sees the errors that leave the body of a `with`."""

    error: BaseException | None = None

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        self.error = error


class Count(ast.NodeTransformer):
    """Has each assert noted; with `keep_going`, one that fails does not end the test."""

    def __init__(self, *, keep_going: bool) -> None:
        self.keep_going = keep_going
        self.found = 0

    def visit_Try(self, node: ast.Try | ast.TryStar) -> ast.AST:
        """An assert inside a `try` may be meant to fail, so it keeps its force."""
        inner = Count(keep_going=False)
        node.body = [part for child in node.body for part in _listed(inner.visit(child))]
        for handler in node.handlers:
            inner.generic_visit(handler)
        node.orelse = [part for child in node.orelse for part in _listed(inner.visit(child))]
        node.finalbody = [part for child in node.finalbody for part in _listed(inner.visit(child))]
        self.found += inner.found
        return node

    visit_TryStar = visit_Try

    def visit_Assert(self, node: ast.Assert) -> list[ast.stmt]:
        if isinstance(node.test, ast.Constant):
            return [node]  # `assert True` says nothing about the candidate
        self.found += 1
        passed = _placed(ast.Expr(_calling("__passed__", ast.Constant(node.lineno))), node)
        if not self.keep_going:
            return [node, passed]
        error = ast.Name("__error__", ast.Load())
        failed = ast.Expr(_calling("__failed__", ast.Constant(node.lineno), error))
        caught = ast.ExceptHandler(ast.Name("__failures__", ast.Load()), "__error__", [failed])
        return [_placed(ast.Try([node], [caught], [passed], []), node)]


def _calling(name: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), list(arguments), [])


def _placed(made: Any, node: ast.AST) -> Any:
    return ast.fix_missing_locations(ast.copy_location(made, node))


def _listed(result: Any) -> list[Any]:
    return result if isinstance(result, list) else [result]


class Source:
    """One text of the tests: its tree, its lines, the names in it."""

    def __init__(self, text: str, what: str, *, counts: bool, keep_going: bool = False) -> None:
        self.lines = text.splitlines()
        count = Count(keep_going=keep_going)
        try:
            tree = ast.parse(text)
            tables = list(_tables(symtable.symtable(text, "tests.py", "exec")))
            self.values = _values(tree)
            tree = Hooks().visit(tree)
            tree = count.visit(tree) if counts else tree
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise BrokenTests(f"{what}: {_line_of(error)}") from None
        self.tree: ast.Module = ast.fix_missing_locations(tree)
        self.has_assert = any(isinstance(node, ast.Assert) for node in ast.walk(self.tree))
        self.asserts = count.found
        top = tables[0]
        symbols = [(table, symbol) for table in tables for symbol in table.get_symbols()]
        everywhere = [s for table, s in symbols if table is top or s.is_global()]
        self.bound = {s.get_name() for s in everywhere if s.is_assigned() or s.is_imported()}
        self.used = {s.get_name() for s in everywhere if s.is_referenced()}


def _tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _tables(child)


def _values(tree: ast.Module) -> set[str]:
    """Names that are used as more than the left side of a dot, where a module could stand."""
    nodes = list(ast.walk(tree))
    bases = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
    return {node.id for node in nodes if isinstance(node, ast.Name) and id(node) not in bases}


def examine(order: Order) -> None:
    """Run all tests against the candidate and note the outcome."""
    if order.talk is None or order.answer is None:
        raise ValueError("an examiner needs a candidate and a place for its notes")
    notes = Notes(order.answer)
    line = Line(wire.Talk(order.talk), notes)
    try:
        setup = Source(order.setup, "the setup", counts=False)
        what = "the tests are not Python"
        sources = [Source(t, what, counts=True, keep_going=order.keep_going) for t in order.tests]
        scope: dict[str, Any] = {
            "__name__": "tests",
            "__caught__": lambda: line.settle(sys.exception()),
            "__watch__": lambda: Watch(line),
            "__failures__": FAILURES,
        }
        _execute(setup, scope)
        try:
            names = line.hello()
        except FAILURES as error:  # boundary: the code cannot be loaded, so every test fails
            notes.say(failed="loading the code", why=_line_of(error), last=line.last)
        else:
            _bind(scope, names, [setup, *sources], order.entry_point, line)
            _run(order, scope, sources, line, notes)
        notes.say(done=True)
    except BrokenTests as error:
        notes.say(broken=str(error)[:500])


def _bind(
    scope: dict[str, Any], names: list[str], sources: list[Source], entry: str, line: Line
) -> None:
    """Give the tests what they call: the setup's own names first, the candidate's otherwise.

    A name that nobody defines is one that the candidate should have defined: where there are asserts
    that it could fail, it is bound too, and a call of it fails. A name that is only ever the left side of a dot is a module, and those are the
    tests' own matter: taken from the standard library, so that no `math.isclose` of the
    candidate's decides.
    """
    used = set().union(*(source.used for source in sources))
    values = set().union(*(source.values for source in sources))
    bound = set().union(*(source.bound for source in sources))
    missing = values - bound if any(source.has_assert for source in sources) else set()
    for name in sorted(used - set(scope) - set(dir(builtins))):
        if name.startswith("__"):
            continue
        if name in sys.stdlib_module_names and name not in values | bound:
            with contextlib.suppress(ImportError):  # then the tests meet a NameError of their own
                scope[name] = importlib.import_module(name)
        elif name in names or name in missing:
            scope[name] = Remote(line, name, name)
    if entry:
        scope[entry] = scope["candidate"] = Remote(line, entry, entry)


def _run(
    order: Order, scope: dict[str, Any], sources: list[Source], line: Line, notes: Notes
) -> None:
    answers: set[str] = set()  # names that hold what followed from a call
    for source in sources:
        marker = Marker(source, line, notes)
        scope |= {"__passed__": marker.passed, "__failed__": marker.failed}
        asked = line.calls
        try:
            exec(compile(source.tree, "tests.py", "exec", dont_inherit=True), scope)
        except (*FAILURES, SystemExit) as error:
            depends = line.calls > asked or not answers.isdisjoint(source.used)
            if not depends and not isinstance(error, AssertionError | CandidateFault):
                raise BrokenTests(f"before any call: {_line_of(error)}") from None
            if not isinstance(error, SystemExit) or error.code:
                marker.failed(_where(error), error)
        marker.end()
        if marker.failures and not order.keep_going:
            return
        if line.calls > asked or not answers.isdisjoint(source.used):
            answers |= source.bound
    if not notes.tests and line.calls and any(source.asserts for source in sources):
        notes.say(failed="the tests", why="with these answers no assert is reached", last=line.last)


class Marker:
    """Notes the outcome of one source's asserts."""

    def __init__(self, source: Source, line: Line, notes: Notes) -> None:
        self.source, self.line, self.notes = source, line, notes
        self.failures = 0

    def passed(self, number: int) -> None:
        """An assert held; it counts only where nothing was swallowed on the way."""
        error = self.line.swallowed()
        if error is None:
            self.notes.tests += 1
            self.notes.say(passed=number)
        else:
            self.failed(number, error)

    def failed(self, number: int, error: BaseException) -> None:
        self.failures += 1
        self.notes.tests += 1
        self.line.unsettled = []
        lines = self.source.lines
        test = lines[number - 1].strip()[:300] if 0 < number <= len(lines) else "the tests"
        self.notes.say(failed=test, why=_line_of(error), last=self.line.last)

    def end(self) -> None:
        """The source ran to its end; what is still unsettled then was swallowed."""
        error = self.line.swallowed()
        if error is not None:
            self.failed(0, error)


def _execute(source: Source, scope: dict[str, Any]) -> None:
    try:
        exec(compile(source.tree, "setup.py", "exec", dont_inherit=True), scope)
    except (Exception, SystemExit) as error:
        raise BrokenTests(f"the setup: {_line_of(error)}") from None


def _where(error: BaseException) -> int:
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == "tests.py"]
    return frames[-1].lineno or 0 if frames else 0


def _line_of(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300].rstrip(": ")
