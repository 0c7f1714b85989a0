"""MARCH as a judge: the claims of an answer, asked again blind from its documents.

    answers_match("1.2 million", "1,200,000")                        # True
    fact_reward(parse_claims(proposer), [parse_checks(c) for c in checkers]).reward

The game that trains a model this way is `burnish.agents.march`.
"""

from burnish.rewards.judges.march.claims import (
    FactReward,
    answers_match,
    checker_rewards,
    fact_reward,
    is_refusal,
)
from burnish.rewards.judges.march.judge import MarchJudge, MarchOptions, build
from burnish.rewards.judges.march.parsing import (
    Claim,
    DocsAndQuery,
    Thinking,
    parse_checks,
    parse_claims,
    split_docs_and_query,
    split_thinking,
)
from burnish.rewards.judges.march.stated import is_own_claim

__all__ = [
    "Claim",
    "DocsAndQuery",
    "FactReward",
    "MarchJudge",
    "MarchOptions",
    "Thinking",
    "answers_match",
    "build",
    "checker_rewards",
    "fact_reward",
    "is_own_claim",
    "is_refusal",
    "parse_checks",
    "parse_claims",
    "split_docs_and_query",
    "split_thinking",
]
