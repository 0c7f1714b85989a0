import errno
import hashlib
import json
import os
import shutil
import sqlite3
import subprocess

import pytest
from training_cases import finish, outcome, stop_after, trainer

import warm
from burnish.errors import StoreError
from burnish.store import RunStore
from burnish.training import checkpoint

SETTINGS = {"steps": 6, "checkpoint": {"every": 2, "keep": 3}, "evaluation": {"prompts": 0}}


@pytest.fixture(scope="module")
def stopped(tmp_path_factory):
    """A run that was killed after its checkpoint of step 4, and the same run unbroken."""
    folder = tmp_path_factory.mktemp("stopped")
    stop_after(trainer(folder, SETTINGS), 4, saved=True)
    finish(trainer(folder, SETTINGS, run="whole"))
    return folder


@pytest.fixture
def run(stopped, tmp_path):
    """A copy of it to damage; the config names the data by an absolute path, so it continues."""
    shutil.copytree(stopped / "run", tmp_path / "run")
    return tmp_path / "run"


def resume(stopped, run):
    """Go on with the damaged copy in the place of the original."""
    from training_cases import resolved

    from burnish.training import build

    return build(resolved(stopped, SETTINGS), run, root=stopped)


def cut(name, size=None):
    """Cut a file of the newest checkpoint: to a size, or in half."""

    def damage(run):
        path = run / "checkpoints" / "step-000004" / name
        os.truncate(path, path.stat().st_size // 2 if size is None else size)

    return damage


def gone(name):
    return lambda run: (run / "checkpoints" / "step-000004" / name).unlink()


def flip(name):
    """Change one bit in the middle of a file."""

    def damage(run):
        path = run / "checkpoints" / "step-000004" / name
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)

    return damage


def state(**changes):
    """Other numbers in the state of a checkpoint without checksums."""

    def damage(run):
        path = run / "checkpoints" / "step-000004" / "trainer" / "state.json"
        (path.parent / "checksums.json").unlink()
        path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))

    return damage


def unlisted(run):
    """Checksums that name no file."""
    path = run / "checkpoints" / "step-000004" / "trainer" / "checksums.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), "files": {}}))


DAMAGES = {
    "cut optimiser": cut("trainer/optimiser.safetensors"),
    "empty optimiser": cut("trainer/optimiser.safetensors", 0),
    "no optimiser": gone("trainer/optimiser.safetensors"),
    "flipped optimiser": flip("trainer/optimiser.safetensors"),
    "cut algorithm": cut("trainer/algorithm.safetensors"),
    "empty algorithm": cut("trainer/algorithm.safetensors", 0),
    "no algorithm": gone("trainer/algorithm.safetensors"),
    "flipped weights": flip("model.safetensors"),
    "no weights": gone("model.safetensors"),
    "no config": gone("config.json"),
    "no state": gone("trainer/state.json"),
    "empty state": cut("trainer/state.json", 0),
    "flipped state": flip("trainer/state.json"),
    "no checksums": gone("trainer/checksums.json"),
    "cut checksums": cut("trainer/checksums.json"),
    "checksums of nothing": unlisted,
    "negative step": state(step=-4),
    "another step": state(step=3),
    "absurd threads": state(threads=10**9),
    "a step of words": state(step="four"),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES.keys())
def test_a_damaged_checkpoint_is_told_in_one_line_with_the_way_on(stopped, run, damage):
    damage(run)
    with pytest.raises(StoreError) as caught:
        resume(stopped, run)
    line = str(caught.value)
    assert "\n" not in line
    assert line.startswith(f"checkpoint {run}/checkpoints/step-000004 is damaged: ")
    way = line.split("The newest whole one is step-000002; to go on from it: ")[1]
    command = way.removesuffix("; then repeat the command")
    subprocess.run(command, shell=True, check=True)
    assert finish(resume(stopped, run))[-1].status == "finished"
    assert outcome(run) == outcome(stopped / "whole")
    assert (run / "aside" / "step-000004").is_dir(), "what was damaged is kept"


