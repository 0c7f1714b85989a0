"""The calculator: does a small model learn to call a tool, and to use what it returns?

The warm start shows a few demonstrations of the form. GRPO is rewarded for the right number alone;
that it takes a call, and a second turn that reads the result, is for the model to find.
"""

from __future__ import annotations

import statistics
from pathlib import Path
from typing import Any

from burnish.lm.base import Sampling
from burnish.rollouts import EnvRollout, Limits
from burnish.rollouts.env import ToolConfig
from lab.measure import answer, held_out, part
from lab.plan import Arm, Column, Study, Subject

FILE = Path(__file__).resolve().parents[2] / "recipes" / "calculator" / "calculator.py"
TASK: dict[str, Any] = {"kind": "function", "path": f"{FILE}:make"}
REWARDS: list[dict[str, Any]] = [{"kind": "numeric", "name": "correct"}]
MAX_TOKENS, TURN_TOKENS, TURNS = 96, 56, 4


def use_of_tool(subject: Subject) -> dict[str, float]:
    """Greedy rollouts with the tool at hand: right answers, calls, and calls that failed.

    `unseen`: numbers of four digits, which no demonstration and no training task had.
    """
    settings = EnvRollout(
        tools=(ToolConfig(path=f"{FILE}:calculate"),),
        turn_tokens=TURN_TOKENS,
        limits=Limits(turns=TURNS),
    )
    found: dict[str, float] = {}
    for name, options in (("trained", {}), ("unseen", {"digits": 4})):
        tasks = held_out({**TASK, "options": options}, subject.prompts)
        greedy = Sampling(temperature=0.0, max_tokens=MAX_TOKENS)
        rollout = settings.build()
        items = answer(subject.model, subject.device, tasks, REWARDS, greedy, rollout=rollout)
        found[f"{name}_accuracy"] = statistics.fmean(part(items, "correct"))
        if name == "trained":
            counts = [item.trajectory.info.get("tool_calls", {}) for item in items]
            found["called"] = statistics.fmean(float(bool(count)) for count in counts)
            found["calls"] = statistics.fmean(count.get("count", 0) for count in counts)
            found["failed_calls"] = statistics.fmean(count.get("errors", 0) for count in counts)
            turns = [item.trajectory.info.get("turns", 1) for item in items]
            found["two_turns"] = statistics.fmean(float(count >= 2) for count in turns)
    return found


def _study(name: str, steps: int, batch: int) -> Study:
    return Study(
        name=name,
        about="Sums, differences and products of three-digit numbers, with a calculator that the "
        f"model may call. All arms start from {steps} steps of imitation on {batch} turns each.",
        overrides={"stages.0.steps": steps, "stages.0.train.batch": batch},
        arms=(
            Arm("control: no update", "calculator", {"optimiser.learning_rate": 0.0}),
            Arm("GRPO with the tool", "calculator"),
            Arm(
                "GRPO without a tool",
                "calculator",
                {"rollout": {"kind": "single_turn", "max_tokens": TURN_TOKENS}},
            ),
        ),
        columns=(
            Column("trained_accuracy", "accuracy"),
            Column("unseen_accuracy", "accuracy, four digits"),
            Column("called", "rollouts with a call"),
            Column("two_turns", "two or more turns"),
            Column("calls", "calls", 2),
            Column("failed_calls", "failed calls", 2),
        ),
        measure=use_of_tool,
        headline="trained_accuracy",
        panels=("reward/correct/mean", "length/mean", "policy/entropy"),
    )


STUDIES = (
    # How much of the form must be shown before trying finds the rest?
    _study("calculator_shown_little", steps=4, batch=4),
    _study("calculator_shown_more", steps=12, batch=16),
)
