"""BRPO: a pairwise judge inside the group, against scalar rewards, leaky and from the same judge."""

from __future__ import annotations

import statistics
from typing import Any

from recipes.brpo.stories import compare

from burnish.lm.base import Sampling
from lab.measure import answer, held_out, part
from lab.plan import Arm, Column, Study, Subject

GAME = "recipes.brpo.stories"
TASK = {"kind": "function", "path": "recipes.brpo.stories:make"}
MAX_TOKENS = 96


def _score(name: str, weight: float) -> dict[str, Any]:
    return {"kind": "function", "name": name, "path": f"{GAME}:{name}", "weight": weight}


WATCHED = [_score("quality", 0.0), _score("praise_words", 0.0)]
WINS = {
    "kind": "versus",
    "name": "wins",
    "judge": {"kind": "function", "path": f"{GAME}:compare"},
}


def against_start(subject: Subject) -> dict[str, float]:
    """Quality and padding of one sampled story a request, and who wins against the start model."""
    tasks = held_out(TASK, subject.prompts)
    sampling = Sampling(temperature=1.0, max_tokens=MAX_TOKENS)
    rewards = [_score("quality", 1.0), _score("praise_words", 1.0)]
    own = answer(subject.model, subject.device, tasks, rewards, sampling)
    found = {
        "quality": statistics.fmean(part(own, "quality")),
        "praise_words": statistics.fmean(part(own, "praise_words")),
        "tokens": statistics.fmean(item.trajectory.trained_tokens for item in own),
    }
    if subject.model != subject.start:
        before = answer(subject.start, subject.device, tasks, rewards, sampling)
        wins = 0.0
        for mine, theirs in zip(own, before, strict=True):
            scores = compare(mine.task.prompt, mine.trajectory.text, theirs.trajectory.text)
            wins += 0.5 * (1 + (scores[0] > scores[1]) - (scores[0] < scores[1]))
        found["win_rate"] = wins / len(own)
    return found


def _scalar(name: str) -> dict[str, Any]:
    return {
        "rewards": [_score(name, 1.0), *WATCHED],
        "policy.advantage": {"kind": "sum_then_normalise", "scale": "group_std"},
        "policy.select": {"kind": "all"},
    }


STUDIES = (
    Study(
        name="brpo_judges",
        about="Short stories without a right answer. What does a pairwise judge inside the group "
        "change against a scalar that can be gamed, and against the same judge as a scalar?",
        arms=(
            Arm("GRPO, leaky scalar", "brpo", _scalar("leaky_score")),
            Arm("GRPO, judge as scalar", "brpo", _scalar("mean_score")),
            Arm("BRPO", "brpo"),
        ),
        overrides={"rewards": [WINS, *WATCHED]},
        columns=(
            Column("quality", "quality"),
            Column("win_rate", "wins against the start"),
            Column("tokens", "tokens of a story", 1),
            Column("praise_words", "praise words", 2),
        ),
        measure=against_start,
        panels=("reward/quality/mean", "length/mean", "reward/praise_words/mean"),
    ),
)
