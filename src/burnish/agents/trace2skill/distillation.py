"""Many trajectories, one skill: analyse, propose, merge, guard, carry out on a copy, check.

All analysts and proposers see the same frozen skill, and the pool is sorted, so the order in which
trajectories came changes nothing. `order="sequential"` edits after each trajectory instead, as a
control. No weights change.

Paper: Trace2Skill (arXiv 2603.25158). Where we differ: docs/methods/trace2skill.md.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Annotated, Any, Literal

from msgspec import Meta

from burnish import boundary
from burnish.agents.trace2skill.edits import KNOWN, NO_TARGET, Edit, anchored, is_anchored
from burnish.agents.trace2skill.guards import (
    Dropped,
    Sifted,
    conflicts,
    contradictions,
    instructions,
    leaks,
    secrets_of,
    sift,
    well_formed,
)
from burnish.agents.trace2skill.patches import (
    Patch,
    balanced_chunks,
    by_support,
    by_task,
    carry_out,
    merge_tree,
)
from burnish.agents.trace2skill.roles import UNREADABLE, Record, Refused, Roles
from burnish.agents.trace2skill.skill_files import front_text, listed, skill_problems, split_long
from burnish.agents.trace2skill.traces import Pool, Trace
from burnish.boundary import Count, PositiveInt, Share
from burnish.concurrency import gather
from burnish.errors import ModelError
from burnish.rewards.judges.skill_rm.package import MANUAL

NOTHING = "nothing to learn"
UNREAD = "no reply could be read"
"""No role gave a patch in its form; `refused` says why."""
REFUSED = "no edit kept"
"""Edits were proposed, and every one was left out; `dropped` says why."""
CHANGED = "changed"
REJECTED = "rejected"


class Settings(boundary.Settings, frozen=True, kw_only=True):
    """How a skill is distilled; the defaults are the released code's where it has them."""

    pool: Literal["combined", "error", "success"] = "combined"
    """Which trajectories are analysed."""
    order: Literal["parallel", "sequential"] = "parallel"
    """parallel: all against one frozen skill; sequential: one after another."""
    batch: PositiveInt = 1
    """Records a proposed patch is made from."""
    merge_size: Annotated[int, Meta(ge=2)] = 5
    """Patches that one merge joins."""
    merge_levels: PositiveInt = 5
    """Levels of the merge tree before what is left is merged at once."""
    tau: Share = 0.02
    """Share of the patches that must support an edit of SKILL.md; never fewer than two."""
    threshold: bool = True
    """False: every edit stays, whatever its support."""
    rounds: Count = 3
    """Patches that may repair a skill that a check refuses."""
    concurrency: PositiveInt = 4
    """Calls at a time."""
    protected: tuple[str, ...] = ()
    """Files that no edit may touch."""
    judge: bool = False
    """Also list references in resources.yaml, so that Skill-RM loads the skill."""


@dataclass
class Distilled:
    status: str
    before: dict[str, str]
    files: dict[str, str]
    edits: list[Edit] = field(default_factory=list)
    dropped: list[Dropped] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    candidate: dict[str, str] | None = None
    counts: dict[str, int] = field(default_factory=dict)
    refused: list[tuple[str, str, str]] = field(default_factory=list)
    """Trajectories, reason and raw words of what a role could not give."""

    @property
    def diff(self) -> str:
        """The change as a unified diff; empty where there is none."""
        return unified_diff(self.before, self.files)


Progress = Callable[[str, int, int], None]


