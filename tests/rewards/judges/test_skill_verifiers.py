"""Runtime verifiers: what they say, what they may read, and how they fail."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import anyio
import pytest
from skill_cases import a_skill, a_task, answers, verifier

from burnish.records import Message, Response, Reward, Status, Task, Visibility
from burnish.rewards import FirstDecisive, Scope, from_function
from burnish.rewards.judges.skill_rm import (
    Finding,
    SkillChecks,
    load_skill,
    register_verifier,
    run_verifier,
    verifiers,
)
from burnish.rewards.judges.skill_rm.readout import verified
from burnish.rewards.judges.skill_rm.verifiers import (
    VERIFIERS,
    Case,
    Resource,
    options_problem,
    read_entry,
)
from burnish.rewards.scorer import checked


def a_resource(kind: str, **more: Any) -> Resource:
    row = verifier("v", kind) | more
    entry, problem = read_entry(row, "here", is_runtime=True)
    assert entry is not None, problem
    return entry


def run(entry: Resource, task: Task, *texts: str) -> Finding:
    return anyio.run(run_verifier, entry, Case(task, answers(*texts)))


@pytest.fixture(autouse=True)
def unhurried(monkeypatch):
    """A first run starts processes and imports computer algebra: on a busy machine not in 10 s."""
    monkeypatch.setattr(verifiers, "WALL_S", 300.0)


@pytest.fixture
def registered():
    before = dict(VERIFIERS)
    yield
    VERIFIERS.clear()
    VERIFIERS.update(before)


@pytest.mark.parametrize(
    ("texts", "decision"),
    [
        (("It is 4.", "It is 5."), "A"), (("It is 14.", "It is 4"), "B"),
        (("4", "four, or 4"), "inconclusive"), (("five", "six"), "inconclusive"),
        (("(4)",), "satisfied"), (("14",), "violated"),
    ],
)  # fmt: skip
def test_reference_match_is_by_whole_tokens(texts, decision):
    finding = run(a_resource("reference_match"), a_task(reference="4"), *texts)
    assert finding.decision == decision
    assert finding.visibility is Visibility.ORACLE
    assert finding.error is None


def test_where_and_repeat():
    options = {"where": "end", "repeat": 5}
    entry = a_resource("reference_match", options=options)
    padding = "It might be (D) or DDDDD. " + "No. " * 200
    finding = run(entry, a_task(reference="D"), f"{padding}DDDDD", f"{padding}BBBBB")
    assert finding.decision == "A"


def test_numbers_mathematics_and_languages():
    numeric = a_resource("numeric_answer", options={"field": "reference"})
    assert run(numeric, a_task(reference="1/2"), "so 0.5", "so 0.4").decision == "A"
    language = a_resource("language", inputs_required=["responses"], options={"language": "de"})
    german = "Das ist ein ganz gewöhnlicher deutscher Satz, und noch einer dazu."
    english = "This is a perfectly ordinary English sentence, and one more of them."
    assert run(language, a_task(), english, german).decision == "B"
    shape = a_resource(
        "json_schema", inputs_required=["responses"], options={"schema": {"required": ["a"]}}
    )
    assert run(shape, a_task(), '{"a": 1}', '{"b": 1}').decision == "A"


def test_constraints_are_decided_one_by_one():
    skill = load_skill("instruction_following")
    task = Task(
        "t",
        (Message("user", "No commas, at least 3 words."),),
        {
            "instruction_id_list": ["punctuation:no_comma", "length_constraints:number_words"],
            "kwargs": [{}, {"relation": "at least", "num_words": 3}],
        },
    )
    entry = skill.find("constraint_checks")
    assert entry is not None
    finding = run(entry, task, "one two three", "one, two")
    assert finding.values == (1.0, 0.0)
    assert (finding.decision, finding.visibility) == ("A", Visibility.BENCHMARK)
    checks = SkillChecks(skill, only=["constraint_checks"])
    rewards = anyio.run(checked, checks, task, answers("one two three", "one, two three", "a, b"))
    assert [reward.value for reward in rewards] == [1.0, 0.5, 0.0]
    assert rewards[1].reason == "1 of 2 requirements met"
    assert checks.needs == {"instruction_id_list", "kwargs"}


def test_counts_and_sample_texts_are_only_shown():
    counts = a_resource(
        "text_counts", inputs_required=["responses"], leakage_level="sample_visible"
    )
    finding = run(counts, a_task(), "Two words.", "x")
    assert finding.decision == "inconclusive"
    assert "words 2" in finding.observation
    shown = run(a_resource("sample_reference"), a_task(reference="the answer"), "a", "b")
    assert "the answer" in shown.observation
    assert shown.values == (None, None)


def test_metadata_is_sanitised():
    entry = a_resource(
        "sample_metadata", inputs_required=["metadata"], leakage_level="benchmark_visible"
    )
    metadata = {"topic": "law", "deep": {"Winner": "A", "model_b": "x"}, "score": 1}
    finding = run(entry, a_task(metadata=metadata), "a", "b")
    assert 'A: no decision: {"topic": "law"}' in finding.observation


@pytest.mark.parametrize("name", ["winner", "label", "score", "model_a", "chosen"])
def test_labels_scores_and_authors_are_handed_to_nobody(name):
    entry = a_resource("sample_reference", inputs_required=[name], options={"field": name})
    finding = run(entry, a_task(**{name: "A"}), "a", "b")
    assert finding.decision == "unavailable"
    assert "no mode sees it" in str(finding.error)


def test_the_answer_needs_a_declared_oracle():
    entry = a_resource("reference_match", leakage_level="benchmark_visible")
    finding = run(entry, a_task(reference="4"), "4", "5")
    assert finding.decision == "unavailable"
    assert "bears the label and 'v' is declared benchmark_visible" in str(finding.error)


def test_a_field_that_is_not_there():
    finding = run(a_resource("reference_match"), a_task(), "4", "5")
    assert (finding.decision, finding.error) == (
        "unavailable",
        "the sample has no field 'reference'",
    )


class Rule:
    """A verifier that does what it is told."""

    name = "rule"
    scope = Scope.POINT
    needs: frozenset[str] = frozenset()
    fingerprint = "rule"

    def __init__(self, act: Any) -> None:
        self.act = act

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        found = self.act(task)
        return await found if hasattr(found, "__await__") else found


@pytest.mark.usefixtures("registered")
@pytest.mark.parametrize(
    ("act", "error"),
    [
        (lambda task: 1 / 0, "ZeroDivisionError"),
        (lambda task: anyio.sleep(30), "timeout: no score within 0.05 s"),
        (lambda task: [], "returned list [] for 2 responses"),
        (lambda task: ["x", "y"], "as many Reward objects"),
        (
            lambda task: [Reward.failed("r", Status.INFRA_ERROR, "no such server")] * 2,
            "infra_error: no such server",
        ),
    ],
)
def test_a_verifier_that_fails_is_unavailable(act, error):
    register_verifier("mine", lambda options: Rule(act))
    wall_s = 0.05 if "timeout" in error else 60
    entry = a_resource("mine", inputs_required=[], options={"wall_s": wall_s})
    finding = run(entry, a_task(), "a", "b")
    assert finding.decision == "unavailable"
    assert error in str(finding.error)
    assert finding.values == ()


@pytest.mark.usefixtures("registered")
def test_a_verifier_sees_only_what_it_declares():
    seen: list[Task] = []

    def act(task: Task) -> list[Reward]:
        seen.append(task)
        return [Reward("r", 1.0), Reward("r", 0.0)]

    register_verifier("mine", lambda options: Rule(act))
    run(a_resource("mine", inputs_required=["topic"]), a_task(topic="x", reference="4"), "a", "b")
    assert seen[0].fields == {"topic": "x"}


@pytest.mark.parametrize(
    ("kind", "options", "problem"),
    [
        ("numeric_answer", {"feild": "x"}, "options: got 'feild', expected"),
        ("numeric_answer", {"field": "x"}, "reads the field 'x', which is not in inputs_required"),
        ("numeric_answer", {"field": "reference", "absolute": -1.0}, "absolute"),
        ("reference_match", {"where": "start"}, "options.where: got 'start'"),
        ("reference_match", {"repeat": True}, "options.repeat: got True"),
        ("reference_match", {"wall_s": 0}, "wall_s: got 0"),
        ("json_schema", {"schema": {"type": 3}}, "schema: is not valid at type"),
        ("language", {"language": 3}, "options.language: got 3"),
    ],
)
def test_options_are_checked_when_a_package_is_read(kind, options, problem):
    assert problem in options_problem(a_resource(kind, options=options))


@pytest.fixture
def checks(tmp_path):
    return a_skill(
        tmp_path,
        runtime=[
            verifier("match"),
            verifier("number", "numeric_answer", options={"field": "reference"}),
        ],
    )


def test_a_verifier_in_front_of_a_judge(checks):
    class Second:
        name, scope, needs = "second", Scope.PAIR, frozenset[str]()
        fingerprint = "second"

        async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
            return [Reward("second", -1.0), Reward("second", 1.0)]

    scorer = FirstDecisive(SkillChecks(checks, scope=Scope.PAIR), Second())
    task = a_task(reference="4")
    decided = anyio.run(checked, scorer, task, answers("It is 4.", "It is 5."))
    assert [reward.value for reward in decided] == [1.0, -1.0]
    left = anyio.run(checked, scorer, task, answers("It is 4.", "It is 4!"))
    assert [reward.value for reward in left] == [-1.0, 1.0]
    assert left[0].parts[0].status is Status.ABSTAIN


def test_hard_verifiers_that_contradict_each_other_abstain(checks):
    task = a_task(reference="4")
    pair = SkillChecks(checks, scope=Scope.PAIR)
    rewards = anyio.run(checked, pair, task, answers("4 it is not, but 5", "2 + 2 = 4.0"))
    assert {reward.value for reward in rewards} == {None}
    assert {reward.status for reward in rewards} == {Status.ABSTAIN}


def test_checks_without_their_field_have_no_value(checks):
    rewards = anyio.run(checked, SkillChecks(checks), a_task(), answers("4"))
    assert rewards[0].value is None
    assert rewards[0].status is Status.INFRA_ERROR
    assert rewards[0].evidence[0].error == "the sample has no field 'reference'"


def test_code_is_run_on_the_tasks_tests():
    skill = load_skill("code")
    entry = skill.find("unit_tests")
    assert entry is not None
    fields = {
        "test": "def check(candidate):\n    assert candidate(2) == 4\n    assert candidate(-3) == 9\n",
        "entry_point": "square",
        "prompt": 'def square(x):\n    """The square."""\n',
    }
    task = Task("t", (Message("user", "Complete the function."),), fields, labels=())
    good = "```python\ndef square(x):\n    return x * x\n```"
    finding = run(entry, task, "def square(x):\n    return x + x\n", good)
    assert (finding.decision, finding.values) == ("B", (0.0, 1.0))
    checks = SkillChecks(skill)
    rewards = anyio.run(checked, checks, task, answers(good, "I would rather not."))
    assert [reward.value for reward in rewards] == [1.0, 0.0]
    assert "vetoed by unit_tests" in rewards[1].reason


def test_the_reward_of_the_recipe():
    scorer = from_function(verified, options={"only": ["constraint_checks"]})
    fields = {"instruction_id_list": ["punctuation:no_comma"], "kwargs": [{}]}
    task = Task("t", (Message("user", "No commas."),), fields, labels=())
    rewards = anyio.run(checked, scorer, task, answers("a b", "a, b"))
    assert [reward.value for reward in rewards] == [1.0, 0.0]
    hidden = Task("t", task.messages, fields, labels=("kwargs",))
    (reward,) = anyio.run(checked, scorer, hidden, answers("a b"))
    assert reward.value is None
    assert "bears the label" in reward.reason


def test_humaneval_solutions_beat_broken_ones() -> None:
    path = Path(__file__).parents[3] / ".." / "shared" / "data" / "humaneval" / "test.parquet"
    if not path.is_file():
        pytest.skip("shared data 'humaneval' is not here")
    parquet = pytest.importorskip("pyarrow.parquet")
    pair = SkillChecks(load_skill("code"), scope=Scope.PAIR)
    for row in parquet.read_table(path).to_pylist()[:4]:
        fields = {name: row[name] for name in ("test", "entry_point", "prompt")}
        task = Task(row["task_id"], (Message("user", row["prompt"]),), fields, labels=())
        whole = row["prompt"] + row["canonical_solution"]
        broken = row["prompt"] + "    return None\n"
        rewards = anyio.run(checked, pair, task, answers(broken, whole))
        assert [reward.value for reward in rewards] == [-1.0, 1.0]
