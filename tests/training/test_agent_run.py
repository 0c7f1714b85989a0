from pathlib import Path

import msgspec
import pytest
from training_cases import finish, outcome, trainer

import warm
from burnish.errors import RunChanged
from burnish.records import Author
from burnish.store import RunStore
from burnish.training.events import Finished

AGENTS = Path(__file__).parents[1] / "rollouts"
ROLLOUT = {"kind": "agent", "prompts": 2, "samples": 4, "max_tokens": 12, "turn_tokens": 6}
SCRIPT = """
import json, sys
from pathlib import Path
from training_cases import trainer
from burnish.training.events import StepDone

folder, tables = Path(sys.argv[1]), json.loads(sys.argv[2])
for event in trainer(folder, tables).run():
    if isinstance(event, StepDone):
        (folder / "kill").touch()
"""


def program(folder, **more):
    command = ["python", str(AGENTS / "light_agent.py"), str(folder / "kill")]
    rollout = {**ROLLOUT, "command": command, "batching": "rounds", **more}
    checkpoint = {"every": 1}
    return {"steps": 3, "rollout": rollout, "evaluation": {"prompts": 0}, "checkpoint": checkpoint}


def samples(folder):
    with RunStore.open(folder / "run", read_only=True) as store:
        return [s for s in store.samples() if s.split == "train"]


def test_a_run_that_was_killed_in_an_episode_goes_on_bit_by_bit(tmp_path):
    whole, cut = tmp_path / "whole", tmp_path / "cut"
    for folder in (whole, cut):
        folder.mkdir()
    events = finish(trainer(whole, program(whole)))
    assert isinstance(events[-1], Finished)
    tables = msgspec.json.encode(program(cut)).decode()
    (tmp_path / "script.py").write_text(SCRIPT)
    said = tmp_path / "said.txt"
    code = warm.run("script.py", [str(cut), tables], folder=tmp_path, log=said)
    assert code == -9, said.read_text()
    assert not (cut / "kill").exists()
    with RunStore.open(cut / "run", read_only=True) as store:
        assert store.summary().steps < 3
    finish(trainer(cut, program(cut)))
    first, second = outcome(whole / "run"), outcome(cut / "run")
    for key in first:
        if key != "samples":  # these name the data files
            assert first[key] == second[key], key
    kinds = [[(s.step, s.index, s.trajectory) for s in samples(f)] for f in (whole, cut)]
    assert kinds[0] == kinds[1]
    for sample in samples(whole):
        spans = sample.trajectory.spans
        assert [s.trainable for s in spans] == [s.author is Author.MODEL for s in spans]
        assert sample.trajectory.info["agent"]["requests"] == 2


def test_conversations_of_an_episode_share_its_reward_and_its_group(tmp_path):
    rollout = {
        **ROLLOUT,
        "path": f"{AGENTS / 'agent_programs.py'}:branches",
        "limits": {"turns": 8},
    }
    tables = {"steps": 1, "rollout": rollout, "evaluation": {"prompts": 2}}
    finish(trainer(tmp_path, tables))
    found = samples(tmp_path)
    assert len(found) == 2 * 4 * 4
    assert {s.trajectory.group for s in found} == {"0.0", "0.1"}
    assert len({s.trajectory.id for s in found}) == len(found)
    by_answer = {}
    for sample in found:
        by_answer.setdefault((sample.trajectory.group, sample.trajectory.text), set()).add(
            sample.reward.value
        )
    assert all(len(values) == 1 for values in by_answer.values())
    with RunStore.open(tmp_path / "run", read_only=True) as store:
        held_out = [s for s in store.samples() if s.split == "eval:held_out"]
    assert len(held_out) == 2 * 2  # before and after, one an episode


def test_a_run_is_not_continued_with_another_program(tmp_path):
    program_file = tmp_path / "mine.py"
    program_file.write_text((AGENTS / "light_agent.py").read_text())
    rollout = {**ROLLOUT, "command": ["python", str(program_file)]}
    tables = {"steps": 1, "rollout": rollout, "evaluation": {"prompts": 0}}
    finish(trainer(tmp_path, tables))
    program_file.write_text(program_file.read_text() + "# another one\n")
    with pytest.raises(RunChanged, match=r"other contents of mine\.py"):
        trainer(tmp_path, tables)
