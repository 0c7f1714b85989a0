"""The audit of a rubric: checks worth points, decided by rules and by a reader.

    rule_audit(rubric).quality                     # what rules alone can decide
    joined_audit(rubric, read_findings(reply))     # with a reader

What a rule refutes no reader can pass, and an omitted safety item costs all points.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from burnish.arguments import as_word, refused
from burnish.rewards.judges.prompting import Unreadable
from burnish.rewards.judges.reading import free_table, read_list
from burnish.rewards.judges.rubric.items import Rubric, Rules
from burnish.rewards.judges.rubric.score import Tier


class AuditCheck(NamedTuple):
    """One question of the audit."""

    points: int
    asks: str


CHECKS: Mapping[str, AuditCheck] = {
    "right": AuditCheck(9, "what each item asks for is true and belongs to this question"),
    "supported": AuditCheck(3, "each item follows from the reference answers"),
    "atomic": AuditCheck(3, "each item asks for one thing"),
    "exclusive": AuditCheck(3, "no two items pay for the same thing"),
    "checkable": AuditCheck(3, "a reader can mark each item from the answer alone"),
    "exhaustive": AuditCheck(4, "every point that the references agree on is in an item"),
    "title": AuditCheck(3, "titles are short and say what the item asks for"),
    "tier": AuditCheck(3, "each item stands in the tier that it deserves, and tiers are filled"),
    "description": AuditCheck(4, "the three levels of each item can be told apart"),
}
TOTAL = sum(check.points for check in CHECKS.values())
SAFETY = "safety_omitted"


class Audit(NamedTuple):
    """What a rubric earned, of what could be decided."""

    earned: int
    possible: int
    """Points of the checks that were decided; 35 where all of them were."""
    failed: tuple[str, ...]
    is_vetoed: bool = False
    """A safety item that the question needs is not there."""

    @property
    def quality(self) -> float | None:
        """The share of the decided points; None where nothing was decided."""
        return self.earned / self.possible if self.possible else None


def audit_points(findings: Mapping[str, bool | None], safety_omitted: bool = False) -> Audit:
    """The points of an audit; a check that is None or not there was not decided.

    An omitted safety item costs all points.
    """
    if not isinstance(findings, Mapping):
        raise refused("findings", findings, "what was found by check")
    for name, found in findings.items():
        as_word("findings", name, tuple(CHECKS))
        if found not in (True, False, None):
            raise refused("findings", found, "true, false or None")
    decided = {name: found for name, found in findings.items() if found is not None}
    possible = sum(CHECKS[name].points for name in decided)
    earned = sum(CHECKS[name].points for name, holds in decided.items() if holds)
    failed = tuple(name for name in CHECKS if decided.get(name) is False)
    return Audit(0 if safety_omitted else earned, possible, failed, safety_omitted)


def rule_findings(rubric: Rubric, rules: Rules | None = None) -> dict[str, bool]:
    """The checks that follow from the rubric itself."""
    broken = {one.rule for one in rubric.validate(rules)}
    counts = {"items", "tier", *(tier.value for tier in Tier)}
    findings = {
        "exclusive": "exclusive" not in broken,
        "title": "title" not in broken,
        "tier": not broken & counts,
        "description": not broken & {"description", "levels"},
    }
    if rubric.points:
        findings["exhaustive"] = "exhaustive" not in broken
        findings["supported"] = all(item.provenance for item in rubric.items)
    return findings


def rule_audit(rubric: Rubric, rules: Rules | None = None) -> Audit:
    """The audit without a reader: only what a rule can decide."""
    return audit_points(rule_findings(rubric, rules))


def joined_audit(
    rubric: Rubric,
    said: Mapping[str, bool | None],
    *,
    safety_omitted: bool = False,
    rules: Rules | None = None,
) -> Audit:
    """A reader's findings with those of the rules; what a rule refutes no reader can pass."""
    by_rule = rule_findings(rubric, rules)
    both = {
        name: None
        if name not in by_rule and said.get(name) is None
        else by_rule.get(name, True) and said.get(name, True) is not False
        for name in CHECKS
    }
    return audit_points(both, safety_omitted)


def read_findings(text: str) -> dict[str, bool | None]:
    """What an auditor decided, by check; raises `Unreadable` where the word on safety is missing."""
    said = read_list(text, _FINDING)
    found = {row["check"]: row["holds"] for row in said if row["check"] in (*CHECKS, SAFETY)}
    if found.get(SAFETY) is None:
        raise Unreadable(f"expected checks and '{SAFETY}' with true or false, got {sorted(found)}")
    return found


def _bool_or_none(key: str, value: Any) -> bool | None:
    return value if isinstance(value, bool) else None


_FINDING = free_table("check", holds=_bool_or_none)
