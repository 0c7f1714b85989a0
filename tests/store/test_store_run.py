"""The life of a run folder: repeats, locks, versions, damage, listings."""

from __future__ import annotations

import json
import multiprocessing
import os
import random
import shutil
import signal
import sqlite3
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

import msgspec
import pytest
from store_samples import make_sample, make_step

from burnish.errors import StoreError, UserError
from burnish.records import Reward
from burnish.store import RunStatus, RunStore, find_run, list_runs
from burnish.store.database import PAGE_BYTES
from burnish.store.durable import is_held
from burnish.store.processes import ProcessRecord


def create(folder: Path) -> RunStore:
    return RunStore.create(
        folder, {"optimiser.learning_rate": 1e-5},
        {"optimiser.learning_rate": "recipes/grpo.toml:3"}, config_hash="abc", data_hash="def",
        recipe="recipes/grpo.toml",
    )  # fmt: skip


def dump(folder: Path) -> list[str]:
    with sqlite3.connect(folder / "run.db") as plain:
        return [line for line in plain.iterdump() if '"sessions"' not in line]


def test_config_json_says_what_where_from_and_with_which_versions(tmp_path):
    create(tmp_path / "a").close()
    about = json.loads((tmp_path / "a" / "config.json").read_text())
    assert about["config"] == {"optimiser.learning_rate": 1e-5}
    assert about["origins"] == {"optimiser.learning_rate": "recipes/grpo.toml:3"}
    assert (about["config_hash"], about["data_hash"]) == ("abc", "def")
    assert about["versions"]["python"] == ".".join(map(str, sys.version_info[:3]))
    assert {"burnish", "torch"} <= about["versions"].keys()
    names = {p.name for p in (tmp_path / "a").iterdir()}
    assert names >= {"checkpoints", "plots"}
    assert "crash" not in names, "only a guard makes it"


def test_the_same_again_changes_nothing(tmp_path):
    held_out = [make_sample(0, 0, split="eval:a")]

    def write(store: RunStore) -> None:
        store.append_evaluation(0, "a", held_out, {"score": 0.5})
        store.append_rollouts(0, make_step(0))
        store.append_metrics(0, {"loss": 0.5, "kl": None}, timings={"step_s": 1.0})

    with create(tmp_path / "a") as store:
        write(store)
        before = dump(store.folder)
        write(store)
        store.append_metrics(0, {}, timings={"step_s": 2.0})
        assert dump(store.folder) == before
        store.append_metrics(0, {"entropy": 1.5})
        assert store.metrics("entropy") == {"entropy": [(0, 1.5)]}


def test_something_else_under_the_same_step_is_refused(tmp_path):
    with create(tmp_path / "a") as store:
        samples = make_step(0)
        store.append_rollouts(0, samples)
        store.append_metrics(0, {"loss": 0.5})
        store.append_evaluation(0, "a", [make_sample(0, 0, split="eval:a")], {"score": 0.5})
        before = dump(store.folder)
        with pytest.raises(StoreError, match=r"diverged at step 1: 'loss' .* 0\.5 .* 0\.25"):
            store.append_metrics(0, {"entropy": 1.0, "loss": 0.25})
        with pytest.raises(StoreError, match=r"'loss' is stored as 0\.5 and came again as None"):
            store.append_metrics(0, {"loss": None})
        changed = msgspec.structs.replace(samples[2], reward=Reward("total", 9.0))
        with pytest.raises(StoreError, match=r"step 1, sample 0\.0\.2: 'reward'"):
            store.append_rollouts(0, [*samples[:2], changed, *samples[3:]])
        with pytest.raises(StoreError, match="'samples' is stored as 8 and came again as 7"):
            store.append_rollouts(0, samples[:7])
        with pytest.raises(StoreError, match="evaluation 'a' of step 0: 'summary'"):
            store.append_evaluation(0, "a", [make_sample(0, 0, split="eval:a")], {"score": 0.6})
        assert dump(store.folder) == before