def unified_diff(before: Mapping[str, str], after: Mapping[str, str]) -> str:
    """A diff of all files that `git apply` and `patch -p1` take."""
    parts: list[str] = []
    for path in sorted({*before, *after}):
        old, new = before.get(path), after.get(path)
        if old == new:
            continue
        lines = difflib.unified_diff(
            _lines(old),
            _lines(new),
            "/dev/null" if old is None else f"a/{path}",
            "/dev/null" if new is None else f"b/{path}",
        )
        for line in lines:
            parts.append(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")
    return "".join(parts)


def _lines(text: str | None) -> list[str]:
    """Lines with their ends; only a line feed ends one, as in a patch."""
    parts = (text or "").split("\n")
    return [f"{line}\n" for line in parts[:-1]] + ([parts[-1]] if parts[-1] else [])


async def distil(
    pool: Pool,
    files: Mapping[str, str],
    roles: Roles,
    settings: Settings | None = None,
    *,
    progress: Progress = lambda stage, done, total: None,
) -> Distilled:
    """A new version of a skill from trajectories; the given files are never touched."""
    work = _Work(dict(files), roles, settings or Settings(), pool, progress)
    chosen = {"combined": pool.all, "error": pool.failed, "success": pool.passed}
    records = await work.analyse(chosen[work.settings.pool])
    if work.settings.order == "sequential":
        return await work.sequential(records)
    return await work.parallel(records)


class _Work:
    def __init__(
        self,
        files: dict[str, str],
        roles: Roles,
        settings: Settings,
        pool: Pool,
        progress: Progress,
    ) -> None:
        self.files, self.roles, self.settings, self.progress = files, roles, settings, progress
        self.found = Distilled(NOTHING, files, files)
        self.tasks = {one.id: one.task_id for one in pool.all}
        self.support = by_task(self.tasks)
        skill = "\n".join(files.values())
        # Public is what the skill or the task itself says, not what another task happens to say.
        found = [
            secrets_of((*one.gold, one.task_id, one.id), f"{skill}\n{one.instruction}")
            for one in pool.all
        ]
        self.secrets = list(dict.fromkeys(value for values in found for value in values))

    def count(self, name: str, number: int) -> None:
        self.found.counts[name] = self.found.counts.get(name, 0) + number

    # --- stages

    async def analyse(self, traces: Sequence[Trace]) -> list[Record]:
        self.count("trajectories", len(traces))
        calls = [partial(self.roles.analyse, trace, self.files) for trace in traces]
        found = await self._fleet("analyse", calls)
        self.count("calls/analyse", len(traces))
        for trace, one in zip(traces, found, strict=True):
            if isinstance(one, Refused):
                self.found.refused.append((trace.id, one.reason, one.raw))
        records = [one for one in found if not isinstance(one, Refused)]
        self.count("records", len(records))
        self.count("verified", sum(record.is_verified for record in records))
        return records

    async def propose(self, records: Sequence[Record], files: Mapping[str, str]) -> list[Patch]:
        chunks = balanced_chunks.plain(len(records), self.settings.batch)
        groups = [[records[i] for i in chunk] for chunk in chunks]
        calls = [partial(self.roles.propose, group, files) for group in groups]
        found = await self._fleet("propose", calls)
        self.count("calls/propose", len(groups))
        patches = []
        for group, one in zip(groups, found, strict=True):
            if isinstance(one, Refused):
                names = " ".join(record.trace.id for record in group)
                self.found.refused.append((names, one.reason, one.raw))
                continue
            kept = self._guarded(list(one.edits), files)
            if kept:
                patches.append(one._replace(edits=tuple(kept)))
        return patches

    async def parallel(self, records: Sequence[Record]) -> Distilled:
        patches = await self.propose(records, self.files)
        self.count("patches", len(patches))
        if not patches:
            return self._unchanged()

        refusals: list[tuple[str, str, str]] = []

        async def merge(group: Sequence[Patch], level: int) -> Sequence[Patch] | None:
            made = await self.roles.merge(group, self.files, level)
            self.progress("merge", level, 0)
            if isinstance(made, Refused):
                _stop_if_outside([made], "merge")
                refusals.append((f"merge at level {level}", made.reason, made.raw))
                return None
            return made

        merged = await merge_tree(
            patches,
            merge,
            size=self.settings.merge_size,
            levels=self.settings.merge_levels,
            limit=self.settings.concurrency,
        )
        self.count("calls/merge", merged.calls)
        self.count("depth", 1 + merged.levels + 1)
        self.found.warnings += merged.warnings
        self.found.dropped += merged.dropped
        self.found.refused += sorted(refusals)
        edits = self._guarded(list(merged.patch.edits), self.files)
        edits = await self._anchor(edits)
        edits = self._note(contradictions(edits, self.support))
        edits = self._note(conflicts(edits, self.files, self.support))
        if self.settings.threshold:

            def task(trajectory: str) -> str:
                return self.tasks.get(trajectory, trajectory)

            placed = by_support(
                edits,
                self.files,
                count=len({frozenset(map(task, patch.source_ids)) for patch in patches}),
                tau=self.settings.tau,
                support=self.support,
            )
            edits = self._note(placed)
        edits = self._note(sift(edits, self.files, protected=self.settings.protected))
        changed = carry_out(edits, self.files)
        self.found.dropped += changed.skipped
        return await self._checked(changed.files, changed.applied)

    async def sequential(self, records: Sequence[Record]) -> Distilled:
        """One patch after another, each against what the last one left."""
        state, made, count = dict(self.files), list[Edit](), 0
        size = self.settings.batch
        for place in range(0, len(records), size):
            for patch in await self.propose(records[place : place + size], state):
                placed = [(e, anchored(e, _text(e, state))) for e in patch.edits]
                lost = [Dropped(e, NO_TARGET) for e, one in placed if one is None]
                edits = [one for _, one in placed if one is not None]
                done = carry_out(self._note(conflicts(edits, state, self.support)), state)
                self.found.dropped += lost + done.skipped
                state, made, count = done.files, made + done.applied, count + 1
            self.progress("sequential", place + size, len(records))
        self.count("patches", count)
        self.count("depth", count)
        return await self._checked(state, made)

    # --- the end

    async def _checked(self, state: dict[str, str], edits: list[Edit]) -> Distilled:
        """Split what is too long, check, repair, and keep the original where it stays broken."""
        if not edits or state == self.files:
            return self._unchanged()
        inherited = set(skill_problems.plain(self.files))
        candidate = self._fitted(state)
        problems = self._problems(candidate, inherited)
        for number in range(self.settings.rounds if problems else 0):
            self.progress("fix", number, self.settings.rounds)
            patch = await self.roles.fix(candidate, problems)
            self.count("calls/fix", 1)
            if isinstance(patch, Refused):
                _stop_if_outside([patch], "fix")
                self.found.refused.append((f"fix {number + 1}", patch.reason, patch.raw))
                break
            if not patch.edits:
                break
            kept = self._guarded(list(patch.edits), candidate)
            repaired = carry_out(self._note(conflicts(kept, candidate)), candidate)
            candidate, edits = self._fitted(repaired.files), edits + repaired.applied
            problems = self._problems(candidate, inherited)
            if not problems:
                break
        self.found.warnings += sorted(inherited - set(problems))
        self.found.edits = edits
        if problems:
            self.found.status, self.found.problems = REJECTED, problems
            self.found.candidate = candidate
        else:
            self.found.status, self.found.files = CHANGED, candidate
        return self.found

    def _unchanged(self) -> Distilled:
        """The skill as it was: nobody proposed anything, or nothing proposed was kept."""
        is_new = any(one.reason != KNOWN for one in self.found.dropped)
        refused = [reason for _, reason, _ in self.found.refused]
        is_unread = bool(refused) and all(one.startswith(UNREADABLE) for one in refused)
        self.found.status = REFUSED if is_new else UNREAD if is_unread else NOTHING
        return self.found

    def _fitted(self, state: Mapping[str, str]) -> dict[str, str]:
        """Within the limits of size; a file that was changed ends with a line feed."""
        whole = {
            path: text if text == self.files.get(path) else text.rstrip("\n") + "\n"
            for path, text in state.items()
        }
        return listed(split_long(whole), judge=self.settings.judge)

    def _problems(self, candidate: Mapping[str, str], inherited: set[str]) -> list[str]:
        found = [line for line in skill_problems.plain(candidate) if line not in inherited]
        if front_text(candidate[MANUAL]) != front_text(self.files[MANUAL]):
            found.append(f"{MANUAL}: the front matter has changed")
        return found

    def _guarded(self, edits: list[Edit], files: Mapping[str, str]) -> list[Edit]:
        kept = self._note(leaks(self._note(well_formed(edits)), self.secrets))
        kept = self._note(instructions(kept, files))
        return self._note(sift(kept, files, protected=self.settings.protected))

    async def _anchor(self, edits: Sequence[Edit]) -> list[Edit]:
        near = [anchored(edit, _text(edit, self.files)) for edit in edits]
        asked = [edit for edit, one in zip(edits, near, strict=True) if one is None]
        self.count("calls/anchor", len(asked))
        calls = [partial(self.roles.anchor, edit, _text(edit, self.files)) for edit in asked]
        answers = iter(await self._fleet("anchor", calls))
        kept = []
        for edit, one in zip(edits, near, strict=True):
            final = next(answers) if one is None else one
            if isinstance(final, Refused):
                self.found.refused.append(("anchor", final.reason, final.raw))
                final = None
            if final is None or not is_anchored(final, _text(final, self.files)):
                self.found.dropped.append(Dropped(edit, NO_TARGET))
            else:
                kept.append(final)
        return kept

    def _note(self, sifted: Sifted) -> list[Edit]:
        self.found.dropped += sifted.dropped
        return sifted.kept

    async def _fleet(self, stage: str, calls: Sequence[Callable[[], Any]]) -> list[Any]:
        done = 0

        async def one(call: Callable[[], Any]) -> Any:
            nonlocal done
            result = await call()
            done += 1
            self.progress(stage, done, len(calls))
            return result

        found = await gather(
            [partial(one, call) for call in calls], limit=self.settings.concurrency
        )
        _stop_if_outside(found, stage)
        return found


def _stop_if_outside(found: Sequence[Any], stage: str) -> None:
    """A skill must not depend on which calls a server happened to drop."""
    lost = [one for one in found if isinstance(one, Refused) and one.is_outside]
    if lost:
        failed = f"{len(lost)} of {len(found)} calls ({stage}) failed outside: {lost[0].reason}"
        raise ModelError(f"{failed}. Run it again with the same journal")


def _text(edit: Edit, files: Mapping[str, str]) -> str:
    return files.get(edit.get("file") or "", "")
