"""The verifiers that a skill's runtime entries name, and what each says of a case.

    finding = await run_verifier(entry, Case.of(task, responses))
    finding.decision, finding.observation

A verifier is a scorer made of an entry's options; it sees only the fields that the entry declares.
"""

from __future__ import annotations

import json
import re
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import replace

from burnish.errors import RewardError, UserError, did_you_mean
from burnish.records import Evidence, Response, Reward, Status, Task, Verdict, Visibility
from burnish.rewards.checks.base import CheckConfig
from burnish.rewards.checks.extract import references, short
from burnish.rewards.checks.instructions import Instructions, InstructionsConfig
from burnish.rewards.checks.language import Language, LanguageConfig
from burnish.rewards.checks.match import Match, MatchConfig, token_f1
from burnish.rewards.checks.mathematics import Mathematics, MathematicsConfig
from burnish.rewards.checks.numeric import Numeric, NumericConfig
from burnish.rewards.checks.rules import (
    JsonSchema,
    JsonSchemaConfig,
    Length,
    LengthConfig,
    Regex,
    RegexConfig,
)
from burnish.rewards.checks.texts import constraint_tools
from burnish.rewards.judges.benchmarks import reference_match
from burnish.rewards.judges.prompting import is_blocked, mark_for, request_of, sanitize_metadata
from burnish.rewards.scorer import Scope, Scorer, checked
from burnish.seeds import digest
from burnish.source import describe


class Mode(StrEnum):
    """What a judge may use."""

    BASELINE = "baseline"
    """The request and the responses alone: the direct judge."""
    FAIR = "fair"
    """Also what follows from neither label nor reference."""
    OPERATIONAL = "operational"
    """Also references, checklists, verifiers and pipelines; counted as oracle evidence."""


class ResourceType(StrEnum):
    RUBRIC = "rubric"
    PRINCIPLE = "principle"
    REFERENCE = "reference"
    CHECKLIST = "checklist"
    VERIFIER = "verifier"
    CALIBRATION = "calibration"
    AGGREGATION = "aggregation"
    OUTPUT_CONTRACT = "output_contract"


class Impact(StrEnum):
    """What a resource may do to the decision."""

    VETO = "veto"
    """A response that fails it (below 1) loses to one that does not, and scores 0 on its own."""
    STRONG = "strong"
    EVIDENCE = "evidence"
    ROUTING = "routing"
    CALIBRATION = "calibration"
    FORMATTING = "formatting"


class Leakage(StrEnum):
    """What a resource gives away about the sample."""

    SAMPLE_VISIBLE = "sample_visible"
    """Nothing beyond the request and the responses."""
    BENCHMARK_VISIBLE = "benchmark_visible"
    """What ships with the benchmark: tests, constraints."""
    ORACLE_ONLY = "oracle_only"
    """The label or the reference answer."""


class Setting(StrEnum):
    """The first mode that may use a resource; operational mode may use both."""

    FAIR = "skill_fair"
    OPERATIONAL = "skill_operational"


class Hardness(StrEnum):
    """Whether a finding is a fact or an opinion."""

    HARD = "hard"
    SOFT = "soft"


class Cost(StrEnum):
    """What using a resource costs, roughly."""

    FREE = "free"
    LOW = "low"
    MEDIUM = "medium"
    HIGH = "high"


VISIBILITY = {
    Leakage.SAMPLE_VISIBLE: Visibility.VISIBLE,
    Leakage.BENCHMARK_VISIBLE: Visibility.BENCHMARK,
    Leakage.ORACLE_ONLY: Visibility.ORACLE,
}
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
FILE_KINDS = ("text", "code")


