"""OpenRS by name: the options that a recipe or `burnish judge --with openrs` may give.

    scorer = build(JudgeModel(lm), {"verify": ["ground_truth", "constraints"], "min_score": 0.2})

The scorer looks at a pair in one order; `burnish.rewards.judges.build` asks in both.
"""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from burnish.lm.base import check_sampling
from burnish.rewards.combine import FirstDecisive
from burnish.rewards.judges.asking import GREEDY, JudgeModel
from burnish.rewards.judges.openrs.gate import Verifiable
from burnish.rewards.judges.openrs.judge import CLIP, OpenRS, Rules
from burnish.rewards.judges.openrs.library import RubricLibrary
from burnish.rewards.judges.openrs.meta_rubric import Language
from burnish.rewards.judges.openrs.verifiable import Constraints, GroundTruth, LanguageMatch
from burnish.rewards.judges.options import Options, read_options
from burnish.rewards.scorer import Scorer

MAX_TOKENS = 8192
"""A reply holds an analysis and up to 15 criteria; the judge's usual limit would cut it."""

Check = Literal["ground_truth", "language", "constraints"]


class OpenRSOptions(Options, frozen=True):
    """Options of `openrs`."""

    rubrics: str = ""
    """Folder with your own meta-rubrics; empty: the shipped ones."""
    language: Language | None = None
    """en or zh; by default that of each request."""
    domain: str = ""
    """Domain of every task whose field does not name one."""
    domain_field: str = "query_type"
    """Task field that names the domain, in English or Chinese."""
    verify: tuple[Check, ...] = ()
    """Checks in front of the judge, in this order; the first that tells the two apart decides."""
    reference_field: str = "answer"
    """For `ground_truth`: oracle evidence, declared as such."""
    constraints_field: str = "constraints"
    min_score: float = 0.0
    weights: dict[str, float] = msgspec.field(default_factory=dict)
    """Of core, important and highlight; by default 5, 2 and 1."""
    strict: bool = False
    fallthrough: bool = False
    clip: float = CLIP
    max_tokens: int | None = None
    """Of one reply. Unset: 8192 where the judge model has no sampling of its own, else its limit."""
    name: str = "openrs"


def build(judge: JudgeModel, options: Mapping[str, Any]) -> Scorer:
    """The judge by the name `openrs`, with its checks in front where `verify` asks for them."""
    settings = read_options("openrs", options, OpenRSOptions)
    judge = _with_room(judge, settings.max_tokens)
    pair = OpenRS(
        judge,
        rubrics=RubricLibrary.load(settings.rubrics) if settings.rubrics else None,
        language=settings.language,
        domain=settings.domain,
        domain_field=settings.domain_field,
        rules=Rules(
            min_score=settings.min_score,
            weights=settings.weights,
            strict=settings.strict,
            fallthrough=settings.fallthrough,
            clip=settings.clip,
        ),
        name=settings.name,
    )
    if not settings.verify:
        return pair
    checks: dict[Check, Scorer] = {
        "ground_truth": GroundTruth(judge, field=settings.reference_field),
        "language": LanguageMatch(),
        "constraints": Constraints(judge, field=settings.constraints_field),
    }
    gate = Verifiable([checks[name] for name in settings.verify])
    return FirstDecisive(gate, pair, name=settings.name)


def _with_room(judge: JudgeModel, max_tokens: int | None) -> JudgeModel:
    """The judge with room for a whole reply; a limit that somebody set is kept.

    A judge model that was given no sampling holds the very object `GREEDY`; one that was given the
    same numbers holds another, and means them.
    """
    if max_tokens is None:
        if judge.sampling is not GREEDY:
            return judge
        max_tokens = MAX_TOKENS
    sampling = replace(judge.sampling, max_tokens=max_tokens)
    check_sampling(sampling)
    judge = copy(judge)  # cache, budget and record stay shared
    judge.sampling = sampling
    return judge
