"""The formulas of QuarkMedBench (arXiv 2603.13691) under the method's own name.

score(items, tier_weights, truncation=True)      # one answer's marks as a score
"""

from burnish.rewards.judges.rubric import (
    Rubric as Rubric,
    band as band,
    build as build,
    build_rubric as build_rubric,
    concordance as concordance,
    dialogue_score as dialogue_score,
    equal as equal,
    explain as explain,
    merge_equal as merge_equal,
    scale_reward as scale_reward,
    score as score,
    without_each as without_each,
)
