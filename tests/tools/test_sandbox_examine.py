"""Examinations: honest code passes, and no trick of the candidate's turns a failure into a pass."""

import sys

import anyio
import pytest

from burnish.tools import Exam, Limit, Sandbox, SandboxLimits

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the walls are Linux's")

RIGHT = "def add(a, b):\n    return a + b\n"
TESTS = "assert add(1, 2) == 3\nassert add('a', 'b') == 'ab'\nassert add([1], [2]) == [1, 2]\n"
HUMAN = "def check(candidate):\n    assert candidate(1, 2) == 3\n    assert candidate(5, 5) == 10\n\ncheck(candidate)"


@pytest.fixture(scope="module")
def sandbox():
    return Sandbox(SandboxLimits(cpu_s=60, wall_s=300, memory_mb=256), allow_weak=True)


def test_right_code_passes_and_wrong_code_says_where(sandbox):
    marks = sandbox.examine(Exam(RIGHT, (TESTS,)))
    assert (marks.passed, marks.failures, marks.is_complete) == (3, (), True)
    wrong = RIGHT.replace("+", "or")
    marks = sandbox.examine(Exam(wrong, (TESTS,)))
    assert marks.passed == 0
    assert marks.failures == (("assert add(1, 2) == 3", "AssertionError", "add(1, 2) gave 1"),)
    marks = sandbox.examine(Exam(wrong, (TESTS,), keep_going=True))
    assert (marks.passed, len(marks.failures)) == (0, 3)
    marks = sandbox.examine(Exam("def add(a, b): return 3", (TESTS,), keep_going=True))
    assert (marks.passed, marks.total) == (1, 3)


def test_humaneval_style_and_helpers_of_the_task(sandbox):
    assert sandbox.examine(Exam(RIGHT, (HUMAN,), entry_point="add")).passed == 2
    # The helper in the tests is the task's own, whatever the candidate calls by that name.
    setup = "def twice(x):\n    return 2 * x\n"
    tests = ("assert twice(half(4)) == 4",)
    cheat = "def half(x): return None\ndef twice(x): return 4\n"
    marks = sandbox.examine(Exam(cheat, tests, setup=setup, entry_point="half"))
    assert (marks.passed, len(marks.failures)) == (0, 1)
    assert sandbox.examine(Exam("def half(x): return x / 2", tests, setup=setup)).passed == 1


