"""The role `examiner`: run the tests here, call the candidate there, note what passed.

The tests, their expected values and the verdict live in this process; the code under test lives in
another and sees only the arguments of each call. It can neither read nor patch what judges it,
and leaving (`sys.exit`, `os._exit`) is just an unanswered call.
"""

from __future__ import annotations

import ast
import builtins
import json
import os
import reprlib
import traceback
from typing import Any

from . import wire
from .order import Order

SHORT = reprlib.Repr()
SHORT.maxstring = SHORT.maxother = SHORT.maxlong = 120
SHORT.maxlist = SHORT.maxtuple = SHORT.maxdict = SHORT.maxset = 12


class CandidateError(RuntimeError):
    """The code under test raised, left, or answered with something that cannot be read."""


class BrokenTests(BaseException):
    """The tests themselves cannot be run; no `except Exception` of theirs hides it."""


class Line:
    """The connection to the candidate."""

    def __init__(self, talk: wire.Talk, notes: Notes) -> None:
        self.talk, self.notes = talk, notes
        self.last = ""
        self.calls = 0
        self.is_open = True
        self.was_answered = False

    def hello(self) -> list[str]:
        """The names that the code defines; raises where it cannot be loaded."""
        names = self._exchange(None).get("names")
        if not isinstance(names, list):
            raise CandidateError("the code did not say what it defines")
        return [name for name in names if isinstance(name, str)]

    def ask(self, what: str, **request: Any) -> Any:
        """One request; what it gave is remembered as evidence."""
        self.calls += 1
        answer = self._exchange(request, what)
        try:
            value = wire.decode(answer.get("value"), lambda number: Stay(self, number))
        except wire.Broken as error:
            raise CandidateError(f"the answer cannot be read: {error}") from None
        self.last = f"{what} gave {show(value)}"
        return value

    def _exchange(self, request: dict[str, Any] | None, what: str = "") -> dict[str, Any]:
        if not self.is_open:
            raise CandidateError("the code is no longer running")
        try:
            if request is not None:
                self.talk.send(request)
            answer = self.talk.receive()
        except (EOFError, BrokenPipeError, wire.Broken) as error:
            self.is_open = False
            why = "ended" if not isinstance(error, wire.Broken) else f"sent {error}"
            self.last = f"{what}: the process of the code {why}" if what else ""
            self.notes.say(gone=True)
            raise CandidateError(f"the process of the code {why}") from None
        if not self.was_answered:
            self.was_answered = True
            self.notes.say(answered=True)
        if not isinstance(answer, dict) or not set(answer) <= {"names", "value", "error"}:
            raise CandidateError("the answer is not in the expected form")
        if "error" in answer:
            raise self._error(answer["error"], what)
        return answer

    def _error(self, said: Any, what: str) -> Exception:
        if not (
            isinstance(said, list) and len(said) == 2 and all(isinstance(s, str) for s in said)
        ):
            return CandidateError("the answer is not in the expected form")
        name, text = said
        self.last = f"{what} raised {name}: {text[:200]}" if what else ""
        kind = getattr(builtins, name, None)
        # Tests may expect a built-in error; SystemExit and its like must not act here.
        if isinstance(kind, type) and issubclass(kind, Exception) and name != "StopAsyncIteration":
            try:
                error: Exception = kind(text)
            except TypeError:  # UnicodeDecodeError and others take more arguments
                return CandidateError(f"{name}: {text}")
            return error
        return CandidateError(f"{name}: {text}")


class Remote:
    """A function of the candidate's, called in its own process."""

    def __init__(self, line: Line, target: str | int, name: str) -> None:
        self._line, self._target, self.__name__ = line, target, name

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        shown = [show(a) for a in arguments]
        shown += [f"{key}={show(a)}" for key, a in keywords.items()]
        what = f"{self.__name__}({', '.join(shown)})"
        try:
            sent = [wire.encode(_unwrap(a)) for a in arguments]
            named = {key: wire.encode(_unwrap(a)) for key, a in keywords.items()}
        except wire.NotPlain as error:
            raise BrokenTests(f"an argument of {what[:200]} cannot be sent: {error}") from None
        return self._line.ask(what, call=self._target, arguments=sent, keywords=named)


class Stay(Remote):
    """An object that is not plain data: usable, but never the outcome of a comparison."""

    def __init__(self, line: Line, number: int) -> None:
        super().__init__(line, number, "the object")
        self._number = number

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._line.ask(f"its attribute {name}", attribute=self._target, name=name)

    def __getitem__(self, key: Any) -> Any:
        return self._line.ask("its item", item=self._target, key=wire.encode(_unwrap(key)))

    def __iter__(self) -> Any:
        return iter(self._line.ask("its items", items=self._target))

    def __len__(self) -> int:
        size = self._line.ask("its length", length=self._target)
        return size if type(size) is int and size >= 0 else 0

    def __repr__(self) -> str:
        return "<an object that is not plain data>"

    def __bool__(self) -> bool:
        raise CandidateError("the answer is not plain data, so it is neither true nor false")

    def __eq__(self, other: object) -> bool:
        return self is other

    __hash__ = None  # type: ignore[assignment]


