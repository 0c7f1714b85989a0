"""SFT and DPO beside TRL's trainers: the same losses, step by step, on the same tokens."""

from importlib.util import find_spec

import beside_trl
import pytest

pytestmark = pytest.mark.peers


@pytest.mark.skipif(find_spec("trl") is None, reason="needs trl (a dev dependency)")
@pytest.mark.parametrize("kind", beside_trl.KINDS)
def test_losses_are_those_of_trl(kind):
    found = beside_trl.compare(kind, 5, beside_trl.in_this_process)
    assert found["largest_difference"] < 1e-5
    assert found["first_loss"] != pytest.approx(found["last_loss"], abs=1e-3)
