"""The study with a real small agent: fixes that pass become examples, the control exchanges them."""

import anyio
from lab.trace2skill.examples import DRAFT, ExampleRoles, fixes, is_right, jobs, shuffled, traces_of

from burnish.agents.trace2skill import distil, pool_of


def test_fixes_come_from_question_and_reply_alone():
    for job in jobs(4, "seed"):
        assert any(is_right(job, one) for one in fixes(job.question, "I cannot say."))
    assert fixes("What?", "It is red.") == ["It", "is", "red"]


def test_the_distilled_skill_has_two_examples_a_kind_and_the_control_others():
    tasks = jobs(3, "seed")
    pool = pool_of(traces_of(tasks, [["I cannot say.", "no"] for _ in tasks]))
    found = anyio.run(distil, pool, DRAFT, ExampleRoles(tasks))
    text = found.files["SKILL.md"]
    assert found.status == "changed"
    assert sum(line.startswith("  ") for line in text.split("\n")) == 3 * 2 * 2
    other = shuffled(found.files)["SKILL.md"]
    assert sorted(other.split("\n")) == sorted(text.split("\n"))
    assert other != text
