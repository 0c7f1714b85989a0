"""Runtime resources: verifiers by name, run on one case, whose failures are findings too.

    finding = await run_verifier(entry, case)
    finding.decision        # "A", "B", "satisfied", "violated", "inconclusive", "unavailable", ...

A verifier is a scorer made from an entry's options. It sees the request, the responses and the
fields that its entry names in `inputs_required`, nothing else. A field that bears the answer is
handed only to an entry that is declared `oracle_only`; labels, scores and authors to none.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from burnish.errors import RewardError, UserError, did_you_mean
from burnish.records import Reward, Status, Task, Verdict, Visibility
from burnish.rewards.checks.base import CheckConfig
from burnish.rewards.checks.instructions import Instructions, InstructionsConfig
from burnish.rewards.checks.json_schema import JsonSchema, JsonSchemaConfig
from burnish.rewards.checks.language import Language, LanguageConfig
from burnish.rewards.checks.length import Length, LengthConfig
from burnish.rewards.checks.match import Match, MatchConfig
from burnish.rewards.checks.mathematics import Mathematics, MathematicsConfig
from burnish.rewards.checks.numeric import Numeric, NumericConfig
from burnish.rewards.checks.regex import Regex, RegexConfig
from burnish.rewards.judges.sanitise import is_blocked
from burnish.rewards.judges.skill_rm.cases import Case
from burnish.rewards.judges.skill_rm.entries import CAPS, SEEN_BY_ALL, Leakage, Resource
from burnish.rewards.judges.skill_rm.shown import (
    GroundTruthScore,
    ReferenceMatch,
    ShowField,
    ShowMetadata,
    TextCounts,
)
from burnish.rewards.scorer import Scorer, checked
from burnish.source import describe

WALL_S = 10.0
"""Default wall clock of one run."""
COMMON = ("flag", "wall_s")
"""Options that every verifier takes: the severity that a violation has, and the wall clock."""

Factory = Callable[[dict[str, Any]], Scorer]


class Finding(Struct, frozen=True, kw_only=True):
    """What a verifier said about a case."""

    entry: Resource
    decision: str
    observation: str
    values: tuple[float | None, ...] = ()
    """One a response, 1 where it satisfies everything."""
    verdicts: tuple[tuple[Verdict, ...], ...] = ()
    """Single criteria, one tuple a response."""
    error: str | None = None

    @property
    def visibility(self) -> Visibility:
        return self.entry.visibility

    @property
    def flag(self) -> str:
        return str(self.entry.options.get("flag", ""))


def _check(config: type[CheckConfig], check: Callable[[Any], Scorer], **fixed: Any) -> Factory:
    """A factory for one of the deterministic checks; options are the check's own settings."""

    def make(options: dict[str, Any]) -> Scorer:
        known = [field.name for field in msgspec.structs.fields(config)]
        for key in options:
            if key not in known:
                raise UserError(f"unknown option '{key}'.{did_you_mean(key, known)}")
        try:
            return check(msgspec.convert(fixed | options, config))
        except msgspec.ValidationError as error:
            raise UserError(f"options: {error}") from None

    return make


def _code_tests(options: dict[str, Any]) -> Scorer:
    from burnish.rewards.checks.code import Code, CodeConfig

    return _check(CodeConfig, Code)(options)


VERIFIERS: dict[str, Factory] = {
    "constraint_checks": _check(InstructionsConfig, Instructions, mode="mean"),
    "reference_match": ReferenceMatch.from_options,
    "answer_match": _check(MatchConfig, Match),
    "numeric_answer": _check(NumericConfig, Numeric),
    "mathematics_answer": _check(MathematicsConfig, Mathematics),
    "json_schema": _check(JsonSchemaConfig, JsonSchema),
    "language": _check(LanguageConfig, Language),
    "length": _check(LengthConfig, Length),
    "pattern": _check(RegexConfig, Regex),
    "code_tests": _code_tests,
    "ground_truth_score_pair": GroundTruthScore.from_options,
    "text_counts": TextCounts.from_options,
    "sample_reference": ShowField.from_options,
    "sample_checklist": ShowField.from_options,
    "sample_metadata": ShowMetadata.from_options,
}
"""What a runtime entry's `implementation_kind` may name."""


def register_verifier(name: str, factory: Factory) -> None:
    """Add a verifier, or a pipeline, of your own: a function from options to a scorer."""
    if not re.fullmatch(r"[a-z][a-z0-9_]*", name):
        raise UserError(f"verifier '{name}': expected small letters, digits and '_'.")
    if name in VERIFIERS:
        raise UserError(f"there is already a verifier '{name}'; choose another name.")
    VERIFIERS[name] = factory


