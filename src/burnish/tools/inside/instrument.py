"""The tests as the examiner runs them: each assert noted, each caught error known.

    source = Source("assert add(1, 2) == 3", "the tests", counts=True)
    exec(compile(source.tree, ...), {"__passed__": ..., "__failed__": ..., "__caught__": ..., ...})

Calls of these four names are added to the tree. An `except` that catches an error calls
`__caught__`, and a `with` stands inside a `Watch`, so that an error which the tests expect can be
told from one that Python itself swallowed.
"""

from __future__ import annotations

import ast
import symtable
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

Made = TypeVar("Made", bound=ast.AST)


class BrokenTests(BaseException):
    """The tests themselves cannot be run; no `except Exception` of theirs hides it."""


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
        self.asserts = count.found
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
        self.found = 0

    def visit_Try(self, node: ast.Try | ast.TryStar) -> ast.AST:
        """An assert inside a `try` may be meant to fail, so it keeps its force."""
        inner = Count(keep_going=False)
        inner.generic_visit(node)
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