def test_two_samples_in_one_place_store_nothing(tmp_path):
    with create(tmp_path / "a") as store:
        with pytest.raises(StoreError, match="UNIQUE constraint failed: samples"):
            store.append_rollouts(0, [make_sample(0, 0), make_sample(0, 0)])
        assert store.rollouts(0) is None
        assert list(store.samples()) == []


def test_rows_cannot_be_changed_even_by_hand(tmp_path):
    with create(tmp_path / "a") as store:
        store.append_rollouts(0, make_step(0))
    plain = sqlite3.connect(tmp_path / "a" / "run.db")
    with pytest.raises(sqlite3.IntegrityError, match="samples is append-only"):
        plain.execute("UPDATE samples SET reward = 1")
    with pytest.raises(sqlite3.IntegrityError, match="reward_parts is append-only"):
        plain.execute("DELETE FROM reward_parts")
    plain.close()


def test_a_run_has_one_writer_and_many_readers(tmp_path):
    with create(tmp_path / "a") as store:
        store.append_rollouts(0, make_step(0))
        with pytest.raises(StoreError, match=f"written by pid {os.getpid()} on "):
            RunStore.open(tmp_path / "a")
        with (
            RunStore.open(tmp_path / "a", read_only=True) as one,
            RunStore.open(tmp_path / "a", read_only=True) as two,
        ):
            reading = one.samples()
            next(reading)
            store.append_rollouts(1, make_step(1))
            assert two.steps() == [0, 1]
            assert len(list(reading)) == 7
            with pytest.raises(StoreError, match="opened only to read"):
                one.append_metrics(0, {"loss": 1.0})
    with RunStore.open(tmp_path / "a") as store:
        assert store.summary().sessions == 2


def test_a_forked_child_does_not_keep_the_lock_of_a_dead_writer(tmp_path):
    writing = (
        "import os, sys, time\nfrom pathlib import Path\nfrom burnish.store.durable import WriterLock\n"
        "lock = WriterLock(Path(sys.argv[1]))\n"
        "if os.fork() == 0:\n    print(os.getpid(), flush=True)\n    time.sleep(60)\n"
        "time.sleep(60)\n"
    )
    writer = subprocess.Popen(
        [sys.executable, "-c", writing, str(tmp_path / "lock")], stdout=subprocess.PIPE, text=True
    )
    assert writer.stdout is not None
    child = int(writer.stdout.readline())
    try:
        assert is_held(tmp_path / "lock")
        writer.kill()
        writer.wait()
        os.kill(child, 0)
        assert not is_held(tmp_path / "lock")
    finally:
        os.kill(child, signal.SIGKILL)
        writer.stdout.close()


def test_a_folder_that_holds_a_run_is_not_overwritten(tmp_path):
    create(tmp_path / "a").close()
    with pytest.raises(StoreError, match="already holds a run"):
        create(tmp_path / "a")


def test_a_creation_that_was_killed_can_be_repeated(tmp_path):
    create(tmp_path / "a").close()
    (tmp_path / "a" / "config.json").unlink()
    assert list_runs(tmp_path) == []
    with create(tmp_path / "a") as store:
        assert store.steps() == []


def test_a_newer_schema_is_refused(tmp_path):
    create(tmp_path / "a").close()
    with sqlite3.connect(tmp_path / "a" / "run.db") as plain:
        plain.execute("PRAGMA user_version = 99")
    for read_only in (True, False):
        with pytest.raises(StoreError, match=r"has schema version 99; .* up to 1\. Update"):
            RunStore.open(tmp_path / "a", read_only=read_only)


