"""The cursor of a finite set: one integer, a fresh permutation in each epoch."""

import subprocess
import sys

from hypothesis import given, settings, strategies as st

from burnish.records import Message, Task
from burnish.tasks import FiniteTasks, epoch_order


def finite(size: int, seed: int = 0) -> FiniteTasks:
    tasks = tuple(Task(id=f"t/{k}", messages=(Message("user", f"q{k}"),)) for k in range(size))
    return FiniteTasks("t", frozenset(), "f", seed, tasks, ())


@settings(deadline=None)
@given(st.integers(), st.integers(0, 5), st.integers(0, 200))
def test_an_epoch_visits_every_position_once(seed, epoch, size):
    assert sorted(epoch_order(seed, epoch, size)) == list(range(size))


def test_order_is_pinned_across_machines_and_versions():
    assert epoch_order(7, 0, 8) == (0, 6, 7, 1, 4, 3, 5, 2)
    assert epoch_order(7, 1, 8) != epoch_order(7, 0, 8)
    assert epoch_order(8, 0, 8) != epoch_order(7, 0, 8)


def test_order_does_not_depend_on_the_process():
    code = "from burnish.tasks import epoch_order; import sys; sys.stdout.write(str(epoch_order(7, 3, 50)))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == str(epoch_order(7, 3, 50))


@settings(deadline=None)
@given(st.integers(1, 30), st.integers(0, 3), st.integers(0, 2**62))
def test_each_epoch_of_training_is_the_whole_set(size, epoch, seed):
    tasks = finite(size, seed)
    prompts = {tasks.train(epoch * size + k).prompt for k in range(size)}
    assert prompts == {f"q{k}" for k in range(size)}


def test_ids_differ_when_a_batch_crosses_the_epoch_border():
    tasks = finite(3)
    ids = [tasks.train(index).id for index in range(12)]
    assert len(set(ids)) == 12
    assert {i for i in ids if "@" not in i} == {"t/0", "t/1", "t/2"}


def test_room_imports_nothing_heavy():
    code = (
        "import burnish.tasks, sys;"
        "sys.exit(any(m in sys.modules for m in ('torch', 'pyarrow', 'numpy', 'reasoning_gym')))"
    )
    assert subprocess.run([sys.executable, "-c", code]).returncode == 0
