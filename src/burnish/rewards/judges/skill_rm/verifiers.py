"""The verifiers that a skill's runtime entries name, and what each says of a case.

    finding = await run_verifier(entry, Case(task, responses))
    finding.decision, finding.observation

A verifier is a scorer made of an entry's options; it sees only the fields that the entry declares.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Any, Literal, NamedTuple

import msgspec
from msgspec import Meta, Struct
from msgspec.structs import replace

from burnish.arguments import as_number, as_word
from burnish.boundary import Call, PositiveInt, Settings, reader
from burnish.errors import ArgumentError, RewardError, UserError, did_you_mean
from burnish.records import Evidence, Response, Reward, Status, Task, Verdict, Visibility
from burnish.rewards.checks.base import CheckConfig, RuleCheck, check_of
from burnish.rewards.checks.code import CodeConfig
from burnish.rewards.checks.extract import references, short
from burnish.rewards.checks.instructions import InstructionsConfig
from burnish.rewards.checks.language import LanguageConfig
from burnish.rewards.checks.match import MatchConfig, token_f1
from burnish.rewards.checks.mathematics import MathematicsConfig
from burnish.rewards.checks.numeric import NumericConfig
from burnish.rewards.checks.rules import JsonSchemaConfig, LengthConfig, RegexConfig
from burnish.rewards.checks.texts import constraint_tools
from burnish.rewards.judges.benchmarks import LETTERS, reference_match
from burnish.rewards.judges.prompting import is_blocked, mark_for, request_of, sanitize_metadata
from burnish.rewards.scorer import Scorer, checked
from burnish.source import describe


class Mode(StrEnum):
    """What a judge may use."""

    BASELINE = "baseline"
    """The request and the responses alone: the direct judge."""
    FAIR = "fair"
    """Also what follows from neither label nor reference."""
    OPERATIONAL = "operational"
    """Also references, checklists, verifiers and pipelines; counted as oracle evidence."""


Leakage = Literal["sample_visible", "benchmark_visible", "oracle_only"]
"""What a resource gives away: nothing; what ships with the benchmark; the label or the reference."""
VISIBILITY: dict[Leakage, Visibility] = {
    "sample_visible": Visibility.VISIBLE,
    "benchmark_visible": Visibility.BENCHMARK,
    "oracle_only": Visibility.ORACLE,
}
Impact = Literal["veto", "strong", "evidence", "routing", "calibration", "formatting"]
"""What a resource may do to the decision. A response that fails a `veto` (below 1) loses to one that
does not, and scores 0 on its own."""
CAPS: dict[str, float] = {
    "wrong_task": 0.25,
    "unjustified_refusal": 0.25,
    "missing_deliverable": 0.50,
    "invalid_structure": 0.55,
    "polluted_answer": 0.60,
    "several_major_failures": 0.60,
    "wrong_language": 0.65,
}
"""The most that a response with such a failure can score."""
SEEN_BY_ALL = frozenset({"prompt", "messages", "responses"})
"""Inputs that are no fields of the task."""
Text = Annotated[str, Meta(max_length=2000)]
"""An index is read in every judgement."""
Id = Annotated[
    str,
    Meta(
        pattern=r"^[a-z][a-z0-9_.-]{0,63}$",
        description="small letters, digits, '_', '.', '-', a letter first",
    ),
]


class Resource(Settings, frozen=True, kw_only=True, omit_defaults=True):
    """One entry of `resources` (with a `path`) or `runtime_resources` (with a verifier's name)."""

    id: Id
    type: Literal[
        "rubric",
        "principle",
        "reference",
        "checklist",
        "verifier",
        "calibration",
        "aggregation",
        "output_contract",
    ]
    implementation_kind: Text
    leakage_level: Leakage
    allowed_setting: Literal["skill_fair", "skill_operational"]
    """The first mode that may use it; operational mode may use both."""
    decision_impact: Impact
    hard_or_soft: Literal["hard", "soft"] = "soft"
    """Whether a finding is a fact or an opinion."""
    stated_visibility: Literal["", "visible", "benchmark", "oracle"] = msgspec.field(
        default="", name="visibility"
    )
    cost: Literal["free", "low", "medium", "high"] = "free"
    description: Text = ""
    subtype: Text = ""
    path: Text = ""
    applies_to: tuple[str, ...] = ()
    benchmarks: tuple[str, ...] = ()
    failure_modes_mitigated: tuple[str, ...] = ()
    inputs_required: tuple[str, ...] = ()
    outputs_produced: tuple[str, ...] = ()
    provenance: Text = ""
    options: dict[str, object] = msgspec.field(default_factory=dict)
    """Settings of a verifier; ours, runtime entries only."""

    @property
    def visibility(self) -> Visibility:
        return VISIBILITY[self.leakage_level]

    @property
    def is_runtime(self) -> bool:
        return not self.path

    def allowed_in(self, mode: Mode) -> bool:
        """Whether a judge in this mode may list, view or run it."""
        if mode is Mode.OPERATIONAL:
            return True
        is_fair = self.allowed_setting == "skill_fair" and not self.is_runtime
        return mode is Mode.FAIR and is_fair and self.leakage_level != "oracle_only"


class Read(NamedTuple):
    entry: Resource | None
    problem: str = ""


def read_entry(table: Any, where: str, *, is_runtime: bool) -> Read:
    """One entry from plain YAML values, or what is wrong with it."""
    if isinstance(table, dict):
        table = {key: value for key, value in table.items() if value is not None}
    try:
        entry: Resource = reader(Resource)(where, table, Call())
    except ArgumentError as error:
        return Read(None, " ".join(str(error).split()))
    problem = _contradiction(entry, is_runtime)
    return Read(None, f"{where} ({entry.id}): {problem}") if problem else Read(entry)


def _contradiction(entry: Resource, is_runtime: bool) -> str:
    """What two fields of an entry say against each other."""
    is_fair = entry.allowed_setting == "skill_fair"
    if is_fair and (is_runtime or entry.leakage_level == "oracle_only"):
        what = "verifiers run" if is_runtime else "oracle_only is shown"
        return f"allowed_setting is skill_fair, but {what} in operational mode only; expected skill_operational"
    if entry.stated_visibility not in ("", entry.visibility):
        got, level = entry.stated_visibility, entry.leakage_level
        return f"visibility is {got} for {level}; expected {entry.visibility} or nothing"
    known = tuple(VERIFIERS) if is_runtime else ("text", "code")
    if (kind := entry.implementation_kind) not in known:
        hint = did_you_mean(kind, known)
        return f"implementation_kind is '{kind}'; expected one of {', '.join(known)}.{hint}"
    if is_runtime == bool(entry.path):
        return "a runtime resource has no path" if is_runtime else "'path' is missing"
    if not is_runtime and entry.options:
        return "options belong to runtime resources"
    fields = sorted(set(entry.inputs_required) - SEEN_BY_ALL)
    if fields and entry.leakage_level == "sample_visible":
        return (
            f"it reads the field '{fields[0]}' and is declared sample_visible; expected "
            "benchmark_visible or oracle_only"
        )
    return ""


@dataclass(frozen=True)
class Case:
    """What is judged, in the order in which it is shown."""

    task: Task
    responses: Sequence[Response]

    @property
    def labels(self) -> str:
        return LETTERS[: len(self.responses)]

    @property
    def texts(self) -> dict[str, str]:
        """The responses by their labels."""
        return {label: one.text for label, one in zip(self.labels, self.responses, strict=True)}

    @property
    def is_pair(self) -> bool:
        return len(self.responses) == 2

    @property
    def request(self) -> str:
        return request_of(self.task)

    @property
    def shown(self) -> tuple[str, ...]:
        """Every text that a judge sees and must not quote as its own verdict."""
        return (self.request, *(response.text for response in self.responses))

    @property
    def mark(self) -> str:
        """A word that no text shown can know in advance: it depends on all of them."""
        return mark_for(*self.shown)

    @property
    def about(self) -> tuple[str, ...]:
        return (self.task.id, *(response.id for response in self.responses))


TAIL = 400
"""Characters at the end of a response in which a final answer is looked for."""


class FieldConfig(CheckConfig, frozen=True):
    field: str = "reference"
    """The field of the task that is read."""


class ReferenceMatchConfig(FieldConfig, frozen=True):
    where: Literal["whole", "end"] = "whole"
    """`end`: the last lines only, where a final answer stands."""
    repeat: PositiveInt = 1
    """The reference is written so often in a row, as some benchmarks ask for."""


class ReferenceMatch(RuleCheck[ReferenceMatchConfig]):
    """1 where the reference stands in the response as whole tokens, else 0."""

    uses_answer = True

    def judge(self, task: Task, response: Response) -> Reward:
        config = self.config
        wanted = [gold * config.repeat for gold in references(task.fields.get(config.field))]
        text = response.text.rstrip()[-TAIL:] if config.where == "end" else response.text
        hit = any(reference_match(gold, [text]) == "A" for gold in wanted)
        place = "the end of the response" if config.where == "end" else "the response"
        saw = f"reference {short(' or '.join(wanted))!r} {'stands' if hit else 'is not'} in {place}"
        return self.decided(float(hit), saw)


class GroundTruthScore(RuleCheck[FieldConfig]):
    """How much of the ground truth a response holds: word F1 with it, over the response's end."""

    uses_answer = True

    def judge(self, task: Task, response: Response) -> Reward:
        golds = references(task.fields.get(self.config.field))
        value = token_f1(response.text[-4 * TAIL :], golds)
        return self.decided(value, f"word F1 {value:.3f} with the ground truth")


class TextCounts(RuleCheck[CheckConfig]):
    """Words, sentences, paragraphs and the like of a response, for the judge to read."""

    def judge(self, task: Task, response: Response) -> Reward:
        counts = constraint_tools(response.text)
        return _shown(", ".join(f"{k} {v}" for k, v in counts.items()), Visibility.VISIBLE)


class ShowField(RuleCheck[Any]):
    """A field of the sample, such as its reference or its checklist, for the judge to read."""

    uses_answer = True

    def judge(self, task: Task, response: Response) -> Reward:
        value = task.fields[self.config.field]
        return _shown(value if isinstance(value, str) else _as_json(value), Visibility.ORACLE)

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        """The same for all responses; it is said once."""
        first, *_ = await super().score(task, responses[:1])
        rest = Reward.failed(self.name, Status.ABSTAIN, "the same")
        return [first, *(rest for _ in responses[1:])]


class ShowMetadata(ShowField):
    """The sample's metadata without anything that bears a label, a score, a model or an order."""

    def judge(self, task: Task, response: Response) -> Reward:
        field = self.config.field
        clean = sanitize_metadata({field: task.fields[field]}).get(field, {})
        return _shown(_as_json(clean), Visibility.BENCHMARK)


def _as_json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)