def test_damage_is_one_line(tmp_path):
    with pytest.raises(StoreError, match="is not a run"):
        RunStore.open(tmp_path)
    create(tmp_path / "a").close()
    (tmp_path / "a" / "run.db").write_bytes(b"this is no database at all" * 100)
    with pytest.raises(StoreError, match=r"run\.db: cannot .*file is not a database") as caught:
        RunStore.open(tmp_path / "a", read_only=True)
    assert "\n" not in str(caught.value)
    (tmp_path / "a" / "run.db").unlink()
    with pytest.raises(StoreError, match=r"has no run\.db"):
        RunStore.open(tmp_path / "a")
    sqlite3.connect(tmp_path / "a" / "run.db").execute("CREATE TABLE x (y)").connection.close()
    with pytest.raises(StoreError, match="is not a burnish run"):
        RunStore.open(tmp_path / "a")
    (tmp_path / "a" / "config.json").write_text("{")
    with pytest.raises(StoreError, match=r"config\.json: damaged"):
        RunStore.open(tmp_path / "a")


def test_a_page_overwritten_in_the_middle_is_told_when_it_is_read(tmp_path):
    with create(tmp_path / "a") as store:
        for step in range(20):
            store.append_rollouts(step, make_step(step))
    path = tmp_path / "a" / "run.db"
    data = bytearray(path.read_bytes())
    data[20 * 4096 :] = b"\xff" * (len(data) - 20 * 4096)
    path.write_bytes(data)
    with (
        RunStore.open(tmp_path / "a", read_only=True) as store,
        pytest.raises(StoreError, match="malformed"),
    ):
        list(store.samples())


def test_a_file_in_the_way_is_one_line(tmp_path):
    (tmp_path / "runs").write_text("")
    with pytest.raises(StoreError, match=r"cannot make the run folder .*: Not a directory"):
        create(tmp_path / "runs" / "a")


def test_a_config_that_is_not_json_leaves_no_run(tmp_path):
    with pytest.raises(StoreError, match="the config is not JSON"):
        RunStore.create(tmp_path / "a", {"x": object()}, {})
    assert list_runs(tmp_path) == []
    assert not is_held(tmp_path / "a" / "writer.lock")


FULL_DISK = """
import resource, sys
from pathlib import Path
from store_samples import make_step
from burnish.errors import StoreError
from burnish.store import RunStore

store = RunStore.create(Path(sys.argv[1]), {}, {})
size = int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_FSIZE, (size, size))
for step in range(1000):
    try:
        store.append_rollouts(step, make_step(step, tokens=200))
    except StoreError as error:
        print(step, error)
        break
"""


def test_a_full_disk_is_one_line_and_keeps_what_was_stored(tmp_path):
    child = subprocess.run(
        [sys.executable, "-c", FULL_DISK, str(tmp_path / "a"), str(600_000)], capture_output=True,
        text=True, env={**os.environ, "PYTHONPATH": str(Path(__file__).parent)}, check=False,
    )  # fmt: skip
    step, _, message = child.stdout.strip().partition(" ")
    assert int(step) > 0, child.stderr
    assert "cannot store the rollouts of step" in message
    assert "nothing of this call was stored" in message
    assert "\n" not in message
    with RunStore.open(tmp_path / "a") as store:
        assert store.steps() == list(range(int(step)))
        assert store.rollouts(int(step) - 1) == make_step(int(step) - 1, tokens=200)
        store.append_rollouts(int(step), make_step(int(step), tokens=200))


def test_a_run_in_a_read_only_folder_can_be_read():
    # Not pytest's own folder, which is closed to the unprivileged user that a root must become.
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "a"
        with create(folder) as store:
            store.append_rollouts(0, make_step(0))
        Path(place).chmod(0o755)
        folder.chmod(0o555)
        answers = multiprocessing.get_context("fork").SimpleQueue()
        child = multiprocessing.get_context("fork").Process(
            target=_look_without_rights, args=(folder, answers)
        )
        child.start()
        child.join(30)
        folder.chmod(0o755)
        assert child.exitcode == 0
        steps, listed, problem = answers.get()
    assert steps == [0]
    assert listed == "crashed"
    assert "writer.lock for writing: Permission denied" in problem


