"""Rollouts: from a task to trajectories, in one turn or many, with tools and several roles."""

from burnish.rollouts.agent import AgentRollout as AgentRollout
from burnish.rollouts.base import (
    FileOptions as FileOptions,
    Players as Players,
    Recorded as Recorded,
    Rollout as Rollout,
    RolloutSettings as RolloutSettings,
    SingleTurn as SingleTurn,
    Slot as Slot,
    StepGame as StepGame,
    roll_out as roll_out,
    single_turn as single_turn,
)
from burnish.rollouts.env import (
    Env as Env,
    EnvRollout as EnvRollout,
    FunctionRollout as FunctionRollout,
    Observation as Observation,
    ToolEnv as ToolEnv,
    env_rollout as env_rollout,
)
from burnish.rollouts.session import Limits as Limits, Session as Session
from burnish.rollouts.tool import Tool as Tool, ToolResult as ToolResult

RolloutConfig = SingleTurn | EnvRollout | FunctionRollout | AgentRollout | Recorded
"""Every kind of rollout that a config can name."""
