"""Rollouts: from a task to trajectories, in one turn or many, with tools and several roles.

    session = Session(lm, task.messages)
    reply = await session.generate(Sampling(max_tokens=64))
    session.observe([Message("tool", "42")])

A kind of rollout is one file; its settings stand in the list below, which the config, its errors
and `[rollout] kind = ...` read.
"""

from burnish.rollouts.agent import AgentRollout
from burnish.rollouts.base import (
    FileOptions,
    Players,
    Rollout,
    RolloutSettings,
    Slot,
    StepGame,
    roll_out,
)
from burnish.rollouts.env import Env, EnvRollout, FunctionRollout, Observation, ToolEnv, env_rollout
from burnish.rollouts.one_turn import Recorded, SingleTurn, single_turn
from burnish.rollouts.session import Limits, Session
from burnish.rollouts.tool import Tool, ToolResult

RolloutConfig = SingleTurn | EnvRollout | FunctionRollout | AgentRollout | Recorded
"""Every kind of rollout that a config can name."""

__all__ = [
    "AgentRollout",
    "Env",
    "EnvRollout",
    "FileOptions",
    "FunctionRollout",
    "Limits",
    "Observation",
    "Players",
    "Recorded",
    "Rollout",
    "RolloutConfig",
    "RolloutSettings",
    "Session",
    "SingleTurn",
    "Slot",
    "StepGame",
    "Tool",
    "ToolEnv",
    "ToolResult",
    "env_rollout",
    "roll_out",
    "single_turn",
]
