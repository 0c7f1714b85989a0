"""The functions of long speech: worked numbers, independent second computations, and faults."""

import math
import statistics

import numpy as np
import pytest
import torch
from hypothesis import given, strategies as st

from burnish.errors import UserError
from burnish.models.long_speech import (
    arc_score,
    arc_values,
    dimension_dropout,
    equal_power_fades,
    label_retention,
    noise_gain,
    overlap_statistics,
    plan_chunks,
    resolve_timeline,
    semitones,
)


def line(speaker, duration, kind=None, **rest):
    relation = {} if kind is None else {"relation": {"type": kind, **rest}}
    return {"speaker": speaker, "duration": duration, **relation}


def times(*sentences, **options):
    found = resolve_timeline(list(sentences), **options)
    return [(round(one["start"], 9), round(one["end"], 9), one["cut"]) for one in found]


TIMELINES = {
    "one after the other": ([line("A", 2.0), line("B", 1.0)], [(0, 2, False), (2, 3, False)]),
    "gaps, also before the first": (
        [line("A", 2.0, "after", gap=0.5), line("B", 1.0, "after", gap=0.25)],
        [(0.5, 2.5, False), (2.75, 3.75, False)],
    ),
    "overlap": (
        [line("A", 2.0), line("B", 1.0, "overlap", seconds=0.4)],
        [(0, 2, False), (1.6, 2.6, False)],
    ),
    "an overlap longer than all before starts at 0": (
        [line("A", 2.0), line("B", 1.0, "overlap", seconds=5)],
        [(0, 2, False), (0, 1, False)],
    ),
    "interruption": (
        [line("A", 4.0), line("B", 1.0, "interrupt", at=0.5), line("A", 1.0)],
        [(0, 2.15, True), (2, 3, False), (3, 4, False)],
    ),
    "an interruption in the last words cuts nothing": (
        [line("A", 1.0), line("B", 1.0, "interrupt", at=0.9)],
        [(0, 1, False), (0.9, 1.9, False)],
    ),
    "a back-channel is passed over by what follows": (
        [line("A", 3.0), line("B", 0.3, "with", ref=0, offset=1.0), line("C", 1.0)],
        [(0, 3, False), (1, 1.3, False), (3, 4, False)],
    ),
    "a back-channel before the start": (
        [line("A", 3.0), line("B", 0.3, "with", ref=0, offset=-1.0)],
        [(0, 3, False), (0, 0.3, False)],
    ),
    "nobody overlaps himself": (
        [line("A", 2.0), line("A", 1.0, "overlap", seconds=1.0)],
        [(0, 2, False), (2, 3, False)],
    ),
    "an interruption by the speaker himself waits and cuts nothing": (
        [line("A", 2.0), line("A", 1.0, "interrupt", at=0.5)],
        [(0, 2, False), (2, 3, False)],
    ),
    "who is busy interrupts later, and the cut follows him": (
        [
            line("A", 4.0),
            line("B", 2.0, "with", ref=0, offset=1.0),
            line("B", 1.0, "interrupt", at=0.5),
        ],
        [(0, 3.15, True), (1, 3, False), (3, 4, False)],
    ),
}


@pytest.mark.parametrize(("sentences", "expected"), TIMELINES.values(), ids=TIMELINES)
def test_timelines_by_hand(sentences, expected):
    assert times(*sentences) == expected


def test_the_tail_of_an_interruption_is_an_argument():
    scene = [line("A", 4.0), line("B", 1.0, "interrupt", at=0.5)]
    assert times(*scene, interrupt_tail=0)[0] == (0, 2, True)
    assert times(*scene, interrupt_tail=2)[0] == (0, 4, False)


SECONDS = st.floats(0, 5)