def test_with_no_whole_checkpoint_the_stored_rollouts_are_used_again(stopped, run):
    for name in ("step-000002", "step-000004"):
        os.truncate(run / "checkpoints" / name / "trainer" / "optimiser.safetensors", 100)
    with pytest.raises(StoreError) as caught:
        resume(stopped, run)
    assert "No other checkpoint is whole" in str(caught.value)
    command = str(caught.value).split("stored: ")[1].removesuffix("; then repeat the command")
    subprocess.run(command, shell=True, check=True)
    again = resume(stopped, run)
    assert again.state.step == 0
    events = finish(again)
    assert [e.reused for e in events if hasattr(e, "reused")] == [True] * 4 + [False] * 2
    assert outcome(run) == outcome(stopped / "whole")


def delete(run, sql):
    """What the triggers forbid, as a damaged disk would do it."""
    connection = sqlite3.connect(run / "run.db")
    for (name,) in connection.execute(
        "SELECT name FROM sqlite_master WHERE type = 'trigger'"
    ).fetchall():
        connection.execute(f"DROP TRIGGER {name}")
    connection.execute(sql)
    connection.commit()
    connection.close()


HOLES = {
    "DELETE FROM samples WHERE step = 3 AND idx = 5": "1 of 32 rows of 'samples'",
    "DELETE FROM reward_parts WHERE sample_id LIKE '3/%'": "rows of 'reward_parts'",
    "DELETE FROM metrics WHERE step = 3": "rows of 'metrics'",
    "DELETE FROM token_values WHERE sample_id LIKE '3/%'": "rows of 'token_values'",
}


@pytest.mark.parametrize(("sql", "lost"), HOLES.items())
def test_a_hole_in_the_store_is_noticed(stopped, run, sql, lost):
    delete(run, sql)
    with pytest.raises(StoreError) as caught:
        resume(stopped, run)
    line = str(caught.value)
    assert line.startswith(f"{run}/run.db has lost what checkpoint step-000004 counted: ")
    assert lost in line
    if "samples" in sql or "reward_parts" in sql:
        assert "A step is there only in part" in line
        assert line.endswith("put run.db back from a copy, or start a new run with --again")
        return
    go_on(line, "The newest whole one is step-000002; to go on from it: ")
    assert finish(resume(stopped, run))[-1].status == "finished"
    assert outcome(run) == outcome(stopped / "whole")


def go_on(line, lead):
    """Do what the line says."""
    command = line.split(lead)[1].removesuffix("; then repeat the command")
    subprocess.run(command, shell=True, check=True)


def test_whole_steps_that_were_lost_are_sampled_again(stopped, run):
    """As after a power cut: everything of the newest steps is gone."""
    for sql in (
        "DELETE FROM evidence WHERE sample_id LIKE '3/%'",
        "DELETE FROM token_values WHERE sample_id LIKE '3/%'",
        "DELETE FROM reward_parts WHERE sample_id LIKE '3/%'",
        "DELETE FROM metrics WHERE step = 3",
        "DELETE FROM samples WHERE step = 3",
        "DELETE FROM rollouts WHERE step = 3",
    ):
        delete(run, sql)
    with pytest.raises(StoreError, match="1 of 4 rows of 'rollouts'") as caught:
        resume(stopped, run)
    go_on(str(caught.value), "The newest whole one is step-000002; to go on from it: ")
    assert finish(resume(stopped, run))[-1].status == "finished"
    assert outcome(run) == outcome(stopped / "whole")


def test_rollouts_that_lost_a_sample_are_not_used_again(stopped, run):
    """The hole lies after the newest checkpoint: it is found where the step is read back."""
    for name in ("step-000002", "step-000004"):
        shutil.rmtree(run / "checkpoints" / name)
    delete(run, "DELETE FROM samples WHERE step = 1 AND idx = 0")
    with pytest.raises(StoreError, match="step 2 has 7 of its 8 samples"):
        finish(resume(stopped, run))


def in_a_process(folder, stopped, run, code):
    """Exit code and words of a process that has built the run as `trained`."""
    (folder / "program.py").write_text(
        "import sys\n"
        "from pathlib import Path\n"
        "from training_cases import Saved, build, resolved\n"
        "stopped, run = map(Path, sys.argv[1:])\n"
        f"trained = build(resolved(stopped, {SETTINGS!r}), run, root=stopped)\n{code}"
    )
    said = folder / "said.txt"
    code = warm.run("program.py", [str(stopped), str(run)], folder=folder, log=said)
    return code, said.read_text()


