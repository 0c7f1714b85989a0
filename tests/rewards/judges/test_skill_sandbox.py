"""The judge's Python in the real sandbox: over visible texts, with counts at hand, contained."""

from __future__ import annotations

import anyio
import pytest
from skill_cases import a_judge, a_task, call, judged

from burnish.errors import UserError
from burnish.rewards.checks.texts import constraint_tools
from burnish.rewards.judges.skill_rm import Ran, SandboxRunner, load_skill
from burnish.rewards.judges.skill_rm.loop import Limits

CASE = {
    "prompt": "Write two words.",
    "responses": {"A": "Two words, she said.", "B": "One."},
}


def run(code: str, timeout_s: float = 60.0) -> Ran:
    async def work() -> Ran:
        return await SandboxRunner(allow_weak=True).run(code, CASE, timeout_s=timeout_s)

    return anyio.run(work)


def test_code_counts_as_the_checks_do():
    ran = run("print(constraint_tools(responses['A']), words(responses['B']), prompt)")
    expected = f"{constraint_tools('Two words, she said.')} ['One'] Write two words.\n"
    assert ran == Ran(expected)


@pytest.mark.parametrize(
    ("code", "error"),
    [
        ("1 / 0", "ZeroDivisionError"), ("while True: pass", "limit"),
        ("x = bytearray(10**9)", "MemoryError"), ("print('x' * 10**7)", "output limit"),
        ("def broken(", "SyntaxError"),
        ("import socket; socket.create_connection(('127.0.0.1', 9))", "exit code"),
        ("open('/etc/hostname-not-there', 'w')", "exit code"),
        ("import sys; sys.exit(3)", "exit code 3"),
    ],
)  # fmt: skip
def test_code_that_ends_badly_is_an_error(code, error):
    timeout_s = 0.5 if error == "limit" else 60.0
    assert error in run(code, timeout_s).error


def test_the_judge_reads_what_its_code_printed():
    code = "print(max(responses, key=lambda label: len(words(responses[label]))))"
    script = [
        call("use_skill", name="open_chat"),
        call("python_sandbox", code=code, reason="which has more words"),
        call("final_answer", verdict="B", rationale="more words"),
    ]
    runner = SandboxRunner(allow_weak=True)
    limits = Limits(sandbox_s=60.0)
    judge, lm = a_judge(script, [load_skill("open_chat")], runner=runner, limits=limits)
    first, _ = judged(judge, a_task(reference="secret"), "one", "two three")
    assert first.value == -1
    assert "===\nB\n\n===" in lm.calls[-1].prompt[-1].content


def test_a_weak_sandbox_needs_a_word(monkeypatch):
    from burnish.tools import sandbox

    def refuse(self: sandbox.Sandbox) -> None:
        raise UserError("the sandbox of this machine is weak")

    monkeypatch.setattr(sandbox.Sandbox, "_plan", refuse)
    script = [call("use_skill", name="open_chat"), call("python_sandbox", code="print(1)")]
    judge, _ = a_judge(script, [load_skill("open_chat")], runner=SandboxRunner())
    with pytest.raises(UserError, match="is weak"):
        judged(judge, a_task(), "one", "two")