CHEATS = {
    "leaves at once": "import sys; sys.exit(0)",
    "leaves hard": "import os; os._exit(0)",
    "leaves in the call": "import os\ndef add(a, b): os._exit(0)",
    "raises SystemExit in the call": "def add(a, b): raise SystemExit(0)",
    "raises KeyboardInterrupt": "def add(a, b): raise KeyboardInterrupt",
    "raises StopIteration": "def add(a, b): raise StopIteration",
    "equals everything": """
class Any:
    def __eq__(self, other): return True
    def __ne__(self, other): return False
    def __bool__(self): return True
    def __len__(self): return 1
    def __contains__(self, x): return True
    __hash__ = None
def add(a, b): return Any()
""",
    "a number that equals everything": """
class Any(int):
    def __eq__(self, other): return True
    __hash__ = int.__hash__
def add(a, b): return Any(0)
""",
    "patches equality of built-in types by ctypes": """
import builtins
builtins.AssertionError = ValueError
builtins.bool = lambda x: True
builtins.isinstance = lambda a, b: True
def add(a, b): return None
""",
    "reads the frames for the expected value": """
import sys
def add(a, b):
    frame = sys._getframe()
    while frame:
        for value in list(frame.f_locals.values()) + list(frame.f_globals.values()):
            if value == 3 or value == 'ab': return value
        frame = frame.f_back
""",
    "looks for the tests in memory": """
import gc
def add(a, b):
    for thing in gc.get_objects():
        if isinstance(thing, dict) and ('check' in thing or '__passed__' in thing): return 3
""",
    "prints a verdict": """
print('{"passed": 1}\\n{"passed": 2}\\n{"done": true}', flush=True)
def add(a, b): return None
""",
    "writes a verdict to every descriptor": """
import os
for d in range(0, 64):
    try: os.write(d, b'{"passed": 1}\\n{"done": true}\\n')
    except OSError: pass
def add(a, b): return None
""",
    "speaks the protocol itself": """
import os, json, sys
def say(message):
    data = json.dumps(message).encode()
    for d in range(3, 64):
        try: os.write(d, len(data).to_bytes(4, 'big') + data)
        except OSError: pass
say({"names": ["add", "check", "candidate"]})
for _ in range(50): say({"value": True, "passed": 1, "done": True})
def add(a, b): return None
""",
    "answers with a broken frame": """
import os
for d in range(3, 64):
    try: os.write(d, b'\\xff' * 100)
    except OSError: pass
""",
    "answers without end": """
import os
def add(a, b):
    while True:
        for d in range(3, 64):
            try: os.write(d, b'\\x00\\x00\\x00\\x02[]' * 1000)
            except OSError: pass
""",
    "leaves a thread that answers": """
import threading, os, json, time
def flood():
    data = json.dumps({"value": 3}).encode()
    for _ in range(5):
        for d in range(3, 16):
            try: os.write(d, len(data).to_bytes(4, 'big') + data)
            except OSError: pass
threading.Thread(target=flood, daemon=True).start()
def add(a, b): return None
""",
    "an exit handler": "import atexit, os\natexit.register(os._exit, 0)\ndef add(a, b): return None",
    "replaces the loop that serves it": """
import sys, inspect
for name, module in list(sys.modules.items()):
    if 'inside' in name or 'wire' in name:
        for key in dir(module):
            if key in ('encode', 'decode'): setattr(module, key, lambda *a, **k: True)
def add(a, b): return True
""",
    "never defines the function": "def sub(a, b): return a - b",
    "does not parse": "def add(a, b) return a + b",
    "an answer too large": "def add(a, b): return 'x' * (40 << 20)",
    "an answer too deep": """
def add(a, b):
    x = []
    for _ in range(100000): x = [x]
    return x
""",
    "an error that cannot be shown": """
class Bad(Exception):
    def __str__(self): raise ValueError
def add(a, b): raise Bad
""",
    "an endless iterator": """
import itertools
def add(a, b): return itertools.count()
""",
}


@pytest.mark.attacks
@pytest.mark.parametrize("name", CHEATS)
def test_no_trick_passes(sandbox, name):
    if name == "answers without end":  # on a busy machine it may write until its clock runs out
        sandbox = Sandbox(SandboxLimits(cpu_s=5, wall_s=10, memory_mb=256), allow_weak=True)
    marks = sandbox.examine(Exam(CHEATS[name], (HUMAN,), entry_point="add"))
    assert marks.failures, marks
    assert marks.passed == 0 or name == "leaves a thread that answers"
    assert marks.broken == ""


