"""Is a reward fit for training? Its range, ties, failures, cost, and what cheap edits do to it.

Every number comes from scoring real groups of responses, once as they are and once for each edit
(padding, repetition, hedging, format, cutting). A policy finds whatever raises its reward, so an
edit that does is named with its size, an interval and the worst example; so is an empty answer that
earns what the responses do.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, NamedTuple

from msgspec.structs import replace

from burnish.bench.edits import CUTS, EDITS, Edit
from burnish.bench.items import evidence_of
from burnish.bench.scripted_answers import script_for
from burnish.bench.statistics import Estimate, mean_estimate, signed_estimate
from burnish.errors import UserError
from burnish.records import Response, Reward, Status, Task
from burnish.rewards.combine import compare
from burnish.rewards.scorer import Scope, Scorer, checked, gather

if TYPE_CHECKING:
    from burnish.store import RunStore, StoredSample

WORST = 3


class Case(NamedTuple):
    task: Task
    responses: tuple[Response, ...]
    recorded: tuple[float | None, ...] = ()


class Example(NamedTuple):
    task: str
    response: str
    value: float | None
    change: float
    text: str


@dataclass(frozen=True)
class Finding:
    name: str
    says: str
    is_bad: bool = False
    estimate: Estimate | None = None
    examples: tuple[Example, ...] = ()


@dataclass(frozen=True)
class Report:
    reward: str
    groups: int
    responses: int
    statuses: dict[str, int]
    findings: tuple[Finding, ...]

    @property
    def verdict(self) -> str:
        bad = [finding.name for finding in self.findings if finding.is_bad]
        if not bad:
            return f"reward '{self.reward}': nothing found that a policy could live on"
        return f"reward '{self.reward}': look at {', '.join(bad)} before training on it"


class Scored(NamedTuple):
    rewards: list[Reward]
    seconds: float


async def check_reward(
    scorer: Scorer,
    cases: Sequence[Case],
    *,
    edits: Sequence[Edit] = (*EDITS.values(), *CUTS.values()),
    limit: int = 8,
    deadline_s: float | None = 60.0,
) -> Report:
    """Score the groups as they are and with every edit, and say what follows."""
    cases = [case for case in cases if case.responses]
    if not cases:
        raise UserError(f"reward '{scorer.name}': no response to check; expected at least one.")
    score = partial(_score, scorer, deadline_s)
    plain = await gather([partial(score, case) for case in cases], limit=limit)
    rewards = [reward for one in plain for reward in one.rewards]
    findings = [_range([r.value for r in rewards if r.value is not None]), _failures(rewards)]
    if scorer.scope is not Scope.PAIR:
        findings.append(_spread(plain))
    times = sorted(one.seconds for one in plain)
    middle, late = times[len(times) // 2], times[min(len(times) - 1, int(0.95 * len(times)))]
    spread = f"95 % within {late:.3g} s, longest {times[-1]:.3g} s"
    findings.append(Finding("latency", f"median {middle:.3g} s a group, {spread}"))
    cost = sum(e.cost_usd for r in rewards for e in evidence_of(r))
    each = f"${cost:.4f} for {len(rewards)} rewards, ${cost / len(rewards):.6f} each"
    findings.append(Finding("cost", each if cost else "no cost recorded"))
    findings += _recorded(cases, plain)
    for edit in edits:
        change = partial(_changes, scorer, deadline_s, edit)
        calls = [partial(change, *pair) for pair in zip(cases, plain, strict=True)]
        found = [example for group in await gather(calls, limit=limit) for example in group]
        findings.append(_edit_finding(edit, found, len(cases)))
    statuses = Counter(reward.status.value for reward in rewards)
    return Report(scorer.name, len(cases), len(rewards), dict(statuses), tuple(findings))


async def _score(scorer: Scorer, deadline_s: float | None, case: Case) -> Scored:
    start = perf_counter()
    if scorer.scope is not Scope.PAIR:
        rewards = await checked(scorer, case.task, case.responses, deadline_s=deadline_s)
        return Scored(rewards, perf_counter() - start)
    if len(case.responses) < 2:
        raise UserError(f"reward '{scorer.name}' needs two responses to task {case.task.id}.")
    rewards = []
    for place, response in enumerate(case.responses):
        other = case.responses[(place + 1) % len(case.responses)]
        rewards.append((await compare(scorer, case.task, response, other))[0])
    return Scored(rewards, perf_counter() - start)


async def _changes(
    scorer: Scorer, deadline_s: float | None, edit: Edit, case: Case, before: Scored
) -> list[Example]:
    """What an edit adds to each response's reward, one response at a time where the group counts."""
    edited = [
        Response(f"{r.id}+{edit.name}", edit.apply(r.text), r.finish, info=r.info)
        for r in case.responses
    ]
    after: list[Reward]
    if scorer.scope is Scope.POINT:
        after = await checked(scorer, case.task, edited, deadline_s=deadline_s)
        base = before.rewards
    elif scorer.scope is Scope.PAIR:
        # Against the text it was made from; a tie is 0, so that is what to compare with.
        pairs = zip(edited, case.responses, strict=True)
        after = [(await compare(scorer, case.task, new, old))[0] for new, old in pairs]
        base = [Reward(scorer.name, 0.0) for _ in after]
    else:
        after = []
        for place, new in enumerate(edited):
            group = [*case.responses[:place], new, *case.responses[place + 1 :]]
            rewards = await checked(scorer, case.task, group, deadline_s=deadline_s)
            after.append(rewards[place])
        base = before.rewards
    return [
        Example(case.task.id, response.id, old.value, new.value - old.value, changed.text)
        for response, changed, old, new in zip(case.responses, edited, base, after, strict=True)
        if old.value is not None and new.value is not None and changed.text != response.text
    ]


