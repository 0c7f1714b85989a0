"""Figures from raw measurements: medians, rates, ratios and shares of the floor. Nothing else."""

from __future__ import annotations

import statistics
from collections.abc import Sequence

from _speed_records import PeerResult, Result, Row, StepSize
from msgspec import Struct
from msgspec.structs import replace

SPREAD = 8
"""A tail is long where its longest row has at least this many times the median's tokens."""


class GenerationFigure(Struct, frozen=True, kw_only=True):
    """burnish beside generate at one size."""

    dtype: str
    batch: int
    new_tokens: int
    layout: str
    seconds: float
    warm_up_s: float
    tokens_per_s: float
    peer_tokens_per_s: float | None
    ratio: float | None
    """Tokens a second of burnish over those of generate."""
    floor_share: float
    runs: int
    peer_runs: int
    note: str


class TailFigure(Struct, frozen=True, kw_only=True):
    """A batch whose rows end by themselves beside one in which all run to the longest's length."""

    dtype: str
    batch: int
    budget: int
    """New tokens that each row was allowed: all that is known of its length in advance."""
    shortest: int
    median: float
    p90: float
    longest: int
    seconds: float
    full_s: float | None
    full_ratio: float | None
    """Time of the batch in which no row may end over that of the long-tailed one, both burnish."""
    peer_s: float | None
    peer_ratio: float | None
    """Time of generate waiting for the longest row over burnish's."""
    is_lower_bound: bool
    """generate was timed over fewer tokens; it would have taken longer."""
    floor_share: float
    note: str


class StepFigure(Struct, frozen=True, kw_only=True):
    """A whole step, burnish beside TRL."""

    size: str
    first_s: float
    step_s: float
    rollout_s: float
    score_s: float
    update_s: float
    rest_s: float
    mean_tokens: float
    """Of a response."""
    peak_bytes: int
    floor_share: float
    trained_share: float
    """Of the sampled tokens: burnish leaves out those without a gradient, TRL computes all."""
    mismatch: float | None
    peer_first_s: float | None = None
    peer_step_s: float | None = None
    peer_mean_tokens: float | None = None
    peer_peak_bytes: int | None = None
    ratio: float | None = None
    """TRL's step over burnish's."""
    runs: int
    peer_runs: int = 0
    note: str = ""


class LearnFigure(Struct, frozen=True, kw_only=True):
    """A whole run of training."""

    size: str
    steps: int
    before: float | None
    after: float | None
    questions: int
    steps_s: float
    """All steps together, the first included; evaluations are not."""
    step_s: float


class MemoryFigure(Struct, frozen=True, kw_only=True):
    """What was forecast beside what was seen."""

    size: str
    update_parts: str
    """The parts of the forecast that the update's bytes are compared with."""
    forecast_update_bytes: int
    update_bytes: int
    update_ratio: float
    """Forecast over seen."""
    forecast_bytes: int
    peak_bytes: int
    peak_kind: str
    peak_ratio: float | None
    """None where the peak counts more than what is forecast (a CPU process and its libraries)."""


def generation(rows: Sequence[Row]) -> list[GenerationFigure]:
    """One figure for each measurement of burnish's."""
    peers = {(r.dtype, r.batch, r.new_tokens): r for r in rows if r.program == "generate"}
    figures = []
    for row in rows:
        if row.program == "generate":
            continue
        peer = peers.get((row.dtype, row.batch, row.new_tokens))
        seconds = statistics.median(row.seconds)
        speed = row.tokens / seconds
        peer_speed = peer.tokens / statistics.median(peer.seconds) if peer else None
        figures.append(
            GenerationFigure(
                dtype=row.dtype,
                batch=row.batch,
                new_tokens=row.new_tokens,
                layout=row.layout,
                seconds=seconds,
                warm_up_s=row.warm_up_s,
                tokens_per_s=speed,
                peer_tokens_per_s=peer_speed,
                ratio=speed / peer_speed if peer_speed else None,
                floor_share=row.floor_s / seconds,
                runs=len(row.seconds),
                peer_runs=len(peer.seconds) if peer else 0,
                note=peer.note if peer else "generate was not measured",
            )
        )
    return figures


