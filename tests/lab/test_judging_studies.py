"""The studies of GenRM and rubric scoring show what their cards say, in small."""

from itertools import pairwise

import pytest
import torch
from lab.quarkmedbench.simulation import ARMS, padding, ratios
from lab.run_toys import toys_of
from lab.toy import run_toy


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def figures(method, arm, steps):
    (toy,) = toys_of(method)
    return run_toy(toy, next(a for a in toy.arms if a.name == arm), 0, steps).row


def test_a_judge_learns_and_both_orders_take_its_taste_for_a_place():
    one = figures("genrm", "genrm; as the data comes", 60)
    weighed = figures("genrm", "genrm, place weight; as the data comes", 60)
    both = figures("genrm", "genrm; both orders", 60)
    assert one["start/accuracy"] < 0.6 < 0.75 < min(one["accuracy"], both["accuracy"])
    assert one["first_pick_rate"] - 0.5 > 2 * abs(both["first_pick_rate"] - 0.5)
    assert weighed["first_pick_rate"] < one["first_pick_rate"]
    assert both["same_text"] > one["same_text"] > one["start/same_text"]


def test_equal_weights_drift_to_extras_and_risk_and_the_mechanisms_to_essentials():
    equal = figures("quarkmedbench", "equal weights", 40)
    both = figures("quarkmedbench", "both", 40)
    assert equal["risky"] > equal["start/risky"] > both["risky"]
    assert equal["essential"] < equal["start/essential"] < both["essential"] - 0.2
    assert both["use"] > both["start/use"] > equal["use"]


def test_each_mechanism_orders_more_pairs_as_the_expert_does():
    found = ratios(0, 2000)
    assert found["equal weights"] < found["2:1:1:2"] < found["both"]
    assert found["2:1:1:2"] < found["2:1:1:2, saturation"]


def test_padding_is_flat_with_saturation_and_pays_without():
    earned = padding(4)
    plain, saturated = earned["2:1:1:2"], earned["both"]
    assert all(b > a + 0.05 for a, b in pairwise(plain))
    assert saturated[1] == pytest.approx(saturated[-1])
    assert earned.keys() == ARMS.keys()
