"""Write the real data of these studies as JSONL files for the task kind `file`.

    python -m lab.real.prepare DATA_FOLDER runs/lab/data

DATA_FOLDER holds the public sets as Parquet, a folder each: cranfield, liveqa_med, bfcl, toolrl,
api_bank. A set that is not there is named and left out. Prompts and answers are measured with the
tokenizer of `--model`, because a row that does not fit a run's budget can only teach it to be cut.

Nobody's question stands on both sides: graded search and ToolRL come split, BFCL and API-Bank are
split here by a hash of the question, API-Bank's dialogues as a whole.
"""

from __future__ import annotations

import argparse
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

from burnish.errors import BurnishError, UserError
from burnish.records import Message
from burnish.tasks.base import is_held_out
from burnish.tasks.mapping import RowError
from burnish.tasks.rows import read_table
from lab.real.graded_search import (
    cranfield_rows,
    from_cranfield,
    from_liveqa,
    write_jsonl,
)
from lab.real.tool_data import CONVERTERS

Task = dict[str, Any]
Count = Callable[[Task], "Size"]

HELD_OUT_SHARE = 0.25
BFCL = ("simple_python", "live_simple", "multiple", "parallel", "parallel_multiple", "irrelevance")
"""Files with single turns and a reference; the others need a simulator or have no reference."""
API_BANK = ("level1", "level2", "level3")

_FIRST_TURN = re.compile(r"<user>(.*?)</user>", re.DOTALL)


class Size(NamedTuple):
    """Tokens of a task, template and end of turn included."""

    prompt: int
    answer: int


@dataclass(frozen=True)
class Limits:
    """The longest task that is kept."""

    prompt: int
    answer: int


SEARCH_LIMITS = Limits(prompt=512, answer=32)
BFCL_LIMITS = Limits(prompt=512, answer=192)
BLOCKS_LIMITS = Limits(prompt=1024, answer=512)


@dataclass
class Side:
    """Tasks of one file, and why rows did not become any."""

    tasks: list[Task] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)

    def add(self, task: Task, limits: Limits, count: Count) -> None:
        """Keep a task that fits."""
        size = count(task)
        if size.prompt > limits.prompt:
            self.skipped[f"prompt over {limits.prompt} tokens"] += 1
        elif size.answer > limits.answer:
            self.skipped[f"answer over {limits.answer} tokens"] += 1
        else:
            self.tasks.append(task)

    def drop(self, is_dropped: Callable[[Task], bool], why: str) -> None:
        """Leave out tasks that were kept so far."""
        kept = [task for task in self.tasks if not is_dropped(task)]
        if len(kept) < len(self.tasks):
            self.skipped[why] += len(self.tasks) - len(kept)
        self.tasks = kept


class Sides(NamedTuple):
    """The two files of a set."""

    train: Side
    held_out: Side


def prepare(source: Path, target: Path, count: Count) -> list[str]:
    """Write what can be written; one line for each file and each set that is missing."""
    target.mkdir(parents=True, exist_ok=True)
    lines: list[str] = []
    makers: dict[str, Callable[[Path, Count, list[str]], Sides]] = {
        "search": _search,
        "bfcl": _bfcl,
        "toolrl": _toolrl,
        "api_bank": _api_bank,
    }
    for name, make in makers.items():
        sides = make(source, count, lines)
        _part(sides)
        for side, found in zip(("train", "held_out"), sides, strict=True):
            file = target / f"{name}_{side}.jsonl"
            # A file of an earlier data folder must not pass for this one's.
            file.unlink(missing_ok=True)
            if found.tasks:
                write_jsonl(found.tasks, file)
                lines.append(_line(file, found))
            elif found.skipped:
                lines.append(f"{file.name}: not written, no row is left; {_reasons(found)}")
    return lines


def counter(model: str) -> Count:
    """Counts tokens as a run with this model does."""
    from burnish.lm.folder import find_folder
    from burnish.lm.tokenizer import Tokenizer, end_of_turn

    tokenizer = Tokenizer.from_folder(find_folder(model))
    end = len(end_of_turn(tokenizer))

    def count(task: Task) -> Size:
        turns = task.get("messages") or [{"role": "user", "content": task["prompt"]}]
        messages = [Message(turn["role"], turn["content"]) for turn in turns]
        answer = len(tokenizer.encode(task["demonstration"])) + end
        return Size(len(tokenizer.render(messages)), answer)

    return count


def _search(source: Path, count: Count, lines: list[str]) -> Sides:
    """Cranfield and LiveQA-Med, by their own splits."""
    sides = Sides(Side(), Side())
    for split, side in zip(("train", "test"), sides, strict=True):
        wanted = ("docs", f"queries_{split}", f"qrels_{split}")
        if len(_present(source / "cranfield", wanted, lines)) == len(wanted):
            for row in cranfield_rows(source / "cranfield", split):
                task = from_cranfield(row)
                if task is None:
                    side.skipped["cranfield: not graded, or no abstract"] += 1
                else:
                    side.add({**task, "source": "cranfield"}, SEARCH_LIMITS, count)
        for file in _present(source / "liveqa_med", (split,), lines):
            for found in read_table(file).rows:
                task = from_liveqa(found.values)
                side.add({**task, "source": "liveqa_med"}, SEARCH_LIMITS, count)
        _settle_judgements(side)
    return sides


