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
from pathlib import Path
from typing import Any

import msgspec

from burnish.errors import UserError
from burnish.rewards.checks.base import CheckConfig
from burnish.rewards.checks.instructions import Instructions, InstructionsConfig
from burnish.rewards.checks.json_schema import JsonSchema, JsonSchemaConfig
from burnish.rewards.checks.language import Language, LanguageConfig
from burnish.rewards.checks.length import Length, LengthConfig
from burnish.rewards.checks.match import Match, MatchConfig
from burnish.rewards.checks.mathematics import Mathematics, MathematicsConfig
from burnish.rewards.checks.numeric import Numeric, NumericConfig
from burnish.rewards.checks.regex import Regex, RegexConfig
from burnish.rewards.checks.tags import Tags, TagsConfig
from burnish.rewards.combine import FirstDecisive, Gate, Weighted
from burnish.rewards.function import from_function
from burnish.rewards.loading import load_function
from burnish.rewards.scorer import Scorer


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


RewardConfig = (
    FunctionConfig
    | FirstDecisiveConfig
    | GateConfig
    | InstructionsConfig
    | JsonSchemaConfig
    | LanguageConfig
    | LengthConfig
    | MatchConfig
    | MathematicsConfig
    | NumericConfig
    | RegexConfig
    | TagsConfig
)

_CHECKS: dict[type[CheckConfig], Callable[[Any], Scorer]] = {
    InstructionsConfig: Instructions,
    JsonSchemaConfig: JsonSchema,
    LanguageConfig: Language,
    LengthConfig: Length,
    MatchConfig: Match,
    MathematicsConfig: Mathematics,
    NumericConfig: Numeric,
    RegexConfig: Regex,
    TagsConfig: Tags,
}


def build(config: RewardConfig, *, base: str | Path = ".") -> Scorer:
    """The scorer that a config describes; files are looked up relative to `base`."""
    if isinstance(config, FunctionConfig):
        function = load_function(config.path, base=base)
        name = config.name or config.path.rpartition(":")[2]
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
    return _CHECKS[type(config)](config)


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
