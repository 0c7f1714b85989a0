"""A run that grows while it is looked at; the writer never waits for a reader."""

from __future__ import annotations

import threading
import time

from viewed_runs import hostile_sample, open_client

from burnish.store import RunStore


def append(store: RunStore, step: int) -> None:
    store.append_rollouts(step, [hostile_sample(step, index) for index in range(4)])
    store.append_metrics(step, {"reward/total": float(step)})


def test_every_page_follows_a_growing_run(tmp_path):
    with (
        RunStore.create(tmp_path / "live", {"steps": 9}, {}) as store,
        open_client(tmp_path) as client,
    ):
        before = client.run("live", "/pulse")
        assert (before["status"], before["live"], before["last_step"]) == ("running", True, None)
        for step in range(3):
            append(store, step)
            pulse = client.run("live", "/pulse")
            assert (pulse["last_step"], pulse["samples"]) == (step, 4 * (step + 1))
            assert client.run("live", "/samples")["samples"][0]["step"] == step
            assert client.run("live", "/metrics", since=step - 1)["curves"]["reward/total"][
                "steps"
            ] == [step]
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:  # the index works in the background
            found = client.run("live", "/samples", status="ok")
            if found["searched"]["complete"]:
                break
            assert "samples so far" in found["searched"]["line"]
            time.sleep(0.02)
        assert found["count"] == 6
        (line,) = client.get("/runs")["runs"]
        assert (line["live"], line["steps"]) == (True, 3)
        store.append_event("guard", "look", {}, 2)
        assert client.run("live", "/events")["events"][0]["message"] == "look"
    with open_client(tmp_path) as client:
        assert client.run("live", "/pulse")["status"] == "crashed"


def test_a_writer_is_never_held_up_and_its_log_is_folded_in(tmp_path):
    over = threading.Event()
    problems: list[Exception] = []

    def look() -> None:
        try:
            with open_client(tmp_path) as client:
                while not over.is_set():
                    for page in ("/pulse", "/samples", "/metrics", "/facets"):
                        client.run("live", page)
        except Exception as error:  # told to the test
            problems.append(error)

    with RunStore.create(tmp_path / "live", {}, {}) as store:
        append(store, 0)
        reader = threading.Thread(target=look)
        reader.start()
        slowest = 0.0
        for step in range(1, 60):
            start = time.perf_counter()
            append(store, step)
            slowest = max(slowest, time.perf_counter() - start)
        over.set()
        reader.join(timeout=120)
        log = (tmp_path / "live" / "run.db-wal").stat().st_size
    assert not problems
    assert slowest < 9.0  # a held-up writer would wait for its busy timeout of 10 s
    assert log < 40 << 20


def test_a_run_that_vanishes_is_one_line(tmp_path, monkeypatch):
    monkeypatch.setattr("burnish.view.pages.runs.FRESH_S", 3600.0)
    runs = tmp_path / "runs"
    with RunStore.create(runs / "gone", {}, {}) as store:
        append(store, 0)
    with open_client(runs) as client:
        assert client.run("gone", "/samples")["count"] == 4
        client.indexed("gone")
        (runs / "gone").rename(tmp_path / "elsewhere")
        assert "error" in client.run("gone", "/samples", 500)
        monkeypatch.setattr("burnish.view.pages.runs.FRESH_S", 0.0)
        assert client.run("gone", "/samples", 404)["error"].startswith("no run 'gone'")
        assert client.get("/runs")["runs"] == []