@st.composite
def scenes(draw):
    sentences = []
    for place in range(draw(st.integers(0, 8))):
        kinds = ["after", "overlap", "interrupt", "with"] if place else ["after"]
        kind = draw(st.sampled_from(kinds))
        rest = {
            "after": {"gap": draw(SECONDS)},
            "overlap": {"seconds": draw(SECONDS)},
            "interrupt": {"at": draw(st.floats(0, 1))},
            "with": {"ref": draw(st.integers(0, max(0, place - 1))), "offset": draw(SECONDS)},
        }[kind]
        sentences.append(line(draw(st.sampled_from("ABC")), draw(SECONDS), kind, **rest))
    return sentences


@given(scenes())
def test_invariants_of_every_timeline(sentences):
    timeline = resolve_timeline(sentences)
    for place, (sentence, span) in enumerate(zip(sentences, timeline, strict=True)):
        assert span["start"] >= 0
        length = span["end"] - span["start"]
        assert length <= sentence["duration"] + 1e-9
        assert span["cut"] or length == pytest.approx(sentence["duration"])
        for other, before in zip(sentences[:place], timeline, strict=False):
            if other["speaker"] == sentence["speaker"]:
                assert span["start"] >= before["end"]
    found = overlap_statistics(timeline)
    longest = max((span["end"] for span in timeline), default=0)
    assert 0 <= found.overlap <= found.speech + 1e-9
    assert found.speech <= longest + 1e-9


@given(st.lists(st.tuples(st.integers(0, 30), st.integers(0, 9)), max_size=8))
def test_overlap_is_what_counting_on_a_grid_gives(pairs):
    timeline = [(start, start + length) for start, length in pairs]
    talking = [sum(a <= tick < b for a, b in timeline) for tick in range(40)]
    speech, overlap = sum(n >= 1 for n in talking), sum(n >= 2 for n in talking)
    found = overlap_statistics(timeline)
    assert found == pytest.approx((speech, overlap, overlap / speech if speech else 0.0))
    assert found._fields == ("speech", "overlap", "ratio")


def test_gain_of_a_noise_by_its_decibels():
    rng = np.random.default_rng(0)
    speech, noise = rng.normal(size=400), rng.normal(size=300)
    active = np.arange(400) < 250
    gain = noise_gain(speech, active, noise, 7.5)
    power = statistics.fmean(speech[:250] ** 2) / statistics.fmean((gain * noise) ** 2)
    assert 10 * math.log10(power) == pytest.approx(7.5)
    assert noise_gain(torch.tensor(speech), active.tolist(), noise, 7.5) == gain


def test_gain_without_speech_or_without_noise():
    assert noise_gain([1.0, 1.0], [0, 0], [0.5], 10.0) == 1.0
    assert noise_gain([], [], [0.5], 10.0) == 1.0
    assert noise_gain([1.0], [1], [0.0], 10.0) == 1.0
    assert noise_gain([0.0], [1], [0.5], 10.0) == 0.0


def test_dropout_is_strictly_below_p_and_never_hits_what_is_protected():
    dims, u = ["a", "b", "c", "d"], [0.3, 0.29, 0.0, 0.1]
    assert dimension_dropout(dims, u, 0.3, ["d"]) == ["b", "c"]
    assert dimension_dropout(dims, u, 0.0, []) == []
    assert dimension_dropout(dims, u, 1.0, {"a"}) == ["b", "c", "d"]
    assert dimension_dropout(dims, torch.tensor(u), 1.0, dims) == []
    assert dimension_dropout([], [], 0.5, []) == []


@given(
    st.lists(st.tuples(st.floats(0, 1), st.floats(-5, 5)), min_size=1, max_size=5),
    st.integers(0, 9),
)
def test_arcs_are_what_numpy_interpolates(points, n):
    points = sorted({round(at, 3): value for at, value in points}.items())
    places = [i / (n - 1) if n > 1 else 0.0 for i in range(n)]
    expected = np.interp(places, *zip(*points, strict=True)) if n else []
    assert arc_values(points, n).tolist() == pytest.approx(list(expected), abs=1e-9)


