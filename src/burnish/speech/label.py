"""Describe a recording instead of throwing it away: who speaks when, how, and over what.

Turns come from voice activity and from voices grouped by their embeddings. A recording is dropped only if
nobody speaks in it (arXiv 2603.19798, "labeling over filtering"). The number of speakers is right in 9 of 16
mixtures of one to four real voices, too high in 4 and too low in 3 (`lab.long_speech.labels`). Overlap is
found only where a window sounds like two of these voices at once, so short overlaps are missed.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import combinations
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from msgspec import Meta

from burnish.boundary import SOME, Share, public
from burnish.errors import UserError
from burnish.media.sounds import Rate, read_sound, sound_info
from burnish.models.long_speech.scene import Scene, checked_scene, leaves
from burnish.models.long_speech.timeline import overlap_statistics
from burnish.speech.acoustics import Turn, measure_speech
from burnish.speech.listeners import RATE, Segment, speech_segments, transcribe, window_embeddings
from burnish.tensors import torch

if TYPE_CHECKING:
    from jaxtyping import Float64
    from torch import Tensor

    from burnish.speech.listeners import Samples

SAME_VOICE = 0.68
"""Groups of windows whose mean embeddings have at least this cosine are one speaker."""
MIXED, MIXED_GAIN = 0.45, 0.03
"""A window is two voices if the smaller weight is this share of the larger, and fits so much better."""
KINDS = (".wav", ".flac", ".ogg", ".mp3")


class Label(NamedTuple):
    """What a recording is like."""

    seconds: float
    speech_s: float
    speakers: int
    overlap: float
    """Estimated share of the speech in which two talk."""
    snr_db: float | None
    """Speech beside what is heard in the pauses; None without a pause or without speech."""
    clipped: float
    """Share of samples at full scale."""
    bandwidth_hz: float | None
    """99 % of the speech's power lies below."""
    turns: list[Turn]
    scene: Scene | None
    """The recording as a script; None if nobody speaks."""

    def clip(self) -> dict[str, Any]:
        """As `label_retention` takes it."""
        return {"snr": self.snr_db, "overlap": self.overlap, "speakers": self.speakers}


@public
def label_sound(
    samples: Samples, sample_rate: Rate, *, clipped: Share = 0.0, words: bool = False
) -> Label:
    """Who speaks when, how and over what; with `words`, what is said too (Whisper, slower)."""
    rate = sample_rate
    # A constant offset is no sound, but it would count as noise and as speech.
    samples_T = (samples - samples.mean()).to(torch.float32)
    seconds = len(samples_T) / rate
    segments = speech_segments(samples_T, rate) if len(samples_T) else []
    speech_s = sum(one.end - one.start for one in segments)
    if not segments:
        return Label(seconds, 0.0, 0, 0.0, None, clipped, None, [], None)
    turns = _turns(samples_T, rate, segments)
    snr_db = _snr(samples_T, rate, segments)
    spoken, bandwidth_hz = torch.cat([_cut(samples_T, rate, one) for one in segments]), None
    if len(spoken) >= 1024:
        frames_FW = spoken.unfold(0, 1024, 512) * torch.hann_window(1024)
        power_F = torch.fft.rfft(frames_FW).abs().square().mean(0)
        share = power_F.cumsum(0) / power_F.sum().clamp_min(1e-20)
        bandwidth_hz = round(float((share < 0.99).sum().item()) * rate / 1024, 1)
    return Label(
        seconds,
        speech_s,
        len({one.speaker for one in turns}),
        overlap_statistics([(one.start, one.end) for one in turns]).ratio,
        snr_db,
        clipped,
        bandwidth_hz,
        turns,
        _scene(samples_T, rate, turns, snr_db, words),
    )


def label_file(path: str | Path, *, words: bool = False) -> Label:
    """The label of a sound file."""
    sound = read_sound(path, rate=RATE)
    info = sound_info(path)
    # Clipped values are counted in the file: over its channels, at its own rate.
    values = len(sound.samples) / sound.rate * info.rate * info.channels
    share = min(1.0, sound.clipped / values) if values else 0.0
    return label_sound(torch.from_numpy(sound.samples), sound.rate, clipped=share, words=words)


def sound_files(folder: str | Path) -> list[Path]:
    """Sound files of a folder and below, in order; or the one file that is named."""
    place = Path(folder)
    if place.is_file():
        return [place]
    found = sorted(one for one in place.rglob("*") if one.suffix.lower() in KINDS)
    if not found:
        raise UserError(f"{place} is not there, or has no sound; expected {', '.join(KINDS)}")
    return found