LIAR = """
import json, os
def say(message):
    data = json.dumps(message).encode()
    for d in range(3, 64):
        try: os.write(d, len(data).to_bytes(4, 'big') + data)
        except OSError: pass
"""
NESTED = "def f(x):\n    y = []\n    for _ in range({}): y = [y]\n    return y\n"
PAIRS = "assert all(a == b for a, b in zip(map(f, [1, 2, 3]), [2, 3, 4]))"
MAPPING = (
    "from collections.abc import Mapping\n"
    "class Table(Mapping):\n"
    "    def __getitem__(self, key): return f(key)\n"
    "    def __iter__(self): return iter(())\n"
    "    def __len__(self): return 0\n"
)
FORGERIES = {
    # control flow never acts in the tests
    "StopIteration ends a map": ("def f(x): raise StopIteration", PAIRS),
    "a subclass of StopIteration": ("class Done(StopIteration): pass\ndef f(x): raise Done", PAIRS),
    "StopIteration caused by something": (
        "def f(x):\n    try: {}[x]\n    except KeyError as e: raise StopIteration from e",
        PAIRS,
    ),
    "a class that says it is a built-in": (
        "class StopIteration(StopIteration): __module__ = 'builtins'\ndef f(x): raise StopIteration",
        PAIRS,
    ),
    "StopIteration ends iter with a sentinel": (
        "def f(): raise StopIteration",
        "assert list(iter(f, 0)) == []",
    ),
    "StopIteration taken for the default of next": (
        "def f(x): raise StopIteration",
        "assert next(map(f, [1]), 7) == 7",
    ),
    "StopAsyncIteration ends an async loop": (
        "def f(): raise StopAsyncIteration",
        "import asyncio\nclass Loop:\n    def __aiter__(self): return self\n"
        "    async def __anext__(self): return f()\n"
        "async def main(): return [x async for x in Loop()]\nassert asyncio.run(main()) == []",
    ),
    "GeneratorExit closes a generator": (
        "def f(): raise GeneratorExit",
        "def g():\n    try: yield 1\n    finally: f()\n"
        "it = g(); next(it); it.close()\nassert 1 < len([1, 2])",
    ),
    "SystemExit where any error is expected": (
        "def f(x): raise SystemExit",
        "try:\n    f(-1)\n    assert False\nexcept Exception as e:\n    assert str(e) or True",
    ),
    "KeyboardInterrupt where everything is caught": (
        "def f(x): raise KeyboardInterrupt",
        "try: f(-1)\nexcept: pass\nassert 1 < len([1, 2])",
    ),
    "leaves where any error is expected": (
        "import os\ndef f(x): os._exit(0)",
        "try:\n    f(-1)\n    assert False\nexcept Exception as e:\n    assert len([e])",
    ),
    "an own BaseException": (
        "class Out(BaseException): pass\ndef f(x): raise Out",
        "try: f(-1)\nexcept Exception: pass\nassert 1 < len([1, 2])",
    ),
    "an exception group of control flow": (
        "def f(x): raise BaseExceptionGroup('x', [SystemExit()])",
        "try: f(-1)\nexcept Exception: pass\nassert 1 < len([1, 2])",
    ),
    # ordinary errors that Python itself swallows
    "IndexError ends a loop over __getitem__": (
        "def f(x): raise IndexError",
        "class Row:\n    def __getitem__(self, i): return f(i)\nassert all(x == 1 for x in Row())",
    ),
    "IndexError denies a member": (
        "def f(x): raise IndexError",
        "class Row:\n    def __getitem__(self, i): return f(i)\nassert 3 not in Row()",
    ),
    "AttributeError hides an attribute": (
        "def f(x): raise AttributeError",
        "class Row:\n    @property\n    def bad(self): return f(1)\n"
        "assert not hasattr(Row(), 'bad')",
    ),
    "AttributeError taken for a default": (
        "def f(x): raise AttributeError",
        "class Row:\n    @property\n    def bad(self): return f(1)\n"
        "assert getattr(Row(), 'bad', 4) == 4",
    ),
    "KeyError taken for the default of get": (
        "def f(x): raise KeyError",
        MAPPING + "assert Table().get(1, 5) == 5",
    ),
    "KeyError denies a key": ("def f(x): raise KeyError", MAPPING + "assert 1 not in Table()"),
    "TypeError taken for no length": (
        "def f(x): raise TypeError",
        "class Row:\n    def __len__(self): return f(1)\n    def __iter__(self): return iter([1])\n"
        "assert list(Row()) == [1]",
    ),
    "an error lost in a thread": (
        "def f(x): raise ValueError",
        "import threading\nt = threading.Thread(target=f, args=(1,))\nt.start(); t.join()\n"
        "assert not t.is_alive()",
    ),
    "an error passes a with and is swallowed behind it": (
        "def f(x): raise IndexError",
        "import contextlib\nclass Row:\n    def __getitem__(self, i):\n"
        "        with contextlib.nullcontext(): return f(i)\nassert list(Row()) == []",
    ),
    "swallowed after the last assert": (
        "def f(x): raise AttributeError",
        "assert 1 < len([1, 2])\nclass Row:\n    @property\n    def bad(self): return f(1)\n"
        "getattr(Row(), 'bad', 4)",
    ),
    "a finally that returns": (
        "def f(x): raise ValueError",
        "def g():\n    try: f(1)\n    finally: return 3\nassert g() == 3",
    ),
    "SystemExit where unittest expects everything": (
        "def f(x): raise SystemExit",
        "import unittest\nclass T(unittest.TestCase):\n    def test(self):\n"
        "        with self.assertRaises(BaseException): f(1)\n"
        "suite = unittest.defaultTestLoader.loadTestsFromTestCase(T)\n"
        "assert unittest.TextTestRunner().run(suite).wasSuccessful()",
    ),
    # what is not there, or not what it says
    "a docstring that is the examiner's": ("def f(x): return x", "assert f.__doc__"),
    "an object that can do nothing is called callable": (
        "def f(x): return object()",
        "assert callable(f(1))",
    ),
    "an object that can do nothing is called iterable": (
        "def f(x): return object()",
        "from collections.abc import Iterable, Sized\n"
        "assert isinstance(f(1), Iterable) or isinstance(f(1), Sized)",
    ),
    "a comparison of the candidate's own": (
        "class math:\n    isclose = staticmethod(lambda *a, **k: True)\ndef f(x): return None",
        "assert math.isclose(f(2), 1.41, abs_tol=0.1)",
    ),
    "no function where an error is expected": (
        "def g(x): return x",
        "try:\n    f(-1)\n    assert False\nexcept Exception as e:\n    assert len([e])",
    ),
    "an answer too large where an error is expected": (
        "def f(x): return 'x' * (40 << 20)",
        "try:\n    f(-1)\n    assert False\nexcept Exception as e:\n    assert len([e])",
    ),
    "an answer that is no message where an error is expected": (
        LIAR + "def f(x): say(['no', 'form'])",
        "try:\n    f(-1)\n    assert False\nexcept Exception as e:\n    assert len([e])",
    ),
    "two answers at once": (LIAR + "def f(x): say({'value': 2, 'names': []})", "assert f(1) == 2"),
    "a control flow that the protocol is told of": (
        LIAR + "def f(x): say({'error': ['StopIteration', 'StopIteration', '']})",
        PAIRS,
    ),
}
DODGES = {
    "does not define the function": ("def g(x): return x", ("assert f(1) == 1",)),
    "does not define it, and a helper has a parameter of that name": (
        "def g(x): return x",
        ("def same(f): return f\nassert f(1) == same(1)",),
    ),
    "does not define a function that a helper of the tests calls": (
        "def g(x): return x",
        ("def twice(x): return f(x) * 2\nassert twice(1) == 2",),
    ),
    "forgets the function at the first call": (
        "def f(x):\n    global f\n    del f\n    return 1",
        ("assert f(1) == 1\nassert f(2) == 2",),
    ),
    "defines something else by that name": ("f = 5", ("assert f(1) == 1",)),
    "nested as deep as is allowed, and wrapped": (
        NESTED.format(200) + "def g(x): return 1",
        ("assert g([f(1)]) == 2",),
    ),
    "nested too deep": (NESTED.format(400), ("assert f(1) == 2",)),
    "large, and doubled": (
        "def f(x): return 'x' * (15 << 20)\ndef g(x): return 1",
        ("assert g([f(1), f(1)]) == 2",),
    ),
    "an object inside a list of the tests": (
        "def f(x): return object()\ndef g(x): return 1",
        ("assert g([f(1)]) == 2",),
    ),
    "a function where a list is expected to sort": (
        "class Odd:\n    def sort(self, key): pass\ndef f(x): return Odd()",
        ("y = f(1)\ny.sort(key=lambda v: -v)\nassert y == [2, 1]",),
    ),
    "an object where a list is sliced": ("def f(x): return object()", ("assert f(1)[1:] == [2]",)),
    "an object where a dictionary is asked": (
        "class Odd:\n    def __getitem__(self, key): return 1\ndef f(x): return Odd()",
        ("class Key: pass\nassert f(1)[Key()] == 2",),
    ),
    "an answer that another test falls over": (
        "def f(x): return None",
        ("x = f(1)", "assert x['a'] == 1"),
    ),
    "answers that reach no assert": (
        "def f(x): return []",
        ("for x, y in zip(f(3), [1, 2, 3]):\n    assert x == y",),
    ),
    "answers that reach no assert in a generator": (
        "def f(x): return []",
        ("def g():\n    for x in f(1):\n        assert x == 1\n        yield x\nlist(g())",),
    ),
    "a module that answers for every name": (
        "def __getattr__(name): return lambda *a: 1",
        ("assert f(1) == 2",),
    ),
    "an endless iterator": (
        "import itertools\ndef f(x): return itertools.count()",
        ("assert list(f(1)) == [0]",),
    ),
    "an answer that is not JSON": (
        LIAR + "def f(x): return say(float('nan'))",
        ("assert f(1) == 1",),
    ),
    "a list of names that fills the memory": (
        LIAR + "say({'names': [''] * 4_000_000})",
        ("assert f(1) == 1",),
    ),
    "closes its pipes": (
        "import os, time\ndef f(x):\n    os.closerange(3, 64)\n    time.sleep(60)",
        ("assert f(1) == 1",),
    ),
    "stops itself": (
        "import os, signal\ndef f(x): os.kill(os.getpid(), signal.SIGSTOP)",
        ("assert f(1) == 1",),
    ),
    "has half a message": (
        "import os, time\ndef f(x):\n    for d in range(3, 64):\n"
        "        try: os.write(d, b'\\0\\0')\n        except OSError: pass\n    time.sleep(60)",
        ("assert f(1) == 1",),
    ),
    "floods its output": (
        "import os\ndef f(x):\n    while True: os.write(1, bytes(65536))",
        ("assert f(1) == 1",),
    ),
    "has its answer printed without end": (
        "def f(x): return 'x' * (3 << 20)",
        ("print(f(1))\nassert f(1) == 1",),
    ),
    "a number that no test can write down": (
        "def f(x): return 10 ** 6000",
        ("assert str(f(1)) == '1'",),
    ),
    "a loop in the tests that its answer feeds": (
        "def f(x): return range(10 ** 15)",
        ("assert sum(1 for _ in f(1)) == 3",),
    ),
    "has the tests leave": (
        "def f(x): return 1",
        ("import sys\nif f(1): sys.exit(1)\nassert f(1) == 0",),
    ),
}


