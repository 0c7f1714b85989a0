"""How premises are checked, steps scored and scores joined: the options of EVPV."""

from __future__ import annotations

from typing import Literal

from burnish.errors import UserError
from burnish.rewards.checks.steps import Split, check_split
from burnish.rewards.judges.build import Options
from burnish.rewards.judges.evpv.extracting import EXTRACTORS
from burnish.rewards.judges.evpv.scores import Aggregate
from burnish.rewards.judges.judge_model import JudgeModel
from burnish.rewards.scorer import Scorer


class EvpvOptions(Options, frozen=True):
    """How premises are checked, steps scored and scores joined."""

    evidence: str = "evidence"
    """Task field with the evidence: a text, a table, a picture, recorded facts, or a list of such."""
    pictures: Literal["ignore", "ocr", "vision"] = "ignore"
    """The pictures of the prompt are evidence: what is written in them (ocr), or what the model, which
    must see, lists of them (vision). The field `evidence` may then be left out."""
    question: str = "question"
    """Task field with the question where the prompt holds the evidence too; the prompt otherwise. What
    stands in it is no premise."""
    tool_results: bool = False
    """What tools said in the response's own conversation is evidence, too."""
    extractor: str = "auto"
    """auto: by the type of each piece. llm: the model lists the facts, also of a picture. Or another
    one: text, table, facts, ocr, vision."""
    matcher: Literal["canonical", "embedding", "judge", "audit"] = "canonical"
    """canonical: subject, relation and value with units. embedding, judge: sentence vectors or the
    model settle what that leaves unknown. audit: the model lists contradictions, as in the paper."""
    unknown: float = 0.5
    """Support of a premise that the evidence says nothing about."""
    relative: float = 1e-3
    """Tolerance of numbers that are not whole."""
    scope: Literal["step", "mean", "min"] = "step"
    """step: a step is gated by its own premises. mean, min: all by one number, as in the paper."""
    undeclared: Literal["unknown", "ignore"] = "unknown"
    """A step that uses the evidence without declaring it is gated as unknown, or not at all."""
    min_premises: int = 0
    """Premises that a solution must declare; with fewer, its steps without one are gated by the share
    that is there, so that a bare answer earns nothing for its steps."""
    unchecked: Literal["open", "zero"] = "open"
    """A premise that could not be checked (an unreadable audit) is not gated, or has reliability 0 as
    in the reference."""
    verifier: Literal["judge", "none"] = "judge"
    """judge: the model says 1 or -1 of each step. none: every step is +1, so the gate alone decides."""
    verdicts: Literal["strict", "reference"] = "strict"
    """strict: a reply of 1 or -1 alone. reference: the lenient rule, which reads any text."""
    history: int = 12
    """Earlier steps that the verifier sees."""
    aggregate: Aggregate = "weighted"
    """How step scores become one value: weighted, rate, streak, geometric, first_error."""
    soft: bool = True
    """Read fractional scores as chances; false is the paper's form, which counts 0.9 as wrong."""
    split: Split = "blank_lines"
    """Where steps of a plain text end; a solution in JSON has its own."""
    headings: tuple[str, ...] = ()
    """How steps begin, with `split = "headings"`."""
    most_steps: int = 64
    """A longer solution has no value."""
    name: str = "evpv"


def check_options(
    name: str, options: EvpvOptions, judge: JudgeModel | None, steps: Scorer | None
) -> None:
    """Refuse options out of their range, and those that ask a model where there is none."""
    check_split(options.split, options.headings)
    if not 0 <= options.unknown <= 1 or not 0 <= options.relative < 1:
        raise UserError(
            f"judge '{name}': unknown is {options.unknown} and relative {options.relative}; expected "
            "numbers from 0 to 1."
        )
    if options.history < 0 or options.most_steps < 1 or options.min_premises < 0:
        raise UserError(
            f"judge '{name}': history is {options.history}, most_steps {options.most_steps} and "
            f"min_premises {options.min_premises}; expected at least 0, 1 and 0."
        )
    if options.extractor != "auto" and options.extractor not in EXTRACTORS:
        raise UserError(
            f"judge '{name}': extractor is '{options.extractor}'; expected auto, "
            f"{', '.join(EXTRACTORS)}."
        )
    asks = {
        "verifier = 'judge'": options.verifier == "judge" and steps is None,
        "matcher = 'judge'": options.matcher == "judge",
        "matcher = 'audit'": options.matcher == "audit",
        "extractor = 'llm'": options.extractor == "llm",
        "extractor = 'vision'": options.extractor == "vision",
        "pictures = 'vision'": options.pictures == "vision",
    }
    asked = [what for what, is_so in asks.items() if is_so]
    if judge is None and asked:
        raise UserError(
            f"judge '{name}': {asked[0]} asks a model and there is none; give `model`, or choose "
            "verifier = 'none', matcher = 'canonical', extractor = 'auto' and pictures = 'ocr'."
        )
