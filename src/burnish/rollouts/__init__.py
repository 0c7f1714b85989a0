"""Rollouts: from a task to trajectories, in one turn or many, with tools and several roles."""

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
