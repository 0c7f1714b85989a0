"""Names and files of a run that somebody else wrote."""

import json

import numpy as np
import pytest

import burnish
from burnish.api.settings import as_settings
from burnish.cli.console import emit_json
from burnish.errors import UserError
from burnish.lm.wire import Reply
from burnish.memory import keep_rows, restore_rows, rows_file
from burnish.source import describe
from burnish.store.manifest import sweep_path


@pytest.mark.parametrize(
    "name", ["../../out.jsonl", "rows-12.jsonl", "rows-" + "g" * 16 + ".jsonl"]
)
def test_rows_of_a_foreign_config_stay_in_the_runs_folder(tmp_path, name):
    with pytest.raises(UserError, match="names no rows"):
        rows_file(f"memory:{name}", tmp_path)


def test_rows_that_were_changed_are_not_taken_for_those_of_the_run(tmp_path):
    changed = f"memory:rows-{'0' * 16}.jsonl"
    file = rows_file(changed, tmp_path)
    file.parent.mkdir()
    file.write_text('{"prompt": "another"}\n')
    with pytest.raises(UserError, match="was changed"):
        restore_rows([changed], tmp_path)
    kept = keep_rows([{"prompt": "hello"}])
    restore_rows([kept], tmp_path)


@pytest.mark.parametrize("name", ["../evil", "a/b", "a\x1b[31m", "", ".."])
def test_a_sweep_is_stored_beside_its_runs(tmp_path, name):
    with pytest.raises(UserError, match="the sweep's name") as caught:
        sweep_path(tmp_path, name)
    assert "\x1b" not in str(caught.value)


@pytest.mark.parametrize(
    ("said", "version"), [("3", 3), (None, None), (0, -1), (True, -1), ("abc", -1), ("-5", -1)]
)
def test_a_version_that_is_none_of_ours_counts_as_unknown_weights(said, version):
    assert Reply("m", (), metadata={"weight_version": said}).weight_version == version
    assert Reply("m", (), metadata={}).weight_version is None


def test_rows_with_bytes_are_refused():
    with pytest.raises(UserError, match="holds bytes"):
        keep_rows([{"prompt": b"What is 5?"}])


@pytest.mark.parametrize(
    ("row", "place"),
    [
        ({"answer": {"scores": [1.0, float("nan")]}}, r"answer\.scores\[1\] is nan"),
        ({"answer": float("-inf")}, "answer is -inf"),
        ({"answer": [np.array([0.5, np.inf])]}, r"answer\[0\]\[1\] is inf"),
    ],
)
def test_rows_with_numbers_that_json_has_not_are_refused(row, place):
    rows = [{"prompt": "a", "answer": None}, {"prompt": "b", **row}]
    with pytest.raises(UserError, match=f"data: row 1, {place}; expected a finite number"):
        as_settings({"data": rows})


def test_an_error_of_a_library_cannot_steer_the_terminal():
    assert describe(RuntimeError("no \x1b[31mserver\x9b2J")) == (
        r"RuntimeError: no \x1b[31mserver\x9b2J"
    )


def test_json_lines_hold_nothing_that_a_terminal_obeys(capsys):
    emit_json({"text": "a\x9b31m\u202eb"})
    written = capsys.readouterr().out
    assert written == '{"text":"a\\u009b31m\\u202eb"}\n'
    assert json.loads(written) == {"text": "a\x9b31m\u202eb"}


def test_an_address_with_a_password_is_not_stored(tmp_path):
    judge = {"kind": "judge", "with": "point", "model": "http://me:hunter2@127.0.0.1:9/v1#m"}
    with pytest.raises(UserError, match="api_key_env") as caught:
        burnish.train("tiny", rewards=[judge], runs=tmp_path / "runs", show=False)
    assert "hunter2" not in str(caught.value)
    assert not list((tmp_path).rglob("*.json"))
