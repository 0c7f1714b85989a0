"""Search self-play (SSP): a proposer writes search questions to given answers, a solver answers them.

    burnish train ssp

The rules are pure functions (`rules`, `check`, `pool`), the game plays them on the common trainer
(`game`), and `world` is a corpus in which every question can be judged exactly.
"""

from burnish.agents.ssp.check import is_unique, noise_blocks, read_answer, shuffled_documents
from burnish.agents.ssp.pool import QuestionPool, question_id
from burnish.agents.ssp.report import answer_overlap
from burnish.agents.ssp.rules import (
    Rules,
    dynamic_filter,
    proposer_reward,
    rule_filter,
    solver_score,
    success_rate,
)
from burnish.agents.ssp.tags import extract_answer
from burnish.rewards.checks.match import (
    contained_match,
    exact_match,
    normalize_answer,
    token_f1,
)
from burnish.rollouts.search import parse_queries

__all__ = [
    "QuestionPool",
    "Rules",
    "answer_overlap",
    "contained_match",
    "dynamic_filter",
    "exact_match",
    "extract_answer",
    "is_unique",
    "noise_blocks",
    "normalize_answer",
    "parse_queries",
    "proposer_reward",
    "question_id",
    "read_answer",
    "rule_filter",
    "shuffled_documents",
    "solver_score",
    "success_rate",
    "token_f1",
]
