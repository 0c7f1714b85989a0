"""A real, weak judge: one order, both orders, OpenRS and Skill-RM on the same pairs.

    python -m lab.judges.real_judge --model FOLDER --data ../shared/data --pairs 24

Needs the model, as a folder or behind an OpenAI-style server (lab/judges/README.md says where
ours is from), and the files of LLMBar and JudgeBench. Results lie in `lab/judges/results/`;
replies are cached in `runs/judges/NAME/`, so the same command goes on where it was stopped and any
table can be made anew without a call.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import anyio

from burnish.bench.items import Item, Judged, choice_of
from burnish.bench.judge_accuracy import Flips, accuracy, flips
from burnish.bench.judging import ResultFile, judge_items, judged_from, read_results
from burnish.bench.loaders import load
from burnish.bench.statistics import Estimate
from burnish.lm.base import Sampling
from burnish.lm.jobs import Limits
from burnish.lm.named import open_lm
from burnish.rewards.judges.build import build_judge
from burnish.rewards.judges.judge_model import JudgeModel
from burnish.seeds import derive
from lab.tables import write_rows

RESULTS = Path(__file__).resolve().parent / "results"
BENCHES = ("llmbar", "judgebench")
METHODS = {"direct": 512, "openrs": 1024, "skill_rm": 512}
"""Judge -> tokens of one reply."""


class Row(NamedTuple):
    """One line of the table."""

    bench: str
    judge: str
    pairs: int
    all: Estimate | None
    decided: Estimate | None
    ties: int
    failed: int
    flips: Flips | None
    why_failed: dict[str, int]


def sample(bench: str, path: Path, pairs: int, characters: int | None = None) -> list[Item]:
    """The same pairs every time, drawn by a hash of their ids from those that are short enough."""
    short = [
        item
        for item in load(bench, path)
        if item.best and (characters is None or _characters(item) <= characters)
    ]
    return sorted(short, key=lambda item: derive("real judge", bench, item.id))[:pairs]


def _characters(item: Item) -> int:
    texts = [message.content for message in item.messages] + [r.text for r in item.responses]
    return sum(map(len, texts))


async def judge_all(asked: argparse.Namespace) -> None:
    """Ask for everything that is not on file."""
    home = _home(asked.name)
    home.mkdir(parents=True, exist_ok=True)
    slow = {"limits": Limits(concurrency=asked.together, attempt_s=900, deadline_s=1800)}
    lm = open_lm(asked.model, **(slow if "://" in asked.model else {"dtype": asked.dtype}))
    began = time.perf_counter()
    for bench in asked.benches:
        items = sample(bench, asked.data / bench / "test.parquet", asked.pairs, asked.characters)
        for method in asked.methods:
            sampling = Sampling(temperature=0.0, max_tokens=METHODS[method])
            judge = JudgeModel(lm, sampling=sampling, cache=home / "replies.db")
            scorer = build_judge(method, judge, _options(method, asked.python))
            with ResultFile(home / f"{bench}.{method}.jsonl") as file:

                def tell(one: Judged, is_new: bool) -> None:
                    if is_new:
                        elapsed = time.perf_counter() - began
                        print(f"{elapsed:6.0f} s  {one.bench} {one.judge} {one.id}: {one.status}")

                await judge_items(
                    scorer,
                    items,
                    judge=method,
                    bench=bench,
                    file=file,
                    limit=asked.together,
                    done=tell,
                )


def _home(name: str) -> Path:
    return Path("runs") / "judges" / name


def _options(method: str, has_python: bool) -> dict[str, Any]:
    """All shipped skills: which of them a pair asks for is the judge's to find."""
    return {"python": has_python} if method == "skill_rm" else {}


def rows_of(bench: str, method: str, judged: Sequence[Judged]) -> list[Row]:
    """The method as it is and, where its parts are the two orders, the first order alone."""
    orders = [_in_order(judged, name) for name in ("forward", "backward")]
    turned = flips(*orders) if all(orders) else None
    rows = [_row(bench, f"{method}, both orders" if turned else method, judged, turned)]
    if orders[0]:
        rows.insert(0, _row(bench, f"{method}, one order", orders[0], None))
    return rows


