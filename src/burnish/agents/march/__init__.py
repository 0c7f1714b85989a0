"""MARCH: a model that checks its own claims blind, as a game of three roles.

The parsers, matchers and votes are those of the judge, `burnish.rewards.judges.march`.
"""

from typing import TYPE_CHECKING

from burnish.lazy import lazy_exports

if TYPE_CHECKING:
    from burnish.agents.march.game import (
        Claimed as Claimed,
        Rules as Rules,
        Trace as Trace,
        play as play,
    )
    from burnish.policy.ppo import gae as gae
    from burnish.rewards.judges.march import (
        answers_match as answers_match,
        checker_rewards as checker_rewards,
        fact_reward as fact_reward,
        parse_checks as parse_checks,
        parse_claims as parse_claims,
        split_docs_and_query as split_docs_and_query,
        split_thinking as split_thinking,
    )

__getattr__, __dir__ = lazy_exports(__name__)
