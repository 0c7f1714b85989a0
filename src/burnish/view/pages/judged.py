"""Results of judges on benchmarks: accuracy, confusion, and the items they got wrong.

    shelf = JudgedFiles(Path("results"))
    shelf.listing()
    shelf.page("llmbar-direct")

The files are those of `burnish bench` and `burnish judge`: one judged item a line. A file is read
once for its figures, without the raw replies; these are read from their places when asked for.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct

from burnish.bench.items import Judged
from burnish.bench.judge_accuracy import accuracy
from burnish.errors import StoreError
from burnish.grouping import grouped
from burnish.view.pages.runs import NotFound, readable

FILES = 200
"""Result files that are listed."""
FILE_BYTES = 512 << 20
"""A larger file is not read."""
TEXT = 20_000
"""Characters of a question or a response."""
KEPT = 4
"""Files whose items stay in memory."""


class Estimated(Struct, frozen=True):
    value: float
    low: float
    high: float
    count: int
    doubt: str
    """Why the interval should not be believed."""


class BenchLine(Struct, frozen=True, kw_only=True):
    key: str
    benches: list[str]
    judges: list[str]
    items: int
    accuracy: list[Estimated | None] = []
    """Of each judge over all items that have a label; null where none has."""
    calls: int = 0
    """Of a record of raw calls (`--record`, `--cache`), which holds no verdicts."""
    problem: str = ""


class BenchList(Struct, frozen=True):
    benches: list[BenchLine]
    folder: str


class Shares(Struct, frozen=True):
    """How often a judge is right: over all items, those it answered, those it decided."""

    all: Estimated | None
    valid: Estimated | None
    decided: Estimated | None
    items: int
    ties: int
    failed: int


class Cell(Struct, frozen=True):
    """How often a label met a choice; `1` is the first response, then `tie` and `none`."""

    label: str
    choice: str
    count: int


class JudgeBlock(Struct, frozen=True):
    judge: str
    bench: str
    shares: Shares
    subsets: dict[str, Shares]
    confusion: list[Cell]
    statuses: dict[str, int]
    kinds: dict[str, int]
    """Items that agree with the label, disagree, are ties, have no verdict, or have no label."""
    is_rating: bool
    """Whether every item is one answer, which is rated and not chosen."""
    mean: float | None
    """Of the values of a rating judge, as far as there are any."""
    cost_usd: float
    seconds: float


class BenchPage(Struct, frozen=True):
    key: str
    judges: list[JudgeBlock]


class ItemLine(Struct, frozen=True, kw_only=True):
    id: str
    judge: str
    kind: str
    subset: str
    values: list[float | None]
    choice: str
    label: str
    status: str
    reason: str
    seconds: float
    rewards: Any
    """Reward trees with the raw replies as evidence."""
    prompt: str
    """Empty in a file that holds only verdicts."""
    responses: list[str]
    best: list[int]
    """Places of the responses that the label names, from 0; empty without a label."""
    chosen: list[int]
    """Places that the judge chose."""


class ItemsPage(Struct, frozen=True):
    """Judged items in the order of the file; `next` goes into `after`."""

    items: list[ItemLine]
    count: int
    next: int | None


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

    def listing(self) -> BenchList:
        """Every result file with its judges; one that cannot be read says why."""
        return BenchList(
            [self._line(key, path) for key, path in self._files().items()],
            "" if self.folder is None else readable(str(self.folder)),
        )

    def page(self, key: str) -> BenchPage:
        """The figures of one file, judge by judge."""
        items = self._read(self._find(key)).items
        judges = dict.fromkeys((one.judge, one.bench) for one in items)
        return BenchPage(
            key,
            [
                _block(judge, bench, [o for o in items if (o.judge, o.bench) == (judge, bench)])
                for judge, bench in judges
            ],
        )

    def items(
        self, key: str, *, kind: str, judge: str, subset: str, text: str, after: int, limit: int
    ) -> ItemsPage:
        """Some items whole; `text` is looked for in ids and reasons."""
        path = self._find(key)
        found = self._read(path)
        wanted = text.casefold()
        fitting = [
            place
            for place, one in enumerate(found.items)
            if kind in ("", kind_of(one))
            and judge in ("", one.judge)
            and subset in ("", one.subset)
            and (not wanted or wanted in f"{one.id}\n{one.reason}".casefold())
        ]
        shown = fitting[after : after + limit]
        lines = _lines(path, [found.places[place] for place in shown])
        items = [_item(found.items[p], line) for p, line in zip(shown, lines, strict=True)]
        end = after + limit
        return ItemsPage(items, len(fitting), end if end < len(fitting) else None)

    def _files(self) -> dict[str, Path]:
        if self.folder is None or not self.folder.is_dir():
            return {}
        try:
            found = sorted(path for path in self.folder.glob("*.jsonl") if path.is_file())
        except OSError as error:
            raise StoreError(f"{self.folder}: cannot list results: {error.strerror}.") from error
        return {readable(path.stem): path for path in found[:FILES]}

    def _find(self, key: str) -> Path:
        files = self._files()
        if key not in files:
            raise NotFound(f"no benchmark result '{key}' here; there are {len(files)}.")
        return files[key]

    def _line(self, key: str, path: Path) -> BenchLine:
        try:
            items = self._read(path).items
        except StoreError as error:
            models = _recorded_models(path)
            return BenchLine(
                key=key,
                benches=[],
                judges=sorted(set(models)),
                items=0,
                calls=len(models),
                problem="" if models else str(error),
            )
        benches = sorted({one.bench for one in items})
        judges = sorted({one.judge for one in items})
        shares = [_shares([one for one in items if one.judge == judge]).all for judge in judges]
        return BenchLine(key=key, benches=benches, judges=judges, items=len(items), accuracy=shares)

    def _read(self, path: Path) -> _Read:
        try:
            stat = path.stat()
            return _read_file(path, stat.st_mtime_ns, stat.st_size)
        except OSError as error:
            raise StoreError(f"{path.name}: cannot read: {error.strerror}.") from error


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


def _lines(path: Path, places: Sequence[tuple[int, int]]) -> list[bytes]:
    with path.open("rb") as file:
        lines = []
        for start, size in places:
            file.seek(start)
            lines.append(file.read(size))
        return lines


def _item(one: Judged, line: bytes) -> ItemLine:
    try:
        whole = msgspec.json.decode(line)
    except msgspec.MsgspecError:
        whole = {}
    whole = whole if isinstance(whole, dict) else {}
    return ItemLine(
        id=one.id,
        judge=one.judge,
        kind=kind_of(one),
        subset=one.subset,
        values=list(one.values),
        choice=word(one.choice),
        label=word(one.best),
        status=one.status.value,
        reason=one.reason,
        seconds=one.seconds,
        rewards=whole.get("rewards", []),
        prompt=str(whole.get("prompt", ""))[:TEXT],
        responses=[str(text)[:TEXT] for text in whole.get("responses", ())],
        best=list(one.best or ()),
        chosen=list(one.choice or ()),
    )


def _block(judge: str, bench: str, items: Sequence[Judged]) -> JudgeBlock:
    cells = Counter((word(one.best), word(one.choice)) for one in items if one.best)
    subsets = grouped((one.subset, one) for one in items)
    kinds = Counter(kind_of(one) for one in items)
    is_rating = all(len(one.values) == 1 for one in items)
    known = [value for one in items for value in one.values if value is not None]
    return JudgeBlock(
        judge=judge,
        bench=bench,
        shares=_shares(items),
        subsets={name: _shares(subsets[name]) for name in sorted(subsets)},
        confusion=[Cell(label, choice, n) for (label, choice), n in sorted(cells.items())],
        statuses=dict(Counter(one.status.value for one in items)),
        kinds={kind: kinds.get(kind, 0) for kind in KINDS},
        is_rating=is_rating,
        mean=sum(known) / len(known) if is_rating and known else None,
        cost_usd=sum(one.cost_usd for one in items),
        seconds=sum(one.seconds for one in items),
    )


def _shares(items: Sequence[Judged]) -> Shares:
    found = accuracy(items)

    estimates = (found.all, found.valid, found.decided)
    shares: list[Any] = [None if one is None else Estimated(*one, one.doubt) for one in estimates]
    return Shares(*[*shares, found.items, found.ties, found.failed])
