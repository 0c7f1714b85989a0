"""A new skill is accepted only where it is not worse on tasks it has not learnt from."""

from functools import partial

import anyio
import pytest
from fake_author import SKILL, StubRoles

from burnish.agents.trace2skill import Trace, choose_skill, evolve, held_out
from burnish.agents.trace2skill.evolution import paired_change
from burnish.agents.trace2skill.patches import Patch
from burnish.errors import UserError
from burnish.records import Message
from burnish.seeds import derive


def test_the_sign_test_by_hand():
    better = choose_skill([False] * 6 + [True], [True] * 6 + [True])
    assert (better.accepted, better.better, better.worse) == (True, 6, 0)
    assert better.p == pytest.approx(2 / 2**6)
    assert choose_skill([True, False, True], [False, True, False]).accepted is False
    assert choose_skill([], []) == (False, 0, 0, 1.0)
    for bad in ([True], [1.0, 0.0], [None, True]):
        with pytest.raises(UserError):
            choose_skill([True, False], bad)


def test_held_out_tasks_do_not_depend_on_the_order():
    names = [f"t{i}" for i in range(20)]
    chosen = dict(zip(names, held_out(names), strict=True))
    again = dict(zip(names[::-1], held_out(names[::-1]), strict=True))
    assert chosen == again
    assert sum(chosen.values()) == 4
    with pytest.raises(UserError, match="share"):
        held_out(names, share=1.0)


@pytest.mark.parametrize(("helps", "accepted"), [(True, True), (False, False)])
def test_evolution_keeps_a_skill_that_helps_and_rejects_one_that_harms(helps, accepted):
    async def agent(task, files, seed):
        knows = "Check the last row" in files["SKILL.md"]
        passed = knows if helps else not knows and seed % 2 == 0
        log = (Message("assistant", "LESSON: Check the last row."),)
        return Trace(id=task, task_id=task, instruction=f"Do {task}.", messages=log, passed=passed)

    async def work():
        tasks = {f"task-{i}": f"task-{i}" for i in range(20)}
        return await evolve(SKILL, tasks, agent, lambda seed: StubRoles(), seeds=2)

    found = anyio.run(work)
    assert found.accepted is accepted
    assert (found.files != SKILL) is accepted
    assert found.rates == ((1.0, 1.0) if helps else (0.0, 0.0))
    assert found.choice is not None
    assert found.choice.accepted is accepted
    assert (found.choice.better > found.choice.worse) is accepted


def evolved(agent, count=20, **options):
    async def work():
        tasks = {f"task-{i}": f"task-{i}" for i in range(count)}
        return await evolve(SKILL, tasks, agent, lambda seed: StubRoles(), **options)

    return anyio.run(work)


def test_the_best_is_chosen_among_the_seeds_that_changed_the_skill():
    class Second(StubRoles):
        def __init__(self, seed):
            super().__init__()
            self.is_silent = seed == 0

        async def propose(self, records, files):
            return Patch() if self.is_silent else await super().propose(records, files)

    async def agent(task, files, seed):
        log = (Message("assistant", "LESSON: Check the last row."),)
        return Trace(id=task, task_id=task, instruction=f"Do {task}.", messages=log, passed=True)

    tasks = {f"task-{i}": f"task-{i}" for i in range(20)}
    found = anyio.run(partial(evolve, SKILL, tasks, agent, Second, seeds=2))
    assert [run.status for run in found.runs] == ["nothing to learn", "changed"]
    assert found.rates == (1.0, 1.0)
    assert found.choice is not None
    assert "Check the last row" in found.files["SKILL.md"]


def test_without_a_held_out_pair_nothing_is_accepted():
    async def agent(task, files, seed):
        knows = "Check the last row" in files["SKILL.md"]
        log = (Message("assistant", "LESSON: Check the last row."),)
        return Trace(id=task, task_id=task, instruction=f"Do {task}.", messages=log, passed=knows)

    found = evolved(agent, seeds=1, share=0.0)
    assert found.rates == (1.0,)
    assert (found.accepted, found.files) == (False, SKILL)


def test_rates_are_over_tasks_that_both_skills_played():
    async def agent(task, files, seed):
        knows = "Check the last row" in files["SKILL.md"]
        number = int(task[5:])
        if knows and number % 2:
            return None  # lost on the way
        log = (Message("assistant", "LESSON: Check the last row."),)
        passed = number % 2 == 0
        return Trace(id=task, task_id=task, instruction=f"Do {task}.", messages=log, passed=passed)

    found = evolved(agent, seeds=1)
    assert (found.before, found.rates) == (1.0, (1.0,))

    async def lost(task, files, seed):
        return None

    assert evolved(lost, seeds=2)[4:] == ((None, None), None, (None, None), None)


def test_a_change_is_paired_by_task_and_says_whether_it_is_noise():
    change = paired_change([False] * 6 + [True] * 4, [True] * 6 + [True] * 4)
    assert (change.before, change.after, change.difference.value) == (0.4, 1.0, 0.6)
    assert change.p == pytest.approx(2 / 2**6)
    assert 0 < change.difference.low < 0.6 < change.difference.high
    assert not change.is_noise
    assert paired_change([True, False, True, False], [False, True, True, True]).is_noise
    assert paired_change([], []) is None


def test_a_seed_is_compared_with_its_own_games_not_with_another_seed_s_luck():
    async def agent(task, files, seed):
        lucky = seed in seeds_of_first
        log = (Message("assistant", "nothing to learn"),)
        return Trace(id=task, task_id=task, instruction=f"Do {task}.", messages=log, passed=lucky)

    seeds_of_first = {derive(0, f"task-{i}") for i in range(20)}
    found = evolved(agent, seeds=2)
    assert (found.before, found.rates) == (1.0, (1.0, 0.0))
    assert [(one.before, one.after) for one in found.changes] == [(1.0, 1.0), (0.0, 0.0)]
    assert [one.p for one in found.changes] == [1.0, 1.0]
