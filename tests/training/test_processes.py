from pathlib import Path

import pytest
from training_cases import finish, launch, resolved, trainer

from burnish.config import render
from burnish.store import RunStore
from burnish.training.devices import World

COUNTED = """
import os
from pathlib import Path

def counted(text, task):
    with Path(__file__).with_name(f"calls-{os.environ.get('RANK', 'one')}").open("a") as calls:
        calls.write(task.id + "\\n")
    return {sign}float(len(text))
"""


def write_reward(folder: Path, sign: str = "") -> dict[str, str]:
    folder.mkdir(exist_ok=True)
    (folder / "counted.py").write_text(COUNTED.replace("{sign}", sign))
    return {"kind": "function", "name": "counted", "path": "counted.py:counted"}


def calls(folder: Path, rank: str) -> list[str]:
    return (folder / f"calls-{rank}").read_text().splitlines()


def test_an_evaluation_is_shared_and_comes_out_as_in_one_process(tmp_path):
    settings = {
        "steps": 1,
        "rewards": [write_reward(tmp_path)],
        "run": {"name": "two", "folder": "."},
        "evaluation": {"prompts": 3},
    }
    (tmp_path / "config.toml").write_text(render(resolved(tmp_path, settings)))
    done = launch(tmp_path)
    assert done.is_well, done.said
    finish(trainer(tmp_path, settings, run="one"))
    with (
        RunStore.open(tmp_path / "one", read_only=True) as one,
        RunStore.open(tmp_path / "two", read_only=True) as two,
    ):
        first, second = ([s for s in r.samples() if s.split != "train"] for r in (one, two))
        marks = [[e.summary["marks"] for e in r.evaluations()] for r in (one, two)]
    assert len(first) == 6
    assert [(s.step, s.index, s.task.id, s.trajectory.text, s.reward.value) for s in first] == [
        (s.step, s.index, s.task.id, s.trajectory.text, s.reward.value) for s in second
    ]
    assert marks[0] == marks[1]
    # Nobody pays for what another process has asked: together they ask what one does alone.
    shares = [calls(tmp_path, rank) for rank in ("0", "1")]
    assert all(shares)
    assert sorted(shares[0] + shares[1]) == sorted(calls(tmp_path, "one"))


def test_processes_with_different_rewards_do_not_train_together(tmp_path):
    for rank, sign in enumerate(("", "-")):
        folder = tmp_path / f"machine-{rank}"
        table = write_reward(folder, sign)
        settings = {"rewards": [table], "run": {"name": "two", "folder": str(tmp_path)}}
        (folder / "config.toml").write_text(render(resolved(tmp_path, settings)))
    done = launch(tmp_path / "machine-0", tmp_path / "machine-1")
    assert all(done.codes)
    line = (
        "process 1 has other contents of counted.py than process 0; expected the same config, "
        "files and data in every process."
    )
    assert line in " ".join(done.said[0].split())
    assert not (tmp_path / "two").exists()


NOTING = """
import os
from pathlib import Path
import msgspec
from burnish.rollouts import StepGame, roll_out, single_turn

class Noting(StepGame):
    spare = 1

    def __init__(self, settings, root):
        self.noted = []

    async def play_step(self, slots, spare, lm, sampling, seed):
        played = await roll_out(slots, lm, sampling, single_turn, seed)
        def worth(t):
            return msgspec.structs.replace(t, info={"rewards": {"letters": float(len(t.text))}})

        return [[worth(t) for t in group] for group in played]

    def evaluation(self):
        return single_turn

    def remember(self, step, trajectories):
        self.noted += [[t.id, t.text] for t in trajectories]
        name = f"noted-{os.environ.get('RANK', 'one')}.json"
        Path(__file__).with_name(name).write_bytes(msgspec.json.encode(self.noted))
        return {}

    def state(self):
        return {"noted": self.noted}

    def restore(self, state):
        self.noted = list(state.get("noted", []))
"""


def test_a_game_of_several_processes_remembers_the_whole_step_in_each(tmp_path):
    (tmp_path / "noting.py").write_text(NOTING)
    settings = {
        "steps": 2,
        "rewards": [{"kind": "env", "name": "letters"}],
        "rollout": {"kind": "function", "path": "noting.py:Noting", "prompts": 3, "samples": 2,
                    "max_tokens": 6},
        "run": {"name": "two", "folder": "."},
        "evaluation": {"prompts": 0},
    }  # fmt: skip
    (tmp_path / "config.toml").write_text(render(resolved(tmp_path, settings)))
    done = launch(tmp_path)
    assert done.is_well, done.said
    noted = [(tmp_path / f"noted-{rank}.json").read_bytes() for rank in ("0", "1")]
    assert noted[0] == noted[1]
    assert noted[0].count(b'["') == 2 * 3 * 2


@pytest.mark.parametrize(("rank", "order"), [(0, ["build", "wait"]), (1, ["wait", "build"])])
def test_the_first_process_writes_to_disk_before_the_others_look_there(rank, order):
    seen: list[str] = []

    class Noted(World):
        def wait(self) -> None:
            seen.append("wait")

    assert Noted(rank, 2).in_turn(lambda: seen.append("build") or rank) == rank
    assert seen == order
