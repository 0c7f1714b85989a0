"""Search self-play (SSP): a proposer writes search questions to given answers, a solver answers them.

    burnish train ssp

The rules are pure functions (`rules`, `check`, `pool`), the game plays them on the common trainer
(`game`), and `world` is a corpus in which every question can be judged exactly.
"""

from burnish.agents.ssp.check import (
    is_unique,
    noise_blocks,
    read_answer,
    read_list,
    read_verdict,
    shuffled_documents,
)
from burnish.agents.ssp.pool import Entry, QuestionPool, complete, question_id
from burnish.agents.ssp.report import answer_overlap, diversity, step_metrics
from burnish.agents.ssp.rules import (
    Filtered,
    Rules,
    dynamic_filter,
    extract_answer,
    parse_proposal,
    parse_queries,
    proposer_reward,
    rule_filter,
    solver_score,
    success_rate,
    tag_penalty,
)
from burnish.rewards.checks.match import (
    contained_match,
    exact_match,
    normalize_answer,
    token_f1,
)

__all__ = [
    "Entry",
    "Filtered",
    "QuestionPool",
    "Rules",
    "answer_overlap",
    "complete",
    "contained_match",
    "diversity",
    "dynamic_filter",
    "exact_match",
    "extract_answer",
    "is_unique",
    "noise_blocks",
    "normalize_answer",
    "parse_proposal",
    "parse_queries",
    "proposer_reward",
    "question_id",
    "read_answer",
    "read_list",
    "read_verdict",
    "rule_filter",
    "shuffled_documents",
    "solver_score",
    "step_metrics",
    "success_rate",
    "tag_penalty",
    "token_f1",
]
