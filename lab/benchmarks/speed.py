"""How fast burnish samples, steps and learns here, beside transformers' generate and TRL.

    python lab/benchmarks/speed.py                        # needs pip install -e '.[torch,bench]'
    python lab/benchmarks/speed.py --json out.json --parts generation,tail
    python lab/benchmarks/speed.py --quick                # every path in seconds, on a random model

On a GPU or, at its own sizes, on the CPU. Every measurement runs in a process of its own; a part
that fails is named in the table and in the JSON, the others go on, and the exit code is 1.
docs/speed.md says what is measured and how.
"""

from __future__ import annotations

import argparse
import importlib.util
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import _speed_children as children
import _speed_figures as figures
import _speed_tables as tables
import msgspec
from _speed_plan import PARTS, plan_for
from _speed_records import (
    Device,
    DeviceJob,
    GenerationJob,
    PeerResult,
    Plan,
    Result,
    Row,
    StepJob,
    StepSize,
    say,
)
from msgspec import Struct
from msgspec.structs import replace
from rich.console import Console
from rich.table import Table

MOST_PASSES = 8
"""TRL's batch is cut into at most this many backward passes before it is given up."""


class Part(Struct, kw_only=True):
    """One part of the report."""

    status: str = "ok"
    """ok or failed."""
    error: str = ""
    seconds: float = 0.0
    raw: list[Any] = msgspec.field(default_factory=list)
    figures: list[Any] = msgspec.field(default_factory=list)

    def note(self, outcome: children.Outcome[Any]) -> None:
        """Take in a child's time and, where it failed, why."""
        self.seconds += outcome.seconds
        if outcome.error:
            self.fail(outcome.error)

    def fail(self, error: str) -> None:
        self.status = "failed"
        self.error = f"{self.error}; {error}" if self.error else error


class StepRecord(Struct, frozen=True, kw_only=True):
    """Both programs at one size, raw."""

    size: StepSize
    burnish: Result | None
    trl: PeerResult | None = None
    note: str = ""


class Report(Struct, kw_only=True):
    """Everything; what `--json` writes."""

    status: str = "ok"
    model: str
    quick: bool
    prompts: str
    repeats: int
    patience_s: float
    device: Device
    plan: Plan
    parts: dict[str, Part] = msgspec.field(default_factory=dict)


@dataclass
class Bench:
    """Runs the parts on one device."""

    options: argparse.Namespace
    device: Device
    plan: Plan
    console: Console = field(default_factory=Console)

    def generation(self) -> Part:
        part = self._sampled("generation")
        part.figures = figures.generation(part.raw)
        self._show(tables.generation, part)
        return part

    def tail(self) -> Part:
        part = self._sampled("tail")
        part.figures = figures.tail(part.raw)
        self._show(tables.tail, part)
        return part

    def step(self) -> Part:
        part = Part()
        for size in self.plan.steps:
            ours = children.run("_burnish_step.py", self._job(size), Result)
            part.note(ours)
            peer, note = self._peer(size, part)
            part.raw.append(StepRecord(size=size, burnish=ours.value, trl=peer, note=note))
            if ours.value is not None:
                part.figures.append(figures.step(size, ours.value, peer, note))
        self._show(tables.step, part)
        return part

    def learn(self) -> Part:
        return self._alone((self.plan.learn,), figures.learn, tables.learn, watch=False)

    def memory(self) -> Part:
        return self._alone(self.plan.memory, figures.memory, tables.memory, watch=True)

    def _sampled(self, name: str) -> Part:
        options = self.options
        job = GenerationJob(
            part=name,
            plan=self.plan,
            rates=self.device.rates,
            model=options.model,
            device=self.device.kind,
            repeats=options.repeats,
            patience_s=options.patience,
            cache=options.generate_cache,
            gsm8k=str(options.gsm8k.resolve()) if options.gsm8k else "",
        )
        outcome = children.run("_speed_generation.py", job, list[Row])
        part = Part(raw=outcome.value or [])
        part.note(outcome)
        return part

    def _peer(self, size: StepSize, part: Part) -> tuple[PeerResult | None, str]:
        """TRL at one size, in more backward passes where one does not fit, and a note."""
        if self.options.without_trl:
            return None, "trl left out"
        if importlib.util.find_spec("trl") is None:
            return None, "trl not installed"
        passes = 1
        while True:
            job = replace(self._job(size), accumulate=passes)
            outcome = children.run("_trl_step.py", job, PeerResult)
            part.note(outcome)
            if outcome.value is None:
                return None, "trl failed"
            if not outcome.value.out_of_memory:
                return outcome.value, ""
            if passes == MOST_PASSES:
                part.fail(f"trl ran out of memory in {passes} backward passes")
                return None, "trl ran out of memory"
            passes *= 2

    def _alone(
        self,
        sizes: Sequence[StepSize],
        figure: Callable[[StepSize, Result], Any],
        table: Callable[[Any], Table],
        *,
        watch: bool,
    ) -> Part:
        """A part that burnish runs without a peer."""
        part = Part()
        for size in sizes:
            job = replace(self._job(size), watch_memory=watch)
            ours = children.run("_burnish_step.py", job, Result)
            part.note(ours)
            part.raw.append(StepRecord(size=size, burnish=ours.value))
            if ours.value is not None:
                part.figures.append(figure(size, ours.value))
        self._show(table, part)
        return part

    def _job(self, size: StepSize) -> StepJob:
        return StepJob(
            size=size,
            rates=self.device.rates[self.plan.train_dtype],
            model=self.options.model,
            device=self.device.kind,
            dtype=self.plan.train_dtype,
            threads=self.device.threads,
        )

    def _show(self, table: Callable[[Any], Table], part: Part) -> None:
        if part.figures:
            self.console.print(table(part.figures))
        if part.error:
            self.console.print(f"failed: {part.error}", markup=False, highlight=False)


