"""Games that play the tasks of a step together: the hook that they are called by."""

import anyio
import pytest
from rollout_cases import Speaker

from burnish.lm.base import Sampling
from burnish.records import Message, Task
from burnish.rollouts import FunctionRollout, StepGame, roll_out

SOURCE = """
from burnish.rollouts import StepGame, roll_out, single_turn

class Together(StepGame):
    spare = 2

    def __init__(self, settings, root, word="a"):
        self.settings, self.root, self.word, self.steps = settings, root, word, 0
        if word == "bad":
            raise KeyError(word)

    async def play_step(self, slots, spare, lm, sampling, seed):
        self.seen = ([slot for slot, _ in slots], [task.id for task in spare])
        return await roll_out(slots, lm, sampling, single_turn, seed)

    def evaluation(self):
        return single_turn

    def remember(self, step, trajectories):
        self.steps += 1
        return {"game/steps": float(self.steps)}

    def state(self):
        return {"steps": self.steps}

    def restore(self, state):
        self.steps = state.get("steps", 0)
"""


@pytest.fixture
def path(tmp_path):
    (tmp_path / "games.py").write_text(SOURCE)
    return f"{tmp_path / 'games.py'}:Together"


def tasks(*names):
    return [Task(name, (Message("user", "q?"),)) for name in names]


def test_a_game_gets_all_slots_and_the_spare_tasks(path):
    game = FunctionRollout(path=path, options={"word": "b"}).build()
    assert isinstance(game, StepGame)
    assert game.word == "b"
    lm = Speaker(lambda prompt, sampling: "x")
    slots = list(enumerate(tasks("a", "b")))
    played = anyio.run(lambda: roll_out(slots, lm, Sampling(n=2), game, 1, tasks("c")))
    assert game.seen == ([0, 1], ["c"])
    assert [[t.task_id for t in group] for group in played] == [["a", "a"], ["b", "b"]]


def test_a_game_alone_is_a_rollout(path):
    game = FunctionRollout(path=path).build()
    lm = Speaker(lambda prompt, sampling: "x")

    async def alone():
        from burnish.rollouts import Players

        return await game(tasks("a")[0], Players(lm, Sampling(n=2)))

    assert len(anyio.run(alone)) == 2
