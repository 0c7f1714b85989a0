"""An audit of a run: is it learning, or pleasing the reward? From the store alone.

    audit = audit_run(store)
    audit.findings[0].text, audit.findings[0].samples

An audit, not an alarm: it ranks what changed and was paid, with the answers behind it, and leaves
the judgement to the reader. Learning moves things too.
"""

from __future__ import annotations

from collections.abc import Mapping

from msgspec.structs import replace

from burnish.store.reader import RunReader
from burnish.store.sample_name import names_of_keys
from burnish.view.audit.drawn import Answer, Drawn, draw
from burnish.view.audit.numbers import Audit, Finding, Gold
from burnish.view.audit.signals import (
    conflicts,
    entropy_collapse,
    flips,
    gold,
    takeover,
    variance_collapse,
    worst_conflict,
)
from burnish.view.audit.surface import FEWEST, comparable, duplicates, surface_findings

__all__ = ["Answer", "Audit", "Drawn", "Finding", "Gold", "audit_run", "draw"]

FEWEST_STEPS = 4


def audit_run(
    store: RunReader, *, gold_scores: Mapping[str, float] | None = None, gold_part: str = ""
) -> Audit:
    """All findings of a run, the strongest first.

    `gold_scores` by sample id come from a scorer that the policy was never paid by; without them
    the first component of weight 0 is taken, or `gold_part`.
    """
    drawn = draw(store, gold=gold_scores, gold_part=gold_part)
    steps = len(drawn.steps)
    if steps < FEWEST_STEPS:
        note = (
            f"{steps} steps with rewards are too few to tell early from late; expected 4 or more."
        )
        return Audit(store.name, steps, len(drawn.answers), (), {}, _gold(store, drawn), note)
    table = conflicts(drawn)
    single = (
        duplicates(drawn),
        entropy_collapse(store, drawn),
        variance_collapse(drawn),
        takeover(drawn),
        worst_conflict(drawn, table),
        flips(store, drawn),
    )
    found = [*surface_findings(drawn), *(finding for finding in single if finding is not None)]
    found.sort(key=lambda finding: -finding.strength)
    compared = comparable(drawn)
    note = (
        ""
        if compared >= FEWEST
        else (
            f"{compared} answers stand in groups whose rewards differ; with fewer than {FEWEST} nothing "
            "can be said about what was paid."
        )
    )
    named = tuple(
        replace(finding, samples=tuple(names_of_keys(store, finding.samples))) for finding in found
    )
    return Audit(store.name, steps, len(drawn.answers), named, table, _gold(store, drawn), note)


def _gold(store: RunReader, drawn: Drawn) -> Gold | None:
    """The gold scores with the names of the answers that moved them."""
    found = gold(drawn)
    return found and replace(found, samples=tuple(names_of_keys(store, found.samples)))