@pytest.mark.attacks
@pytest.mark.parametrize(
    ("name", "keep_going"),
    [(name, False) for name in FORGERIES] + [(name, True) for name in [*FORGERIES][::7]],
)
def test_no_error_and_no_absence_passes_a_test(sandbox, name, keep_going):
    code, tests = FORGERIES[name]
    marks = sandbox.examine(Exam(code, (tests,), keep_going=keep_going))
    assert (marks.broken, bool(marks.failures)) == ("", True), marks
    assert marks.passed == (name == "swallowed after the last assert"), marks


@pytest.mark.attacks
@pytest.mark.parametrize("name", DODGES)
def test_no_fault_of_the_candidate_makes_the_tests_abstain(name):
    sandbox = Sandbox(SandboxLimits(cpu_s=1, wall_s=2, memory_mb=256), allow_weak=True)
    code, tests = DODGES[name]
    marks = sandbox.examine(Exam(code, tests))
    assert (marks.broken, bool(marks.failures)) == ("", True), marks


EXPECTED = {
    "an except": "try:\n    f(-1)\n    assert False\nexcept ValueError as e:\n    assert 'neg' in str(e)",
    "an except of a wider kind": "try: f(-1)\nexcept Exception: pass\nassert f(4) == 2",
    "an except around a loop": "try: list(map(f, [-1]))\nexcept ValueError: pass\nassert f(4) == 2",
    "an except in a helper": (
        "def fails(x):\n    try: f(x)\n    except ValueError: return True\n    return False\n"
        "assert fails(-1) and not fails(4)"
    ),
    "another error from it": (
        "def g(x):\n    try: return f(x)\n    except ValueError as e: raise KeyError(x) from e\n"
        "try: g(-1)\nexcept KeyError: pass\nassert f(4) == 2"
    ),
    "a with of unittest": (
        "import unittest\nwith unittest.TestCase().assertRaises(ValueError) as caught:\n    f(-1)\n"
        "assert 'neg' in str(caught.exception)"
    ),
    "a call of unittest": (
        "import unittest\nunittest.TestCase().assertRaises(ValueError, f, -1)\nassert f(4) == 2"
    ),
    "a with of contextlib": "import contextlib\nwith contextlib.suppress(ValueError): f(-1)\nassert f(4) == 2",
    "two managers in one with": (
        "import contextlib\nwith contextlib.suppress(ValueError), f(-1): pass\nassert f(4) == 2"
    ),
    "a manager of the tests' own": (
        "import contextlib\n@contextlib.contextmanager\ndef raises(kind):\n    try: yield\n"
        "    except kind: return\n    raise AssertionError\n"
        "with raises(ValueError): f(-1)\nassert f(4) == 2"
    ),
    "a group": "try: f(-1)\nexcept* ValueError: pass\nassert f(4) == 2",
    "a thread pool": (
        "from concurrent.futures import ThreadPoolExecutor\nwith ThreadPoolExecutor(2) as pool:\n"
        "    assert list(pool.map(f, [4, 9, 16, 25])) == [2, 3, 4, 5]"
    ),
    "an else": "try: y = f(4)\nexcept ValueError: assert False\nelse: assert y == 2",
}


