"""The studies of Skill-RM: their pairs are what they say, and their effects are there."""

from __future__ import annotations

import anyio
import pytest
from lab.skill_rm.ifeval import load as load_ifeval, scripted_judge
from lab.skill_rm.judgebench import load as load_judgebench, sides
from lab.skill_rm.llmbar import load as load_llmbar
from lab.skill_rm.masking import TOYS
from lab.skill_rm.report import DATA, HOME, interval, tally
from lab.toy import run_toy

from burnish.rewards import Scope
from burnish.rewards.checks.instructions import check_instruction, read_instructions
from burnish.rewards.judges.skill_rm import SkillChecks, load_skill


def need(*names: str) -> None:
    missing = [name for name in names if not (DATA / name).is_dir()]
    if missing:
        pytest.skip(f"shared data {', '.join(missing)} is not here")


def test_a_tally_and_its_interval():
    found = tally([1.0, 1.0, -1.0, 0.0, None])
    assert (found.right, found.wrong, found.open) == (2, 1, 2)
    assert (found.accuracy, found.decided) == (0.4, 0.6)
    low, high = interval(0.5, 100)
    assert (round(low, 4), round(high, 4)) == (0.4038, 0.5962)


def test_a_reference_verifier_decides_most_of_judgebench_and_is_right():
    need("judgebench")
    pairs = load_judgebench()[::4]
    skill = load_skill(HOME / "skills" / "reference_answers")
    found = tally(anyio.run(sides, SkillChecks(skill, scope=Scope.PAIR), pairs))
    assert found.all == 107
    assert 0.6 < found.decided < 0.85
    assert found.accuracy_of_decided > 0.9


def test_ifeval_pairs_differ_in_exactly_one_demand():
    need("ifeval")
    pairs, left_out = load_ifeval()
    assert len(pairs) + left_out == 400
    assert len(pairs) > 350
    for task, (good, bad), broken in pairs[::20]:
        wanted = read_instructions(task.fields["instruction_id_list"], task.fields["kwargs"])
        kept = [bool(check_instruction(good.text, *one).obeyed) for one in wanted]
        lost = [one.id for one in wanted if not check_instruction(bad.text, *one).obeyed]
        assert all(kept)
        assert lost == [broken]


def test_the_fair_judge_reads_demands_from_the_request():
    need("ifeval")
    pairs, _ = load_ifeval()
    skill = load_skill(HOME / "skills" / "stated_demands")
    found = tally(anyio.run(sides, scripted_judge(skill), pairs[:24]))
    assert found.accuracy_of_decided > 0.85
    assert found.decided > 0.5


def test_recorded_judges_of_llmbar_are_read_by_output_and_not_by_place():
    need("llmbar", "recorded_judges")
    recorded = load_llmbar()
    assert len(recorded) == 12
    pairs = recorded["GPT-4", "Vanilla"]
    assert len(pairs) == 290
    assert sum(one == two for one, two in pairs.values()) / 290 > 0.85


def test_masking_beats_a_made_up_half():
    (toy,) = [toy for toy in TOYS if toy.name.endswith("provoked")]
    arms = {arm.name: arm for arm in toy.arms}
    masked = run_toy(toy, arms["failures masked"], 0, 30).row
    half = run_toy(toy, arms["failures are 0.5"], 0, 30).row
    assert masked["accuracy"] > half["accuracy"] + 0.1
    assert half["failing"] > 0.9 > masked["failing"]
