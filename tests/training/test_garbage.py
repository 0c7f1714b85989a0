import gc
import weakref

import pytest
import training_cases as cases

from burnish.training.watchdog import YOUNG, calm_collector


class Knot:
    """Something that refers to itself."""

    def __init__(self) -> None:
        self.me = self


@pytest.fixture(autouse=True)
def own_settings():
    before = gc.get_threshold()
    gc.unfreeze()
    yield
    gc.enable()
    gc.set_threshold(*before)
    gc.freeze()  # as the suite's conftest has it


def test_what_was_there_is_left_alone_and_given_back():
    before = gc.get_threshold()
    with calm_collector():
        assert gc.get_freeze_count() > 1000
        assert gc.get_threshold() == (YOUNG, *before[1:])
    assert gc.get_freeze_count() == 0
    assert gc.get_threshold() == before


def test_cycles_made_inside_are_still_found():
    with calm_collector():
        seen = weakref.ref(Knot())
        kept = [[] for _ in range(2 * YOUNG)]
        assert seen() is None, f"{len(kept)} new objects and the cycle is still there"


def test_an_error_inside_gives_everything_back():
    before = gc.get_threshold()
    with pytest.raises(RuntimeError, match="broken"), calm_collector():
        raise RuntimeError("broken")
    assert (gc.get_threshold(), gc.get_freeze_count()) == (before, 0)


def test_a_run_is_calm_from_its_first_event_to_its_last(tmp_path):
    trainer = cases.trainer(tmp_path, {"steps": 1, "evaluation": {"prompts": 0}})
    before = gc.get_threshold()
    during = [gc.get_threshold()[0] for _ in trainer.run()]
    trainer.store.close()
    assert set(during) == {YOUNG}
    assert gc.get_threshold() == before


@pytest.mark.parametrize("own", ["disabled", "threshold 0"])
def test_a_program_that_tuned_its_collector_keeps_its_own_way(own):
    if own == "disabled":
        gc.disable()
    else:
        gc.set_threshold(0)
    before = (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count() > 0)
    with calm_collector():
        assert (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count() > 0) == before
    assert (gc.isenabled(), gc.get_threshold(), gc.get_freeze_count() > 0) == before


def test_what_a_program_has_frozen_stays_frozen():
    gc.freeze()
    before = (gc.get_threshold(), gc.get_freeze_count())
    with calm_collector():
        assert gc.get_threshold()[0] == YOUNG
    assert gc.get_threshold() == before[0]
    assert gc.get_freeze_count() > 0.9 * before[1]