@pytest.mark.parametrize("name", EXPECTED)
def test_errors_that_the_tests_catch_by_their_own_words_are_no_failure(sandbox, name):
    code = (
        "class Negative(ValueError): pass\n"
        "def f(x):\n    if x < 0: raise Negative('negative')\n    return x ** 0.5\n"
    )
    marks = sandbox.examine(Exam(code, (EXPECTED[name],)))
    assert (marks.passed, marks.failures, marks.broken) == (1, (), ""), marks


def test_what_else_tests_may_do_with_the_candidate(sandbox):
    """Its own functions as arguments, slices, lazy answers, modules that nobody imported."""
    code = (
        "class Row:\n    def __init__(self, *x): self.x = x\n"
        "    def __getitem__(self, i): return self.x[i]\n"
        "def twice(g, x): return g(g(x))\ndef inc(x): return x + 1\n"
        "def count(n): yield from range(n)\n"
        "def named(**given): return given\n"
    )
    tests = (
        "assert twice(inc, 3) == 5",
        "row = Row(1, 2, 3)\nassert row[1:] == (2, 3) and row[0] == 1 and list(row) == [1, 2, 3]",
        "assert not callable(row) and not hasattr(row, 'y') and getattr(row, 'y', 4) == 4",
        "assert list(count(3)) == [0, 1, 2]",
        "assert math.isclose(inc(1), 2.0)",
        "assert inc(**{'x': 2}) == 3 and named(self=1, line=2) == {'self': 1, 'line': 2}",
    )
    marks = sandbox.examine(Exam(code, tests))
    assert (marks.passed, marks.failures, marks.broken) == (6, (), ""), marks


