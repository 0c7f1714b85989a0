"""Proposers and games of MARCH that tests name by path."""

import os
import signal
from pathlib import Path

from burnish.agents.march import game
from burnish.rewards.judges.march import Claim


def letters(answer, task):
    """Claims for the random text of a tiny model: how often each of three letters occurs."""
    return [Claim(f"How often {letter}?", str(answer.count(letter))) for letter in "abc"]


def pay(players):
    """Random checkers find nothing, so that all would earn the same: pay for other letters, too."""
    for session in players.sessions:
        if "rewards" in session.info:
            session.info["rewards"]["march"] += len(set(session.text)) / 10


async def play(task, players, seed, **options):
    """The game with claims that any text has."""
    await game.play(task, players, seed, proposer=letters, **options)
    pay(players)


async def dies(task, players, seed, countdown="", **options):
    """The same, but the process ends in the middle of an episode when the countdown in a file does."""

    def counted(answer, task):
        file = Path(countdown)
        if file.exists():
            left = int(file.read_text()) - 1
            file.write_text(str(left))
            if left == 0:
                file.unlink()
                os.kill(os.getpid(), signal.SIGKILL)
        return letters(answer, task)

    await game.play(task, players, seed, proposer=counted, **options)
    pay(players)


def make(rng):
    """A question with documents, for a model that knows no words."""
    word = "".join(rng.choice("abc") for _ in range(4))
    return {"prompt": f"{word}?", "query": f"{word}?", "documents": [f"{word} {word}"]}


async def plain(task, players, seed):
    """The Solver without a game, paid what the game of random checkers pays: no claim is confirmed."""
    solver = players.session(task.messages, role="solver")
    said = (await players.generate(solver)).text.strip()
    solver.info["rewards"] = {"march": -1.0 if said else 0.0, "claims": 3.0 if said else 0.0}
    pay(players)
