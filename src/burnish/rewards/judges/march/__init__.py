"""MARCH as a judge: the claims of an answer, asked again blind from its documents.

    answers_match("1.2 million", "1,200,000")                        # True
    fact_reward(parse_claims(proposer), [parse_checks(c) for c in checkers]).reward

The game that trains a model this way is `burnish.agents.march`.
"""

from typing import TYPE_CHECKING

from burnish.lazy import lazy_exports

if TYPE_CHECKING:
    from burnish.rewards.judges.march.claims import (
        Claim as Claim,
        DocsAndQuery as DocsAndQuery,
        FactReward as FactReward,
        Thinking as Thinking,
        answers_match as answers_match,
        checker_rewards as checker_rewards,
        fact_reward as fact_reward,
        is_refusal as is_refusal,
        parse_checks as parse_checks,
        parse_claims as parse_claims,
        split_docs_and_query as split_docs_and_query,
        split_thinking as split_thinking,
    )
    from burnish.rewards.judges.march.judge import (
        MarchJudge as MarchJudge,
        MarchOptions as MarchOptions,
        build as build,
    )
    from burnish.rewards.judges.march.roles import is_own_claim as is_own_claim

__getattr__, __dir__ = lazy_exports(__name__)
