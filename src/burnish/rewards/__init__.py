"""Why a response is good: scorers, their combinations, deterministic checks, your own functions.

scorer = Weighted([Numeric(NumericConfig()), from_function(my_reward, weight=0.1)])
rewards = await checked(scorer, task, responses)
rewards[0].value, rewards[0].parts, rewards[0].evidence
"""

from typing import TYPE_CHECKING

from burnish.lazy import lazy_exports

if TYPE_CHECKING:
    from burnish.rewards.checks.code import Code as Code, CodeConfig as CodeConfig
    from burnish.rewards.checks.instructions import (
        Instructions as Instructions,
        InstructionsConfig as InstructionsConfig,
    )
    from burnish.rewards.checks.language import (
        Language as Language,
        LanguageConfig as LanguageConfig,
    )
    from burnish.rewards.checks.match import (
        Match as Match,
        MatchConfig as MatchConfig,
        contained_match as contained_match,
        exact_match as exact_match,
        normalize_answer as normalize_answer,
        token_f1 as token_f1,
    )
    from burnish.rewards.checks.mathematics import (
        Mathematics as Mathematics,
        MathematicsConfig as MathematicsConfig,
    )
    from burnish.rewards.checks.numeric import (
        Numeric as Numeric,
        NumericConfig as NumericConfig,
        normalize_numeric_answer as normalize_numeric_answer,
    )
    from burnish.rewards.checks.rules import (
        JsonSchema as JsonSchema,
        JsonSchemaConfig as JsonSchemaConfig,
        Length as Length,
        LengthConfig as LengthConfig,
        Regex as Regex,
        RegexConfig as RegexConfig,
        Tags as Tags,
        TagsConfig as TagsConfig,
    )
    from burnish.rewards.checks.texts import (
        constraint_tools as constraint_tools,
        count_occurrences as count_occurrences,
    )
    from burnish.rewards.checks.tool_call import (
        ToolCall as ToolCall,
        ToolCallConfig as ToolCallConfig,
        tool_call_rewards as tool_call_rewards,
    )
    from burnish.rewards.combine import (
        Anchor as Anchor,
        BothOrders as BothOrders,
        Cached as Cached,
        FirstDecisive as FirstDecisive,
        Gate as Gate,
        Weighted as Weighted,
    )
    from burnish.rewards.config import (
        FirstDecisiveConfig as FirstDecisiveConfig,
        FunctionConfig as FunctionConfig,
        GateConfig as GateConfig,
        RewardConfig as RewardConfig,
        VersusConfig as VersusConfig,
        build as build,
        build_all as build_all,
    )
    from burnish.rewards.function import (
        FunctionReward as FunctionReward,
        from_function as from_function,
    )
    from burnish.rewards.judge_reward import (
        JudgeRewardConfig as JudgeRewardConfig,
        LMPairJudge as LMPairJudge,
        ScorerJudge as ScorerJudge,
    )
    from burnish.rewards.pair_judges import (
        CallablePairJudge as CallablePairJudge,
        PairJudge as PairJudge,
        PairVerdict as PairVerdict,
        ScoreJudge as ScoreJudge,
    )
    from burnish.rewards.pairs import (
        genrm_reward as genrm_reward,
        pair_outcome as pair_outcome,
        parse_pair_scores as parse_pair_scores,
        vote as vote,
    )
    from burnish.rewards.pool import Outcome as Outcome, Pool as Pool, default_pool as default_pool
    from burnish.rewards.scorer import (
        Scope as Scope,
        Scorer as Scorer,
        bind_check as bind_check,
        checked as checked,
        fingerprint as fingerprint,
        function_fingerprint as function_fingerprint,
        score_groups as score_groups,
    )
    from burnish.rewards.select import (
        Selection as Selection,
        best_of_n as best_of_n,
        best_rollout as best_rollout,
        bradley_terry as bradley_terry,
        sequential_knockout as sequential_knockout,
    )
    from burnish.rewards.versus import (
        Tournament as Tournament,
        VersusReference as VersusReference,
        versus_metrics as versus_metrics,
    )

__getattr__, __dir__ = lazy_exports(__name__)
