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
    reward_of_votes,
    states_its_answer,
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
from burnish.rewards.judges.march.roles import (
    checker_messages,
    kept_claims,
    passages,
    proposer_messages,
    solver_messages,
)

__all__ = [
    "Claim",
    "DocsAndQuery",
    "FactReward",
    "MarchJudge",
    "MarchOptions",
    "Thinking",
    "answers_match",
    "build",
    "checker_messages",
    "checker_rewards",
    "fact_reward",
    "is_refusal",
    "kept_claims",
    "parse_checks",
    "parse_claims",
    "passages",
    "proposer_messages",
    "reward_of_votes",
    "solver_messages",
    "split_docs_and_query",
    "split_thinking",
    "states_its_answer",
]
