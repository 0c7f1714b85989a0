"""What a judge may not see of a sample's metadata: labels, scores, model names, order.

    sanitize_metadata({"topic": "law", "extra": {"Winner": "A", "model_b": "x"}})   # {'topic': 'law'}

Keys are dropped at any depth and whatever their case; what is left empty by that goes too.
Cleaning twice changes nothing more.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

_WORDS = (
    "label labels gold golds gold_label winner winners preference preferences preferred chosen "
    "rejected correct is_correct incorrect is_incorrect correctness gt_is_chosen_correct "
    "score scores rating ratings reward rewards rank ranks ranking verdict verdicts judgment "
    "judgments judgement judgements valid is_valid "
    "model models model_name model_names model_id model_ids model_a model_b response_model "
    "response_models assistant_a_model assistant_b_model generator generators source_model "
    "source_models chosen_model rejected_model author_model "
    "origin origins order orders model_order response_order display_order candidate_order"
)
BLOCKED = frozenset(_WORDS.split(" "))
"""Whole names. `order` too: which response came first is not the judge's business."""

BLOCKED_ENDS = (
    "_label",
    "_labels",
    "_winner",
    "_preference",
    "_score",
    "_scores",
    "_correct",
    "_model",
    "_models",
    "_model_name",
)
BLOCKED_STARTS = ("chosen_", "rejected_", "gold_", "label_", "score_", "preferred_", "winner_")

_HUMP = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")
_SEPARATORS = re.compile(r"[\s\-./:]+")


def is_blocked(key: str) -> bool:
    """Whether a key gives away a label, a score, who wrote a response, or its place."""
    names = {_SEPARATORS.sub("_", form.strip()).lower() for form in (key, _HUMP.sub("_", key))}
    return any(
        name.strip("_") in BLOCKED or name.endswith(BLOCKED_ENDS) or name.startswith(BLOCKED_STARTS)
        for name in names
    )


def sanitize_metadata(metadata: Any) -> Any:
    """The metadata without keys that give something away, and without what became empty.

    Mappings and lists are walked; any other value is returned as it is. 0 and False are values,
    not emptiness.
    """
    if isinstance(metadata, Mapping):
        walked = {
            str(key): sanitize_metadata(value)
            for key, value in metadata.items()
            if not is_blocked(str(key))
        }
        return {key: value for key, value in walked.items() if not _is_empty(value)}
    if isinstance(metadata, list | tuple):
        cleaned = [sanitize_metadata(value) for value in metadata]
        return [value for value in cleaned if not _is_empty(value)]
    return metadata


def _is_empty(value: Any) -> bool:
    return value is None or (isinstance(value, str | list | dict) and not value)
