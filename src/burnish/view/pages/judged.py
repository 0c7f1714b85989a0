"""Results of judges on benchmarks: accuracy, confusion, and the items they got wrong.

    shelf = JudgedFiles(Path("results"))
    shelf.listing()
    shelf.page("llmbar-direct")

The files are those of `burnish bench` and `burnish judge`: one judged item a line. A file is read
once for its figures, without the raw replies; these are read from their places when asked for.
"""

from __future__ import annotations

import os
from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from burnish.bench.items import Judged
from burnish.bench.judge_accuracy import accuracy
from burnish.bench.statistics import Estimate
from burnish.errors import StoreError
from burnish.numbers import grouped
from burnish.store.durable import store_errors
from burnish.view.pages.runs import NotFound, Page, paged, readable

FILES = 200
"""Result files that are listed."""
FILE_BYTES = 512 << 20
"""A larger file is not read."""
TEXT = 20_000
"""Characters of a question or a response."""
KEPT = 4
"""Files whose items stay in memory."""


class _Slim(Judged, frozen=True, omit_defaults=True):
    """A judged item; its rewards are left in the file."""

    rewards: Any = ()


class _Read(NamedTuple):
    items: list[Judged]
    places: list[tuple[int, int]]
    """Where the line of each item begins, and its size."""


KINDS = ("disagree", "tie", "failed", "agree", "unlabelled")


class JudgedFiles:
    """The result files of a folder."""

    def __init__(self, folder: Path | None) -> None:
        self.folder = folder

    def listing(self) -> Page:
        """Every result file with its judges; one that cannot be read says why."""
        return {
            "benches": [_line(key, path) for key, path in self._files().items()],
            "folder": "" if self.folder is None else readable(str(self.folder)),
        }

    def page(self, key: str) -> Page:
        """The figures of one file, judge by judge."""
        blocks = grouped(((one.judge, one.bench), one) for one in _read(self._find(key)).items)
        return {"key": key, "judges": [_block(*who, items) for who, items in blocks.items()]}

    def items(
        self, key: str, *, kind: str, judge: str, subset: str, text: str, after: int, limit: int
    ) -> Page:
        """Some items whole, in the order of the file; `text` is looked for in ids and reasons."""
        path = self._find(key)
        found = _read(path)
        wanted = text.casefold()
        fitting = [
            (one, place)
            for one, place in zip(found.items, found.places, strict=True)
            if kind in ("", kind_of(one))
            and judge in ("", one.judge)
            and subset in ("", one.subset)
            and wanted in f"{one.id}\n{one.reason}".casefold()
        ]
        shown, behind = paged(fitting, after, limit)
        with path.open("rb") as file:
            lines = [os.pread(file.fileno(), size, start) for _, (start, size) in shown]
        items = [_item(one, line) for (one, _), line in zip(shown, lines, strict=True)]
        return {"items": items, "count": len(fitting), "next": behind}

    def _files(self) -> dict[str, Path]:
        if self.folder is None or not self.folder.is_dir():
            return {}
        with store_errors(f"list the results of {self.folder}", self.folder):
            found = sorted(path for path in self.folder.glob("*.jsonl") if path.is_file())
        return {readable(path.stem): path for path in found[:FILES]}

    def _find(self, key: str) -> Path:
        files = self._files()
        if key not in files:
            raise NotFound(f"no benchmark result '{key}' here; there are {len(files)}.")
        return files[key]


def _line(key: str, path: Path) -> Page:
    items: list[Judged] = []
    calls: list[str] = []  # of a record of raw calls, which holds no verdicts: the models
    problem = ""
    try:
        items = _read(path).items
    except StoreError as error:
        calls = _recorded_models(path)
        problem = "" if calls else str(error)
    by_judge = grouped((one.judge, one) for one in items)
    return {
        "key": key,
        "benches": sorted({one.bench for one in items}),
        "judges": sorted({*by_judge, *calls}),
        "items": len(items),
        # Of each judge over all items that have a label.
        "accuracy": [_shares(by_judge[judge])["all"] for judge in sorted(by_judge)],
        "calls": len(calls),
        "problem": problem,
    }


def _read(path: Path) -> _Read:
    with store_errors(f"read {path.name}", path):
        stat = path.stat()
        return _read_file(path, stat.st_mtime_ns, stat.st_size)