def _range(values: Sequence[float]) -> Finding:
    if not values:
        return Finding("range", "no response has a value", is_bad=True)
    counts = Counter(values)
    top, times = counts.most_common(1)[0]
    says = (
        f"{min(values):g} to {max(values):g}, mean {sum(values) / len(values):.3g}, "
        f"{len(counts)} different values; the most common is {top:g} ({times / len(values):.0%})"
    )
    return Finding("range", says, is_bad=len(counts) == 1 and len(values) > 1)


def _failures(rewards: Sequence[Reward]) -> Finding:
    statuses = Counter(r.status.value for r in rewards if r.status is not Status.OK)
    if not statuses:
        return Finding("failures", f"none of {len(rewards)} rewards is without a value")
    listed = ", ".join(f"{count} {name}" for name, count in statuses.most_common())
    reason = next(r.reason for r in rewards if r.status is not Status.OK)
    missing = sum(statuses.values())
    says = f"{missing} of {len(rewards)} have no value: {listed}; the first: {reason}"
    return Finding("failures", says, is_bad=missing > 0.05 * len(rewards))


def _spread(plain: Sequence[Scored]) -> Finding:
    """Groups whose rewards are all equal teach nothing; ties inside the others teach less."""
    groups = [[r.value for r in one.rewards if r.value is not None] for one in plain]
    groups = [values for values in groups if len(values) > 1]
    if not groups:
        return Finding("groups", "no group has two values, so nothing is known about groups")
    flat = [max(values) == min(values) for values in groups]
    pairs = [a == b for values in groups for a, b in combinations(values, 2)]
    share = mean_estimate.plain([float(is_flat) for is_flat in flat])
    ties = f"{sum(pairs) / len(pairs):.0%} of the pairs in a group are ties"
    if len(flat) == 1:
        says = f"the only group has {'no ' if flat[0] else ''}variance (n = 1); {ties}"
    else:
        says = (
            f"{sum(flat)} of {len(flat)} groups have no variance ({share.value:.0%} "
            f"[{share.low:.0%}, {share.high:.0%}]); {ties}"
        )
    return Finding("groups", says, is_bad=share.value > 0.5, estimate=share)


def _recorded(cases: Sequence[Case], plain: Sequence[Scored]) -> list[Finding]:
    """Whether the reward gives stored answers what it gave them when they were trained on."""
    pairs = [
        (before, now.value)
        for case, one in zip(cases, plain, strict=True)
        for before, now in zip(case.recorded, one.rewards, strict=False)
    ]
    if not pairs:
        return []
    close = partial(math.isclose, rel_tol=1e-9, abs_tol=1e-12)
    other = [
        (a, b) for a, b in pairs if (a is not b if a is None or b is None else not close(a, b))
    ]
    if not other:
        return [Finding("on record", f"all {len(pairs)} values are those that the run stored")]
    before, now = ("none" if value is None else f"{value:g}" for value in other[0])
    says = (
        f"{len(other)} of {len(pairs)} values are not those that the run stored (the first was "
        f"{before} and is {now}): the reward was edited since, or it varies"
    )
    return [Finding("on record", says)]


