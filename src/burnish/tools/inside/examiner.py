"""The role `examiner`: run the tests here, call the candidate there, note what passed.

The tests, their expected values and the verdict live in this process; the code under test lives in
another and sees only the arguments of each call. It can neither read nor patch what judges it,
and leaving (`sys.exit`, `os._exit`) is just an unanswered call.

An error of the candidate's counts as expected only where an `except` or a `with` of the tests caught
it. One that Python itself swallowed (`hasattr`, a loop over `__getitem__`, `Mapping.get`) is a
failed test. An assert is named by its source and its number in there, `[0, 2]`.
"""

from __future__ import annotations

import ast
import builtins
import contextlib
import importlib
import json
import symtable
import sys
import traceback
from collections.abc import Callable, Iterator
from types import ModuleType
from typing import Any, TypeVar

from . import wire
from .remote import BrokenTests, CandidateFault, Connection, Remote, RemoteFunction
from .run_spec import RunSpec

FAILURES = (Exception, CandidateFault)


def examine(spec: RunSpec) -> None:
    """Run all tests against the candidate and note the outcome."""
    if spec.talk is None or spec.answer is None:
        raise ValueError("an examiner needs a candidate and a place for its notes")
    notes = Notes(spec.answer)
    connection = Connection(wire.Talk(spec.talk), notes.answered)
    try:
        setup = Source(spec.setup, "the setup", counts=False)
        what = "the tests are not Python"
        sources = [Source(t, what, counts=True, keep_going=spec.keep_going) for t in spec.tests]
        notes.say(asserts=[[k, n] for k, source in enumerate(sources) for n in source.expected])
        scope: dict[str, Any] = {
            "__name__": "tests",
            "__caught__": lambda: connection.caught(sys.exception()),
            "__watch__": lambda: Watch(connection.caught),
            "__failures__": FAILURES,
        }
        try:
            exec(compile(setup.tree, "setup.py", "exec", dont_inherit=True), scope)
        except (Exception, SystemExit) as error:
            raise BrokenTests(f"the setup: {line_of(error)}") from None
        try:
            names = connection.defined_names()
        except FAILURES as error:  # boundary: the code cannot be loaded, so every test fails
            notes.failed("loading the code", error, connection.last, None)
        else:
            _bind(scope, names, [setup, *sources], spec.entry_point, connection)
            _run(spec, scope, sources, connection, notes)
        notes.say(done=True)
    except BrokenTests as error:
        notes.say(broken=str(error)[:500])


class Notes:
    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor
        self.tests = 0
        self._is_answered = False

    def say(self, **line: Any) -> None:
        wire.write_all(self.descriptor, json.dumps(line).encode() + b"\n")

    def answered(self) -> None:
        """The candidate has been heard of; said once."""
        if not self._is_answered:
            self._is_answered = True
            self.say(answered=True)

    def failed(self, test: str, error: BaseException, last: str, place: list[int] | None) -> None:
        """`place` names the assert, or the source alone where an error came from between asserts."""
        self.say(failed=test, why=line_of(error), last=last, place=place)


def _bind(
    scope: dict[str, Any],
    names: list[str],
    sources: list[Source],
    entry: str,
    connection: Connection,
) -> None:
    """Give the tests what they call: the setup's own names first, the candidate's otherwise.

    A name that nobody defines is one that the candidate should have defined: where there are
    asserts that it could fail, it is bound too, and a call of it fails. A name that is only ever the
    left side of a dot is a module, and those are the tests' own matter: taken from the standard
    library, so that no `math.isclose` of the candidate's decides.
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
            scope[name] = RemoteFunction(connection, name, name)
    if entry:
        scope[entry] = scope["candidate"] = RemoteFunction(connection, entry, entry)


def _run(
    spec: RunSpec,
    scope: dict[str, Any],
    sources: list[Source],
    connection: Connection,
    notes: Notes,
) -> None:
    answers: set[str] = set()  # names that may hold what followed from a call
    for place, source in enumerate(sources):
        marker = Marker(place, source, connection, notes)
        scope |= {"__passed__": marker.passed, "__failed__": marker.failed}
        asked = connection.calls
        try:
            exec(compile(source.tree, "tests.py", "exec", dont_inherit=True), scope)
        except (*FAILURES, SystemExit) as error:
            depends = connection.calls > asked or not answers.isdisjoint(source.used)
            if not depends and not isinstance(error, AssertionError | CandidateFault):
                raise BrokenTests(f"before any call: {line_of(error)}") from None
            if not isinstance(error, SystemExit) or error.code:
                frames = traceback.extract_tb(error.__traceback__)
                lines = [frame.lineno or 0 for frame in frames if frame.filename == "tests.py"]
                marker.ended(lines[-1] if lines else 0, error)
        marker.end()
        if marker.failures and not spec.keep_going:
            return
        if connection.calls > asked or not answers.isdisjoint(source.used):
            # A call may also leave its answer inside what the source only names: `found.append(f(1))`.
            held = {name: scope.get(name) for name in source.used}
            answers |= source.bound
            answers |= {
                name
                for name, value in held.items()
                if value is not None and not isinstance(value, Remote | ModuleType)
            }
    if not notes.tests and connection.calls and any(source.sites for source in sources):
        why = "with these answers no assert is reached"
        notes.say(failed="the tests", why=why, last=connection.last, place=None)


class Marker:
    """Notes the outcome of one source's asserts."""

    def __init__(self, place: int, source: Source, connection: Connection, notes: Notes) -> None:
        self.place, self.source, self.connection, self.notes = place, source, connection, notes
        self.failures = 0

    def passed(self, number: int) -> None:
        """An assert held; it counts only where nothing was swallowed on the way."""
        error = self.connection.swallowed()
        if error is None:
            self.notes.tests += 1
            self.notes.say(passed=[self.place, number])
        else:
            self.failed(number, error)

    def failed(self, number: int, error: BaseException) -> None:
        self._failed(self.source.sites[number][0], error, [self.place, number])

    def ended(self, line: int, error: BaseException) -> None:
        """An error ended the source: that of an assert, or one between asserts."""
        found = [n for n, lines in enumerate(self.source.sites) if line in lines]
        self._failed(line, error, [self.place, *found[:1]])

    def _failed(self, line: int, error: BaseException, place: list[int]) -> None:
        self.failures += 1
        self.notes.tests += 1
        self.connection.uncaught = []
        lines = self.source.lines
        test = lines[line - 1].strip()[:300] if 0 < line <= len(lines) else "the tests"
        self.notes.failed(test, error, self.connection.last, place)

    def end(self) -> None:
        """The source ran to its end; what is still uncaught then was swallowed."""
        error = self.connection.swallowed()
        if error is not None:
            self.ended(0, error)