def _cut(samples_T: Tensor, rate: int, span: Segment | Turn) -> Tensor:
    return samples_T[round(span.start * rate) : round(span.end * rate)]


def _turns(samples_T: Tensor, rate: int, segments: Sequence[Segment]) -> list[Turn]:
    """Windows of voice activity, grouped by voice, joined into turns."""
    places: list[Segment] = []
    parts: list[Tensor] = []
    for segment in segments:
        windows, embedded = window_embeddings(_cut(samples_T, rate, segment), rate)
        for window in windows:
            start = segment.start + window.start
            places.append(Segment(start, min(segment.start + window.end, segment.end)))
        parts.append(embedded)
    windows_WE = torch.cat(parts)
    seconds_W = torch.tensor([one.end - one.start for one in places], dtype=torch.float64)
    centres_SE = group_voices.plain(windows_WE.double(), seconds_W)
    chosen = [_voices_of(one_E, centres_SE) for one_E in windows_WE]
    turns: list[Turn] = []
    # Each moment belongs to the window whose centre is nearest, so windows meet half way.
    for index, (place, voices) in enumerate(zip(places, chosen, strict=True)):
        start, end = place.start, place.end
        if index and places[index - 1].end > start:
            start = (start + places[index - 1].end) / 2
        if index + 1 < len(places) and places[index + 1].start < end:
            end = (places[index + 1].start + end) / 2
        turns += [Turn(f"S{voice + 1}", start, end) for voice in voices]
    # Turns of one speaker that touch become one.
    done: list[Turn] = []
    for turn in sorted(turns, key=lambda one: (one.speaker, one.start)):
        if done and done[-1].speaker == turn.speaker and turn.start - done[-1].end < 0.3:
            done[-1] = done[-1]._replace(end=max(done[-1].end, turn.end))
        else:
            done.append(turn)
    rounded = [Turn(s, round(a, 3), round(b, 3)) for s, a, b in done]
    return sorted(rounded, key=lambda one: (one.start, one.end))


@public
def group_voices(
    windows_WE: Annotated[Float64[Tensor, "W E"], SOME],
    seconds: Annotated[Float64[Tensor, " W"], Meta(ge=0)],
) -> Tensor:
    """Mean embeddings of the speakers in windows, by joining the two nearest groups again and again."""
    sums_GE, spoken = windows_WE.clone(), seconds.tolist()
    units_GE = sums_GE / sums_GE.norm(dim=1, keepdim=True).clamp_min(1e-9)
    gone_G = torch.zeros(len(spoken), dtype=torch.bool)
    cosines_GG = units_GE @ units_GE.T
    cosines_GG.fill_diagonal_(-2)
    # The nearest of each group; only what a merge touches is searched again: recordings are long.
    nearest_G, place_G = cosines_GG.max(dim=1)
    while nearest_G.max().item() >= SAME_VOICE:
        place = int(nearest_G.argmax())
        first, second = sorted((place, int(place_G[place])))
        spoken[first] += spoken[second]
        sums_GE[first] += sums_GE[second]
        units_GE[first] = sums_GE[first] / sums_GE[first].norm().clamp_min(1e-9)
        gone_G[second] = True
        cosines_GG[second] = cosines_GG[:, second] = nearest_G[second] = -2
        row_G = units_GE @ units_GE[first]
        row_G[gone_G] = row_G[first] = -2
        cosines_GG[first] = cosines_GG[:, first] = row_G
        is_closer_G = (row_G >= nearest_G) & ~gone_G
        is_stale_G = ((place_G == first) | (place_G == second)) & ~is_closer_G & ~gone_G
        is_stale_G[first] = True
        nearest_G[is_closer_G], place_G[is_closer_G] = row_G[is_closer_G], first
        nearest_G[is_stale_G], place_G[is_stale_G] = cosines_GG[is_stale_G].max(dim=1)
    left = [i for i, is_gone in enumerate(gone_G.tolist()) if not is_gone]
    longest = max(spoken[i] for i in left)
    kept = [i for i in left if spoken[i] >= 1.2 or spoken[i] == longest]
    # A mixture of two speakers who say more is no third one.
    centres: Tensor = units_GE[kept]
    own = []
    for i, one_E in enumerate(centres):
        others = [centres[j] for j, k in enumerate(kept) if spoken[k] > spoken[kept[i]]]
        if not any(_pair_fit(one_E, *pair)[0] > 0.93 for pair in combinations(others, 2)):
            own.append(i)
    return centres[own]


