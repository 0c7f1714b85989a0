"""Modes hold at the tool boundary: what one may not see is neither listed nor viewed nor run."""

from __future__ import annotations

import json
from typing import Any

import anyio
from hypothesis import HealthCheck, given, settings, strategies as st
from skill_cases import EchoRunner, a_judge, a_task, answers, call, judged, summary

from burnish.records import Visibility
from burnish.rewards.judges.skill_rm import Limits, Mode, SkillPackage, Toolbox
from burnish.rewards.judges.skill_rm.readout import Call
from burnish.rewards.judges.skill_rm.verifiers import Case, Resource, read_entry

SECRET = "xyzzy"
REFERENCE = "plugh"
"""Stands in the task's reference only."""
TOOLS = (
    "use_skill", "list_resources", "view_resource", "run_resource", "python_sandbox", "nothing",
)  # fmt: skip

kinds = st.tuples(
    st.booleans(),
    st.sampled_from(["sample_visible", "benchmark_visible", "oracle_only"]),
    st.sampled_from(["skill_fair", "skill_operational"]),
    st.sampled_from(["rubric", "reference", "checklist", "verifier"]),
)


def resource(number: int, is_runtime: bool, leak: str, setting: str, type: str) -> Resource | None:
    """An entry; None where these fields contradict each other."""
    row: dict[str, Any] = {
        "type": type, "decision_impact": "strong", "leakage_level": leak,
        "allowed_setting": setting,
    }  # fmt: skip
    is_hidden = is_runtime or leak == "oracle_only" or setting == "skill_operational"
    row["id"] = f"r{number}-{SECRET}" if is_hidden else f"r{number}"
    if is_runtime:
        row |= {"implementation_kind": "sample_reference", "inputs_required": ["reference"]}
    else:
        row |= {"implementation_kind": "text", "path": f"{row['id']}.md"}
    return read_entry(row, "here", is_runtime=is_runtime).entry


@st.composite
def packages(draw: st.DrawFn) -> SkillPackage:
    rows = draw(st.lists(kinds, max_size=6))
    found = [resource(number, *row) for number, row in enumerate(rows)]
    entries = tuple(entry for entry in found if entry is not None)
    texts = {e.path: f"contents {SECRET if SECRET in e.id else 'fine'}" for e in entries if e.path}
    return SkillPackage("demo", "a demo", "Look.", entries, texts, "0" * 64)


@st.composite
def calls(draw: st.DrawFn) -> Call:
    names = [f"r{i}{end}" for i in range(6) for end in ("", f"-{SECRET}", ".md", f"-{SECRET}.md")]
    spellings = st.sampled_from(names).map(
        lambda name: draw(
            st.sampled_from(
                [name, f"./{name}", name.upper(), f" {name} ", f"demo/{name}", f"../demo/{name}"]
            )
        )
    )
    odd = st.sampled_from(["SKILL.md", "resources.yaml", "../resources.yaml", "", "*", None, 3])
    arguments = {
        key: draw(spellings | odd)
        for key in draw(st.sets(st.sampled_from(["id", "path", "reason"])))
    }
    arguments |= {"name": "demo", "code": "print(1)"}
    return Call(draw(st.sampled_from(TOOLS)), arguments)


async def drive(box: Toolbox, asked: list[Call]) -> None:
    for step, one in enumerate([Call("use_skill", {"name": "demo"}), *asked], start=1):
        await box.use(step, one)


@settings(suppress_health_check=[HealthCheck.too_slow], max_examples=60)
@given(packages(), st.lists(calls(), max_size=12))
def test_fair_mode_shows_nothing_that_is_hidden(skill, asked):
    runner = EchoRunner()
    case = Case(a_task(reference=REFERENCE, winner=SECRET), answers("one", "two"))
    box = Toolbox(case, [skill], Mode.FAIR, Limits(resources=99, sandbox_calls=99), runner)
    anyio.run(drive, box, asked)
    for used in box.trace:
        # A judge may name what it guesses; it never reads it from us.
        told = used.output + used.error
        # The longest first: taking out a 3 would leave half of 'r3-...'.
        for argument in sorted(used.arguments.values(), key=lambda one: -len(str(one))):
            told = told.replace(repr(argument), "").replace(str(argument), "")
        assert SECRET not in told
        assert REFERENCE not in told
        assert used.visibility is not Visibility.ORACLE
        if used.tool == "run_resource":
            assert used.is_refused
    assert not box.findings
    for seen in runner.cases:
        assert set(seen) == {"prompt", "responses"}
        assert REFERENCE not in json.dumps(seen)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(packages())
def test_hidden_things_are_named_as_refused_in_the_log_only(skill):
    case = Case(a_task(reference=REFERENCE), answers("one", "two"))
    box = Toolbox(case, [skill], Mode.FAIR, Limits(resources=99))
    hidden = [e for e in skill.resources if not e.allowed_in(Mode.FAIR)]
    asked = [Call("view_resource", {"id": e.id}) for e in hidden]
    asked.append(Call("view_resource", {"id": "not-there"}))
    anyio.run(drive, box, asked)
    assert [used.is_refused for used in box.trace[1:]] == [True] * len(hidden) + [False]
    words = {used.error.replace(used.arguments["id"], "X") for used in box.trace[1:]}
    assert len(words) == 1


@given(packages())
def test_operational_mode_sees_all_and_marks_the_oracle(skill):
    case = Case(a_task(reference=REFERENCE), answers("one", "two"))
    limits = Limits(resources=99, run_calls=99)
    box = Toolbox(case, [skill], Mode.OPERATIONAL, limits)
    asked = [
        Call("run_resource" if e.is_runtime else "view_resource", {"id": e.id})
        for e in skill.resources
    ]
    anyio.run(drive, box, asked)
    for used, entry in zip(box.trace[1:], skill.resources, strict=True):
        assert used.visibility is entry.visibility
        if entry.is_runtime:
            # Only a declared oracle gets the reference.
            assert (REFERENCE in used.output) == (entry.leakage_level == "oracle_only")
        else:
            assert used.output


def test_a_refused_attempt_is_counted_in_the_reward():
    hidden = resource(0, False, "oracle_only", "skill_operational", "reference")
    assert hidden is not None
    skill = SkillPackage("demo", "a demo", "Look.", (hidden,), {hidden.path: SECRET}, "0" * 64)
    script = [
        call("use_skill", name="demo"), call("view_resource", id=hidden.id),
        call("run_resource", id=hidden.id), call("final_answer", verdict="A", rationale="because"),
    ]  # fmt: skip
    judge, lm = a_judge(script, [skill])
    first, _ = judged(judge, a_task(reference=REFERENCE), "one", "two")
    assert first.value == 1
    assert summary(first)["refused"] == 2
    assert summary(first)["oracle"] == 0
    read_by_judge = [m.content for m in lm.calls[-1].prompt if m.role == "user"]
    assert not any(REFERENCE in text for text in read_by_judge)
    assert not any(f"contents {SECRET}" in text for text in read_by_judge)
