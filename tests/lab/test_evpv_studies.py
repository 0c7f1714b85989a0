"""The studies of EVPV run to their end on a few problems, and say what they should."""

import random

import pytest
from lab.evpv import geometry, simulation
from lab.evpv.candidates import draw


def test_more_fidelity_is_worth_more(tmp_path):
    found = simulation.run(0, 150)
    assert found["fidelity 1"] > found["fidelity 0.4"] > found["fidelity 0"]
    assert found["ungated"] < found["fidelity 0.8"]
    assert found["fidelity 1"] <= found["pass@8"]
    simulation.report([found, found], 150, tmp_path)
    assert "break-even fidelity" in (tmp_path / "simulation.md").read_text()
    assert (tmp_path / "simulation.png").is_file()


def test_a_candidate_that_misreads_is_wrong():
    rng = random.Random(1)
    drawn = [draw(rng, 3, 3, misreads=1.0, each=0.0, logic=0.0) for _ in range(20)]
    assert all(sum(one.misread) == 1 and not one.is_right for one in drawn)
    sound = [draw(rng, 3, 3, misreads=0.0, each=1.0, logic=0.0) for _ in range(20)]
    assert all(one.is_right for one in sound)


def test_perfect_facts_beat_a_parser_beat_nothing(tmp_path):
    premises = ["Equals(LengthOf(Line(A, B)), 10)", "Equals(MeasureOf(Angle(A, B, C)), 40)"]
    problems = [
        geometry.Problem(str(n), premises, premises[: n % 3] or ["Equals(LengthOf(Line(A, C)), x)"])
        for n in range(40)
    ]
    found = geometry.run(problems, 0)
    assert found["ungated"] < found["gated by the parser"] < found["gated by perfect facts"]
    assert found["drop 1"] == pytest.approx(found["ungated"])
    assert found["flip 1"] < found["gated by the parser"]
    assert found["misread supported"] == 0.0
    geometry.report([found], len(problems), tmp_path)
    assert (tmp_path / "geometry.png").is_file()
