"""The pool: clocks that hold, deaths that cost one job, neighbours that do not notice."""

import contextlib
import os
import subprocess
import sys
import textwrap
import threading
import time

import anyio
import pytest

from burnish.rewards import Mathematics, Pool


@pytest.fixture(scope="module")
def pool():
    made = Pool(2, memory_mb=512)
    yield made
    made.close()


def results(outcomes):
    return [(outcome.status.value, outcome.value) for outcome in outcomes]


def test_a_batch_comes_back_in_order(pool):
    outcomes = pool.run("pool_jobs:double", [{"number": n} for n in range(50)], timeout_s=5)
    assert results(outcomes) == [("ok", 2 * n) for n in range(50)]


def test_children_stay_warm(pool):
    first = pool.run("pool_jobs:pid_of", [{}], timeout_s=5)[0].value
    warm = set(pool.pids())
    later = {pool.run("pool_jobs:pid_of", [{}], timeout_s=5)[0].value for _ in range(6)}
    # Whichever child is free takes the job; none is started anew.
    assert later <= warm
    assert first in warm
    assert set(pool.pids()) == warm
    assert os.getpid() not in warm


def test_a_stuck_job_is_killed_and_its_neighbours_are_served(pool):
    jobs = [{"seconds": 0}, {"seconds": None}, {"seconds": 0}]
    outcomes = pool.run("pool_jobs:spin_or_nap", jobs, timeout_s=0.3)
    assert results(outcomes) == [("ok", "awake"), ("timeout", None), ("ok", "awake")]
    assert outcomes[1].reason == "killed after 0.3 s of computing"
    assert len(pool.pids()) <= pool.size


def test_a_job_in_c_code_is_killed_too(pool):
    outcomes = pool.run("pool_jobs:spin_in_c", [{"exponent": 9}], timeout_s=0.2)
    assert outcomes[0].status == "timeout"
    assert outcomes[0].reason == "killed after 0.2 s of computing"


def test_a_job_that_waits_for_its_turn_on_the_processor_is_not_late(pool):
    (waited,) = pool.run("pool_jobs:nap", [{"seconds": 0.5}], timeout_s=0.4)
    assert (waited.status, waited.value) == ("ok", "awake")


def test_a_job_that_never_computes_is_killed_in_the_end(pool):
    (stuck,) = pool.run("pool_jobs:nap", [{"seconds": 3600}], timeout_s=0.05)
    assert (stuck.status, stuck.reason) == ("timeout", "killed after 0.5 s on the wall")


def test_every_job_has_a_clock_of_its_own():
    """What earlier jobs of the same process have used counts for nobody."""
    small = Pool(1)
    try:
        outcomes = small.run("pool_jobs:work", [{"seconds": 0.15}] * 3, timeout_s=0.4)
        pids = {outcome.value for outcome in outcomes}
    finally:
        small.close()
    assert [outcome.status.value for outcome in outcomes] == ["ok"] * 3
    assert len(pids) == 1


def test_a_crash_leaves_last_words(pool):
    crash, after = pool.run("pool_jobs:die", [{}, {}], timeout_s=5)
    assert (crash.status, after.status) == ("infra_error", "infra_error")
    assert "signal 9" in crash.reason
    assert "famous last words" in crash.reason
    assert results(pool.run("pool_jobs:double", [{"number": 4}], timeout_s=5)) == [("ok", 8)]


def test_the_memory_limit_costs_one_job(pool):
    jobs = [{"megabytes": 1}, {"megabytes": 4000}, {"megabytes": 2}]
    outcomes = pool.run("pool_jobs:hoard", jobs, timeout_s=10)
    assert [o.status.value for o in outcomes] == ["ok", "infra_error", "ok"]
    assert "memory limit" in outcomes[1].reason


def test_an_exception_is_told_in_one_line(pool):
    (outcome,) = pool.run("pool_jobs:fail", [{"text": "two\nlines"}], timeout_s=5)
    assert (outcome.status, outcome.reason) == ("infra_error", "ValueError: two lines")


def test_a_result_that_is_not_json_is_an_error(pool):
    (outcome,) = pool.run("pool_jobs:not_a_number", [{}], timeout_s=5)
    assert outcome.status == "infra_error"


