"""The code reward: three forms of tests, real HumanEval tasks, tricks, and trouble of the sandbox."""

import sys
from pathlib import Path

import anyio
import pytest
from hypothesis import given, strategies as st

from burnish.errors import SandboxError, UserError
from burnish.records import Message, Response, Status, Task, Visibility
from burnish.rewards import Code, CodeConfig, checked
from burnish.rewards.checks.code import last_code_block, make_exam, read_tests

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the walls are Linux's")

DATA = Path(__file__).parents[3] / ".." / "shared" / "data" / "humaneval" / "test.parquet"
PROMPT = 'def double(x):\n    """Twice x."""\n'
CHECK = "def check(candidate):\n    assert candidate(2) == 4\n    assert candidate('a') == 'aa'\n"
EASY = {"allow_weak": True, "timeout_s": 60}
"""Limits that no honest code meets, however slow the machine."""
HUMAN = {"test": CHECK, "entry_point": "double", "prompt": PROMPT}


def a_task(**fields):
    return Task("t1", (Message("user", "Write it."),), fields)


def score(config, task, *texts):
    async def main():
        responses = [Response(f"r{i}", text) for i, text in enumerate(texts)]
        return await checked(Code(config), task, responses)

    return anyio.run(main)


def fenced(code):
    return f"Here it is:\n```python\n{code}\n```\nDone."


def test_humaneval_style_with_answers_in_every_form():
    rewards = score(
        CodeConfig(**EASY), a_task(**HUMAN), fenced("def double(x):\n    return 2 * x"),
        "    return x + x\n", PROMPT + "    return x * 2\n", "    return 4\n", "I cannot do that.",
        "",
    )  # fmt: skip
    assert [reward.value for reward in rewards] == [1.0, 1.0, 1.0, 0.0, 0.0, 0.0]
    assert rewards[0].evidence[0].observation == "2 of 2 asserts passed"
    assert rewards[0].evidence[0].visibility is Visibility.BENCHMARK
    told = " ".join(evidence.observation for evidence in rewards[3].evidence)
    assert "failed: assert candidate('a') == 'aa'" in told
    assert "double('a') gave 4" in told
    assert "SyntaxError" in rewards[4].evidence[1].observation


def test_the_share_of_asserts():
    config = CodeConfig(mode="share", **EASY)
    rewards = score(
        config, a_task(**HUMAN), "    return 4", "    return 2 * x", "    return y",
        "import os; os._exit(0)",
    )  # fmt: skip
    assert [reward.value for reward in rewards] == [0.5, 1.0, 0.0, 0.0]


@pytest.mark.parametrize(
    ("tests", "code", "share"),
    [
        ("for x in range(3):\n    assert f(x) == x\nassert f(9) == 9", "return x if x != 2 else 0", 0.5),
        ("for x in f(0):\n    assert x == 1\nassert f(2) == []", "return []", 0.5),
        ("assert f(0) == 0\nf(1)\nassert f(2) == 2\nassert f(3) == 3", "return x / (x != 1)", 1 / 3),
        ("assert f(0) == 0\nf(1)", "return x / (x != 1)", 0.5),
        ("try:\n    f(1)\n    assert f(0)\nexcept ZeroDivisionError:\n    assert f(0) == 0", "return x / (x != 1)", 1.0),
    ],
)  # fmt: skip
def test_the_share_counts_the_asserts_that_stand_in_the_tests(tests, code, share):
    (reward,) = score(CodeConfig(mode="share", **EASY), a_task(test=tests), f"def f(x): {code}")
    assert reward.value == pytest.approx(share)


@pytest.mark.parametrize(
    ("tests", "code"),
    [
        ("got = ''\nfor k in range(20): got += f(k)\nassert f(got) == 1", "return 'a' * 1_000_000"),
        ("assert f([0] * f(1)) == 1", "return 10_000_000"),
        ("got = []\nfor k in range(f(1)): got = [got]\nassert f(got) == 1", "return 300"),
        (["got = []", "got.append(f(1))", "assert got[0] + 1 == 2"], "return None"),
    ],
)
def test_no_size_depth_or_type_of_an_answer_makes_the_tests_abstain(tests, code):
    (reward,) = score(CodeConfig(**EASY), a_task(test=tests), f"def f(x): {code}")
    assert reward.value == 0.0


