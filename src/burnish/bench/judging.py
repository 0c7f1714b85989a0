"""Let a scorer judge items, one line of a result file each; what is on file is not asked again.

with ResultFile(Path("out.jsonl")) as file:
    judged = await judge_items(scorer, items, judge="direct@smollm2", file=file)
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import combinations
from pathlib import Path
from time import perf_counter
from typing import Self

from msgspec.structs import replace

from burnish.bench.items import Item, Judged, choice_of, evidence_of
from burnish.errors import StoreError, UserError
from burnish.lm.lines import LineFile, read_lines
from burnish.records import Reward, Status
from burnish.rewards.combine import compare
from burnish.rewards.scorer import Scope, Scorer, checked, fingerprint, gather
from burnish.seeds import digest


class ResultFile(LineFile[Judged]):
    """Judged items on disk, append-only; a torn last line is cut at the next opening."""

    def __init__(self, path: Path) -> None:
        super().__init__(path, Judged)
        self.known: dict[str, Judged] = {}
        """What is on file by key; an item that failed outside is not, so that it is asked again."""

    def __enter__(self) -> Self:
        super().__enter__()
        self.known = {
            one.key: one
            for one in self.records
            if one.status not in (Status.INFRA_ERROR, Status.TIMEOUT, Status.REWARD_ERROR)
        }
        return self

    def check_version(self, judge: str, version: str) -> None:
        """Refuse to mix a judge with the same judge under other settings."""
        if any(one.judge == judge and one.version != version for one in self.records):
            raise UserError(f"{self.path}: '{judge}' had other settings; give this another --out.")


def read_results(path: Path) -> list[Judged]:
    """Every item of a result file; of an item that was judged again the last line counts."""
    try:
        lines = read_lines(path, Judged)
    except StoreError as error:
        if isinstance(error.__cause__, OSError):
            raise
        raise UserError(f"{path}: no result file of judge or bench ({error.__cause__}).") from error
    if not lines:
        raise UserError(f"{path}: no judged item in it; expected a file of burnish judge or bench.")
    versions: dict[str, str] = {}
    for one in lines:
        if versions.setdefault(one.judge, one.version) != one.version:
            raise UserError(f"{path}: '{one.judge}' with different settings; expected a file each.")
    return list({(one.judge, one.id): one for one in lines}.values())


def version_of(scorer: Scorer, *, oracle: bool = False) -> str:
    """A short digest of the scorer's settings and of what it may see."""
    return digest(fingerprint(scorer), str(oracle))[:12]


async def judge_items(
    scorer: Scorer,
    items: Sequence[Item],
    *,
    judge: str,
    bench: str = "",
    file: ResultFile | None = None,
    oracle: bool = False,
    limit: int = 16,
    done: Callable[[Judged, bool], None] = lambda one, is_new: None,
) -> list[Judged]:
    """What the scorer says of every item, in order; `done` hears of each as it comes."""
    known = {} if file is None else file.known
    # Without a file nothing is looked up, and a scorer needs no fingerprint.
    version = "" if file is None else version_of(scorer, oracle=oracle)
    if file is not None:
        file.check_version(judge, version)

    async def one(item: Item) -> Judged:
        key = _key(version, judge, bench, oracle, item)
        old = known.get(key)
        if old is not None:
            # A label is no part of the question: it may have been corrected since.
            judged = replace(
                old, best=item.best, subset=item.subset, group=item.group, info=item.info
            )
        else:
            start = perf_counter()
            rewards = await rewards_of(scorer, item, oracle=oracle)
            seconds = perf_counter() - start
            judged = judged_from(item, rewards, judge=judge, bench=bench, key=key, seconds=seconds)
            judged = replace(judged, version=version)
        if file is not None and judged != old:
            file.append(judged)
        done(judged, old is None)
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
    """The items that are not on file for this very judge and this very question."""
    version = version_of(scorer, oracle=oracle)
    file.check_version(judge, version)
    return [item for item in items if _key(version, judge, bench, oracle, item) not in file.known]


def _key(version: str, judge: str, bench: str, oracle: bool, item: Item) -> str:
    fields = sorted(item.task(oracle=oracle).fields.items())
    texts = [response.text for response in item.responses]
    return digest(version, judge, bench, item.id, repr((item.messages, fields)), *texts)


async def rewards_of(scorer: Scorer, item: Item, *, oracle: bool = False) -> list[Reward]:
    """One reward a response; a pair scorer lets several responses meet each other in turn."""
    if scorer.scope is not Scope.PAIR:
        return await checked(scorer, item.task(oracle=oracle), item.responses)
    if len(item.responses) < 2:
        raise UserError(f"item '{item.id}': the judge '{scorer.name}' needs two responses or more.")
    task = item.task(oracle=oracle)
    if len(item.responses) == 2:
        return await compare(scorer, task, *item.responses)
    places = list(combinations(range(len(item.responses)), 2))
    calls = [
        partial(compare, scorer, task, item.responses[i], item.responses[j]) for i, j in places
    ]
    met: list[list[Reward]] = [[] for _ in item.responses]
    for (i, j), (first, second) in zip(places, await gather(calls), strict=True):
        met[i].append(first)
        met[j].append(second)
    found = []
    for parts in met:
        undecided = next((part for part in parts if part.value is None), None)
        if undecided is not None:
            why = f"a match has no value: {undecided.reason}"
            one = Reward.failed(scorer.name, undecided.status, why, parts=tuple(parts))
        else:
            lead = sum(part.value for part in parts if part.value is not None) / len(parts)
            one = Reward(scorer.name, lead, parts=tuple(parts))
        found.append(one)
    return found


def judged_from(
    item: Item,
    rewards: Sequence[Reward],
    *,
    judge: str,
    bench: str = "",
    key: str = "",
    seconds: float = 0.0,
) -> Judged:
    values = tuple(reward.value for reward in rewards)
    undecided = next((reward for reward in rewards if reward.value is None), None)
    evidence = [evidence_of(reward) for reward in rewards]
    if len(evidence) == 2 and evidence[0] == evidence[1]:  # of one pair: the same replies
        evidence.pop()
    return Judged(
        item.id,
        judge,
        bench,
        key,
        values,
        choice_of(values),
        item.best,
        Status.OK if undecided is None else undecided.status,
        "" if undecided is None else undecided.reason,
        item.subset,
        item.group,
        item.info,
        round(seconds, 4),
        cost_usd=sum(e.cost_usd for one in evidence for e in one),
        rewards=tuple(rewards),
        prompt=item.task().prompt,
        responses=tuple(response.text for response in item.responses),
    )