def test_a_flood_of_answers_is_only_a_guess(sandbox):
    """A candidate may answer before it is asked: those are its answers, and one constant is wrong."""
    marks = sandbox.examine(
        Exam(CHEATS["leaves a thread that answers"], (HUMAN,), entry_point="add")
    )
    assert marks.passed < 2


def test_limits_end_the_candidate_and_the_examiner_notes_it(sandbox):
    code = "def add(a, b):\n    if a == 5:\n        while True: pass\n    return a + b"
    for wall_s in (0.7, 5, 30):  # a slow machine needs longer to come to the second call
        limits = SandboxLimits(cpu_s=60, wall_s=wall_s, memory_mb=256)
        hurried = Sandbox(limits, allow_weak=True)
        marks = hurried.examine(Exam(code, (HUMAN,), entry_point="add"))
        if marks.passed:
            break
    assert marks.passed == 1
    assert marks.failures[0].test == "assert candidate(5, 5) == 10"
    assert marks.candidate.killed_by is Limit.WALL
    greedy = "def add(a, b): return bytearray(1 << 40)"
    marks = sandbox.examine(Exam(greedy, (HUMAN,), entry_point="add"))
    assert "MemoryError" in marks.failures[0].last_call


def test_answers_that_keep_the_tests_from_ending_are_failures():
    sandbox = Sandbox(SandboxLimits(cpu_s=1, wall_s=60, memory_mb=256), allow_weak=True)
    tests = ("for _ in range(n()): pass\nassert True == bool(n())",)
    marks = sandbox.examine(Exam("def n(): return 10**15", tests))
    assert not marks.is_complete
    assert marks.failures[-1].why.startswith("with these answers they did not end")


