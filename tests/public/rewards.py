"""One valid call of every public function of rewards, and what it lets pass."""

import torch

from burnish import rewards
from burnish.rewards import models
from burnish.rewards.checks import relevance
from burnish.rewards.select import Match
from public.common import LOGP, MASK, NEEDED, PARSED, Case, f64

MATCHES = [Match(0, 1, 1.0), Match(1, 2, 0.0), Match(0, 2, None)]
ANSWER = '<think> look </think> <tool_call>\n{"name": "f", "parameters": {"x": 1}}\n</tool_call>'
CASES = [
    # Rewards: pairs, votes, tournaments
    Case(rewards.parse_pair_scores, {"text": "<scores>7, 8</scores>"}, {"text": "none empty word"}),
    Case(
        rewards.pair_outcome,
        {"scores": [7.0, 8.0]},
        {"scores": "none nan inf empty short item_none"},
        signed="scores tie parse_failure",
        shares="tie parse_failure",
    ),
    Case(
        rewards.vote,
        {"outcomes": [1.0, 1.0]},
        {"outcomes": "nan empty short item_none"},
        signed="outcomes inconsistent",
        shares="inconsistent",
    ),
    Case(
        rewards.genrm_reward,
        {"scores": [7.0, 8.0], "label": 1, "first_pick_rate": 0.5},
        {"scores": "none nan inf empty short item_none"},
        signed="scores label",
        shares="first_pick_rate margin_floor",
    ),
    Case(
        rewards.sequential_knockout,
        {"order": [2, 0, 1], "quality": [0.1, 0.9, 0.4]},
        {"quality": "item_none", "order": "short"},
        signed="quality",
    ),
    Case(rewards.bradley_terry, {"count": 3, "matches": MATCHES}, {"matches": "empty short"}),
    Case(
        models.tie_preference_loss,
        {"diff_margins": [1.0, 2.0], "same_margins": [0.1]},
        {"diff_margins": "empty short", "same_margins": "empty short"},
        signed="diff_margins same_margins",
    ),
    Case(
        models.bradley_terry_loss,
        {
            "r_chosen": torch.tensor([1.0, 2.0]),
            "r_rejected": torch.tensor([0.5, 3.0]),
            "margin": torch.tensor([0.0, 0.5]),
            "target": torch.tensor([1.0, 0.5]),
        },
        signed="r_chosen r_rejected margin",
        shares="target",
    ),
    Case(
        models.centring_loss,
        {"r_chosen": [1.0, 2.0], "r_rejected": [0.5, 3.0]},
        signed="r_chosen r_rejected",
    ),
    # Reward models: DIR
    Case(
        models.club_categorical,
        {"logits": LOGP, "labels": [1, 0], "past_labels": [0, 1]},
        {"past_labels": "none empty short"},
        signed="logits labels past_labels",
    ),
    Case(models.bias_head_loss, {"logits": LOGP, "labels": [1, 0]}, signed="logits labels"),
    Case(
        models.total_loss,
        {
            "h_chosen": LOGP,
            "h_rejected": MASK,
            "r_chosen": [1.0, 0.5],
            "r_rejected": [0.0, 0.2],
            "bias_label": [1, 0],
            "head": {"W": [[1.0, 0.0], [0.0, 1.0]], "b": [0.0, 0.1]},
        },
        {"head": NEEDED},
        signed="h_chosen h_rejected r_chosen r_rejected bias_label",
    ),
    Case(models.length_label, {"len_chosen": [5, 3], "len_rejected": [3, 4]}),
    Case(models.dual_lambda, {"lam": 1.0, "auc": 0.7}, shares="auc target"),
    Case(
        models.probe_auc,
        {"features": f64([[0.0], [1.0], [0.2], [1.2]]), "labels": [0, 1, 0, 1], "folds": 2},
        {"labels": "nan item_none"},
        signed="features labels",
    ),
    Case(
        models.grouped_pair_metrics,
        {"r_chosen": [1.0, 0.5], "r_rejected": [0.0, 0.7], "group": [0, 1]},
        signed="r_chosen r_rejected",
    ),
    Case(
        models.accuracy_by_group,
        {"predictions": [1, 0], "labels": [1, 1], "groups": ["a", "b"]},
        {"groups": "item_number"},
        signed="predictions labels",
    ),
    Case(
        models.rmbench_metrics,
        {
            "domains": ["chat"] * 2,
            "scores_chosen_rejected": [(1.0, 0.0), (2.0, 2.0), (3.0, 1.0), (0.0, 1.0)],
            "styles_per_sample": 2,
        },
    ),
    Case(
        models.attribute_correlation,
        {"rewards": [1.0, 0.5], "attribute": [3.0, 1.0]},
        signed="rewards attribute",
    ),
    Case(models.auc, {"scores": [0.1, 0.9], "labels": [0, 1]}, signed="scores"),
    Case(
        models.step_value,
        {"probabilities": [0.1, 0.9]},
        {"probabilities": "short"},
        shares="probabilities",
    ),
    # Rewards: checks
    Case(rewards.constraint_tools, {"text": "Two words."}, {"text": "empty word"}),
    Case(
        rewards.count_occurrences,
        {"text": "a b a", "needle": "a"},
        {"text": "empty word", "needle": "empty word"},
    ),
    Case(rewards.normalize_answer, {"text": "The Answer"}, {"text": "empty word"}),
    *(
        Case(
            function,
            {"pred": "the answer is 4", "golds": ["4", "four"]},
            {
                "pred": "none empty word number",
                "golds": "none empty word short item_none item_number",
            },
        )
        for function in (rewards.exact_match, rewards.contained_match, rewards.token_f1)
    ),
    Case(
        rewards.normalize_numeric_answer,
        {"texts": ["#### 4", "so 5"]},
        {"texts": f"{PARSED} short"},
    ),
    Case(rewards.tool_call_rewards, {"output": ANSWER, "gold": ANSWER}, {"output": "empty word"}),
    Case(
        relevance.relevance_reward,
        {"predicted": 1, "gold": 2, "num_grades": 3},
        {"predicted": "none nan inf"},
        signed="predicted",
    ),
    Case(
        relevance.leading_grade,
        {"text": "2 because", "labels": ["0", "1", "2"]},
        {"text": "empty word", "labels": "empty short"},
    ),
]
