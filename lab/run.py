"""Run studies and write their results.

    python -m lab.run all --jobs 6              everything, on a GPU
    python -m lab.run afrl --seeds 0 1 2        one method
    python -m lab.run all --cpu                 a trial with a random tiny model

Run it from the repository's root. Runs lie in `runs/lab/`, results in `lab/METHOD/results/`.
Finished runs are not repeated; `--minutes 9` begins none after that, and the same command goes on.
"""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence
from pathlib import Path

from burnish.lm.hardware import GPU_SHARE
from lab.harness import Options, run_studies
from lab.plan import GPU, METHODS, TRIAL, WITH_DATA, Study, studies_of
from lab.report import write_report, write_summary
from lab.slots import FAILED, Record
from lab.tables import Tables

RESULTS = Path(__file__).resolve().parent


def main(words: Sequence[str] | None = None) -> int:
    """Run what is asked for; 1 where a run failed or was left out."""
    parser = argparse.ArgumentParser(
        prog="python -m lab.run",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument(
        "methods", nargs="+", choices=("all", *METHODS, *WITH_DATA), metavar="METHOD"
    )
    parser.add_argument("--only", nargs="+", metavar="STUDY", help="of a method with several")
    parser.add_argument("--seeds", nargs="+", type=int, metavar="N")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once (default 1)")
    parser.add_argument("--cpu", action="store_true", help="a trial on a CPU, in minutes")
    parser.add_argument("--again", action="store_true", help="repeat finished runs")
    parser.add_argument("--minutes", type=float, default=0.0, help="begin no run after this")
    parser.add_argument("--timeout-s", type=float, default=1800.0, help="of one process")
    parser.add_argument("--home", type=Path, help="where the runs lie")
    asked = parser.parse_args(words)
    methods = METHODS if "all" in asked.methods else tuple(dict.fromkeys(asked.methods))
    home = asked.home or Path("runs") / ("lab-trial" if asked.cpu else "lab")
    options = Options(
        home=home.absolute(),
        sizes=TRIAL if asked.cpu else GPU,
        jobs=asked.jobs,
        seeds=tuple(asked.seeds or ()),
        again=asked.again,
        minutes=asked.minutes,
        timeout_s=asked.timeout_s,
    )
    by_method = {
        method: tuple(
            study for study in studies_of(method) if not asked.only or study.name in asked.only
        )
        for method in methods
    }
    everything = [study for studies in by_method.values() for study in studies]
    if asked.jobs > 1:  # runs side by side must leave each other room on the GPU
        os.environ.setdefault(GPU_SHARE, f"{0.95 / asked.jobs:.3f}")
    # A trial says nothing about a method: its figures never land among the results.
    places = {
        method: home / method / "results" if asked.cpu else RESULTS / method / "results"
        for method in methods
    }
    method_of = {study.name: method for method, own in by_method.items() for study in own}

    def keep(record: Record) -> None:
        """A run's row stands in the table as soon as it is over, whatever becomes of the others."""
        method = method_of[record.study]
        names = [study.name for study in by_method[method]]
        Tables.of([record], jobs=options.jobs).write(places[method], names)

    records = run_studies(everything, options, lambda line: print(line, flush=True), keep)
    for method, studies in by_method.items():
        place = places[method]
        done = [record for study in studies for record in records[study.name]]
        Tables.of(done, jobs=options.jobs).write(place, [study.name for study in studies])
        print(f"\n{write_report(method, studies, place)}", flush=True)
    if not asked.cpu and methods is METHODS:
        print(f"\n{write_summary(RESULTS)}", flush=True)
    return 1 if _incomplete(everything, records, options) else 0


def _incomplete(studies: list[Study], records: dict[str, list[Record]], options: Options) -> bool:
    wanted = sum(
        len(options.seeds or study.seeds[: options.sizes.seeds]) * len(study.arms)
        for study in studies
    )
    everything = [record for found in records.values() for record in found]
    arms = {(study.name, arm.name) for study in studies for arm in study.arms}
    done = sum((record.study, record.arm) in arms for record in everything)
    failed = sum(record.status == FAILED for record in everything)
    if done < wanted:
        print(f"{wanted - done} of {wanted} runs were not begun; the same command does them.")
    if failed:
        print(f"{failed} failed; their logs lie beside their recipes in {options.home}.")
    return done < wanted or failed > 0


if __name__ == "__main__":
    sys.exit(main())