def test_a_list_of_asserts():
    tests = ["assert add(1, 2) == 3", "assert add(0, 0) == 0", "assert add(-1, 1) == 0"]
    good, half = fenced("def add(a, b): return a + b"), fenced("def add(a, b): return 0")
    for mode, wanted in (("all", [1.0, 0.0]), ("share", [1.0, 2 / 3])):
        rewards = score(CodeConfig(mode=mode, **EASY), a_task(test=tests), good, half)
        assert [reward.value for reward in rewards] == wanted


@pytest.mark.parametrize(
    "tests",
    [
        [{"input": "2 3\n", "output": "5"}, {"input": "10 -4", "output": "6\n"}],
        {"inputs": ["2 3", "10 -4\n"], "outputs": ["5\n\n", "6 "]},
    ],
)
def test_programs_that_read_and_print(tests):
    good = fenced("a, b = map(int, input().split())\nprint(a + b)")
    fixed, loud = "print(5)", "import sys; print(5); sys.exit(1)"
    rewards = score(CodeConfig(mode="share", **EASY), a_task(test=tests), good, fixed, loud)
    assert [reward.value for reward in rewards] == [1.0, 0.5, 0.0]
    assert "printed '5'; expected '6'" in rewards[1].evidence[1].observation
    assert "exit code 1" in rewards[2].evidence[1].observation
    rewards = score(CodeConfig(**EASY), a_task(test=tests), good, fixed)
    assert [reward.value for reward in rewards] == [1.0, 0.0]


def test_code_that_never_ends_has_failed_and_that_is_a_number():
    short = CodeConfig(timeout_s=0.5, allow_weak=True)
    (loop,) = score(short, a_task(**HUMAN), "    while True: pass")
    bomb, right = score(
        CodeConfig(**EASY), a_task(**HUMAN), "    return 'x' * (1 << 40)", "    return 2 * x"
    )
    assert [reward.value for reward in (loop, bomb, right)] == [0.0, 0.0, 1.0]
    assert "killed by the" in loop.evidence[-1].observation
    assert "MemoryError" in bomb.evidence[1].observation


def test_broken_or_missing_tests_abstain():
    fields = [
        {"test": ""}, {"test": []}, {"test": "def f(:"}, {"test": "x = 1"}, {"test": "boom()"},
    ]  # fmt: skip
    for given_fields in fields:
        [reward] = score(CodeConfig(**EASY), a_task(**given_fields), "def f(): pass")
        assert (reward.value, reward.status) == (None, Status.ABSTAIN), given_fields


@pytest.mark.parametrize("mode", ["all", "share"])
def test_a_fault_of_the_code_is_a_zero_and_never_an_abstention(mode):
    deep = "    y = 0\n    for _ in range(200): y = [y]\n    return y"
    [reward, wrapped, empty, right] = score(
        CodeConfig(mode=mode, **EASY),
        a_task(test=["for x in zip(f([f(1)]), [1]): assert x == (1, 1)", "assert f(2) == [1]"]),
        "def g(x): return x", f"def f(x):\n{deep}", "def f(x): return []", "def f(x): return [1]",
    )  # fmt: skip
    assert [r.value for r in (reward, wrapped, empty, right)] == [0.0, 0.0, 0.0, 1.0]
    assert "does not define f" in reward.evidence[1].observation
    loops = a_task(test=["assert all(a == b for a, b in zip(map(f, [1, 2]), [2, 3]))"])
    [ended] = score(CodeConfig(mode=mode, **EASY), loops, "def f(x): raise StopIteration")
    assert ended.value == 0.0


def test_tests_that_are_none_are_the_users_mistake():
    for value in (7, {"a": 1}, [1, 2], [{"input": "x"}], {"inputs": ["1"], "outputs": []}):
        with pytest.raises(UserError, match="expected Python source"):
            read_tests(a_task(test=value))
    with pytest.raises(UserError, match="no 'entry_point'"):
        read_tests(a_task(test=CHECK))