def _settle_judgements(side: Side) -> None:
    """One task a pair: those with two different grades are left out, repetitions too."""
    grades: dict[str, set[str]] = {}
    for task in side.tasks:
        grades.setdefault(task["prompt"], set()).add(task["grade"])
    side.drop(lambda task: len(grades[task["prompt"]]) > 1, "judges disagree on the grade")
    seen: set[str] = set()

    def is_repeated(task: Task) -> bool:
        known = task["prompt"] in seen
        seen.add(task["prompt"])
        return known

    side.drop(is_repeated, "repeats a pair")


def _bfcl(source: Path, count: Count, lines: list[str]) -> Sides:
    files = _present(source / "bfcl", BFCL, lines)
    others = sorted(f.stem for f in (source / "bfcl").glob("*.parquet") if f.stem not in BFCL)
    if others:
        lines.append(f"bfcl: not read, several turns or no reference call: {', '.join(others)}")
    return _hashed("bfcl", files, BFCL_LIMITS, count)


def _api_bank(source: Path, count: Count, lines: list[str]) -> Sides:
    files = _present(source / "api_bank", API_BANK, lines)
    return _hashed("api_bank", files, BLOCKS_LIMITS, count)


def _toolrl(source: Path, count: Count, lines: list[str]) -> Sides:
    """Its SFT traces to train on; its dev traces and its RL test prompts are held out."""
    sides = Sides(Side(), Side())
    home = source / "toolrl"
    for file in _present(home, ("sft_train", "sft_dev", "rl_test"), lines):
        side = sides.train if file.stem == "sft_train" else sides.held_out
        for task in _converted("toolrl", [file], side):
            side.add(task, BLOCKS_LIMITS, count)
    return sides


def _hashed(kind: str, files: Sequence[Path], limits: Limits, count: Count) -> Sides:
    """A set without splits, dealt by a hash of its questions."""
    sides = Sides(Side(), Side())
    for task in _converted(kind, files, sides.train):
        held_out = is_held_out(_question(task), HELD_OUT_SHARE)
        (sides.held_out if held_out else sides.train).add(task, limits, count)
    return sides


def _converted(kind: str, files: Iterable[Path], side: Side) -> Iterator[Task]:
    """Tasks of the files; rows that are none are counted on a side."""
    for file in files:
        table = read_table(file)
        side.skipped.update(f"{file.stem}: {bad.why}" for bad in table.bad)
        for row in table.rows:
            try:
                yield CONVERTERS[kind](row.values)
            except RowError as error:
                side.skipped[f"{file.stem}: {error}"] += 1


def _question(task: Task) -> str:
    """What makes two tasks the same question: the pair to grade, or how a dialogue begins."""
    if "prompt" in task:
        return str(task["prompt"])
    user = next(turn["content"] for turn in task["messages"] if turn["role"] == "user")
    first = _FIRST_TURN.search(user)
    return " ".join((first[1] if first else user).casefold().split())


def _part(sides: Sides) -> None:
    """No question on both sides: the held-out one keeps it."""
    shown = {_question(task) for task in sides.held_out.tasks}
    sides.train.drop(lambda task: _question(task) in shown, "its question is held out")


def _present(folder: Path, names: Sequence[str], lines: list[str]) -> list[Path]:
    """The files that are there; a line for what is not."""
    missing = [f"{name}.parquet" for name in names if not (folder / f"{name}.parquet").is_file()]
    if missing:
        what = f"{folder} does not exist" if not folder.is_dir() else f"no {', '.join(missing)}"
        line = f"{folder.name}: {what}; left out"
        if line not in lines:
            lines.append(line)
    return [folder / f"{name}.parquet" for name in names if f"{name}.parquet" not in missing]


def _line(file: Path, side: Side) -> str:
    key = "grade" if "grade" in side.tasks[0] else "category"
    kinds = Counter(str(task[key]) for task in side.tasks)
    shown = ", ".join(f"{kind} {count}" for kind, count in sorted(kinds.items()))
    size = file.stat().st_size / 1e6
    return f"{file.name}: {len(side.tasks)} tasks ({shown}), {size:.2f} MB{_reasons(side)}"


def _reasons(side: Side) -> str:
    counts = ", ".join(f"{count} {why}" for why, count in side.skipped.most_common())
    return f"; skipped: {counts}" if counts else ""


def main(words: Sequence[str] | None = None) -> int:
    """Write the files and say what is in them."""
    parser = argparse.ArgumentParser(
        prog="python -m lab.real.prepare",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("source", type=Path, metavar="DATA_FOLDER")
    parser.add_argument("target", type=Path, metavar="OUT_FOLDER")
    parser.add_argument("--model", default="smollm2", help="whose tokenizer counts")
    asked = parser.parse_args(words)
    try:
        if not asked.source.is_dir():
            raise UserError(f"{asked.source} is no folder; expected one with the public sets.")
        lines = prepare(asked.source, asked.target, counter(asked.model))
    except BurnishError as error:
        print(error, file=sys.stderr)
        return 2
    print("\n".join(lines))
    files = list(asked.target.glob("*.jsonl"))
    print(f"{len(files)} files, {sum(file.stat().st_size for file in files) / 1e6:.2f} MB")
    return 0 if files else 2


if __name__ == "__main__":
    sys.exit(main())
