"""Why a response is good: scorers, their combinations, deterministic checks, your own functions.

scorer = Weighted([Numeric(NumericConfig()), from_function(my_reward, weight=0.1)])
rewards = await checked(scorer, task, responses)
rewards[0].value, rewards[0].parts, rewards[0].evidence
"""

from burnish.rewards.cached import Cached
from burnish.rewards.checks import (
    Code,
    CodeConfig,
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
    ToolCall,
    ToolCallConfig,
    constraint_tools,
    contained_match,
    count_occurrences,
    exact_match,
    normalize_answer,
    normalize_numeric_answer,
    token_f1,
    tool_call_rewards,
)
from burnish.rewards.combine import FirstDecisive, Gate, Weighted
from burnish.rewards.config import (
    FirstDecisiveConfig,
    FunctionConfig,
    GateConfig,
    RewardConfig,
    VersusConfig,
    build,
    build_all,
)
from burnish.rewards.fingerprint import fingerprint, function_fingerprint
from burnish.rewards.function import FunctionReward, from_function
from burnish.rewards.judge_reward import JudgeRewardConfig
from burnish.rewards.model_judge import LMPairJudge
from burnish.rewards.pair_judges import CallablePairJudge, Opinion, PairJudge, ScoreJudge
from burnish.rewards.pair_scorers import Anchor, BothOrders
from burnish.rewards.pairs import genrm_reward, pair_outcome, parse_pair_scores, vote
from burnish.rewards.pool import Outcome, Pool, default_pool
from burnish.rewards.scorer import Scope, Scorer, bind_check, checked, score_groups
from burnish.rewards.scorer_judge import ScorerJudge
from burnish.rewards.select import Selection, best_of_n, expected_value
from burnish.rewards.tournament import bradley_terry, sequential_knockout, win_counts
from burnish.rewards.versus import VersusReference
from burnish.rewards.versus_metrics import versus_metrics

__all__ = [
    "Anchor",
    "BothOrders",
    "Cached",
    "CallablePairJudge",
    "Code",
    "CodeConfig",
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
    "JudgeRewardConfig",
    "LMPairJudge",
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
    "Opinion",
    "Outcome",
    "PairJudge",
    "Pool",
    "Regex",
    "RegexConfig",
    "RewardConfig",
    "Scope",
    "ScoreJudge",
    "Scorer",
    "ScorerJudge",
    "Selection",
    "Tags",
    "TagsConfig",
    "ToolCall",
    "ToolCallConfig",
    "VersusConfig",
    "VersusReference",
    "Weighted",
    "best_of_n",
    "bind_check",
    "bradley_terry",
    "build",
    "build_all",
    "checked",
    "constraint_tools",
    "contained_match",
    "count_occurrences",
    "default_pool",
    "exact_match",
    "expected_value",
    "fingerprint",
    "from_function",
    "function_fingerprint",
    "genrm_reward",
    "normalize_answer",
    "normalize_numeric_answer",
    "pair_outcome",
    "parse_pair_scores",
    "score_groups",
    "sequential_knockout",
    "token_f1",
    "tool_call_rewards",
    "versus_metrics",
    "vote",
    "win_counts",
]