def test_trouble_of_the_sandbox_is_no_number(monkeypatch):
    scorer = Code(CodeConfig())

    async def broken(exam):
        raise SandboxError("no process could be started")

    monkeypatch.setattr(scorer.sandbox, "aexamine", broken)

    async def main():
        return await checked(scorer, a_task(**HUMAN), [Response("r", "    return 2 * x")])

    [reward] = anyio.run(main)
    assert (reward.value, reward.status) == (None, Status.INFRA_ERROR)
    assert reward.reason == "sandbox: no process could be started"


def test_a_weak_sandbox_stops_the_run_with_one_line(monkeypatch):
    from burnish.tools import Sandbox

    scorer = Code(CodeConfig())
    scorer.sandbox = Sandbox(scorer.sandbox.limits, layers=[])

    async def main():
        return await checked(scorer, a_task(**HUMAN), [Response("r", "    return 2 * x")])

    with pytest.raises(UserError, match="allow_weak = true"):
        anyio.run(main)


def test_the_code_that_is_taken():
    assert last_code_block("no fence") == "no fence"
    assert last_code_block("```python\na\n```\n```py\nb\n```") == "b\n"
    assert last_code_block("```python\na\n```\n```json\n{}\n```") == "a\n"
    assert last_code_block("```\na\n```") == "a\n"
    assert last_code_block("text\n```python\ncut") == "cut"
    assert last_code_block("  ```python3\n  a\n  ```") == "  a\n"


@given(st.text(alphabet="`\n py", max_size=200))
def test_extraction_is_total_and_takes_from_the_text(text):
    assert last_code_block(text) in text or not last_code_block(text)


def test_what_is_examined():
    config = CodeConfig()
    task = a_task(**HUMAN)
    whole = make_exam(task, config, "def double(x): return 1", ("t",))
    assert whole.code.startswith(PROMPT + "\n\n")
    assert whole.setup == PROMPT
    body = make_exam(task, config, "    return 1", ("t",))
    assert body.code == PROMPT + "    return 1"
    future = make_exam(task, config, "from __future__ import annotations\ndef double(x): ...", ())
    assert future.code.startswith("from __future__")
    plain = make_exam(a_task(prompt="Write double.", entry_point="double"), config, "x = 1", ())
    assert (plain.code, plain.setup) == ("x = 1", "")


CHEATS = [
    "import sys; sys.exit(0)",
    "import os; os._exit(0)",
    "class A:\n    def __eq__(self, o): return True\ndef {name}(*a, **k): return A()",
    "import builtins\nbuiltins.AssertionError = Exception\ndef {name}(*a): return None",
    "def {name}(*a):\n    raise SystemExit(0)",
    "print('1 passed')\ndef {name}(*a, **k): pass",
]


def humaneval(step):
    parquet = pytest.importorskip("pyarrow.parquet")
    if not DATA.exists():
        pytest.skip("shared data 'humaneval' is not here")
    return parquet.read_table(DATA).to_pylist()[::step]


@pytest.mark.parametrize("mode", ["all", "share"])
def test_real_tasks_with_right_wrong_and_cheating_code(mode):
    rows = humaneval(14 if mode == "all" else 28)  # every cheat twice, or once
    config = CodeConfig(mode=mode, **EASY)
    for index, row in enumerate(rows):
        fields = {key: row[key] for key in ("test", "entry_point", "prompt")}
        cheat = CHEATS[index % len(CHEATS)].replace("{name}", row["entry_point"])
        right, wrong, cheated = score(
            config, a_task(**fields), row["canonical_solution"], "    return None\n", fenced(cheat)
        )
        assert right.value == 1.0, (row["task_id"], right)
        assert wrong.value < 1.0, (row["task_id"], wrong)
        assert cheated.value < 1.0, (row["task_id"], cheat, cheated)
        if mode == "all":
            assert (wrong.value, cheated.value) == (0.0, 0.0)