def _look_without_rights(folder: Path, answers: multiprocessing.SimpleQueue[object]) -> None:
    if os.getuid() == 0:
        os.setresuid(65534, 65534, 65534)
    with RunStore.open(folder, read_only=True) as store:
        steps = store.steps()
    listed = str(list_runs(folder.parent)[0].status)
    try:
        RunStore.open(folder)
    except StoreError as error:
        answers.put((steps, listed, str(error)))


def test_statuses_of_a_listing(tmp_path):
    runs = tmp_path / "runs"
    assert list_runs(runs) == []
    create(runs / "crashed").close()
    with create(runs / "finished") as store:
        store.append_rollouts(0, make_step(0))
        store.append_metrics(0, {"reward/total": 0.5})
        store.append_evaluation(0, "a", [], {"score": 0.5})
        store.append_evaluation(1, "a", [], {"score": 0.75})
        store.finish("finished")
    with create(runs / "stopped") as store:
        store.finish("stopped", {"reason": "no useful group"})
    with create(runs / "terminated") as store:  # as a run that `kill` ends leaves it
        ProcessRecord(store.folder).die("signal", "interrupted with SIGTERM", exception="SIGTERM")
    create(runs / "damaged").close()
    (runs / "damaged" / "run.db").write_bytes(b"x" * 5000)
    (runs / "not-a-run").mkdir()
    with create(runs / "running"):
        infos = {info.name: info for info in list_runs(runs)}
    assert {name: info.status for name, info in infos.items()} == {
        "crashed": RunStatus.CRASHED, "finished": RunStatus.FINISHED, "stopped": RunStatus.STOPPED,
        "terminated": RunStatus.STOPPED, "damaged": RunStatus.UNREADABLE,
        "running": RunStatus.RUNNING,
    }  # fmt: skip
    assert infos["finished"].steps == 1
    assert infos["finished"].last_evaluation is not None
    assert infos["finished"].last_evaluation.summary == {"score": 0.75}
    assert infos["finished"].recipe == "recipes/grpo.toml"
    assert "not a database" in infos["damaged"].problem


def test_a_step_that_was_interrupted_is_not_counted(tmp_path):
    """Its rollouts are stored before the update, its metrics after it."""
    with create(tmp_path / "run") as store:
        store.append_metrics(7, {"stage/warm/loss": 0.5})
        store.append_rollouts(0, make_step(0))
        assert (store.steps(), store.steps_done(), store.summary().steps) == ([0], 0, 0)
        store.append_metrics(0, {"reward/total": 0.5})
        store.append_rollouts(1, make_step(1))
        assert (store.steps(), store.steps_done(), store.summary().steps) == ([0, 1], 1, 1)
        store.finish("stopped", {"reason": "interrupted with Ctrl-C", "step": 1})
    (info,) = list_runs(tmp_path)
    assert info.steps == 1


def test_other_folders_with_a_config_json_are_no_runs(tmp_path):
    for name, text in {"model": '{"model_type": "llama"}', "list": "[]", "broken": "{"}.items():
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(text)
    create(tmp_path / "lost").close()
    (tmp_path / "lost" / "run.db").unlink()
    create(tmp_path / "torn").close()
    (tmp_path / "torn" / "config.json").write_text("{")
    assert {info.name: info.status for info in list_runs(tmp_path)} == {
        "lost": RunStatus.UNREADABLE,
        "torn": RunStatus.UNREADABLE,
    }


def test_a_resumed_run_is_running_again(tmp_path):
    with create(tmp_path / "a") as store:
        store.finish("stopped")
    with RunStore.open(tmp_path / "a") as store:
        assert store.status() is RunStatus.RUNNING
    assert list_runs(tmp_path)[0].status is RunStatus.CRASHED
    with (
        RunStore.open(tmp_path / "a") as store,
        pytest.raises(ValueError, match="'done' is not a valid RunStatus"),
    ):
        store.finish("done")