def test_arcs_with_jumps_dicts_and_faults():
    assert arc_values([(0.0, 0.0), (0.5, 0.0), (0.5, 1.0)], 3).tolist() == [0.0, 1.0, 1.0]
    assert arc_values([{"at": 0.5, "value": 0.3}], 1).tolist() == [0.3]
    with pytest.raises(UserError, match=r"^waypoints"):
        arc_values([(0.5, 1.0), (0.2, 1.0)], 3)


def test_arc_score_with_and_without_ties():
    # 1 - 6 sum d^2 / (n (n^2 - 1)) without ties: d = 0, 1, 1, 0.
    assert arc_score([1, 2, 3, 4], [10, 30, 20, 40]) == pytest.approx(1 - 6 * 2 / (4 * 15))
    assert arc_score([1, 2, 3], [3, 2, 1]) == -1.0
    # Ranks 1.5 1.5 3 against 1 2 3: covariance 1.5, variances 1.5 and 2.
    assert arc_score([5, 5, 9], [1, 2, 3]) == pytest.approx(1.5 / math.sqrt(1.5 * 2))
    assert arc_score([1, 2, 3], [1, 1, 1]) is None
    assert arc_score([1], [1]) is None


def test_semitones_by_hand_and_refusals():
    assert semitones([440.0, 466.1637615], 440.0).tolist() == pytest.approx([0, 1], abs=1e-6)
    assert float(semitones(55.0, 110.0)) == -12.0
    assert semitones([100.0, 200.0], [200.0, 100.0]).tolist() == [-12.0, 12.0]


@given(st.integers(0, 500))
def test_fades_have_constant_power_and_mirror_each_other(n):
    out, back = equal_power_fades(n)
    assert len(out) == len(back) == n
    torch.testing.assert_close(out**2 + back**2, torch.ones(n, dtype=torch.float64))
    if n > 1:
        assert out[0] == 1
        assert back[0] == 0
        torch.testing.assert_close(out, back.flip(0))


def test_retention_of_labelling_and_of_a_filter():
    clips = [
        {"snr": 20.0, "overlap": 0.05, "speakers": 1},
        {"snr": 19.9, "overlap": 0.0, "speakers": 1},
        {"snr": 30.0, "overlap": 0.06, "speakers": 1},
        {"snr": 30.0, "overlap": 0.0, "speakers": 2},
        {"snr": None, "overlap": 0.0, "speakers": 1},
        {"snr": 30.0, "overlap": 0.0, "speakers": 0},
    ]
    rule = {"min_snr": 20, "max_overlap": 0.05, "speakers": 1}
    assert label_retention(clips, rule) == ([0], [0, 1, 2, 3, 4])
    assert label_retention(clips, rule)._fields == ("filter_kept", "label_kept")
    assert label_retention(clips, {"speakers": 2}).filter_kept == [3]


def test_chunks_by_hand():
    found = plan_chunks([30, 60, 20, 150, 10, 5], max_frames=100, context=50)
    assert found == [
        {"sentences": [0, 1], "context_frames": 0},
        {"sentences": [2], "context_frames": 50},
        {"sentences": [3], "context_frames": 20},
        {"sentences": [4, 5], "context_frames": 50},
    ]
    assert plan_chunks([], 100, 50) == []


@given(st.lists(st.integers(0, 50), max_size=12), st.integers(1, 60), st.integers(0, 60))
def test_chunks_hold_every_sentence_once_and_no_two_could_be_one(frames, most, context):
    chunks = plan_chunks(frames, most, context)
    assert [i for chunk in chunks for i in chunk["sentences"]] == list(range(len(frames)))
    sizes = [sum(frames[i] for i in chunk["sentences"]) for chunk in chunks]
    for chunk, size in zip(chunks, sizes, strict=True):
        assert size <= most or len(chunk["sentences"]) == 1
    for (chunk, size), before in zip(
        list(zip(chunks, sizes, strict=True))[1:], sizes, strict=False
    ):
        assert chunk["context_frames"] == min(context, before)
        assert before + frames[chunk["sentences"][0]] > most or size == before == 0
