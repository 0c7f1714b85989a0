"""Let a scorer judge items, one line of a result file each; what is on file is not asked again.

with ResultFile(Path("out.jsonl")) as file:
    judged = await judge_items(scorer, items, judge="direct@smollm2", file=file)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from time import perf_counter
from types import TracebackType
from typing import Self

from burnish.bench.items import Item, Judged, choice_of, evidence_of
from burnish.errors import UserError
from burnish.lm.lines import LineFile, read_lines
from burnish.records import Reward, Status
from burnish.rewards.fingerprint import fingerprint
from burnish.rewards.scorer import Scope, Scorer, checked, gather
from burnish.seeds import digest


class ResultFile:
    """Judged items on disk, append-only; a torn last line is cut at the next opening."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = LineFile(path, Judged)
        self.known: dict[str, Judged] = {}
        """What is on file by key; an item that failed outside is not, so that it is asked again."""

    def __enter__(self) -> Self:
        self._file.__enter__()
        self.known = {
            one.key: one
            for one in self._file.records
            if one.status not in (Status.INFRA_ERROR, Status.TIMEOUT)
        }
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._file.__exit__(kind, error, trace)

    @property
    def records(self) -> list[Judged]:
        """What stood in the file when it was opened."""
        return self._file.records

    def append(self, one: Judged) -> None:
        """Add one line."""
        self._file.append(one)


def read_results(path: Path) -> list[Judged]:
    """Every item of a result file; of an item that was judged again the last line counts."""
    lines = read_lines(path, Judged)
    if not lines:
        raise UserError(f"{path}: no judged item in it; expected a file of burnish judge or bench.")
    return list({(one.judge, one.id): one for one in lines}.values())


async def judge_items(
    scorer: Scorer,
    items: Sequence[Item],
    *,
    judge: str,
    bench: str = "",
    file: ResultFile | None = None,
    oracle: bool = False,
    limit: int = 16,
    deadline_s: float | None = None,
    done: Callable[[Judged, bool], None] = lambda one, is_new: None,
) -> list[Judged]:
    """What the scorer says of every item, in order; `done` hears of each as it comes."""
    known = {} if file is None else file.known
    # Without a file nothing is looked up, and a scorer needs no fingerprint.
    version = "" if file is None else fingerprint(scorer)

    async def one(item: Item) -> Judged:
        key = _key(version, judge, bench, oracle, item)
        if key in known:
            done(known[key], False)
            return known[key]
        start = perf_counter()
        rewards = await rewards_of(scorer, item, oracle=oracle, deadline_s=deadline_s)
        seconds = perf_counter() - start
        judged = judged_from(item, rewards, judge=judge, bench=bench, key=key, seconds=seconds)
        if file is not None:
            file.append(judged)
        done(judged, True)
        return judged

    return await gather([partial(one, item) for item in items], limit=limit)


def unasked(
    file: ResultFile,
    scorer: Scorer,
    items: Sequence[Item],
    *,
    judge: str,
    bench: str = "",
    oracle: bool = False,
) -> list[Item]:
    """The items that are not on file for this very judge and these very texts."""
    version = fingerprint(scorer)
    return [item for item in items if _key(version, judge, bench, oracle, item) not in file.known]


def _key(version: str, judge: str, bench: str, oracle: bool, item: Item) -> str:
    texts = [response.text for response in item.responses]
    return digest(version, judge, bench, str(oracle), item.id, repr(item.messages), *texts)


async def rewards_of(
    scorer: Scorer, item: Item, *, oracle: bool = False, deadline_s: float | None = None
) -> list[Reward]:
    """One reward a response; a pair scorer lets several responses meet each other in turn."""
    task = item.task(oracle=oracle)
    if scorer.scope is not Scope.PAIR or len(item.responses) == 2:
        return await checked(scorer, task, item.responses, deadline_s=deadline_s)
    if len(item.responses) < 2:
        raise UserError(
            f"item '{item.id}' has {len(item.responses)} response(s) and the judge "
            f"'{scorer.name}' compares pairs; expected two or more, or a judge that rates single "
            "ones (point)."
        )
    return await _round_robin(scorer, item, oracle, deadline_s)


async def _round_robin(
    scorer: Scorer, item: Item, oracle: bool, deadline_s: float | None
) -> list[Reward]:
    """Each pair once; a response's value is its mean lead, missing where any match has no value."""
    task = item.task(oracle=oracle)
    count = len(item.responses)
    places = [(i, j) for i in range(count) for j in range(i + 1, count)]
    calls = [
        partial(
            checked, scorer, task, [item.responses[i], item.responses[j]], deadline_s=deadline_s
        )
        for i, j in places
    ]
    met: list[list[Reward]] = [[] for _ in item.responses]
    for (i, j), (first, second) in zip(places, await gather(calls), strict=True):
        met[i].append(first)
        met[j].append(second)
    return [_mean_lead(scorer.name, parts) for parts in met]


def _mean_lead(name: str, parts: Sequence[Reward]) -> Reward:
    silent = next((part for part in parts if part.value is None), None)
    if silent is not None:
        reason = f"a match has no value: {silent.reason}"
        return Reward.failed(name, silent.status, reason, parts=tuple(parts))
    lead = sum(part.value for part in parts if part.value is not None) / len(parts)
    return Reward(name, lead, parts=tuple(parts))


def judged_from(
    item: Item,
    rewards: Sequence[Reward],
    *,
    judge: str,
    bench: str = "",
    key: str = "",
    seconds: float = 0.0,
) -> Judged:
    """A line of a result file from an item's rewards."""
    values = tuple(reward.value for reward in rewards)
    silent = next((reward for reward in rewards if reward.value is None), None)
    return Judged(
        item.id,
        judge,
        bench,
        key,
        values,
        choice_of(values),
        item.best,
        Status.OK if silent is None else silent.status,
        "" if silent is None else silent.reason,
        item.subset,
        item.group,
        item.info,
        round(seconds, 4),
        cost_usd=sum(e.cost_usd for r in _apart(rewards) for e in evidence_of(r)),
        rewards=tuple(rewards),
    )


def _apart(rewards: Sequence[Reward]) -> Sequence[Reward]:
    """Two rewards of one pair carry the same replies, so one of them is enough to count."""
    if len(rewards) == 2 and evidence_of(rewards[0]) == evidence_of(rewards[1]):
        return rewards[:1]
    return rewards