def test_a_run_is_found_by_name_beginning_or_path(tmp_path):
    for name in ("grpo-1", "grpo-2", "dapo"):
        create(tmp_path / name).close()
    assert find_run(tmp_path, "grpo-1") == tmp_path / "grpo-1"
    assert find_run(tmp_path, "da") == tmp_path / "dapo"
    assert find_run(Path("elsewhere"), str(tmp_path / "dapo")) == tmp_path / "dapo"
    with pytest.raises(UserError, match=r"means several runs in .*: grpo-1, grpo-2"):
        find_run(tmp_path, "grpo")
    with pytest.raises(UserError, match=r"no run 'dpao' in .* Did you mean 'dapo'\?"):
        find_run(tmp_path, "dpao")
    with pytest.raises(UserError, match="Runs there: dapo, grpo-1, grpo-2"):
        find_run(tmp_path, "xyz")
    with pytest.raises(UserError, match="holds no runs"):
        find_run(tmp_path / "none", "a")


def test_a_run_can_be_moved(tmp_path):
    with create(tmp_path / "a") as store:
        store.append_rollouts(0, make_step(0))
    shutil.move(tmp_path / "a", tmp_path / "b")
    with RunStore.open(tmp_path / "b", read_only=True) as store:
        assert store.name == "b"
        assert store.rollouts(0) == make_step(0)


def test_a_run_of_an_older_version_is_continued_with_the_tables_it_lacks(tmp_path):
    with create(tmp_path / "a") as store:
        store.append_rollouts(0, make_step(0))
    plain = sqlite3.connect(tmp_path / "a" / "run.db")
    plain.execute("DROP TABLE token_values")
    plain.commit()
    plain.close()
    with RunStore.open(tmp_path / "a") as store:
        store.append_token_values(0, "entropy", {0: [0.5, 0.25]})
        store.append_token_values(0, "entropy", {0: [9.0, 9.0]})
        assert store.token_values("0/train/0") == {"entropy": [0.5, 0.25]}, "the first stays"
    plain = sqlite3.connect(tmp_path / "a" / "run.db")
    with pytest.raises(sqlite3.IntegrityError, match="token_values is append-only"):
        plain.execute("DELETE FROM token_values")
    plain.close()


# --- what a step costs, however much is stored


def pages_of_a_step(store: RunStore, step: int, rng: random.Random) -> int:
    """Pages that storing one step of 32 answers writes."""
    database = store._database
    log = store.folder / "run.db-wal"
    database._connection.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchall()
    append_step(store, step, rng)
    return (log.stat().st_size - 32) // (24 + PAGE_BYTES)


MODEL_STEP = make_step(0, 32)


def append_step(store: RunStore, step: int, rng: random.Random) -> None:
    """A step of 32 tasks in random order, as those of a shuffled file are."""
    samples = []
    for sample in MODEL_STEP:
        task = f"{rng.getrandbits(64):016x}"
        trajectory = msgspec.structs.replace(
            sample.trajectory, id=f"{step}.{sample.index // 4}.{sample.index % 4}", task_id=task
        )
        samples.append(
            msgspec.structs.replace(
                sample, step=step, task=msgspec.structs.replace(sample.task, id=task),
                trajectory=trajectory,
            )
        )  # fmt: skip
    store.append_rollouts(step, samples)
    store.append_token_values(step, "entropy", {i: [0.5] * 16 for i in range(32)})
    store.append_metrics(step, {f"m/{i}": float(i) for i in range(40)})


def test_a_step_writes_no_more_pages_the_more_is_stored(tmp_path):
    """From 3,000 samples to 10,000; an index in the order of random tasks makes it a quarter more."""
    rng = random.Random(0)
    written: dict[int, list[int]] = {104: [], 304: []}
    with create(tmp_path / "run") as store:
        for step in range(320):
            counted = [pages for begin, pages in written.items() if begin <= step < begin + 16]
            if counted:
                counted[0].append(pages_of_a_step(store, step, rng))
            else:
                append_step(store, step, rng)
    early, late = (statistics.mean(pages) for pages in written.values())
    assert late < 1.05 * early, (early, late)


