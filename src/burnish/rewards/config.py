"""Rewards as a recipe file names them, and the scorers they become.

[[rewards]]
kind = "numeric"
weight = 1.0

[[rewards]]
kind = "function"
path = "my_rewards.py:short_enough"
weight = 0.1
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec

from burnish.errors import UserError
from burnish.rewards.checks.base import CheckConfig, check_of
from burnish.rewards.checks.code import CodeConfig
from burnish.rewards.checks.env import EnvConfig
from burnish.rewards.checks.instructions import InstructionsConfig
from burnish.rewards.checks.json_schema import JsonSchemaConfig
from burnish.rewards.checks.language import LanguageConfig
from burnish.rewards.checks.length import LengthConfig
from burnish.rewards.checks.match import MatchConfig
from burnish.rewards.checks.mathematics import MathematicsConfig
from burnish.rewards.checks.numeric import NumericConfig
from burnish.rewards.checks.pair_scores import GenRMConfig
from burnish.rewards.checks.regex import RegexConfig
from burnish.rewards.checks.relevance import GradeConfig, SectionConfig
from burnish.rewards.checks.tags import TagsConfig
from burnish.rewards.checks.tool_call import ToolCallConfig
from burnish.rewards.combine import FirstDecisive, Gate, Weighted
from burnish.rewards.function import from_function
from burnish.rewards.judge_reward import (
    BaseJudgeConfig,
    FunctionJudgeConfig,
    JudgeRewardConfig,
    LMJudgeConfig,
)
from burnish.rewards.pair_judges import PairJudge, ScoreJudge
from burnish.rewards.pairs import VoteRule
from burnish.rewards.scorer import Scorer
from burnish.rewards.versus import VersusReference
from burnish.source import find_function


class FunctionConfig(CheckConfig, frozen=True, tag="function"):
    """Your own function, by path: `my_file.py:name` or `package.module:name`; any finite value."""

    path: str
    options: dict[str, Any] = msgspec.field(default_factory=dict)
    deadline_s: float = 30.0
    """Wall clock of one call."""


class GateConfig(CheckConfig, frozen=True, tag="gate"):
    """`then` for responses that pass `hard`, `otherwise` for the rest."""

    hard: RewardConfig
    then: RewardConfig
    threshold: float = 1.0
    otherwise: float = 0.0


class FirstDecisiveConfig(CheckConfig, frozen=True, tag="first_decisive"):
    """The first of `rewards` that has a value."""

    rewards: tuple[RewardConfig, ...]


class ScoreJudgeConfig(BaseJudgeConfig, frozen=True, tag="score"):
    """Any reward that scores single texts; of two texts the one with the higher score wins."""

    reward: RewardConfig


JudgeConfig = FunctionJudgeConfig | JudgeRewardConfig | LMJudgeConfig | ScoreJudgeConfig


class VersusConfig(CheckConfig, frozen=True, tag="versus"):
    """+1, 0 or -1: how a response does against a random one of its own group (BRPO)."""

    judge: JudgeConfig
    seed: int = 0
    references: int = 1
    """How many responses of the group are references; the value is the mean over them."""
    votes: int = 1
    """How often each pair is asked, in both orders each time."""
    both_orders: bool = True
    rule: VoteRule = "unanimous"
    inconsistent: float = 0.0
    """The outcome where the votes do not agree."""
    tie: float = 0.0
    """The outcome of equal scores; -1 as published, 0 keeps the mean at 0."""
    deadline_s: float = 45.0
    """Wall clock of all questions about one group."""


RewardConfig = (
    CodeConfig
    | EnvConfig
    | FunctionConfig
    | FirstDecisiveConfig
    | GateConfig
    | GenRMConfig
    | GradeConfig
    | InstructionsConfig
    | JsonSchemaConfig
    | JudgeRewardConfig
    | LanguageConfig
    | LengthConfig
    | MatchConfig
    | MathematicsConfig
    | NumericConfig
    | RegexConfig
    | SectionConfig
    | TagsConfig
    | ToolCallConfig
    | VersusConfig
)


def build(config: RewardConfig, *, base: str | Path = ".") -> Scorer:
    """The scorer that a config describes; files are looked up relative to `base`."""
    if isinstance(config, FunctionConfig):
        function = find_function(config.path, "reward", Path(base))
        name = config.name or config.path.rpartition(":")[2]
        if isinstance(function, Scorer):  # given in Python as it is
            return function
        return from_function(
            function, name, config.weight, options=config.options, deadline_s=config.deadline_s
        )
    if isinstance(config, GateConfig):
        return Gate(
            build(config.hard, base=base),
            build(config.then, base=base),
            threshold=config.threshold,
            otherwise=config.otherwise,
            name=config.title,
        )
    if isinstance(config, FirstDecisiveConfig):
        parts = [build(part, base=base) for part in config.rewards]
        return FirstDecisive(*parts, name=config.title)
    if isinstance(config, VersusConfig):
        return _versus(config, base)
    if isinstance(config, JudgeRewardConfig):
        return config.build(base)
    return check_of(config)


def _versus(config: VersusConfig, base: str | Path) -> VersusReference:
    return VersusReference(
        _judge(config.judge, base),
        seed=config.seed,
        references=config.references,
        votes=config.votes,
        both_orders=config.both_orders,
        tie=config.tie,
        rule=config.rule,
        inconsistent=config.inconsistent,
        deadline_s=config.deadline_s,
        name=config.title,
        weight=config.weight,
    )


def _judge(config: JudgeConfig, base: str | Path) -> PairJudge:
    if isinstance(config, ScoreJudgeConfig):
        return ScoreJudge(build(config.reward, base=base))
    if isinstance(config, JudgeRewardConfig):
        return config.build_pair(base)
    return config.build(base) if isinstance(config, FunctionJudgeConfig) else config.build()


def build_all(configs: Sequence[RewardConfig], *, base: str | Path = ".") -> Weighted:
    """The total of all rewards of a run, also where there is only one."""
    if not configs:
        raise UserError("the recipe has no rewards; add a [[rewards]] table with a kind.")
    scorers = [build(config, base=base) for config in configs]
    names = [scorer.name for scorer in scorers]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UserError(
            f"two rewards are named {', '.join(map(repr, twice))}; give each [[rewards]] table "
            "its own `name`."
        )
    weights = {s.name: config.weight for s, config in zip(scorers, configs, strict=True)}
    if all(weight == 0 for weight in weights.values()):
        raise UserError("every reward has weight 0, so there is nothing to learn from.")
    return Weighted(scorers, weights=weights)
