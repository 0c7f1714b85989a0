"""The tables that speed.py prints."""

from __future__ import annotations

from collections.abc import Sequence

from _speed_figures import GenerationFigure, LearnFigure, MemoryFigure, StepFigure, TailFigure
from _speed_records import Device
from rich.table import Table


def device(about: Device) -> Table:
    """What the device was seen to do: the floor is counted from this."""
    table = _table("Best seen of the device", "dtype", "copy", "matrix product")
    for dtype, rates in about.rates.items():
        table.add_row(
            dtype,
            f"{rates.bytes_per_s / 1e9:.3g} GB/s",
            f"{rates.operations_per_s / 1e12:.3g} TFLOP/s",
        )
    return table


def generation(figures: Sequence[GenerationFigure]) -> Table:
    """New tokens a second."""
    table = _table(
        "Generation, new tokens a second (median of the runs)",
        "dtype",
        "batch x new",
        "prompts",
        "burnish",
        "generate",
        "ratio",
        "of floor",
        "warm-up",
        "runs",
        "note",
    )
    for f in figures:
        table.add_row(
            f.dtype,
            f"{f.batch} x {f.new_tokens}",
            f.layout,
            f"{f.tokens_per_s:,.0f}",
            _number(f.peer_tokens_per_s, ",.0f"),
            _times(f.ratio),
            f"{f.floor_share:.0%}",
            f"{f.warm_up_s:.2f} s",
            f"{f.runs}, {f.peer_runs}",
            f.note,
        )
    return table


def tail(figures: Sequence[TailFigure]) -> Table:
    """The long tail."""
    table = _table(
        "Long tail, seconds",
        "dtype",
        "rows x at most",
        "length: min, median, p90, max",
        "burnish",
        "all run to max",
        "ratio",
        "generate",
        "ratio",
        "of floor",
        "note",
    )
    for f in figures:
        sign = ">= " if f.is_lower_bound else ""
        table.add_row(
            f.dtype,
            f"{f.batch} x {f.budget}",
            f"{f.shortest}, {f.median:.0f}, {f.p90:.0f}, {f.longest}",
            f"{f.seconds:.3f}",
            _number(f.full_s, ".3f"),
            _times(f.full_ratio),
            _number(f.peer_s, ".3f", sign),
            _times(f.peer_ratio, sign),
            f"{f.floor_share:.0%}",
            f.note,
        )
    return table


def step(figures: Sequence[StepFigure]) -> Table:
    """Whole steps, one line for each program."""
    table = _table(
        "GRPO step, seconds (median after warm-up)",
        "prompts x samples x tokens",
        "program",
        "first",
        "step",
        "rollout",
        "score",
        "update",
        "rest",
        "mean length",
        "peak GiB",
        "of floor",
        "ratio",
        "runs",
        "note",
    )
    for f in figures:
        table.add_row(
            f.size,
            "burnish",
            *(f"{s:.3f}" for s in (f.first_s, f.step_s, f.rollout_s, f.score_s)),
            *(f"{s:.3f}" for s in (f.update_s, f.rest_s)),
            f"{f.mean_tokens:.1f}",
            f"{f.peak_bytes / 2**30:.2f}",
            f"{f.floor_share:.1%}",
            "",
            str(f.runs),
            f"trains {f.trained_share:.0%} of its tokens; mismatch {_number(f.mismatch, '.4f')}",
        )
        peak = None if f.peer_peak_bytes is None else f.peer_peak_bytes / 2**30
        table.add_row(
            "",
            "TRL",
            _number(f.peer_first_s, ".3f"),
            _number(f.peer_step_s, ".3f"),
            *("",) * 4,
            _number(f.peer_mean_tokens, ".1f"),
            _number(peak, ".2f"),
            "",
            _times(f.ratio),
            str(f.peer_runs),
            f.note,
        )
    return table


def learn(figures: Sequence[LearnFigure]) -> Table:
    """A whole run."""
    table = _table(
        "Learning, held-out greedy accuracy",
        "prompts x samples x tokens",
        "steps",
        "before",
        "after",
        "questions",
        "all steps",
        "median step",
    )
    for f in figures:
        table.add_row(
            f.size,
            str(f.steps),
            _number(f.before, ".1%"),
            _number(f.after, ".1%"),
            str(f.questions),
            f"{f.steps_s:.2f} s",
            f"{f.step_s:.3f} s",
        )
    return table


def memory(figures: Sequence[MemoryFigure]) -> Table:
    """Forecast and truth."""
    parts = figures[0].update_parts
    table = _table(
        "Memory, MiB",
        "prompts x samples x tokens",
        f"{parts}, forecast",
        f"{parts}, seen",
        "ratio",
        "all, forecast",
        "all, seen",
        "ratio",
    )
    for f in figures:
        table.add_row(
            f.size,
            f"{f.forecast_update_bytes / 2**20:,.1f}",
            f"{f.update_bytes / 2**20:,.1f}",
            f"{f.update_ratio:.2f}",
            f"{f.forecast_bytes / 2**20:,.1f}",
            f"{f.peak_bytes / 2**20:,.1f} {f.peak_kind}",
            _number(f.peak_ratio, ".2f"),
        )
    return table


def _table(title: str, *columns: str) -> Table:
    table = Table(title=title, title_justify="left")
    for column in columns:
        words = column in ("dtype", "prompts", "program", "note") or " x " in column
        table.add_column(column, justify="left" if words else "right")
    return table


def _number(value: float | None, form: str, sign: str = "") -> str:
    return "-" if value is None else f"{sign}{value:{form}}"


def _times(ratio: float | None, sign: str = "") -> str:
    return _number(ratio, ".1f", sign) + ("" if ratio is None else "x")