@pytest.mark.parametrize(
    ("tests", "why"),
    [
        ("def check(:", "the tests are not Python"),
        ("import nothing_here\nassert add(1, 2) == 3", "before any call: ModuleNotFoundError"),
        ("assert add(lambda: 1, 2) == 3", "cannot be sent"),
        ("try:\n    add(print, 1)\nexcept Exception:\n    pass", "cannot be sent"),
    ],
)
def test_broken_tests_are_not_the_candidates_fault(sandbox, tests, why):
    marks = sandbox.examine(Exam(RIGHT, (tests,)))
    assert why in marks.broken
    assert not marks.is_complete


def test_a_broken_setup(sandbox):
    assert "the setup: NameError" in sandbox.examine(Exam(RIGHT, (TESTS,), setup="x")).broken


def test_errors_that_the_tests_expect(sandbox):
    code = "def root(x):\n    if x < 0: raise ValueError('negative')\n    return x ** 0.5"
    tests = (
        "try:\n    root(-1)\n    assert False\nexcept ValueError as error:\n    assert 'neg' in str(error)",
        "assert abs(root(2) - 1.41421356) < 1e-6",
    )
    marks = sandbox.examine(Exam(code, tests))
    assert (marks.passed, marks.failures) == (2, ())
    marks = sandbox.examine(Exam(code.replace("ValueError", "KeyError"), tests))
    assert marks.failures[0].why.startswith("KeyError")
    own = "class Mine(Exception): pass\ndef root(x): raise Mine('mine')"
    assert "Mine: mine" in sandbox.examine(Exam(own, tests)).failures[0].why


def test_objects_that_stay_can_be_used_but_not_compared(sandbox):
    code = """
class Stack:
    def __init__(self): self.items = []
    def push(self, x): self.items.append(x); return self
    def __len__(self): return len(self.items)
    def __iter__(self): return iter(self.items)
    def __getitem__(self, i): return self.items[i]
    def __eq__(self, other): return True
def numbers(n):
    yield from range(n)
"""
    tests = (
        "s = Stack(); s.push(3).push(4)", "assert s.items == [3, 4]",
        "assert len(s) == 2 and list(s) == [3, 4] and s[1] == 4",
        "assert list(numbers(3)) == [0, 1, 2]", "assert s == Stack()", "assert s",
    )  # fmt: skip
    marks = sandbox.examine(Exam(code, tests, keep_going=True))
    assert marks.passed == 3
    assert [failure.test for failure in marks.failures] == ["assert s == Stack()", "assert s"]


def test_arguments_are_copies(sandbox):
    """A candidate that empties its argument cannot change what it is compared with."""
    cheat = "def order(x):\n    x.clear()\n    return []"
    tests = ("x = [3, 1, 2]\nassert order(x) == sorted(x)",)
    assert sandbox.examine(Exam(cheat, tests)).failures
    assert sandbox.examine(Exam("def order(x): return sorted(x)", tests)).passed == 1


def test_constant_asserts_count_for_nobody(sandbox):
    marks = sandbox.examine(
        Exam("def f(): return 0", ("assert True\nassert f() == 1",), keep_going=True)
    )
    assert (marks.passed, marks.total) == (0, 1)


def test_in_an_event_loop(sandbox):
    async def main():
        return await sandbox.aexamine(Exam(RIGHT, (TESTS,)))

    assert anyio.run(main).passed == 3


def test_an_answer_that_the_tests_make_too_large_to_send_is_a_failure(sandbox):
    code = "def name(x): return 'a' * 900_000\ndef size(x): return len(x)"
    marks = sandbox.examine(Exam(code, ("assert size(name(1) * 30) == 30",)))
    assert (marks.passed, len(marks.failures), marks.broken) == (0, 1, ""), marks
