"""The formulas of QuarkMedBench (arXiv 2603.13691) under the method's own name.

score(items, tier_weights, truncation=True)      # one answer's marks as a score
"""

from burnish.rewards.judges.rubric import Rubric as Rubric
from burnish.rewards.judges.rubric import band as band
from burnish.rewards.judges.rubric import build as build
from burnish.rewards.judges.rubric import build_rubric as build_rubric
from burnish.rewards.judges.rubric import concordance as concordance
from burnish.rewards.judges.rubric import dialogue_score as dialogue_score
from burnish.rewards.judges.rubric import equal as equal
from burnish.rewards.judges.rubric import explain as explain
from burnish.rewards.judges.rubric import merge_equal as merge_equal
from burnish.rewards.judges.rubric import scale_reward as scale_reward
from burnish.rewards.judges.rubric import score as score
from burnish.rewards.judges.rubric import without_each as without_each
