"""Deterministic verifiers: each a scorer with a closed config, saying what it saw as evidence."""

from burnish.rewards.checks.code import Code, CodeConfig
from burnish.rewards.checks.instructions import Instructions, InstructionsConfig
from burnish.rewards.checks.json_schema import JsonSchema, JsonSchemaConfig
from burnish.rewards.checks.language import Language, LanguageConfig
from burnish.rewards.checks.length import Length, LengthConfig
from burnish.rewards.checks.match import (
    Match,
    MatchConfig,
    contained_match,
    exact_match,
    normalize_answer,
    token_f1,
)
from burnish.rewards.checks.mathematics import Mathematics, MathematicsConfig
from burnish.rewards.checks.numeric import Numeric, NumericConfig, normalize_numeric_answer
from burnish.rewards.checks.regex import Regex, RegexConfig
from burnish.rewards.checks.tags import Tags, TagsConfig
from burnish.rewards.checks.texts import constraint_tools, count_occurrences
from burnish.rewards.checks.tool_call import ToolCall, ToolCallConfig, tool_call_rewards

__all__ = [
    "Code",
    "CodeConfig",
    "Instructions",
    "InstructionsConfig",
    "JsonSchema",
    "JsonSchemaConfig",
    "Language",
    "LanguageConfig",
    "Length",
    "LengthConfig",
    "Match",
    "MatchConfig",
    "Mathematics",
    "MathematicsConfig",
    "Numeric",
    "NumericConfig",
    "Regex",
    "RegexConfig",
    "Tags",
    "TagsConfig",
    "ToolCall",
    "ToolCallConfig",
    "constraint_tools",
    "contained_match",
    "count_occurrences",
    "exact_match",
    "normalize_answer",
    "normalize_numeric_answer",
    "token_f1",
    "tool_call_rewards",
]
