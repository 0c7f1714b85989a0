"""Why a response is good: scorers, their combinations, deterministic checks, your own functions.

scorer = Weighted([Numeric(NumericConfig()), from_function(my_reward, weight=0.1)])
rewards = await checked(scorer, task, responses)
rewards[0].value, rewards[0].parts, rewards[0].evidence
"""

from burnish.rewards.cached import Cached
from burnish.rewards.checks import (
    Instructions,
    InstructionsConfig,
    JsonSchema,
    JsonSchemaConfig,
    Language,
    LanguageConfig,
    Length,
    LengthConfig,
    Match,
    MatchConfig,
    Mathematics,
    MathematicsConfig,
    Numeric,
    NumericConfig,
    Regex,
    RegexConfig,
    Tags,
    TagsConfig,
    constraint_tools,
    contained_match,
    count_occurrences,
    exact_match,
    normalize_answer,
    normalize_numeric_answer,
    token_f1,
)
from burnish.rewards.combine import Anchor, BothOrders, FirstDecisive, Gate, Weighted
from burnish.rewards.config import (
    FirstDecisiveConfig,
    FunctionConfig,
    GateConfig,
    RewardConfig,
    build,
    build_all,
)
from burnish.rewards.fingerprint import fingerprint, function_fingerprint
from burnish.rewards.function import FunctionReward, from_function
from burnish.rewards.loading import load_function
from burnish.rewards.pool import Outcome, Pool, default_pool
from burnish.rewards.scorer import Scope, Scorer, bind_check, checked, score_groups

__all__ = [
    "Anchor",
    "BothOrders",
    "Cached",
    "FirstDecisive",
    "FirstDecisiveConfig",
    "FunctionConfig",
    "FunctionReward",
    "Gate",
    "GateConfig",
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
    "Outcome",
    "Pool",
    "Regex",
    "RegexConfig",
    "RewardConfig",
    "Scope",
    "Scorer",
    "Tags",
    "TagsConfig",
    "Weighted",
    "bind_check",
    "build",
    "build_all",
    "checked",
    "constraint_tools",
    "contained_match",
    "count_occurrences",
    "default_pool",
    "exact_match",
    "fingerprint",
    "from_function",
    "function_fingerprint",
    "load_function",
    "normalize_answer",
    "normalize_numeric_answer",
    "score_groups",
    "token_f1",
]
