"""Rollouts: from a task to trajectories, in one turn or many, with tools and several roles."""

from burnish.rollouts.agent import AgentRollout as AgentRollout
from burnish.rollouts.base import FileOptions as FileOptions
from burnish.rollouts.base import Players as Players
from burnish.rollouts.base import Recorded as Recorded
from burnish.rollouts.base import Rollout as Rollout
from burnish.rollouts.base import RolloutSettings as RolloutSettings
from burnish.rollouts.base import SingleTurn as SingleTurn
from burnish.rollouts.base import Slot as Slot
from burnish.rollouts.base import StepGame as StepGame
from burnish.rollouts.base import roll_out as roll_out
from burnish.rollouts.base import single_turn as single_turn
from burnish.rollouts.env import Env as Env
from burnish.rollouts.env import EnvRollout as EnvRollout
from burnish.rollouts.env import FunctionRollout as FunctionRollout
from burnish.rollouts.env import Observation as Observation
from burnish.rollouts.env import ToolEnv as ToolEnv
from burnish.rollouts.env import env_rollout as env_rollout
from burnish.rollouts.session import Limits as Limits
from burnish.rollouts.session import Session as Session
from burnish.rollouts.tool import Tool as Tool
from burnish.rollouts.tool import ToolResult as ToolResult

RolloutConfig = SingleTurn | EnvRollout | FunctionRollout | AgentRollout | Recorded
"""Every kind of rollout that a config can name."""
