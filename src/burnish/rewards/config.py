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

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Literal

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
from burnish.rewards.checks.speech_plan import SpeechPlanConfig
from burnish.rewards.checks.support import SupportConfig, from_folder
from burnish.rewards.checks.tags import TagsConfig
from burnish.rewards.checks.tool_call import ToolCallConfig
from burnish.rewards.combine import FirstDecisive, ForRoles, Gate, Weighted
from burnish.rewards.function import from_function
from burnish.rewards.judge_reward import (
    BaseJudgeConfig,
    FunctionJudgeConfig,
    JudgeRewardConfig,
    LMJudgeConfig,
)
from burnish.rewards.judges.atp_bench.judge import AtpConfig
from burnish.rewards.judges.evpv.judge import EvpvConfig
from burnish.rewards.judges.march.judge import MarchConfig
from burnish.rewards.judges.proxy_rubric import ProxyRubricConfig
from burnish.rewards.models.process_reward import ProcessRewardModelConfig
from burnish.rewards.models.reward import RewardModelConfig
from burnish.rewards.models.trained_model import TrainedModelConfig
from burnish.rewards.pair_judges import PairJudge, ScoreJudge
from burnish.rewards.pairs import Inconsistent, VoteRule
from burnish.rewards.scorer import Scorer
from burnish.rewards.tournament import Scheme, Tournament
from burnish.rewards.versus import VersusReference
from burnish.source import find_function


class FunctionConfig(CheckConfig, frozen=True, tag="function"):
    """Your own function, by path: `my_file.py:name` or `package.module:name`; any finite value."""

    path: str
    """Your function: `my_file.py:name` or `package.module:name`."""
    options: dict[str, Any] = msgspec.field(default_factory=dict)
    """Fixed arguments of the function."""
    deadline_s: float = 30.0
    """Wall clock of one call."""


class GateConfig(CheckConfig, frozen=True, tag="gate"):
    """`then` for responses that pass `hard`, `otherwise` for the rest."""

    hard: RewardConfig
    """The reward that must be passed."""
    then: RewardConfig
    """The reward of responses that pass."""
    threshold: float = 1.0
    """Value of `hard` from which on a response passes."""
    otherwise: float = 0.0
    """The value of responses that do not pass."""


class FirstDecisiveConfig(CheckConfig, frozen=True, tag="first_decisive"):
    """The first of `rewards` that has a value."""

    rewards: tuple[RewardConfig, ...]
    """Rewards in the order in which they are asked."""


class ScoreJudgeConfig(BaseJudgeConfig, frozen=True, tag="score"):
    """Any reward that scores single texts; of two texts the one with the higher score wins."""

    reward: RewardConfig
    """The reward that scores each text."""


JudgeConfig = FunctionJudgeConfig | JudgeRewardConfig | LMJudgeConfig | ScoreJudgeConfig


class VersusConfig(CheckConfig, frozen=True, tag="versus"):
    """How a response does against others of its own group: a random one (BRPO), or all of them."""

    judge: JudgeConfig
    """Who compares two responses."""
    scheme: Scheme | Literal["reference"] = "reference"
    """"reference": +1, 0 or -1 against a random one (BRPO). "round_robin": everybody meets
    everybody, wins minus losses over the decided comparisons, -1 to 1. "bradley_terry": the same
    comparisons, fitted: log-odds of winning, their mean in the group 0."""
    seed: int = 0
    """Seed of the draw of references."""
    references: int = 1
    """How many responses of the group are references; the value is the mean over them."""
    votes: int = 1
    """How often each pair is asked, in both orders each time."""
    both_orders: bool = True
    """Ask about each pair in both orders."""
    rule: VoteRule = "unanimous"
    """How several votes on a pair become one outcome."""
    inconsistent: Inconsistent = 0.0
    """The outcome where the votes do not agree; "abstain": none, and the pair is left out. A number
    other than 0 goes with the scheme "reference" only."""
    tie: float = 0.0
    """The outcome of equal scores; -1 as published, 0 keeps the mean at 0. Other than 0 goes with
    the scheme "reference" only."""
    deadline_s: float = 45.0
    """Wall clock of all questions about one group."""


RewardConfig = (
    AtpConfig
    | CodeConfig
    | EnvConfig
    | EvpvConfig
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
    | MarchConfig
    | MatchConfig
    | MathematicsConfig
    | NumericConfig
    | ProcessRewardModelConfig
    | ProxyRubricConfig
    | RegexConfig
    | RewardModelConfig
    | SectionConfig
    | SpeechPlanConfig
    | SupportConfig
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
    if isinstance(config, JudgeRewardConfig | ProxyRubricConfig):
        return config.build(base)
    if isinstance(config, SupportConfig):
        config = from_folder(config, base)
    if isinstance(config, TrainedModelConfig):
        config = msgspec.structs.replace(
            config, path=str(Path(base) / Path(config.path).expanduser())
        )
    return check_of(config)


def _versus(config: VersusConfig, base: str | Path) -> VersusReference:
    judge = _judge(config.judge, base)
    make: Callable[..., VersusReference] = partial(
        VersusReference, judge, references=config.references
    )
    if config.scheme != "reference":
        if config.references != 1:
            raise UserError(
                f"reward '{config.title}': references is {config.references}, but with the scheme "
                f"'{config.scheme}' every response meets all others; leave it out"
            )
        make = partial(Tournament, judge, scheme=config.scheme)
    return make(
        seed=config.seed,
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
        raise UserError(
            "the recipe has no rewards; add a [[rewards]] table with a kind.",
            python="there are no rewards; give at least one, such as rewards=['numeric'].",
        )
    built = [build(config, base=base) for config in configs]
    scorers = [
        ForRoles(scorer, config.roles) if config.roles else scorer
        for scorer, config in zip(built, configs, strict=True)
    ]
    names = [scorer.name for scorer in scorers]
    twice = sorted({name for name in names if names.count(name) > 1})
    if twice:
        raise UserError(
            f"two rewards are named {', '.join(map(repr, twice))}; give each [[rewards]] table "
            "its own `name`.",
            python=f"two rewards are named {', '.join(map(repr, twice))}; name one of them: "
            "rewards=[{'kind': ..., 'name': 'another'}].",
        )
    weights = {s.name: config.weight for s, config in zip(scorers, configs, strict=True)}
    if all(weight == 0 for weight in weights.values()):
        raise UserError("every reward has weight 0, so there is nothing to learn from.")
    return Weighted(scorers, weights=weights)