def _edit_finding(edit: Edit, examples: Sequence[Example], groups: int) -> Finding:
    if not examples:
        why = "no response is changed by it and has a value both times"
        return Finding(edit.name, f"{edit.name}: nothing to compare, {why}")
    estimate = signed_estimate.plain([example.change for example in examples])
    if not any(example.text.strip() for example in examples):
        is_paid, says = _paid_for_nothing(examples)
        return Finding(edit.name, says, is_paid or estimate.low > 0, estimate)
    certainty = f"[{estimate.low:.3g}, {estimate.high:.3g}]"
    if groups == 1:
        certainty = "(n = 1 group)"
    elif estimate.low == estimate.high:
        certainty = f"(the same in all {estimate.size})"
    size = f"{estimate.value:+.3g} {certainty}"
    raised = sum(example.change > 0 for example in examples)
    is_bad = estimate.low > 0
    if is_bad:
        says = f"{edit.name} raises the reward by {size}: a policy will find this"
    elif estimate.high < 0:
        says = f"{edit.name} lowers the reward by {size}"
    elif not any(example.change for example in examples):
        says = f"{edit.name} never changes the reward"
    else:
        says = f"{edit.name} changes the reward by {size}, which cannot be told from 0"
    says += f"; raised in {raised} of {len(examples)}" if raised else ""
    worst = sorted((e for e in examples if e.change > 0), key=lambda e: (-e.change, e.response))
    return Finding(edit.name, says, is_bad, estimate, tuple(worst[:WORST]))


def _paid_for_nothing(examples: Sequence[Example]) -> tuple[bool, str]:
    """Whether empty answers earn what the responses do; earning no more than the worst is right."""
    before = [example.value for example in examples if example.value is not None]
    usual = sum(before) / len(before)
    earned = usual + sum(example.change for example in examples) / len(examples)
    is_paid = earned >= usual and (earned > min(before) or earned > 0)
    says = f"an empty answer earns {earned:.3g} on average, the responses {usual:.3g}"
    return is_paid, f"{says}: a policy will find this" if is_paid else says


def cases_for(scorer: Scorer, path: Path, limit: int) -> list[Case]:
    """Groups of a file, after a look at whether it has the columns that the reward asks for."""
    cases = read_cases(path, limit)
    fields = {name for case in cases for name in case.task.fields}
    for name in sorted(scorer.needs - fields):
        has = f"the rows have {', '.join(sorted(fields)) or 'none'} besides prompt and responses"
        raise UserError(f"{path}: reward '{scorer.name}' needs the column '{name}'; {has}.")
    return cases


def read_cases(path: Path, limit: int = 0) -> list[Case]:
    """Groups of responses from a file; rows with the same prompt and fields are one group."""
    from burnish.bench.loaders.reading import read_items

    groups: dict[str, Case] = {}
    for item in read_items(path):
        task = item.task(oracle=True)
        key = repr((task.messages, sorted(task.fields.items(), key=lambda pair: pair[0])))
        known = groups.get(key, Case(task, ()))
        groups[key] = Case(known.task, (*known.responses, *item.responses))
    cases = list(groups.values())
    return cases[:limit] if limit else cases


def run_cases(
    store: RunStore,
    limit: int = 50,
    *,
    first: int | None = None,
    last: int | None = None,
    has_record: bool = True,
) -> list[Case]:
    """Groups of answers that a run trained on, spread over its steps `first` to `last`.

    `has_record`: keep the total rewards that were stored with them.
    """
    groups: dict[tuple[int, str], list[StoredSample]] = {}
    for sample in store.samples(split="train"):
        if (first is None or sample.step >= first) and (last is None or sample.step <= last):
            groups.setdefault((sample.step, sample.trajectory.group), []).append(sample)
    if not groups:
        raise no_steps(store, "stored answers", first, last)
    keys = sorted(groups)
    if 0 < limit < len(keys):
        keys = [keys[place * len(keys) // limit] for place in range(limit)]
    return [
        Case(
            samples[0].task,
            tuple(replace(s.trajectory.as_response(), id=s.id) for s in samples),
            tuple(s.reward.value for s in samples) if has_record else (),
        )
        for samples in (groups[key] for key in keys)
    ]


def no_steps(store: RunStore, what: str, first: int | None, last: int | None) -> UserError:
    """The mistake of asking for steps that a run does not have."""
    steps = store.steps()
    has = f"it has steps {steps[0] + 1} to {steps[-1] + 1}" if steps else "it has no steps yet"
    asked = ""
    if first is not None:
        asked = f" of steps {first + 1} to {(first if last is None else last) + 1}"
    return UserError(f"run '{store.name}' has no {what}{asked}; {has}.")


def scripted_case(task: Task, compared: Sequence[str], demonstration: str) -> Case:
    """A task with its right, wrong and empty answers."""
    lines = script_for(task, compared, demonstration)
    return Case(task, tuple(Response(f"{task.id}.{line.label}", line.text) for line in lines))