def _pair_fit(one_E: Tensor, first_E: Tensor, second_E: Tensor) -> tuple[float, float]:
    """Cosine of a vector with the best mixture of two others, and the mixture's balance."""
    pair = torch.stack([first_E, second_E], dim=1)
    weights = torch.linalg.lstsq(pair, one_E[:, None]).solution[:, 0].clamp_min(0)
    mixed = pair @ weights
    fit = (mixed @ one_E / (mixed.norm() * one_E.norm()).clamp_min(1e-9)).item()
    return fit, (weights.min() / weights.max().clamp_min(1e-9)).item()


def _voices_of(window_E: Tensor, centres_SE: Tensor) -> list[int]:
    """The voice of a window, or two if a mixture of them fits much better than either."""
    window = window_E.double()
    cosines = centres_SE @ window
    order = cosines.argsort(descending=True).tolist()
    best = order[0]
    if len(order) > 1:
        fit, balance = _pair_fit(window, centres_SE[best], centres_SE[order[1]])
        if balance >= MIXED and fit - cosines[best].item() >= MIXED_GAIN:
            return sorted(order[:2])
    return [best]


def _snr(samples_T: Tensor, rate: int, segments: Sequence[Segment]) -> float | None:
    """Power while somebody speaks beside power in the pauses, a tenth of a second away from speech."""
    is_speech = torch.zeros(len(samples_T), dtype=torch.bool)
    is_near = torch.zeros(len(samples_T), dtype=torch.bool)
    for start, end in segments:
        is_speech[round(start * rate) : round(end * rate)] = True
        is_near[max(0, round((start - 0.1) * rate)) : round((end + 0.1) * rate)] = True
    pause = samples_T[~is_near].double()
    if len(pause) < rate // 10:
        return None
    noise = pause.square().mean().item()
    speech = samples_T[is_speech].double().square().mean().item() - noise
    if speech <= 0:
        return None
    return 100.0 if noise < speech * 1e-10 else 10 * math.log10(speech / noise)


def _scene(
    samples_T: Tensor, rate: int, turns: Sequence[Turn], snr_db: float | None, words: bool
) -> Scene:
    """The recording as a script, every leaf marked as planned."""
    measures = [measure_speech(_cut(samples_T, rate, one), rate) for one in turns]
    typical: dict[str, float | None] = {}
    for name in ("pitch_hz", "loudness_db"):
        known = sorted(x for one in measures if (x := getattr(one, name)) is not None)
        typical[name] = known[len(known) // 2] if known else None
    rows: list[dict[str, Any]] = []
    latest = 0
    for place, (turn, measure) in enumerate(zip(turns, measures, strict=True)):
        heard = transcribe(_cut(samples_T, rate, turn), rate) if words else ""
        text = " ".join(heard.replace("[", "(").replace("]", ")").split()) or f"[pause {min(60.0, turn.end - turn.start):.2f}]"  # fmt: skip
        row: dict[str, Any] = {"speaker": turn.speaker, "text": text}
        if measure.pitch_hz and typical["pitch_hz"]:
            steps = 12 * math.log2(measure.pitch_hz / typical["pitch_hz"])
            row["intonation"] = "seems high" if steps > 3 else "seems low-pitched" if steps < -3 else "about level"  # fmt: skip
        if measure.loudness_db is not None and typical["loudness_db"] is not None:
            louder = measure.loudness_db - typical["loudness_db"]
            row["volume"] = "seems loud" if louder > 4 else "seems soft" if louder < -4 else "about normal"  # fmt: skip
        row["relation"] = _relation(turns, place, latest)
        if row["relation"]["type"] != "with":
            latest = place
        rows.append(row)
    environment: dict[str, Any] = {}
    if snr_db is not None:
        environment["snr_db"] = round(min(100.0, snr_db), 2)
        environment["caption"] = "seems quiet" if snr_db > 25 else "some noise" if snr_db > 12 else "noisy"  # fmt: skip
    speakers = list(dict.fromkeys(turn.speaker for turn in turns))
    table = {
        "global": {"speakers": [{"id": one} for one in speakers], "environment": environment},
        "sentences": rows,
    }
    table["sources"] = {path: "plan" for path, _ in leaves(table)}
    return checked_scene(table, "label")


def _relation(turns: Sequence[Turn], place: int, latest: int) -> dict[str, Any]:
    turn = turns[place]
    if not place:
        return {"type": "after", "gap": round(turn.start, 3)}
    before = turns[latest]
    if turn.speaker != before.speaker and turn.end <= before.end:
        return {"type": "with", "ref": latest, "offset": round(turn.start - before.start, 3)}
    gap = turn.start - before.end
    if gap < 0 and turn.speaker != before.speaker:
        return {"type": "overlap", "seconds": round(-gap, 3)}
    return {"type": "after", "gap": round(max(0.0, gap), 3)}