def _in_order(judged: Sequence[Judged], name: str) -> list[Judged]:
    """What was said in one order, both seen from the item's first response."""
    found = []
    for one in judged:
        parts = [part for reward in one.rewards for part in reward.parts if part.name == name]
        if len(parts) != len(one.rewards):
            return []
        item = Item(one.id, (), (), one.best, one.subset)
        part = judged_from(item, parts, judge=f"{one.judge}, {name}", bench=one.bench)
        found.append(part)
    return found


def _row(bench: str, judge: str, judged: Sequence[Judged], turned: Flips | None) -> Row:
    found = accuracy(judged)
    why = Counter(one.status.value for one in judged if choice_of(one.values) is None)
    return Row(
        bench,
        judge,
        found.items,
        found.all,
        found.decided,
        found.ties,
        found.failed,
        turned,
        dict(why),
    )


def table(rows: Sequence[Row], model: str) -> str:
    """The table as Markdown."""
    lines = [
        f"# {model} as a judge\n",
        "Accuracy with 95 % intervals over all pairs (a tie or a failure is not right) and over "
        "those with a winner. Flipped: pairs with a winner in both orders whose winner changed with "
        "the order.\n",
        "| benchmark | judge | pairs | right of all | right of decided | ties | no verdict | flipped "
        "| first place |",
        "| --- | --- | --- | --- | --- | --- | --- | --- | --- |",
    ]
    for row in rows:
        why = f" ({', '.join(f'{k} {v}' for k, v in row.why_failed.items())})"
        cells = (
            row.bench,
            row.judge,
            str(row.pairs),
            _share(row.all),
            _share(row.decided),
            str(row.ties),
            f"{row.failed}{why if row.failed else ''}",
            _share(row.flips.flipped) if row.flips else "",
            _share(row.flips.first_place) if row.flips else "",
        )
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _share(found: Estimate | None) -> str:
    return "" if found is None else f"{found.value:.2f} [{found.low:.2f}, {found.high:.2f}]"


def main(words: Sequence[str] | None = None) -> int:
    """Judge what is missing, then write the table of all that is on file."""
    parser = argparse.ArgumentParser(prog="python -m lab.judges.real_judge")
    parser.add_argument("--model", help="without one, the table of what is on file")
    parser.add_argument("--data", type=Path, default=Path("../shared/data"))
    parser.add_argument("--pairs", type=int, default=24)
    parser.add_argument("--characters", type=int, help="longest request with both responses")
    parser.add_argument("--together", type=int, default=12, help="pairs under way at once")
    parser.add_argument("--methods", nargs="+", choices=METHODS, default=list(METHODS))
    parser.add_argument("--benches", nargs="+", choices=BENCHES, default=list(BENCHES))
    parser.add_argument("--name", default="qwen", help="of the files of results and of the cache")
    parser.add_argument("--dtype", default="auto", help="of a folder")
    parser.add_argument(
        "--no-python", dest="python", action="store_false", help="where the sandbox is too weak"
    )
    parser.add_argument("--title", default="Qwen2.5-Coder-1.5B-Instruct (Q4_K_M)")
    asked = parser.parse_args(words)
    if asked.model:
        anyio.run(judge_all, asked)
    rows = []
    for bench in BENCHES:
        for method in METHODS:
            file = _home(asked.name) / f"{bench}.{method}.jsonl"
            if file.is_file():
                rows += rows_of(bench, method, read_results(file))
    RESULTS.mkdir(exist_ok=True)
    text = table(rows, asked.title)
    (RESULTS / f"{asked.name}.md").write_text(text, encoding="utf-8")
    plain = [
        {
            **row._asdict(),
            "all": row.all and row.all.value,
            "decided": row.decided and row.decided.value,
        }
        for row in rows
    ]
    for row in plain:
        row["flips"] = row["flips"].flipped.value if row["flips"] and row["flips"].flipped else None
        row["why_failed"] = "; ".join(f"{k} {v}" for k, v in row["why_failed"].items())
    write_rows(RESULTS / f"{asked.name}.csv", plain)
    print(text)
    return 0


if __name__ == "__main__":
    sys.exit(main())
