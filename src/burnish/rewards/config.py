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
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from burnish.boundary import Name, Number, Seconds
from burnish.errors import ArgumentError, UserError
from burnish.rewards.checks.base import CheckConfig, check_of
from burnish.rewards.checks.code import CodeConfig
from burnish.rewards.checks.instructions import InstructionsConfig
from burnish.rewards.checks.language import LanguageConfig
from burnish.rewards.checks.match import MatchConfig
from burnish.rewards.checks.mathematics import MathematicsConfig
from burnish.rewards.checks.numeric import NumericConfig
from burnish.rewards.checks.relevance import GradeConfig, SectionConfig
from burnish.rewards.checks.rules import (
    EnvConfig,
    JsonSchemaConfig,
    LengthConfig,
    RegexConfig,
    TagsConfig,
)
from burnish.rewards.checks.speech_plan import SpeechPlanConfig
from burnish.rewards.checks.support import SupportConfig, from_folder
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
from burnish.rewards.models.trained_model import (
    ProcessRewardModelConfig,
    RewardModelConfig,
    TrainedModelConfig,
)
from burnish.rewards.pair_judges import PairJudge, ScoreJudge
from burnish.rewards.pairs import GenRMConfig
from burnish.rewards.scorer import Scorer
from burnish.rewards.versus import Scheme, Tournament, VersusReference, VersusSettings
from burnish.source import find_function


class FunctionConfig(CheckConfig, frozen=True, tag="function"):
    """Your own function, by path: `my_file.py:name` or `package.module:name`; any finite value."""

    path: Name
    """Your function: `my_file.py:name` or `package.module:name`."""
    options: dict[str, object] = msgspec.field(default_factory=dict)
    """Fixed arguments of the function."""
    deadline_s: Seconds = 30.0
    """Wall clock of one call."""


class GateConfig(CheckConfig, frozen=True, tag="gate"):
    """`then` for responses that pass `hard`, `otherwise` for the rest."""

    hard: RewardConfig
    """The reward that must be passed."""
    then: RewardConfig
    """The reward of responses that pass."""
    threshold: Number = 1.0
    """Value of `hard` from which on a response passes."""
    otherwise: Number = 0.0
    """The value of responses that do not pass."""


class FirstDecisiveConfig(CheckConfig, frozen=True, tag="first_decisive"):
    """The first of `rewards` that has a value."""

    rewards: Annotated[tuple[RewardConfig, ...], Meta(min_length=1)]
    """Rewards in the order in which they are asked."""


class ScoreJudgeConfig(BaseJudgeConfig, frozen=True, tag="score"):
    """Any reward that scores single texts; of two texts the one with the higher score wins."""

    reward: RewardConfig
    """The reward that scores each text."""


JudgeConfig = FunctionJudgeConfig | JudgeRewardConfig | LMJudgeConfig | ScoreJudgeConfig


class VersusConfig(VersusSettings, frozen=True, tag="versus"):
    """How a response does against others of its own group: a random one (BRPO), or all of them."""

    judge: JudgeConfig
    """Who compares two responses."""
    scheme: Scheme | Literal["reference"] = "reference"
    """"reference": +1, 0 or -1 against a random one (BRPO). "round_robin": everybody meets
    everybody, wins minus losses over the decided comparisons, -1 to 1. "bradley_terry": the same
    comparisons, fitted: log-odds of winning, their mean in the group 0."""

    def check(self) -> None:
        if self.scheme != "reference" and self.references != 1:
            raise ArgumentError(
                f"references: got {self.references}, but with the scheme '{self.scheme}' every response "
                "meets all others; leave it out"
            )


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
        judge = _judge(config.judge, base)
        settings = {name: getattr(config, name) for name in VersusSettings.__struct_fields__}
        settings["name"] = config.title
        if config.scheme == "reference":
            return VersusReference(judge, **settings)
        return Tournament(judge, scheme=config.scheme, **settings)
    if isinstance(config, JudgeRewardConfig | ProxyRubricConfig):
        return config.build(base)
    if isinstance(config, SupportConfig):
        config = from_folder(config, base)
    if isinstance(config, TrainedModelConfig):
        config = msgspec.structs.replace(
            config, path=str(Path(base) / Path(config.path).expanduser())
        )
    return check_of(config)


def _judge(config: JudgeConfig, base: str | Path) -> PairJudge:
    if isinstance(config, ScoreJudgeConfig):
        return ScoreJudge(build(config.reward, base=base))
    if isinstance(config, JudgeRewardConfig):
        return config.build_pair(base)
    return config.build(base) if isinstance(config, FunctionJudgeConfig) else config.build()


def build_all(configs: Sequence[RewardConfig], *, base: str | Path = ".") -> Weighted:
    """The total of all rewards of a run, also where there is only one."""
    if not configs:
        raise UserError("there are no rewards; add a [[rewards]] table, or rewards=['numeric'].")
    built = [build(config, base=base) for config in configs]
    scorers = [
        ForRoles(scorer, config.roles) if config.roles else scorer
        for scorer, config in zip(built, configs, strict=True)
    ]
    weights = {s.name: config.weight for s, config in zip(scorers, configs, strict=True)}
    return Weighted(scorers, weights=weights)