def tail(rows: Sequence[Row]) -> list[TailFigure]:
    """One figure for each dtype and batch."""
    figures = []
    for row in rows:
        if row.layout != "tail":
            continue
        full_rows = [r for r in rows if r.layout == "full" and r.dtype == row.dtype]
        others = {r.program: r for r in full_rows if r.batch == row.batch}
        full, peer = others.get("burnish"), others.get("generate")
        seconds = statistics.median(row.seconds)
        full_s = statistics.median(full.seconds) if full else None
        peer_s = statistics.median(peer.seconds) if peer else None
        notes = [row.note, peer.note if peer else "generate was not measured"]
        spread = max(row.lengths) / statistics.median(row.lengths)
        if spread < SPREAD:
            notes.append(f"not a long tail: longest {spread:.1f}x the median, expected {SPREAD}x")
        figures.append(
            TailFigure(
                dtype=row.dtype,
                batch=row.batch,
                budget=row.new_tokens,
                shortest=min(row.lengths),
                median=statistics.median(row.lengths),
                p90=statistics.quantiles(row.lengths, n=10, method="inclusive")[-1],
                longest=max(row.lengths),
                seconds=seconds,
                full_s=full_s,
                full_ratio=full_s / seconds if full_s else None,
                peer_s=peer_s,
                peer_ratio=peer_s / seconds if peer_s else None,
                is_lower_bound=bool(peer and peer.measured_tokens < peer.new_tokens),
                floor_share=row.floor_s / seconds,
                note="; ".join(note for note in notes if note),
            )
        )
    return figures


def step(size: StepSize, ours: Result, peer: PeerResult | None, note: str = "") -> StepFigure:
    """Medians over the steps after the warm-up; the first step stands on its own."""
    kept = ours.steps[size.warm :] or ours.steps[-1:]
    rollouts = sum(s.rollouts for s in kept)
    step_s = statistics.median(s.seconds for s in kept)
    seen = [s.mismatch for s in kept if s.mismatch is not None]
    parts = {
        name: statistics.median(getattr(s, name) for s in kept)
        for name in ("rollout_s", "score_s", "update_s")
    }
    figure = StepFigure(
        size=size.label,
        first_s=ours.steps[0].seconds,
        step_s=step_s,
        rest_s=step_s - sum(parts.values()),
        mean_tokens=sum(s.tokens for s in kept) / rollouts,
        peak_bytes=ours.peak_bytes,
        floor_share=statistics.median(s.floor_s / s.seconds for s in kept),
        trained_share=sum(s.trained_tokens for s in kept) / sum(s.tokens for s in kept),
        mismatch=statistics.median(seen) if seen else None,
        runs=len(kept),
        note=note,
        **parts,
    )
    return figure if peer is None else _beside(figure, size, peer)


def _beside(figure: StepFigure, size: StepSize, peer: PeerResult) -> StepFigure:
    if not peer.seconds:
        return figure
    kept = peer.seconds[size.peer_warm :] or peer.seconds[-1:]
    step_s = statistics.median(kept)
    tokens = peer.tokens[-len(kept) :]
    notes = [figure.note] if figure.note else []
    if peer.accumulate > 1:
        notes.append(f"trl in {peer.accumulate} backward passes, one did not fit")
    return replace(
        figure,
        peer_first_s=peer.seconds[0],
        peer_step_s=step_s,
        peer_mean_tokens=sum(tokens) / (len(tokens) * peer.rollouts),
        peer_peak_bytes=peer.peak_bytes,
        ratio=step_s / figure.step_s,
        peer_runs=len(kept),
        note="; ".join(notes),
    )


def learn(size: StepSize, ours: Result) -> LearnFigure:
    """Accuracy before and after, and the time between."""
    return LearnFigure(
        size=size.label,
        steps=len(ours.steps),
        before=ours.accuracy[0].value,
        after=ours.accuracy[-1].value,
        questions=ours.accuracy[0].questions,
        steps_s=sum(s.seconds for s in ours.steps),
        step_s=statistics.median(s.seconds for s in ours.steps),
    )


def memory(size: StepSize, ours: Result) -> MemoryFigure:
    """The forecast of the update's memory and of everything, over what was seen.

    A GPU's allocator sees gradients beside activations; what autograd holds are activations alone.
    """
    on_gpu = ours.peak_kind != "resident"
    names = ("activations", "gradients") if on_gpu else ("activations",)
    update = sum(ours.forecast_bytes[name] for name in names)
    total = sum(ours.forecast_bytes.values())
    return MemoryFigure(
        size=size.label,
        update_parts=" + ".join(names),
        forecast_update_bytes=update,
        update_bytes=ours.update_bytes,
        update_ratio=update / ours.update_bytes,
        forecast_bytes=total,
        peak_bytes=ours.peak_bytes,
        peak_kind=ours.peak_kind,
        peak_ratio=total / ours.peak_bytes if on_gpu else None,
    )