def test_a_log_that_was_cut_is_noticed(stopped, tmp_path):
    """The write-ahead log of a killed run loses its end, as after a power cut."""
    code = (
        "import os\n"
        "for event in trained.run():\n"
        "    if isinstance(event, Saved) and trained.state.step == 4: os._exit(9)\n"
    )
    run = tmp_path / "run"
    assert in_a_process(tmp_path, stopped, run, code)[0] == 9
    log = run / "run.db-wal"
    os.truncate(log, log.stat().st_size * 7 // 10)
    with pytest.raises(
        StoreError, match=r"run.db has lost what checkpoint step-000004 counted: \d+ of"
    ):
        resume(stopped, run)


def test_rows_are_counted_as_they_are_added(stopped, run):
    with RunStore.open(run) as store:
        before = store.rows()
        store.append_event("test", "one more")
        store.append_metrics(
            3, {"new": 1.0, "reward/total": store.metrics("reward/total")["reward/total"][3].value}
        )
        after = store.rows()
        assert after == {**before, "events": before["events"] + 1, "metrics": before["metrics"] + 1}
    with RunStore.open(run, read_only=True) as store:
        assert store.rows() == after


def test_a_full_disk_keeps_the_last_checkpoint_and_leaves_no_draft(stopped, run, monkeypatch):
    trained = resume(stopped, run)

    def full(*_, **__):
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("burnish.training.checkpoint.save_file", full)
    with pytest.raises(StoreError) as caught:
        finish(trained)
    line = str(caught.value)
    assert line.startswith(
        "cannot write checkpoint step-000006; step-000004 stays: No space left on device ("
    )
    assert line.endswith("MB free there); free some space and repeat the command.")
    assert sorted(os.listdir(run / "checkpoints")) == ["step-000002", "step-000004"]
    monkeypatch.undo()
    assert finish(resume(stopped, run))[-1].status == "finished"
    assert outcome(run) == outcome(stopped / "whole")


def test_every_file_has_its_checksum(stopped, monkeypatch):
    place = stopped / "run" / "checkpoints" / "step-000004"
    seal = json.loads((place / "trainer" / "checksums.json").read_text())
    files = sorted(str(p.relative_to(place)) for p in place.rglob("*") if p.is_file())
    assert sorted([*seal["files"], "trainer/checksums.json"]) == files
    data = (place / "model.safetensors").read_bytes()
    pieces = hashlib.blake2b(data, digest_size=32).digest()
    wanted = {"bytes": len(data), "blake2b": hashlib.blake2b(pieces, digest_size=32).hexdigest()}
    assert seal["files"]["model.safetensors"] == wanted


def test_a_large_file_is_summed_piece_by_piece(tmp_path, monkeypatch):
    monkeypatch.setattr(checkpoint, "PIECE", 1000)
    names = []
    for size in (0, 1, 999, 1000, 1001, 5500):
        (tmp_path / str(size)).write_bytes(bytes(i % 251 for i in range(size)))
        names.append(str(size))
    before = checkpoint._sums(tmp_path, names)
    assert [one.bytes for one in before.values()] == [0, 1, 999, 1000, 1001, 5500]
    data = bytearray((tmp_path / "5500").read_bytes())
    data[1500:2500], data[2500:3500] = data[2500:3500], data[1500:2500]
    (tmp_path / "5500").write_bytes(data)
    after = checkpoint._sums(tmp_path, names)
    assert [name for name in names if before[name] != after[name]] == ["5500"]


def test_a_checkpoint_of_an_earlier_version_is_not_continued(stopped, run):
    for place in (run / "checkpoints").iterdir():
        path = place / "trainer" / "state.json"
        path.write_text(json.dumps({**json.loads(path.read_text()), "layout": 2}))
    with pytest.raises(StoreError, match=r"was written by another burnish.*--again"):
        resume(stopped, run)
