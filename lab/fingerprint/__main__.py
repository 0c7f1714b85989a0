"""Compare what burnish does with its committed figures, or to the bit with another commit.

python -m lab.fingerprint                       # with figures.json, on any machine
python -m lab.fingerprint --against COMMIT      # both here, every bit
python -m lab.fingerprint --only recipes grpo   # one part, or some names of it
python -m lab.fingerprint --write               # the figures anew, with what changed
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
from collections import defaultdict
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from lab.fingerprint.comparing import PARTS, Fingerprint, differences, report

HERE = Path(__file__).parent
ROOT = HERE.parents[1]
FIGURES = HERE / "figures.json"
KEPT = ("loss", "grad", "norm", "entropy", "kl", "reward")
"""Metrics with one of these in their name are committed; the others are compared on one machine."""
TOGETHER = ("codec", "speech")
"""A recipe that uses what the one before it trained."""


def names_of(part: str) -> list[str]:
    """All names of a part: those of its file, or the shipped recipes."""
    files = {"functions": "functions.json", "scorers": "answers.json", "judges": "judged.json"}
    if part in files:
        return sorted(json.loads((HERE / files[part]).read_text(encoding="utf-8")))
    home = ROOT / "recipes"
    own = [path for path in home.glob("*/*.toml") if path.stem == path.parent.name]
    return sorted(path.stem for path in [*home.glob("*.toml"), *own])


def shares(only: Sequence[str]) -> list[tuple[str, list[str]]]:
    """The work, in pieces that may go side by side; the longest first."""
    part, *names = only or ("all",)
    if part != "all" and part not in PARTS:
        raise SystemExit(f"no part '{part}'; expected {', '.join(PARTS)}")
    if part != "all":
        return [(part, names or names_of(part))]
    recipes = [name for name in names_of("recipes") if name not in TOGETHER]
    halves = [recipes[0::2], [*TOGETHER, *recipes[1::2]]]
    rest = [(part, names_of(part)) for part in PARTS if part != "recipes"]
    return [*(("recipes", half) for half in halves), *rest]


def take(source: Path, work: Sequence[tuple[str, list[str]]], jobs: int) -> Fingerprint:
    """The fingerprint of the package in a `src` folder."""
    paths = os.pathsep.join((str(source), str(ROOT)))
    settings = {"PYTHONPATH": paths, "OMP_NUM_THREADS": "1"}
    found: dict[str, dict[str, Any]] = defaultdict(dict)

    def one(share: tuple[str, list[str]]) -> Any:
        part, names = share
        with tempfile.TemporaryDirectory() as folder:
            out = Path(folder, "found.json")
            command = [sys.executable, "-m", "lab.fingerprint.take", str(out), part, *names]
            done = subprocess.run(
                command, env={**os.environ, **settings}, cwd=folder, capture_output=True, text=True
            )
            if not out.is_file():
                raise SystemExit(f"{part} could not be taken:\n{done.stderr[-2000:]}")
            return json.loads(out.read_text(encoding="utf-8"))

    with ThreadPoolExecutor(jobs) as pool:
        for share in pool.map(one, work):
            for part, flows in share.items():
                found[part] |= flows
    return found


@contextmanager
def checkout(commit: str) -> Iterator[Path]:
    """The `src` of another commit, beside this tree."""
    with tempfile.TemporaryDirectory() as folder:
        tree = Path(folder, "tree")
        git = ("git", "-C", str(ROOT), "worktree")
        subprocess.run([*git, "add", "--quiet", "--detach", str(tree), commit], check=True)
        try:
            yield tree / "src"
        finally:
            subprocess.run([*git, "remove", "--force", str(tree)], check=True)


def figures_of(found: Fingerprint) -> Fingerprint:
    """What any machine repeats: no bits, and no metric beside losses, norms and rewards."""
    kept: dict[str, dict[str, Any]] = {}
    for part, flows in found.items():
        for name, flow in flows.items():
            entries: list[Any] = []
            for one in flow:
                near = {k: v for k, v in one.get("near", {}).items() if any(w in k for w in KEPT)}
                if "exact" in one or near:
                    made = {"at": one["at"], **({"near": near} if near else {})}
                    entries.append(made | ({"exact": one["exact"]} if "exact" in one else {}))
            kept.setdefault(part, {})[name] = entries
    return kept


def write(found: Fingerprint) -> None:
    """The figures, one entry a line."""
    lines = []
    for part, flows in sorted(found.items()):
        for name, flow in sorted(flows.items()):
            entries = ",\n".join(json.dumps(one, ensure_ascii=False) for one in flow)
            lines.append(f"{json.dumps(f'{part} {name}')}: [\n{entries}\n]")
    FIGURES.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")


def read(work: Sequence[tuple[str, list[str]]]) -> Fingerprint:
    """The committed figures of what is compared."""
    known = json.loads(FIGURES.read_text(encoding="utf-8")) if FIGURES.is_file() else {}
    found: dict[str, dict[str, Any]] = defaultdict(dict)
    for part, names in work:
        found[part] |= {n: known[f"{part} {n}"] for n in names if f"{part} {n}" in known}
    if len({part for part, _ in work}) == len(PARTS):
        for key, flow in known.items():
            part, _, name = key.partition(" ")
            found[part].setdefault(name, flow)
    return found


def main() -> int:
    """0 where nothing differs."""
    parser = argparse.ArgumentParser(prog="python -m lab.fingerprint", description=__doc__)
    parser.add_argument("--against", metavar="COMMIT", help="compare every bit with a commit")
    parser.add_argument(
        "--only", nargs="+", default=(), metavar="PART", help="a part, or its names"
    )
    parser.add_argument("--write", action="store_true", help="write the committed figures anew")
    parser.add_argument("--jobs", type=int, default=2, help="processes side by side")
    chosen = parser.parse_args()
    if chosen.write and chosen.only:
        parser.error("--write takes all figures; leave out --only")
    work = shares(chosen.only)
    after = take(ROOT / "src", work, chosen.jobs)
    if chosen.against:
        with checkout(chosen.against) as source:
            found = differences(take(source, work, chosen.jobs), after)
        print(f"against {chosen.against}: {report(found)}")
    if chosen.write or not chosen.against:
        figures = figures_of(after)
        found = differences(read(work), figures, bits=False)
        print(f"against the committed figures: {report(found)}")
        if chosen.write:
            write(figures)
    return int(bool(found) and not chosen.write)


if __name__ == "__main__":
    raise SystemExit(main())
