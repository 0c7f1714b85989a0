"""Why a response is good: scorers, their combinations, deterministic checks, your own functions.

scorer = Weighted([Numeric(NumericConfig()), from_function(my_reward, weight=0.1)])
rewards = await checked(scorer, task, responses)
rewards[0].value, rewards[0].parts, rewards[0].evidence
"""

from typing import TYPE_CHECKING

from burnish.lazy import lazy_exports

if TYPE_CHECKING:
    from burnish.rewards.checks.code import Code as Code
    from burnish.rewards.checks.code import CodeConfig as CodeConfig
    from burnish.rewards.checks.instructions import Instructions as Instructions
    from burnish.rewards.checks.instructions import InstructionsConfig as InstructionsConfig
    from burnish.rewards.checks.language import Language as Language
    from burnish.rewards.checks.language import LanguageConfig as LanguageConfig
    from burnish.rewards.checks.match import Match as Match
    from burnish.rewards.checks.match import MatchConfig as MatchConfig
    from burnish.rewards.checks.match import contained_match as contained_match
    from burnish.rewards.checks.match import exact_match as exact_match
    from burnish.rewards.checks.match import normalize_answer as normalize_answer
    from burnish.rewards.checks.match import token_f1 as token_f1
    from burnish.rewards.checks.mathematics import Mathematics as Mathematics
    from burnish.rewards.checks.mathematics import MathematicsConfig as MathematicsConfig
    from burnish.rewards.checks.numeric import Numeric as Numeric
    from burnish.rewards.checks.numeric import NumericConfig as NumericConfig
    from burnish.rewards.checks.numeric import normalize_numeric_answer as normalize_numeric_answer
    from burnish.rewards.checks.rules import JsonSchema as JsonSchema
    from burnish.rewards.checks.rules import JsonSchemaConfig as JsonSchemaConfig
    from burnish.rewards.checks.rules import Length as Length
    from burnish.rewards.checks.rules import LengthConfig as LengthConfig
    from burnish.rewards.checks.rules import Regex as Regex
    from burnish.rewards.checks.rules import RegexConfig as RegexConfig
    from burnish.rewards.checks.rules import Tags as Tags
    from burnish.rewards.checks.rules import TagsConfig as TagsConfig
    from burnish.rewards.checks.texts import constraint_tools as constraint_tools
    from burnish.rewards.checks.texts import count_occurrences as count_occurrences
    from burnish.rewards.checks.tool_call import ToolCall as ToolCall
    from burnish.rewards.checks.tool_call import ToolCallConfig as ToolCallConfig
    from burnish.rewards.checks.tool_call import tool_call_rewards as tool_call_rewards
    from burnish.rewards.combine import Anchor as Anchor
    from burnish.rewards.combine import BothOrders as BothOrders
    from burnish.rewards.combine import Cached as Cached
    from burnish.rewards.combine import FirstDecisive as FirstDecisive
    from burnish.rewards.combine import Gate as Gate
    from burnish.rewards.combine import Weighted as Weighted
    from burnish.rewards.config import FirstDecisiveConfig as FirstDecisiveConfig
    from burnish.rewards.config import FunctionConfig as FunctionConfig
    from burnish.rewards.config import GateConfig as GateConfig
    from burnish.rewards.config import RewardConfig as RewardConfig
    from burnish.rewards.config import VersusConfig as VersusConfig
    from burnish.rewards.config import build as build
    from burnish.rewards.config import build_all as build_all
    from burnish.rewards.function import FunctionReward as FunctionReward
    from burnish.rewards.function import from_function as from_function
    from burnish.rewards.judge_reward import JudgeRewardConfig as JudgeRewardConfig
    from burnish.rewards.judge_reward import LMPairJudge as LMPairJudge
    from burnish.rewards.judge_reward import ScorerJudge as ScorerJudge
    from burnish.rewards.pair_judges import CallablePairJudge as CallablePairJudge
    from burnish.rewards.pair_judges import PairJudge as PairJudge
    from burnish.rewards.pair_judges import PairVerdict as PairVerdict
    from burnish.rewards.pair_judges import ScoreJudge as ScoreJudge
    from burnish.rewards.pairs import genrm_reward as genrm_reward
    from burnish.rewards.pairs import pair_outcome as pair_outcome
    from burnish.rewards.pairs import parse_pair_scores as parse_pair_scores
    from burnish.rewards.pairs import vote as vote
    from burnish.rewards.pool import Outcome as Outcome
    from burnish.rewards.pool import Pool as Pool
    from burnish.rewards.pool import default_pool as default_pool
    from burnish.rewards.scorer import Scope as Scope
    from burnish.rewards.scorer import Scorer as Scorer
    from burnish.rewards.scorer import bind_check as bind_check
    from burnish.rewards.scorer import checked as checked
    from burnish.rewards.scorer import fingerprint as fingerprint
    from burnish.rewards.scorer import function_fingerprint as function_fingerprint
    from burnish.rewards.scorer import score_groups as score_groups
    from burnish.rewards.select import Selection as Selection
    from burnish.rewards.select import best_of_n as best_of_n
    from burnish.rewards.select import best_rollout as best_rollout
    from burnish.rewards.select import bradley_terry as bradley_terry
    from burnish.rewards.select import sequential_knockout as sequential_knockout
    from burnish.rewards.versus import Tournament as Tournament
    from burnish.rewards.versus import VersusReference as VersusReference
    from burnish.rewards.versus import versus_metrics as versus_metrics

__getattr__, __dir__ = lazy_exports(__name__)
