"""The formulas of QuarkMedBench (arXiv 2603.13691) under the method's own name.

score(items, tier_weights, truncation=True)      # one answer's marks as a score
"""

from burnish.rewards.judges.rubric import (
    Rubric,
    band,
    build,
    build_rubric,
    concordance,
    dialogue_score,
    equal,
    explain,
    merge_equal,
    scale_reward,
    score,
    without_each,
)

__all__ = [
    "Rubric",
    "band",
    "build",
    "build_rubric",
    "concordance",
    "dialogue_score",
    "equal",
    "explain",
    "merge_equal",
    "scale_reward",
    "score",
    "without_each",
]
