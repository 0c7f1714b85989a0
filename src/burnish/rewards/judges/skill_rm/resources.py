"""The entries of a skill's resource bank: a closed vocabulary, read with every problem named.

    entry, problems = read_entry({"id": "rules", "type": "rubric", ...}, "resources[0]", is_runtime=False)

A file entry is text that a judge may open; a runtime entry names a verifier that may be run. Two
fields decide who sees it: `leakage_level` (what it gives away) and `allowed_setting` (from which
mode on it may be used). An entry that gives the reference away is never allowed in fair mode.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from burnish.errors import did_you_mean
from burnish.records import Visibility


class Mode(StrEnum):
    """What a judge may use."""

    BASELINE = "baseline"
    """The request and the responses alone: the direct judge."""
    FAIR = "fair"
    """Also what follows from neither label nor reference."""
    OPERATIONAL = "operational"
    """Also references, checklists, verifiers and pipelines; counted as oracle evidence."""


class ResourceType(StrEnum):
    """What a resource is for."""

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
    """An entry, or None, and everything that is wrong with it."""

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
