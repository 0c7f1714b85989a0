"""The start model's rewards in a run's folder."""

import pytest

from burnish.errors import StoreError
from burnish.store import StartRewards, read_start_rewards, write_start_rewards

MEASURED = StartRewards(6, ("a", "b"), [0.5, 2.0], [0.1, 1.0], [6, 5])


def test_what_is_written_is_read_again_and_picked_by_name(tmp_path):
    assert read_start_rewards(tmp_path) is None
    write_start_rewards(tmp_path, MEASURED)
    assert read_start_rewards(tmp_path) == MEASURED
    assert [path.name for path in tmp_path.iterdir()] == ["calibration.json"]
    assert MEASURED.columns(["b", "a"]) == ([2.0, 0.5], [1.0, 0.1], [5, 6])
    assert MEASURED.columns(["b"]) == ([2.0], [1.0], [5])


def test_a_damaged_file_is_named(tmp_path):
    (tmp_path / "calibration.json").write_text('{"answers": 6}')
    with pytest.raises(StoreError, match=r"calibration\.json: damaged: "):
        read_start_rewards(tmp_path)