def _unwrap(value: Any) -> Any:
    return wire.Handle(value._number) if isinstance(value, Stay) else value


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

    def say(self, **line: Any) -> None:
        data = memoryview(json.dumps(line).encode() + b"\n")
        while data:
            data = data[os.write(self.descriptor, data) :]


class Count(ast.NodeTransformer):
    """Has each assert noted; with `keep_going`, one that fails does not end the test."""

    def __init__(self, *, keep_going: bool) -> None:
        self.keep_going = keep_going

    def visit_Try(self, node: ast.Try) -> ast.AST:
        """An assert inside a `try` may be meant to fail, so it keeps its force."""
        inner = Count(keep_going=False)
        node.body = [part for child in node.body for part in _listed(inner.visit(child))]
        for block in (node.handlers, node.orelse, node.finalbody):
            for child in block:
                inner.generic_visit(child)
        return node

    def visit_Assert(self, node: ast.Assert) -> list[ast.stmt]:
        if isinstance(node.test, ast.Constant):
            return [node]  # `assert True` says nothing about the candidate
        passed = _call("__passed__", node)
        if not self.keep_going:
            return [node, passed]
        caught = ast.ExceptHandler(
            ast.Name("Exception", ast.Load()), "__error__", [_call("__failed__", node)]
        )
        guarded = ast.Try([node], [caught], [passed], [])
        return [ast.fix_missing_locations(ast.copy_location(guarded, node))]


def _call(name: str, node: ast.stmt) -> ast.Expr:
    error = [ast.Name("__error__", ast.Load())] if name == "__failed__" else []
    called = ast.Call(ast.Name(name, ast.Load()), [ast.Constant(node.lineno), *error], [])
    return ast.fix_missing_locations(ast.copy_location(ast.Expr(called), node))


def _listed(result: Any) -> list[Any]:
    return result if isinstance(result, list) else [result]


def examine(order: Order) -> None:
    """Run all tests against the candidate and note the outcome."""
    if order.talk is None or order.answer is None:
        raise ValueError("an examiner needs a candidate and a place for its notes")
    notes = Notes(order.answer)
    line = Line(wire.Talk(order.talk), notes)
    try:
        scope: dict[str, Any] = {"__name__": "tests"}
        _execute(order.setup, scope, "the setup")
        trees = [_parse(source, order.keep_going) for source in order.tests]
        try:
            names = line.hello()
        except Exception as error:  # boundary: the code cannot be loaded, so every test fails
            notes.say(failed="loading the code", why=_line_of(error), last=line.last)
        else:
            _bind(scope, names, trees, order.entry_point, line)
            _run(order, scope, trees, line, notes)
        notes.say(done=True)
    except BrokenTests as error:
        notes.say(broken=str(error)[:500])


def _bind(
    scope: dict[str, Any], names: list[str], trees: list[ast.Module], entry: str, line: Line
) -> None:
    """Give the tests what they call: the setup's own names first, the candidate's otherwise."""
    nodes = [node for tree in trees for node in ast.walk(tree)]
    used = {node.id for node in nodes if isinstance(node, ast.Name)}
    for name in sorted(used & set(names) - set(scope) - set(dir(builtins))):
        scope[name] = Remote(line, name, name)
    if entry:
        scope[entry] = scope["candidate"] = Remote(line, entry, entry)


def _run(
    order: Order, scope: dict[str, Any], trees: list[ast.Module], line: Line, notes: Notes
) -> None:
    for tree, source in zip(trees, order.tests, strict=True):
        lines = source.splitlines()

        def passed(number: int) -> None:
            notes.say(passed=number)

        def failed(number: int, error: Exception, lines: list[str] = lines) -> None:
            notes.say(failed=_source(lines, number), why=_line_of(error), last=line.last)

        scope |= {"__passed__": passed, "__failed__": failed}
        asked = line.calls
        try:
            exec(compile(tree, "tests.py", "exec"), scope)
        except Exception as error:
            if line.calls == asked and not isinstance(error, AssertionError | CandidateError):
                raise BrokenTests(f"before any call: {_line_of(error)}") from None
            failed(_where(error), error)
            if not order.keep_going:
                return


def _parse(source: str, keep_going: bool) -> ast.Module:
    try:
        tree = ast.parse(source)
    except (SyntaxError, ValueError, RecursionError) as error:
        raise BrokenTests(f"the tests are not Python: {_line_of(error)}") from None
    counted: ast.Module = Count(keep_going=keep_going).visit(tree)
    return ast.fix_missing_locations(counted)


def _execute(source: str, scope: dict[str, Any], what: str) -> None:
    try:
        exec(compile(source, "setup.py", "exec"), scope)
    except (Exception, SystemExit) as error:
        raise BrokenTests(f"{what}: {_line_of(error)}") from None


def _where(error: Exception) -> int:
    frames = [f for f in traceback.extract_tb(error.__traceback__) if f.filename == "tests.py"]
    return frames[-1].lineno or 0 if frames else 0


def _source(lines: list[str], number: int) -> str:
    return lines[number - 1].strip()[:300] if 0 < number <= len(lines) else "the tests"


def _line_of(error: BaseException) -> str:
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300].rstrip(": ")