def main(words: Sequence[str] | None = None) -> int:
    """Measure, print, write; 1 where a part failed."""
    options = _options(words)
    say("looking at the device")
    found = children.run("_speed_floor.py", DeviceJob(options.device, options.quick), Device)
    if found.value is None:
        print(f"failed: {found.error}", file=sys.stderr)
        return 1
    plan = plan_for(found.value.kind, quick=options.quick)
    bench = Bench(options, found.value, plan, _console())
    name = f"{found.value.name}; CPU threads: {found.value.threads}"
    bench.console.print(name, markup=False, highlight=False)
    bench.console.print(tables.device(found.value))
    report = Report(
        model=options.model,
        quick=options.quick,
        prompts="gsm8k" if options.gsm8k else "arithmetic",
        repeats=options.repeats,
        patience_s=options.patience,
        device=found.value,
        plan=plan,
    )
    for name in options.parts:
        say(f"part {name}")
        part: Part = getattr(bench, name)()
        report.parts[name] = part
        if part.status != "ok":
            report.status = "failed"
        say(f"part {name}: {part.status}, {part.seconds:.0f} s")
        if options.json:
            options.json.write_bytes(msgspec.json.format(msgspec.json.encode(report)) + b"\n")
    return 0 if report.status == "ok" else 1


def _console() -> Console:
    """A file or pipe has no width of its own; the widest table needs this much."""
    return Console() if sys.stdout.isatty() else Console(width=180)


def _options(words: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    add = parser.add_argument
    add("--json", type=Path, help="write every raw number here")
    add("--parts", type=_parts, default=PARTS, help=f"some of {','.join(PARTS)}")
    add("--quick", action="store_true", help="tiny sizes: a rehearsal, its figures say nothing")
    add("--model", help="smollm2 (default), tiny (default of --quick) or a model folder")
    add("--device", default="auto", choices=("auto", "cpu", "cuda"))
    add("--gsm8k", type=Path, help="take the prompts of generation from this GSM8K file")
    add("--repeats", type=int, default=3, help="runs of a generation measurement")
    add(
        "--patience",
        type=float,
        default=15.0,
        help="seconds after which a generation measurement is not repeated; "
        "generate is timed over fewer tokens where one run would take longer",
    )
    add(
        "--generate-cache",
        default="",
        help="cache_implementation of transformers' generate, such as static",
    )
    add("--without-trl", action="store_true", help="leave TRL out")
    options = parser.parse_args(words)
    options.model = options.model or ("tiny" if options.quick else "smollm2")
    if options.repeats < 1 or options.patience <= 0:
        parser.error("--repeats and --patience: expected numbers above 0")
    if options.gsm8k and not options.gsm8k.is_file():
        parser.error(f"--gsm8k: {options.gsm8k} is not a file")
    return options


def _parts(text: str) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(text.split(",")))
    for name in names:
        if name not in PARTS:
            raise argparse.ArgumentTypeError(f"'{name}'; expected some of {','.join(PARTS)}")
    return names


if __name__ == "__main__":
    sys.exit(main())