def make_verifier(entry: Resource) -> Scorer:
    """The scorer behind an entry; a `UserError` where its options do not fit."""
    options = {key: value for key, value in entry.options.items() if key not in COMMON}
    scorer = VERIFIERS[entry.implementation_kind](options)
    undeclared = sorted(scorer.needs - set(entry.inputs_required))
    if undeclared:
        raise UserError(
            f"'{entry.implementation_kind}' reads the field '{undeclared[0]}', which is not in "
            "inputs_required"
        )
    return scorer


def options_problem(entry: Resource) -> str:
    """Why an entry could not run, or an empty text."""
    flag, wall_s = entry.options.get("flag", ""), entry.options.get("wall_s", WALL_S)
    if flag and flag not in CAPS:
        return (
            f"flag is {flag!r}; expected one of {', '.join(CAPS)}.{did_you_mean(str(flag), CAPS)}"
        )
    if isinstance(wall_s, bool) or not isinstance(wall_s, int | float) or not 0 < wall_s <= 600:
        return f"wall_s is {wall_s!r}; expected seconds, more than 0 and at most 600"
    try:
        make_verifier(entry)
    except ModuleNotFoundError as error:
        return f"'{entry.implementation_kind}' cannot run here: {error}"
    except (UserError, TypeError, ValueError) as error:
        return " ".join(str(error).split())
    return ""


async def run_verifier(entry: Resource, case: Case) -> Finding:
    """Run one entry; whatever goes wrong is a finding with the decision `unavailable`."""
    try:
        task = narrowed(case.task, entry)
        scorer = make_verifier(entry)
        wall_s = float(entry.options.get("wall_s", WALL_S))
        rewards = await checked(scorer, task, case.responses, deadline_s=wall_s)
    except (UserError, RewardError, ModuleNotFoundError) as error:
        return _unavailable(entry, " ".join(str(error).split())[:500])
    except Exception as error:  # boundary: verifiers may be foreign code
        return _unavailable(entry, describe(error))
    broken = [r for r in rewards if r.value is None and r.status is not Status.ABSTAIN]
    if broken:
        return _unavailable(entry, f"{broken[0].status.value}: {broken[0].reason}")
    values = tuple(reward.value for reward in rewards)
    return Finding(
        entry=entry,
        decision=_decision(values, case.labels),
        observation="\n".join(map(_said, case.labels, rewards)),
        values=values,
        verdicts=tuple(reward.verdicts for reward in rewards),
    )


def narrowed(task: Task, entry: Resource) -> Task:
    """The task with the fields that an entry may read; a `UserError` where it may not or cannot."""
    wanted = [name for name in entry.inputs_required if name not in SEEN_BY_ALL]
    missing = [name for name in wanted if task.fields.get(name) in (None, "", [], {})]
    if missing:
        raise UserError(f"the sample has no field '{missing[0]}'")
    for name in wanted:
        if is_blocked(name):
            raise UserError(
                f"the field '{name}' holds a label, a score or an author; no mode sees it"
            )
        if name in task.labels and entry.leakage_level is not Leakage.ORACLE_ONLY:
            raise UserError(
                f"the field '{name}' bears the label and '{entry.id}' is declared "
                f"{entry.leakage_level.value}"
            )
    if "prompt" in entry.inputs_required and "prompt" in task.fields:
        wanted.append("prompt")  # the request as code to complete; the judge sees it anyway
    return replace(task, fields={name: task.fields[name] for name in wanted})


def _unavailable(entry: Resource, why: str) -> Finding:
    return Finding(
        entry=entry, decision="unavailable", observation=f"unavailable: {why}", error=why
    )


def _decision(values: Sequence[float | None], labels: Sequence[str]) -> str:
    """The response that does best alone; for one response, whether it satisfies all."""
    if any(value is None for value in values):
        return "inconclusive"
    known = [value for value in values if value is not None]
    if len(known) == 1:
        return "satisfied" if known[0] >= 1 else "violated" if known[0] <= 0 else "partial"
    best = max(known)
    return labels[known.index(best)] if known.count(best) == 1 else "inconclusive"


def _said(label: str, reward: Reward) -> str:
    value = "no decision" if reward.value is None else f"{reward.value:.3g}"
    seen = "; ".join(evidence.observation for evidence in reward.evidence) or reward.reason
    return f"{label}: {value}: {seen}"