def kind_of(one: Judged) -> str:
    """How an item's verdict stands to its label."""
    if one.choice is None:
        return "failed"
    if not one.best:
        return "unlabelled"
    if one.choice == one.best:
        return "agree"
    return "disagree" if len(one.choice) == 1 else "tie"


def word(choice: Sequence[int] | None) -> str:
    """A choice as a word: `1` for the first response, `tie`, `none`."""
    if not choice:
        return "none"
    return str(choice[0] + 1) if len(choice) == 1 else "tie"


@lru_cache(KEPT)
def _read_file(path: Path, modified_ns: int, size: int) -> _Read:
    """The items of a file; the time and size tell whether it has changed since."""
    if size > FILE_BYTES:
        raise StoreError(f"{path.name} has {size >> 20} MiB; too large to show here.")
    decoder = msgspec.json.Decoder(_Slim)
    found: dict[tuple[str, str], tuple[Judged, tuple[int, int]]] = {}
    place = 0
    with path.open("rb") as file:
        for line in file:
            try:
                one = decoder.decode(line)
            except msgspec.MsgspecError as error:
                # A line that is being written, or was torn, has no end yet.
                if not line.endswith(b"\n"):
                    break
                raise StoreError(
                    f"{path.name} is not a result of burnish bench or judge: {error}."
                ) from error
            slim = msgspec.structs.replace(one, rewards=(), prompt="", responses=())
            found[one.judge, one.id] = (slim, (place, len(line)))
            place += len(line)
    return _Read([one for one, _ in found.values()], [at for _, at in found.values()])


class _Recorded(Struct, frozen=True):
    """A line of a log of calls, as far as it is looked at."""

    key: str
    model: str


def _recorded_models(path: Path) -> list[str]:
    """The model of each call of a record; empty for a file that is none, or too large to read."""
    decoder = msgspec.json.Decoder(_Recorded)
    try:
        if path.stat().st_size > FILE_BYTES:
            return []
        with path.open("rb") as file:
            return [decoder.decode(line).model for line in file if line.endswith(b"\n")]
    except (OSError, msgspec.MsgspecError):
        return []


def _item(one: Judged, line: bytes) -> Page:
    try:
        whole = msgspec.json.decode(line, type=dict[str, Any])
    except msgspec.MsgspecError:
        whole = {}  # changed since it was read
    return {
        "id": one.id,
        "judge": one.judge,
        "kind": kind_of(one),
        "subset": one.subset,
        "values": one.values,
        "choice": word(one.choice),
        "label": word(one.best),
        "status": one.status,
        "reason": one.reason,
        "seconds": one.seconds,
        "rewards": whole.get("rewards", []),  # with the raw replies as evidence
        "prompt": str(whole.get("prompt", ""))[:TEXT],  # empty in a file that holds only verdicts
        "responses": [str(text)[:TEXT] for text in whole.get("responses", ())],
        "best": one.best or (),  # places that the label names, from 0
        "chosen": one.choice or (),
    }


def _block(judge: str, bench: str, items: Sequence[Judged]) -> Page:
    cells = Counter((word(one.best), word(one.choice)) for one in items if one.best)
    subsets = grouped((one.subset, one) for one in items)
    kinds = Counter(kind_of(one) for one in items)
    is_rating = all(len(one.values) == 1 for one in items)
    known = [value for one in items for value in one.values if value is not None]
    return {
        "judge": judge,
        "bench": bench,
        "shares": _shares(items),
        "subsets": {name: _shares(subsets[name]) for name in sorted(subsets)},
        # How often a label met a choice.
        "confusion": [
            {"label": label, "choice": choice, "count": n}
            for (label, choice), n in sorted(cells.items())
        ],
        "statuses": Counter(one.status.value for one in items),
        "kinds": {kind: kinds[kind] for kind in KINDS},
        "is_rating": is_rating,
        "mean": sum(known) / len(known) if is_rating and known else None,
        "cost_usd": sum(one.cost_usd for one in items),
        "seconds": sum(one.seconds for one in items),
    }


def _shares(items: Sequence[Judged]) -> Page:
    """How often a judge is right: over all items, those it answered, those it decided."""
    found = accuracy(items)
    shares: Page = {"items": found.items, "ties": found.ties, "failed": found.failed}
    for name in ("all", "valid", "decided"):
        share: Estimate | None = getattr(found, name)
        shares[name] = share and {
            **{"value": share.value, "low": share.low, "high": share.high},
            **{"count": share.size, "doubt": share.doubt},
        }
    return shares
