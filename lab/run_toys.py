"""Run toys on one core and write their results to `lab/METHOD/results/toy_*`.

python -m lab.run_toys              all of them, a few minutes
python -m lab.run_toys afrl brpo    some
"""

from __future__ import annotations

import argparse
import importlib
import sys
from collections.abc import Sequence
from pathlib import Path

import torch

from lab.toy import Toy, ToyRun, run_toy
from lab.toy_report import write_toys

METHODS = (
    "clipo",
    "etr",
    "gd2po",
    "brpo",
    "afrl",
    "medalign",
    "genrm",
    "quarkmedbench",
    "skill_rm",
)
HOME = Path(__file__).resolve().parent


def toys_of(method: str) -> tuple[Toy, ...]:
    """The toys of one folder."""
    found: tuple[Toy, ...] = importlib.import_module(f"lab.{method}.toy").TOYS
    return found


def run_all(toys: Sequence[Toy], seeds: Sequence[int]) -> dict[tuple[str, str, int], ToyRun]:
    """Every arm from every seed; without seeds, from those that each toy names."""
    for toy in toys:
        # What is only paid once, imports above all, would stand in the first run's seconds.
        run_toy(toy, toy.arms[0], seed=0, steps=1)
    return {
        (toy.name, arm.name, seed): run_toy(toy, arm, seed)
        for toy in toys
        for arm in toy.arms
        for seed in (seeds or toy.seeds)
    }


def main(words: Sequence[str] | None = None) -> int:
    """Run what is asked for and print the tables."""
    parser = argparse.ArgumentParser(
        prog="python -m lab.run_toys",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("methods", nargs="*", choices=(*METHODS, []), metavar="METHOD")
    parser.add_argument("--seeds", nargs="+", type=int, default=[], metavar="N")
    parser.add_argument("--home", type=Path, default=HOME, help="where METHOD/results/ lie")
    asked = parser.parse_args(words)
    # Tensors this small are slower on several threads than on one.
    torch.set_num_threads(1)
    for method in asked.methods or METHODS:
        toys = toys_of(method)
        runs = run_all(toys, asked.seeds)
        print(write_toys(method, toys, runs, asked.home / method / "results"), flush=True)
    return 0


if __name__ == "__main__":
    sys.exit(main())
