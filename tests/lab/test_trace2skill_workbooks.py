"""The study's agent on workbooks: each mistake fails a task, its rule repairs it."""

import pytest

pytest.importorskip("openpyxl", reason="the extra 'spreadsheet' is not installed")

from lab.trace2skill import workbooks as study


def with_rule(*rules):
    return {"SKILL.md": study.SKILL["SKILL.md"] + "\n".join(rules) + "\n"}


def a_job(name, **more):
    plain = next(job for job in study.jobs(0, "test", 20) if not job.noise)
    return study.Job(name, plain.rows, frozenset(more.pop("traps", ())), **more)


@pytest.mark.parametrize("mistake", study.MISTAKES)
def test_each_mistake_fails_and_each_wording_of_its_rule_repairs_it(mistake):
    job = a_job(mistake, traps=[mistake])
    assert not study.passes(job, study.decisions(job, study.SKILL))
    for rule in study.MISTAKES[mistake][1]:
        assert study.heeded(rule) == {mistake}
        assert study.passes(job, study.decisions(job, with_rule(rule)))


def test_of_opposite_rules_the_last_one_counts():
    good = study.MISTAKES["unsorted"][1][0]
    assert study.heeded(f"{good}\n{study.ODD['unsorted']}") == frozenset()
    assert study.heeded(f"{study.ODD['unsorted']}\n{good}") == {"unsorted"}
