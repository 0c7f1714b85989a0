"""JudgeBench with a reference verifier in front of other judges, without a language model.

    python -m lab.skill_rm.judgebench

The verifier is a skill package (`skills/reference_answers`) run by `SkillChecks`; what it leaves open
goes to a control. Its gain is access to the answer, so the same controls stand alone beside it, and
a check of form that does not see the reference.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Sequence
from typing import Any

import anyio

from burnish.records import Message, Response, Reward, Task
from burnish.rewards import FirstDecisive, Scope, Scorer
from burnish.rewards.judges.skill_rm import SkillChecks, load_skill
from burnish.rewards.scorer import checked
from burnish.seeds import derive, digest
from lab.skill_rm.report import DATA, HOME, RESULTS, Tally, markdown, row, tally, write

Rule = Callable[[Task, Response, Response], float]


class Control:
    """A pair scorer from a rule that needs no model."""

    scope = Scope.PAIR
    needs: frozenset[str] = frozenset()

    def __init__(self, name: str, rule: Rule) -> None:
        self.name, self.rule = name, rule
        self.fingerprint = digest(name)

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        value = self.rule(task, *responses)
        return [Reward(self.name, value), Reward(self.name, 0.0 - value)]


def longer(task: Task, a: Response, b: Response) -> float:
    return float((len(a.text) > len(b.text)) - (len(a.text) < len(b.text)))


def coin(task: Task, a: Response, b: Response) -> float:
    """A fair coin that does not depend on the order."""
    first, second = sorted((digest(a.text), digest(b.text)))
    winner = first if derive("coin", task.id) % 2 else second
    return 1.0 if digest(a.text) == winner else -1.0


def in_asked_form(task: Task, a: Response, b: Response) -> float:
    """Which response ends in the form that the question asks for; no reference is seen."""
    forms = {
        "five times": re.compile(r"\b([A-Z])\1{4}\b"),
        "***X***": re.compile(r"\*\*\*[^*\n]+\*\*\*"),
        "**bold**": re.compile(r"\*\*[^*\n]+\*\*"),
        "boxed": re.compile(r"\\boxed\{"),
    }
    form = next((pattern for words, pattern in forms.items() if words in task.prompt), None)
    if form is None:
        return 0.0
    return float(bool(form.search(a.text[-400:]))) - float(bool(form.search(b.text[-400:])))


def load() -> list[tuple[Task, list[Response], str]]:
    """Task, the two responses (the better one first) and the subset of every pair."""
    import pyarrow.parquet as pq

    rows: list[dict[str, Any]] = pq.read_table(DATA / "judgebench" / "test.parquet").to_pylist()
    pairs = []
    for one in rows:
        fields = {"reference": one["ground_truth"]}
        message = (Message("user", one["prompt"]),)
        task = Task(one["question_id"], message, fields, labels=("reference",))
        texts = [Response("x", one["chosen"]), Response("y", one["rejected"])]
        kind = one["query_type"]
        pairs.append((task, texts, "mmlu-pro" if kind.startswith("mmlu") else kind))
    return pairs


async def sides(
    scorer: Scorer, pairs: Sequence[tuple[Task, list[Response], str]]
) -> list[float | None]:
    """Positive where the better response wins; shown first or second by a seeded coin."""
    found: list[float | None] = []
    for task, (good, bad), _ in pairs:
        is_first = derive("place", task.id) % 2 == 0
        shown = [good, bad] if is_first else [bad, good]
        rewards = await checked(scorer, task, shown)
        found.append(rewards[0 if is_first else 1].value)
    return found


def main() -> int:
    pairs = load()
    skill = load_skill(HOME / "skills" / "reference_answers")
    verifier = SkillChecks(skill, scope=Scope.PAIR, name="reference verifier")
    controls = [
        Control("longer wins", longer),
        Control("coin", coin),
        Control("form of the answer", in_asked_form),
    ]
    judges: list[Scorer] = [*controls, verifier]
    judges += [
        FirstDecisive(verifier, one, name=f"reference verifier, then {one.name}")
        for one in controls[:2]
    ]
    form = _open_where_equal(controls[2])
    judges.append(FirstDecisive(form, controls[0], name="form of the answer, then longer wins"))
    found = {judge.name: anyio.run(sides, judge, pairs) for judge in judges}
    rows = [row(name, tally(values)) for name, values in found.items()]
    kinds = sorted({kind for *_, kind in pairs})
    by_kind = [
        {"subset": kind, **row("reference verifier", _of(kind, pairs, found["reference verifier"]))}
        for kind in kinds
    ]
    text = (
        f"# JudgeBench, {len(pairs)} pairs: a reference verifier in front\n\n"
        "No language model. Accuracy over all counts an open pair as not right; in brackets Wilson's "
        "95 % interval. The verifier reads the reference: it is oracle evidence, and its gain is the "
        "answer itself. The recorded judges of JudgeBench are not in our data, so what follows the "
        "verifier here are controls.\n\n"
        f"{markdown(rows)}\n\nThe verifier alone, by subset:\n\n{markdown(by_kind)}\n\n"
        "The reference of `livecodebench` is prose or code, which a whole-token match seldom finds.\n\n"
        f"Skill: `reference_answers`, sha-256 `{skill.hash}`. Repeat: "
        "`python -m lab.skill_rm.judgebench`.\n"
    )
    write("judgebench", text, rows + by_kind, RESULTS)
    print(text)
    return 0


def _open_where_equal(control: Control) -> Scorer:
    """The same control with no value where it sees no difference."""
    from burnish.records import Status

    class Open(Control):
        async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
            rewards = await super().score(task, responses)
            if rewards[0].value:
                return rewards
            return [Reward.failed(self.name, Status.ABSTAIN, "no difference")] * 2

    return Open(control.name, control.rule)


def _of(
    kind: str,
    pairs: Sequence[tuple[Task, list[Response], str]],
    values: Sequence[float | None],
) -> Tally:
    return tally([value for value, (*_, own) in zip(values, pairs, strict=True) if own == kind])


if __name__ == "__main__":
    sys.exit(main())
