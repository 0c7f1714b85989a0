"""Search self-play (SSP): a proposer writes search questions to given answers, a solver answers them.

    burnish train ssp

The rules are pure functions (`rules`, `check`, `pool`), the game plays them on the common trainer
(`game`), and `world` is a corpus in which every question can be judged exactly.
"""

from typing import TYPE_CHECKING

from burnish.lazy import lazy_exports

if TYPE_CHECKING:
    from burnish.agents.ssp.check import (
        is_unique as is_unique,
        noise_blocks as noise_blocks,
        read_answer as read_answer,
        shuffled_documents as shuffled_documents,
    )
    from burnish.agents.ssp.pool import (
        QuestionPool as QuestionPool,
        answer_overlap as answer_overlap,
        question_id as question_id,
    )
    from burnish.agents.ssp.rules import (
        Rules as Rules,
        dynamic_filter as dynamic_filter,
        extract_answer as extract_answer,
        proposer_reward as proposer_reward,
        rule_filter as rule_filter,
        solver_score as solver_score,
        success_rate as success_rate,
    )
    from burnish.rewards.checks.match import (
        contained_match as contained_match,
        exact_match as exact_match,
        normalize_answer as normalize_answer,
        token_f1 as token_f1,
    )
    from burnish.rollouts.search import parse_queries as parse_queries

__getattr__, __dir__ = lazy_exports(__name__)
