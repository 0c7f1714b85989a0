"""MARCH: a model that checks its own claims blind, as a game of three roles.

    [rollout]
    kind = "function"
    path = "burnish.agents.march.game:play"

The parsers, matchers and votes are those of the judge, `burnish.rewards.judges.march`.
"""

from burnish.agents.march.game import Claimed, Rules, Trace, play
from burnish.policy.ppo import gae
from burnish.rewards.judges.march import (
    answers_match,
    checker_rewards,
    fact_reward,
    parse_checks,
    parse_claims,
    split_docs_and_query,
    split_thinking,
)

__all__ = [
    "Claimed",
    "Rules",
    "Trace",
    "answers_match",
    "checker_rewards",
    "fact_reward",
    "gae",
    "parse_checks",
    "parse_claims",
    "play",
    "split_docs_and_query",
    "split_thinking",
]
