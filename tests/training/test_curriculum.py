from collections import Counter

import msgspec
import pytest
from hypothesis import given, strategies as st

from burnish.errors import UserError
from burnish.training.curriculum import (
    Curriculum,
    CurriculumState,
    advance,
    curriculum_stages,
    difficulty_of,
)
from expert_cases import finite, graded

TASKS = finite([graded(i) for i in range(12)])
DIFFICULTY = [0.0, 0.9, 0.5, 0.2, 1.0, 0.6, None, 0.1, 0.95, 0.5, 0.7, 0.3]
THRESHOLDS = (0.5, 0.8, 1.0)
RARE = [8]


def test_stages_by_hand():
    easy, middle, hard = curriculum_stages(DIFFICULTY, THRESHOLDS, RARE)
    assert easy == (0, 2, 3, 7, 8, 9, 11)
    assert middle == (0, 2, 3, 5, 7, 8, 9, 10, 11)
    assert hard == tuple(range(12))
    assert curriculum_stages(DIFFICULTY, [0.1]) == [(0, 6, 7)]  # the unmeasured come last


@given(
    st.lists(st.none() | st.floats(0, 1), max_size=20),
    st.lists(st.floats(0, 1), min_size=1, max_size=4, unique=True),
    st.data(),
)
def test_stages_grow_and_always_hold_what_belongs_to_all(difficulty, thresholds, data):
    positions = st.sampled_from(range(len(difficulty))) if difficulty else st.nothing()
    always = data.draw(st.sets(positions))
    stages = curriculum_stages(difficulty, sorted(thresholds), always)
    assert len(stages) == len(thresholds)
    for earlier, later in zip(stages, stages[1:] + stages[-1:], strict=True):
        assert always <= set(earlier) <= set(later)


def drawn(tasks, count, start=0):
    """Positions in the pool of what is drawn."""
    place = {TASKS.train(i).id: i for i in range(12)}
    return [place[tasks.train(i).id.split("@")[0]] for i in range(start, start + count)]


def make(**more):
    return Curriculum(
        TASKS, curriculum_stages(DIFFICULTY, THRESHOLDS, RARE), always=RARE, seed=4, **more
    )


def test_the_first_stage_draws_its_own_tasks_once_each():
    tasks = make()
    assert sorted(drawn(tasks, 7)) == [0, 2, 3, 7, 8, 9, 11]
    assert sorted(drawn(tasks, 7, 7)) == [0, 2, 3, 7, 8, 9, 11]
    assert drawn(tasks, 7) != drawn(tasks, 7, 7)


@pytest.mark.parametrize(("stage", "fresh"), [(1, {5, 10, 8}), (2, {1, 4, 6, 8})])
def test_a_later_stage_adds_and_replays_a_fifth(stage, fresh):
    tasks = make()
    tasks.stage = stage
    found = drawn(tasks, 200)
    counts = Counter(found)
    easier = set(tasks.stages[stage - 1]) - {8}
    assert sum(counts[i] for i in easier) == 40
    assert set(counts) == fresh | easier
    # The share holds in every batch, and rare tasks are drawn as often as the new ones.
    assert all(sum(i in easier for i in found[k : k + 5]) == 1 for k in range(0, 200, 5))
    assert {counts[i] for i in fresh} <= {160 // len(fresh), 160 // len(fresh) + 1}


def test_what_is_drawn_follows_from_seed_stage_and_index_alone():
    one, two = make(), make()
    two.stage = 2
    backwards = [two.train(i) for i in reversed(range(30))]
    one.stage = 1
    one.train(3)
    one.stage = 2
    assert [one.train(i) for i in range(30)] == backwards[::-1]
    other = Curriculum(TASKS, one.stages, seed=5, always=RARE)
    other.stage = 2
    assert [other.train(i) for i in range(30)] != backwards[::-1]


def test_tasks_of_a_batch_have_different_ids():
    tasks = make()
    for stage in range(3):
        tasks.stage = stage
        for start in range(0, 60, 6):
            ids = [tasks.train(i).id for i in range(start, start + 6)]
            assert len(set(ids)) == 6


def test_stages_that_add_nothing_are_left_out():
    tasks = Curriculum(TASKS, curriculum_stages([0.9] * 11 + [1.0], (0.2, 0.4, 0.9, 1.0)))
    assert [len(stage) for stage in tasks.stages] == [11, 12]
    rare = Curriculum(TASKS, [(3,), (3,), (0, 3)], always=[3])
    assert rare.stages == [(3,), (0, 3)]
    rare.stage = 1
    assert set(drawn(rare, 8)) == {0, 3}
    with pytest.raises(UserError, match="no task of 'items' is easy enough for any stage"):
        Curriculum(TASKS, [(), ()])


def walk(scores, patience=2, **more):
    state, seen = CurriculumState(), []
    for score in scores:
        state = advance(state, score, patience, **more)
        seen.append((state.stage, state.best, state.stale))
    return seen


def test_a_stage_ends_when_the_score_stands_still():
    assert walk([0.5, 0.6, 0.601, 0.602, 0.7]) == [
        (0, 0.5, 0),
        (0, 0.6, 0),
        (0, 0.6, 1),
        (1, 0.602, 0),
        (1, 0.7, 0),
    ]


def test_small_gains_add_up_and_an_exact_gain_counts():
    assert walk([0.7, 0.703, 0.706])[-1] == (0, 0.706, 0)
    assert walk([0.7, 0.705])[-1] == (0, 0.705, 0)
    assert walk([0.7, 0.7049], patience=1)[-1] == (1, 0.7049, 0)


def test_an_evaluation_without_a_score_changes_nothing():
    assert walk([0.5, None, float("nan")])[-1] == (0, 0.5, 0)


def test_the_last_stage_stays_and_the_state_is_saved_as_it_is():
    assert walk([0.5] * 9, patience=1, stages=3)[-1][0] == 2
    state = CurriculumState(stage=1, best=0.25, stale=1)
    assert msgspec.json.decode(msgspec.json.encode(state), type=CurriculumState) == state


def test_difficulty_is_measured_over_answers_that_have_a_value():
    assert difficulty_of([1.0, 0.0, 0.5, 1.0]) == 0.5
    assert difficulty_of([1.0, 0.0, 0.5, 1.0], passing=0.5) == 0.25
    assert difficulty_of([1.0, None]) == 0.0
    assert difficulty_of([None]) is None
