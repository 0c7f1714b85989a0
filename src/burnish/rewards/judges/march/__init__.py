"""MARCH as a judge: the claims of an answer, asked again blind from its documents.

    answers_match("1.2 million", "1,200,000")                        # True
    fact_reward(parse_claims(proposer), [parse_checks(c) for c in checkers]).reward

The game that trains a model this way is `burnish.agents.march`.
"""

from typing import TYPE_CHECKING

from burnish.lazy import lazy_exports

if TYPE_CHECKING:
    from burnish.rewards.judges.march.claims import Claim as Claim
    from burnish.rewards.judges.march.claims import DocsAndQuery as DocsAndQuery
    from burnish.rewards.judges.march.claims import FactReward as FactReward
    from burnish.rewards.judges.march.claims import Thinking as Thinking
    from burnish.rewards.judges.march.claims import answers_match as answers_match
    from burnish.rewards.judges.march.claims import checker_rewards as checker_rewards
    from burnish.rewards.judges.march.claims import fact_reward as fact_reward
    from burnish.rewards.judges.march.claims import is_refusal as is_refusal
    from burnish.rewards.judges.march.claims import parse_checks as parse_checks
    from burnish.rewards.judges.march.claims import parse_claims as parse_claims
    from burnish.rewards.judges.march.claims import split_docs_and_query as split_docs_and_query
    from burnish.rewards.judges.march.claims import split_thinking as split_thinking
    from burnish.rewards.judges.march.judge import MarchJudge as MarchJudge
    from burnish.rewards.judges.march.judge import MarchOptions as MarchOptions
    from burnish.rewards.judges.march.judge import build as build
    from burnish.rewards.judges.march.roles import is_own_claim as is_own_claim

__getattr__, __dir__ = lazy_exports(__name__)