Made = TypeVar("Made", bound=ast.AST)


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
            raise BrokenTests(f"{what}: {line_of(error)}") from None
        self.tree: ast.Module = ast.fix_missing_locations(tree)
        self.has_assert = any(isinstance(node, ast.Assert) for node in ast.walk(self.tree))
        self.sites = count.sites
        self.expected = count.expected
        top = tables[0]
        symbols = [(table, symbol) for table in tables for symbol in table.get_symbols()]
        everywhere = [s for table, s in symbols if table is top or s.is_global()]
        self.bound = {s.get_name() for s in everywhere if s.is_assigned() or s.is_imported()}
        self.used = {s.get_name() for s in everywhere if s.is_referenced()}


class Hooks(ast.NodeTransformer):
    """Has each `except` and `with` of the tests' own tell of the errors that it catches."""

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
        return _placed(body[0], node)

    visit_AsyncWith = visit_With


class Watch:
    """Around a `with` of the tests: an error that went in and did not come out was caught."""

    def __init__(self, caught: Callable[[BaseException | None], None]) -> None:
        self.caught = caught
        self.inside = Inside()

    def __enter__(self) -> Watch:
        return self

    def __exit__(self, kind: Any, error: BaseException | None, trace: Any) -> None:
        if error is None:
            self.caught(self.inside.error)


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
        self.sites: list[range] = []
        """The lines of each assert, by its number."""
        self.expected: list[int] = []
        """Numbers of the asserts that have to be reached."""
        self._tries = 0

    def visit_Try(self, node: ast.Try | ast.TryStar) -> ast.AST:
        """An assert inside a `try` may be meant to fail or to be jumped over: it keeps its force."""
        self._tries += 1
        self.generic_visit(node)
        self._tries -= 1
        return node

    visit_TryStar = visit_Try

    def visit_Assert(self, node: ast.Assert) -> list[ast.stmt]:
        if isinstance(node.test, ast.Constant):
            return [node]  # `assert True` says nothing about the candidate
        number = len(self.sites)
        self.sites.append(range(node.lineno, (node.end_lineno or node.lineno) + 1))
        if not self._tries:
            self.expected.append(number)
        passed = _placed(ast.Expr(_calling("__passed__", ast.Constant(number))), node)
        if self._tries or not self.keep_going:
            return [node, passed]
        error = ast.Name("__error__", ast.Load())
        failed = ast.Expr(_calling("__failed__", ast.Constant(number), error))
        caught = ast.ExceptHandler(ast.Name("__failures__", ast.Load()), "__error__", [failed])
        return [_placed(ast.Try([node], [caught], [passed], []), node)]


def line_of(error: BaseException) -> str:
    """An error in one short line."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300].rstrip(": ")


def _calling(name: str, *arguments: ast.expr) -> ast.Call:
    return ast.Call(ast.Name(name, ast.Load()), list(arguments), [])


def _placed(made: Made, node: ast.AST) -> Made:
    return ast.fix_missing_locations(ast.copy_location(made, node))


def _tables(table: symtable.SymbolTable) -> Iterator[symtable.SymbolTable]:
    yield table
    for child in table.get_children():
        yield from _tables(child)


def _values(tree: ast.Module) -> set[str]:
    """Names that are used as more than the left side of a dot, where a module could stand."""
    nodes = list(ast.walk(tree))
    bases = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
    return {node.id for node in nodes if isinstance(node, ast.Name) and id(node) not in bases}
