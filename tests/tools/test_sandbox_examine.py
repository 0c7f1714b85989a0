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


@pytest.mark.parametrize("name", CHEATS)
def test_no_trick_passes(sandbox, name):
    if name == "answers without end":  # on a busy machine it may write until its clock runs out
        sandbox = Sandbox(SandboxLimits(cpu_s=5, wall_s=10, memory_mb=256), allow_weak=True)
    marks = sandbox.examine(Exam(CHEATS[name], (HUMAN,), entry_point="add"))
    assert marks.failures, marks
    assert marks.passed == 0 or name == "leaves a thread that answers"
    assert marks.broken == ""


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
        "s = Stack(); s.push(3).push(4)",
        "assert s.items == [3, 4]",
        "assert len(s) == 2 and list(s) == [3, 4] and s[1] == 4",
        "assert list(numbers(3)) == [0, 1, 2]",
        "assert s == Stack()",
        "assert s",
    )
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