def _shown(text: str, visibility: Visibility) -> Reward:
    evidence = (Evidence("shown", text, visibility),)
    return Reward.failed("shown", Status.ABSTAIN, "shown to the judge", evidence=evidence)


WALL_S = 10.0
"""Default wall clock of one run."""
Factory = Callable[[Mapping[str, Any]], Scorer]


class Finding(Struct, frozen=True, kw_only=True):
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


def _check(
    config: type[CheckConfig], make: Callable[[Any], Scorer] = check_of, **fixed: Any
) -> Factory:
    """A factory for a check; options are the check's own settings."""
    return lambda options: make(reader(config)("options", fixed | dict(options), Call()))


VERIFIERS: dict[str, Factory] = {
    "constraint_checks": _check(InstructionsConfig, mode="mean"),
    "reference_match": _check(ReferenceMatchConfig),
    "answer_match": _check(MatchConfig),
    "numeric_answer": _check(NumericConfig),
    "mathematics_answer": _check(MathematicsConfig),
    "json_schema": _check(JsonSchemaConfig),
    "language": _check(LanguageConfig),
    "length": _check(LengthConfig),
    "pattern": _check(RegexConfig),
    "code_tests": _check(CodeConfig),
    "ground_truth_score_pair": _check(FieldConfig),
    "text_counts": _check(CheckConfig),
    "sample_reference": _check(FieldConfig, ShowField),
    "sample_checklist": _check(FieldConfig, ShowField),
    "sample_metadata": _check(FieldConfig, ShowMetadata, field="metadata"),
}
"""What a runtime entry's `implementation_kind` may name."""