class Resource(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One entry of `resources` (with a `path`) or `runtime_resources` (with a verifier's name)."""

    id: str
    type: ResourceType
    implementation_kind: str
    leakage_level: Leakage
    allowed_setting: Setting
    decision_impact: Impact
    hard_or_soft: Hardness = Hardness.SOFT
    visibility: Visibility = Visibility.VISIBLE
    cost: Cost = Cost.FREE
    description: str = ""
    subtype: str = ""
    path: str = ""
    applies_to: tuple[str, ...] = ()
    benchmarks: tuple[str, ...] = ()
    failure_modes_mitigated: tuple[str, ...] = ()
    inputs_required: tuple[str, ...] = ()
    outputs_produced: tuple[str, ...] = ()
    provenance: str = ""
    options: dict[str, Any] = msgspec.field(default_factory=dict)
    """Settings of a verifier; ours, runtime entries only."""

    @property
    def is_runtime(self) -> bool:
        return not self.path

    def allowed_in(self, mode: Mode) -> bool:
        """Whether a judge in this mode may list, view or run it."""
        if mode is Mode.OPERATIONAL:
            return True
        is_fair = self.allowed_setting is Setting.FAIR and not self.is_runtime
        return mode is Mode.FAIR and is_fair and self.leakage_level is not Leakage.ORACLE_ONLY


class Read(NamedTuple):
    entry: Resource | None
    problems: tuple[str, ...]


_FIELDS = {field.name: field for field in msgspec.structs.fields(Resource)}
_REQUIRED = [name for name, field in _FIELDS.items() if field.required]
_ID = re.compile(r"[a-z][a-z0-9_.-]{0,63}")
TEXT_LIMIT = 2000
"""Characters of one text field: an index is read in every judgement."""


def read_entry(
    table: Any, where: str, *, is_runtime: bool, kinds: Mapping[str, Any] | None = None
) -> Read:
    """One entry from plain YAML values; `kinds` are the verifiers that a runtime entry may name."""
    if not isinstance(table, dict):
        return Read(None, (f"{where}: got {_kind(table)}; expected a table of fields",))
    name = table.get("id")
    # A name with a line break would make two lines of a problem.
    where = f"{where} ({name})" if isinstance(name, str) and name and name.isprintable() else where
    problems = [
        f"{where}: unknown field {str(key)!r}.{did_you_mean(str(key), _FIELDS)}"
        for key in table
        if key not in _FIELDS
    ]
    needed = _REQUIRED if is_runtime else [*_REQUIRED, "path"]
    problems += [f"{where}: '{key}' is missing" for key in needed if table.get(key) in (None, "")]
    values: dict[str, Any] = {}
    for key, value in table.items():
        if key in _FIELDS and value is not None:
            problem = _read_field(key, value, values)
            problems += [f"{where}: {problem}"] if problem else []
    if problems:
        return Read(None, tuple(problems))
    values.setdefault("visibility", VISIBILITY[values["leakage_level"]])
    entry = Resource(**values)
    problems = [f"{where}: {line}" for line in _contradictions(entry, is_runtime, kinds or {})]
    return Read(None if problems else entry, tuple(problems))


def _read_field(key: str, value: Any, values: dict[str, Any]) -> str:
    """Put a field's value into `values`, or say what is wrong with it."""
    kind: Any = _FIELDS[key].type
    if isinstance(kind, type) and issubclass(kind, StrEnum):
        known = [str(word) for word in kind]
        if not isinstance(value, str) or value not in known:
            hint = did_you_mean(str(value), known)
            return f"{key} is {value!r}; expected one of {', '.join(known)}.{hint}"
        values[key] = kind(value)
    elif kind == tuple[str, ...]:
        items = [value] if isinstance(value, str) else value
        if not isinstance(items, list) or not all(isinstance(item, str) for item in items):
            return f"{key} is {_kind(value)}; expected a list of texts"
        values[key] = tuple(items)
    elif key == "options":
        if not isinstance(value, dict) or not all(isinstance(name, str) for name in value):
            return f"options is {_kind(value)}; expected a table"
        values[key] = value
    elif not isinstance(value, str):
        return f"{key} is {_kind(value)}; expected a text"
    elif key == "id" and not _ID.fullmatch(value):
        return f"id is {value!r}; expected small letters, digits, '_', '.', '-', a letter first"
    elif len(value) > TEXT_LIMIT:
        return f"{key} has {len(value)} characters; expected at most {TEXT_LIMIT}"
    else:
        values[key] = value
    return ""


def _contradictions(entry: Resource, is_runtime: bool, kinds: Mapping[str, Any]) -> list[str]:
    """What two fields of an entry say against each other."""
    found = []
    if entry.leakage_level is Leakage.ORACLE_ONLY and entry.allowed_setting is Setting.FAIR:
        found.append("oracle_only is allowed in skill_fair; expected skill_operational")
    if entry.visibility is not VISIBILITY[entry.leakage_level]:
        expected = VISIBILITY[entry.leakage_level].value
        found.append(
            f"visibility is {entry.visibility.value} for {entry.leakage_level.value}; "
            f"expected {expected} or nothing"
        )
    known = tuple(kinds) if is_runtime else FILE_KINDS
    if entry.implementation_kind not in known:
        hint = did_you_mean(entry.implementation_kind, known)
        found.append(
            f"implementation_kind is '{entry.implementation_kind}'; expected one of "
            f"{', '.join(known)}.{hint}"
        )
    if is_runtime and entry.path:
        found.append("a runtime resource has no path")
    if is_runtime and entry.allowed_setting is Setting.FAIR:
        found.append("verifiers run in operational mode only; expected skill_operational")
    if not is_runtime and entry.options:
        found.append("options belong to runtime resources")
    fields = sorted(set(entry.inputs_required) - SEEN_BY_ALL)
    if fields and entry.leakage_level is Leakage.SAMPLE_VISIBLE:
        found.append(
            f"it reads the field '{fields[0]}' and is declared sample_visible; expected "
            "benchmark_visible or oracle_only"
        )
    return found


def _kind(value: Any) -> str:
    return f"{type(value).__name__} {value!r:.60}"


LABELS = "ABCDEFGHIJKLMNOPQRSTUVWXYZ"


@dataclass(frozen=True)
class Case:
    """What is judged, in the order in which it is shown."""

    task: Task
    responses: tuple[Response, ...]

    @classmethod
    def of(cls, task: Task, responses: Sequence[Response]) -> Case:
        return cls(task, tuple(responses))

    @property
    def labels(self) -> tuple[str, ...]:
        return tuple(LABELS[: len(self.responses)])

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


class FieldVerifier(ABC):
    """Base: a point scorer that may read one field of the task."""

    scope = Scope.POINT
    known: tuple[str, ...] = ("field",)
    default_field = "reference"

    def __init__(self, options: dict[str, Any]) -> None:
        for key in options:
            if key not in self.known:
                raise UserError(f"unknown option '{key}'.{did_you_mean(key, self.known)}")
        self.name = type(self).__name__
        self.options = options
        self.field = str(options.get("field", self.default_field)) if self.known else ""
        self.needs = frozenset({self.field}) if self.field else frozenset()

    @classmethod
    def from_options(cls, options: dict[str, Any]) -> FieldVerifier:
        return cls(options)

    @property
    def fingerprint(self) -> str:
        return digest(self.name, repr(sorted(self.options.items())))

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        return [self.judge(task, response) for response in responses]

    @abstractmethod
    def judge(self, task: Task, response: Response) -> Reward:
        """One response."""

    def show(self, text: str, visibility: Visibility) -> Reward:
        evidence = (Evidence(self.name, text, visibility),)
        return Reward.failed(self.name, Status.ABSTAIN, "shown to the judge", evidence=evidence)


class ReferenceMatch(FieldVerifier):
    """1 where the reference stands in the response as whole tokens, else 0.

    `where = "end"` looks at the last lines only, where a final answer stands; `repeat = 5` looks for
    the reference written five times in a row, as some benchmarks ask for.
    """

    known = ("field", "where", "repeat")

    def __init__(self, options: dict[str, Any]) -> None:
        super().__init__(options)
        self.where, self.repeat = options.get("where", "whole"), options.get("repeat", 1)
        if self.where not in ("whole", "end"):
            raise UserError(f"where is {self.where!r}; expected 'whole' or 'end'")
        if isinstance(self.repeat, bool) or not isinstance(self.repeat, int) or self.repeat < 1:
            raise UserError(f"repeat is {self.repeat!r}; expected a whole number of 1 or more")

    def judge(self, task: Task, response: Response) -> Reward:
        wanted = [gold * self.repeat for gold in references(task.fields.get(self.field))]
        text = response.text.rstrip()[-TAIL:] if self.where == "end" else response.text
        # Against an empty text, so that this response alone decides.
        hit = any(
            reference_match({"reference": gold, "responses": {"A": text, "B": ""}}) == "A"
            for gold in wanted
        )
        place = "the end of the response" if self.where == "end" else "the response"
        saw = f"reference {short(' or '.join(wanted))!r} {'stands' if hit else 'is not'} in {place}"
        return Reward(
            self.name, float(hit), evidence=(Evidence(self.name, saw, Visibility.ORACLE),)
        )


class GroundTruthScore(FieldVerifier):
    """How much of the ground truth a response holds: word F1 with it, over the response's end."""

    def judge(self, task: Task, response: Response) -> Reward:
        golds = references(task.fields.get(self.field))
        value = token_f1(response.text[-4 * TAIL :], golds)
        saw = f"word F1 {value:.3f} with the ground truth"
        return Reward(self.name, value, evidence=(Evidence(self.name, saw, Visibility.ORACLE),))


class TextCounts(FieldVerifier):
    """Words, sentences, paragraphs and the like of a response, for the judge to read."""

    known = ()

    def judge(self, task: Task, response: Response) -> Reward:
        counts = constraint_tools(response.text)
        return self.show(", ".join(f"{k} {v}" for k, v in counts.items()), Visibility.VISIBLE)


class ShowField(FieldVerifier):
    """A field of the sample, such as its reference or its checklist, for the judge to read."""

    def judge(self, task: Task, response: Response) -> Reward:
        value = task.fields[self.field]
        text = (
            value if isinstance(value, str) else json.dumps(value, ensure_ascii=False, default=str)
        )
        return self.show(text, Visibility.ORACLE)

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        """The same for all responses; it is said once."""
        first = self.judge(task, responses[0])
        rest = Reward.failed(self.name, Status.ABSTAIN, "the same")
        return [first, *(rest for _ in responses[1:])]


class ShowMetadata(ShowField):
    """The sample's metadata without anything that bears a label, a score, a model or an order."""

    default_field = "metadata"

    def judge(self, task: Task, response: Response) -> Reward:
        clean = sanitize_metadata({self.field: task.fields[self.field]}).get(self.field, {})
        return self.show(json.dumps(clean, ensure_ascii=False, default=str), Visibility.BENCHMARK)


WALL_S = 10.0
"""Default wall clock of one run."""
COMMON = ("flag", "wall_s")
"""Options that every verifier takes: the severity that a violation has, and the wall clock."""

Factory = Callable[[dict[str, Any]], Scorer]


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