@pytest.mark.parametrize("path", ["pool_jobs:nothing", "no_such_module:f", "no_colon"])
def test_an_unknown_function_fails_every_job(pool, path):
    outcomes = pool.run(path, [{}, {}], timeout_s=5)
    assert [o.status.value for o in outcomes] == ["infra_error", "infra_error"]


def test_noise_and_large_and_odd_texts_do_not_break_the_line(pool):
    assert results(pool.run("pool_jobs:chatter", [{"number": 7}], timeout_s=5)) == [("ok", 7)]
    texts = ["x" * 10_000_000, "\ud800 lone surrogate", ""]
    outcomes = pool.run("pool_jobs:length", [{"text": text} for text in texts], timeout_s=20)
    assert results(outcomes) == [("ok", len(text)) for text in texts]


def test_many_threads_share_the_children(pool):
    seen = {}

    def work(n):
        seen[n] = pool.run("pool_jobs:double", [{"number": n}], timeout_s=10)[0].value

    threads = [threading.Thread(target=work, args=(n,)) for n in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert seen == {n: 2 * n for n in range(12)}
    assert len(pool.pids()) <= pool.size


def test_a_cancelled_caller_leaves_at_once_and_takes_its_jobs_along(pool):
    async def main():
        async with anyio.create_task_group() as group:
            jobs = [{"seconds": 30}] * 20
            group.start_soon(lambda: pool.run_async("pool_jobs:nap", jobs, timeout_s=5))
            await anyio.sleep(0.2)
            group.cancel_scope.cancel()
        return await pool.run_async("pool_jobs:double", [{"number": 4}], timeout_s=5)

    started = time.monotonic()
    assert results(anyio.run(main)) == [("ok", 8)]
    assert time.monotonic() - started < 60  # twenty naps on two children would be five minutes


def test_a_deadline_returns_what_is_finished(pool):
    # Three quick ones, one without end, and more naps than fit into any of the deadlines.
    jobs = [{"seconds": s} for s in (0, 0, 0, None, *[3600] * 60, 0)]

    async def main(deadline_s):
        with anyio.fail_after(deadline_s):
            return await pool.run_async("pool_jobs:spin_or_nap", jobs, timeout_s=0.1)

    pool.run("pool_jobs:spin_or_nap", [{"seconds": 0}] * 4, timeout_s=5)
    outcomes = []
    for deadline_s in (1, 5, 25):  # a slow machine needs a longer one to finish the first four
        with contextlib.suppress(TimeoutError):  # it had no processor in the last tenth of it
            outcomes = anyio.run(main, deadline_s)
        if outcomes and all("deadline" not in outcome.reason for outcome in outcomes[:4]):
            break
    assert results(outcomes[:3]) == [("ok", "awake")] * 3
    assert [o.status.value for o in outcomes[3:-1]] == ["timeout"] * 61
    assert "killed after" in outcomes[3].reason
    assert "deadline of its group" in outcomes[-2].reason


def test_callers_whose_jobs_hang_do_not_hold_up_another(pool):
    async def main():
        served = {}

        async def call(name, seconds, count):
            jobs = [{"seconds": seconds}] * count
            served[name] = await pool.run_async("pool_jobs:spin_or_nap", jobs, timeout_s=0.1)

        async with anyio.create_task_group() as group:
            for name in range(4):
                group.start_soon(call, name, None, 3)
            await anyio.sleep(0.05)
            group.start_soon(call, "healthy", 0, 8)
        return served

    served = anyio.run(main)
    assert next(iter(served)) == "healthy"
    assert results(served["healthy"]) == [("ok", "awake")] * 8
    assert all(o.status == "timeout" for name in range(4) for o in served[name])


def test_a_child_that_cannot_start_is_an_error_and_not_the_end(monkeypatch):
    small = Pool(1)

    def refuse(*args, **kwargs):
        raise BlockingIOError(11, "no more processes")

    try:
        with monkeypatch.context() as patch:
            patch.setattr(subprocess, "Popen", refuse)
            for _ in range(2):
                outcomes = small.run("pool_jobs:double", [{"number": 1}] * 2, timeout_s=5)
                assert [o.status.value for o in outcomes] == ["infra_error"] * 2
                assert "could not start" in outcomes[0].reason
        assert results(small.run("pool_jobs:double", [{"number": 1}], timeout_s=5)) == [("ok", 2)]
    finally:
        small.close()


def test_old_children_are_replaced():
    small = Pool(1, jobs_per_child=2)
    try:
        pids = {small.run("pool_jobs:pid_of", [{}], timeout_s=5)[0].value for _ in range(5)}
    finally:
        small.close()
    assert len(pids) == 3


def test_a_module_is_imported_once_for_all_children_and_after_deaths(tmp_path, monkeypatch):
    imports = tmp_path / "imports"
    source = f"""
        import time
        open({str(imports)!r}, "a").write("x")

        def nap(seconds):
            time.sleep(seconds)

        def spin():
            while True:
                pass
    """
    (tmp_path / "costly_module.py").write_text(textwrap.dedent(source))
    monkeypatch.syspath_prepend(str(tmp_path))
    several = Pool(3)
    try:
        several.run("costly_module:nap", [{"seconds": 0.3}] * 3, timeout_s=5)
        first = set(several.pids())
        assert len(first) == 3
        several.run("costly_module:spin", [{}] * 2, timeout_s=0.05)
        several.run("costly_module:nap", [{"seconds": 0.3}] * 3, timeout_s=5)
        assert len(set(several.pids()) - first) == 2
    finally:
        several.close()
    assert imports.read_text() == "x"


def test_a_file_is_loaded_without_a_package_around_it(tmp_path):
    (tmp_path / "__init__.py").write_text("raise RuntimeError('imported')\n")
    (tmp_path / "alone.py").write_text("def double(number):\n    return 2 * number\n")
    fresh = Pool(1)
    try:
        outcomes = fresh.run(f"{tmp_path / 'alone.py'}:double", [{"number": 4}], timeout_s=5)
        missing = fresh.run(f"{tmp_path / 'none.py'}:double", [{"number": 4}], timeout_s=5)
    finally:
        fresh.close()
    assert results(outcomes) == [("ok", 8)]
    assert missing[0].status == "infra_error"
    assert "none.py" in missing[0].reason


def test_a_killed_fork_server_is_replaced():
    fresh = Pool(1)
    try:
        assert results(fresh.run("pool_jobs:double", [{"number": 1}], timeout_s=5)) == [("ok", 2)]
        fresh._server._process.kill()
        for _ in range(2):  # the child outlives it, and the next is forked from a new one
            outcomes = fresh.run("pool_jobs:double", [{"number": 1}], timeout_s=5)
            assert results(outcomes) == [("ok", 2)]
            fresh._children[0].kill()
    finally:
        fresh.close()


def test_a_closed_pool_says_so():
    closed = Pool(1)
    closed.close()
    (outcome,) = closed.run("pool_jobs:double", [{"number": 1}], timeout_s=5)
    assert outcome.status == "infra_error"
    assert "closed" in outcome.reason


def test_children_do_not_import_what_the_parent_imported(monkeypatch):
    """A parent with torch loaded must not hand its weight to every child."""
    monkeypatch.setitem(sys.modules, "torch", object())
    fresh = Pool(1)
    try:
        (outcome,) = fresh.run("pool_jobs:has_module", [{"name": "torch"}], timeout_s=5)
        checks = fresh.run(
            Mathematics.child, [{"answer": "1", "golds": ["1"], "explicit": True}], timeout_s=20
        )
        names = [{"name": "torch"}, {"name": "sympy"}, {"name": "burnish"}]
        after = fresh.run("pool_jobs:has_module", names, timeout_s=5)
    finally:
        fresh.close()
    assert outcome.value is False
    assert checks[0].value["equal"]
    assert [found.value for found in after] == [False, True, False]


def test_children_die_with_a_killed_parent():
    script = """
        import os, signal, sys
        from burnish.rewards import Pool
        pool = Pool(1)
        for function in ("os:getpid", "os:getppid"):
            sys.stdout.write(f"{pool.run(function, [{}], timeout_s=5)[0].value} ")
        sys.stdout.flush()
        os.kill(os.getpid(), signal.SIGKILL)
    """
    path = os.pathsep.join(filter(None, sys.path))
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(script)], capture_output=True, text=True,
        check=False, env={**os.environ, "PYTHONPATH": path}, timeout=300,
    )  # fmt: skip
    child, server = map(int, done.stdout.split())
    assert min(child, server) > 1
    deadline = time.monotonic() + 60
    while (_alive(child) or _alive(server)) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not _alive(child)
    assert not _alive(server)


def _alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False