def register_verifier(name: str, factory: Factory) -> None:
    """Add a verifier, or a pipeline, of your own: a function from options to a scorer."""
    VERIFIERS[name] = factory


def make_verifier(entry: Resource) -> Scorer:
    """The scorer behind an entry; a `UserError` where its options do not fit."""
    # Every verifier takes a flag, the severity of a violation, and its wall clock.
    options = {key: one for key, one in entry.options.items() if key not in ("flag", "wall_s")}
    scorer = VERIFIERS[entry.implementation_kind](options)
    undeclared = sorted(scorer.needs - set(entry.inputs_required))
    if undeclared:
        raise UserError(
            f"'{entry.implementation_kind}' reads the field '{undeclared[0]}', which is not in "
            "inputs_required"
        )
    return scorer


def options_problem(entry: Resource) -> str:
    try:
        if "flag" in entry.options:
            as_word("flag", entry.options["flag"], CAPS)
        as_number("wall_s", entry.options.get("wall_s", WALL_S), above=0, high=600)
        make_verifier(entry)
    except (UserError, TypeError, ValueError, ModuleNotFoundError) as error:
        return " ".join(str(error).split())
    return ""


async def run_verifier(entry: Resource, case: Case) -> Finding:
    """Run one entry; whatever goes wrong is a finding with the decision `unavailable`."""
    rewards: Sequence[Reward] = ()
    try:
        task = narrowed(case.task, entry)
        wall_s = as_number("wall_s", entry.options.get("wall_s", WALL_S))
        rewards = await checked(make_verifier(entry), task, case.responses, deadline_s=wall_s)
        broken = [r for r in rewards if r.value is None and r.status is not Status.ABSTAIN]
        problem = f"{broken[0].status.value}: {broken[0].reason}" if broken else ""
    except (UserError, RewardError, ModuleNotFoundError) as error:
        problem = " ".join(str(error).split())[:500]
    except Exception as error:  # boundary: verifiers may be foreign code
        problem = describe(error)
    if problem:
        said = f"unavailable: {problem}"
        return Finding(entry=entry, decision="unavailable", observation=said, error=problem)
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
    for name in wanted:
        if task.fields.get(name) in (None, "", [], {}):
            raise UserError(f"the sample has no field '{name}'")
        is_label = name in task.labels and entry.leakage_level != "oracle_only"
        if is_label or is_blocked(name):
            why = "no mode sees it"
            if is_label:
                why = f"it bears the label and '{entry.id}' is declared {entry.leakage_level}"
            raise UserError(f"the field '{name}' holds a label, a score or an author; {why}")
    if "prompt" in entry.inputs_required and "prompt" in task.fields:
        wanted.append("prompt")  # the request as code to complete; the judge sees it anyway
    return replace(task, fields={name: task.fields[name] for name in wanted})


def _decision(values: Sequence[float | None], labels: str) -> str:
    """The response that does best alone; for one response, whether it satisfies all."""
    known = [value for value in values if value is not None]
    if len(known) < len(values):
        return "inconclusive"
    if len(known) == 1:
        return "satisfied" if known[0] >= 1 else "violated" if known[0] <= 0 else "partial"
    best = max(known)
    return labels[known.index(best)] if known.count(best) == 1 else "inconclusive"


def _said(label: str, reward: Reward) -> str:
    value = "no decision" if reward.value is None else f"{reward.value:.3g}"
    seen = "; ".join(evidence.observation for evidence in reward.evidence) or reward.reason
    return f"{label}: {value}: {seen}"