def test_what_a_step_reads_is_found_by_index(tmp_path):
    """No query of a step, and none that looks for one task, walks over a table of samples."""
    with create(tmp_path / "run") as store:
        append_step(store, 0, random.Random(0))
        asked: list[str] = []
        store._database._connection.set_trace_callback(asked.append)
        assert store.rollouts(1) is None
        assert len(store.rollouts(0) or []) == 32
        append_step(store, 1, random.Random(1))
        (first,) = store.samples(limit=1)
        assert list(store.samples(task_id=first.task.id)) == [first]
        store._database._connection.set_trace_callback(None)
        plans = [
            row[3]
            for query in asked
            if query.startswith("SELECT") and "LIMIT 1" not in query
            for row in store.query(f"EXPLAIN QUERY PLAN {query}")
        ]
    scans = [plan for plan in plans if plan.startswith("SCAN") and "ollouts" not in plan]
    assert [plan for plan in scans if "evaluations" not in plan] == []
    assert any("samples_by_task" in plan for plan in plans)


def test_a_commit_leaves_the_log_to_a_thread_of_its_own(tmp_path, monkeypatch):
    """2,000 pages in one commit: the file itself is written beside it, and no less than before."""
    database = tmp_path / "run" / "run.db"
    large = make_sample(0, 0)
    text = "x" * (2000 * PAGE_BYTES)
    trajectory = msgspec.structs.replace(large.trajectory, text=text)
    large = msgspec.structs.replace(large, trajectory=trajectory)
    with create(tmp_path / "run") as store:
        before = database.stat().st_size
        store.append_rollouts(0, [large])
        assert database.stat().st_size == before
        monkeypatch.setattr("burnish.store.database.FOLD_EVERY_S", 0.0)
        store.append_metrics(0, {"loss": 1.0})
        folding = store._database._folding
        assert folding is not None
        folding.join()
        assert database.stat().st_size > 2000 * PAGE_BYTES
        log = (tmp_path / "run" / "run.db-wal").stat().st_size
        for step in range(1, 20):
            store.append_rollouts(step, make_step(step))
            folding = store._database._folding
            assert folding is not None
            folding.join()
        # A log that was folded in whole begins again at its start.
        assert (tmp_path / "run" / "run.db-wal").stat().st_size == log
        assert next(store.samples(step=0)).trajectory.text == text
    assert len(RunStore.open(tmp_path / "run", read_only=True).steps()) == 20


def test_a_log_that_cannot_be_folded_costs_nothing_that_is_stored(tmp_path, monkeypatch):
    with create(tmp_path / "run") as store:
        monkeypatch.setattr("burnish.store.database.FOLD_EVERY_S", 0.0)
        with monkeypatch.context() as patch:
            patch.setattr("burnish.store.database._open", _refuse)
            store.append_rollouts(0, make_step(0))
            folding = store._database._folding
            assert folding is not None
            folding.join()
        store.append_rollouts(1, make_step(1))
    with RunStore.open(tmp_path / "run", read_only=True) as store:
        assert store.steps() == [0, 1]


def _refuse(uri: str) -> sqlite3.Connection:
    raise sqlite3.OperationalError("disk I/O error")


def test_a_run_with_the_index_of_an_older_version_is_read_by_task(tmp_path):
    with create(tmp_path / "run") as store:
        connection = store._database._connection
        connection.execute("DROP INDEX samples_by_task")
        connection.execute("CREATE INDEX samples_by_task ON samples (task_id, step)")
        append_step(store, 0, random.Random(0))
        (first,) = store.samples(limit=1)
    with RunStore.open(tmp_path / "run", read_only=True) as store:
        assert list(store.samples(task_id=first.task.id)) == [first]


def test_half_a_character_in_a_summary_or_an_event_is_replaced(tmp_path):
    with create(tmp_path / "a") as store:
        store.append_event("reward", "half \ud800", {"reason": "ValueError: \ud800"})
        store.finish(RunStatus.FINISHED, {"why": "\udfff", "steps": 2})
    [run] = list_runs(tmp_path)
    assert run.status is RunStatus.FINISHED
