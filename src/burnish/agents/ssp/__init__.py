"""Search self-play (SSP): a proposer writes search questions to given answers, a solver answers them.

    burnish train ssp

The rules are pure functions (`rules`, `check`, `pool`), the game plays them on the common trainer
(`game`), and `world` is a corpus in which every question can be judged exactly.
"""

from typing import TYPE_CHECKING

from burnish.lazy import lazy_exports

if TYPE_CHECKING:
    from burnish.agents.ssp.check import is_unique as is_unique
    from burnish.agents.ssp.check import noise_blocks as noise_blocks
    from burnish.agents.ssp.check import read_answer as read_answer
    from burnish.agents.ssp.check import shuffled_documents as shuffled_documents
    from burnish.agents.ssp.pool import QuestionPool as QuestionPool
    from burnish.agents.ssp.pool import answer_overlap as answer_overlap
    from burnish.agents.ssp.pool import question_id as question_id
    from burnish.agents.ssp.rules import Rules as Rules
    from burnish.agents.ssp.rules import dynamic_filter as dynamic_filter
    from burnish.agents.ssp.rules import extract_answer as extract_answer
    from burnish.agents.ssp.rules import proposer_reward as proposer_reward
    from burnish.agents.ssp.rules import rule_filter as rule_filter
    from burnish.agents.ssp.rules import solver_score as solver_score
    from burnish.agents.ssp.rules import success_rate as success_rate
    from burnish.rewards.checks.match import contained_match as contained_match
    from burnish.rewards.checks.match import exact_match as exact_match
    from burnish.rewards.checks.match import normalize_answer as normalize_answer
    from burnish.rewards.checks.match import token_f1 as token_f1
    from burnish.rollouts.search import parse_queries as parse_queries

__getattr__, __dir__ = lazy_exports(__name__)
