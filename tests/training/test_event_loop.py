import signal
import subprocess
import sys
import time
from importlib.util import find_spec

SCRIPT = """
import functools, runpy, time, sys
import anyio
EventLoop = runpy.run_path(sys.argv[1])["EventLoop"]

async def work():
    async with anyio.create_task_group() as group:
        group.start_soon(functools.partial(anyio.to_thread.run_sync, lambda: time.sleep(0.5)))
        print("working", flush=True)

loop = EventLoop()
try:
    loop.run(work)
except KeyboardInterrupt:
    print("interrupted", flush=True)
finally:
    loop.close()
"""


def test_an_interrupted_wait_leaves_no_thread_behind():
    # The file alone: its package would bring torch.
    file = find_spec("burnish.training.watchdog").origin
    words = [sys.executable, "-c", SCRIPT, file]
    child = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "working\n"
    child.send_signal(signal.SIGINT)
    started = time.monotonic()
    out, _ = child.communicate(timeout=120)
    assert out == "interrupted\n"
    assert child.returncode == 0
    assert time.monotonic() - started < 60


BESIDE = """
import asyncio, runpy, sys
EventLoop = runpy.run_path(sys.argv[1])["EventLoop"]
loop, seen = EventLoop(), []

async def endless():
    try:
        while True:
            seen.append(len(seen))
            await asyncio.sleep(0.01)
    finally:
        seen.append("ended")

async def short():
    await asyncio.sleep(0.05)
    return asyncio.get_running_loop()

first = loop.run(short)
under_way = loop.begin(endless)
assert loop.run(short) is first is loop.running()
assert len(seen) > 1, "it went on beside"
loop.begin(short).result(10)
print("working", flush=True)
try:
    loop.run(lambda: asyncio.sleep(60))
except KeyboardInterrupt:
    print("interrupted", flush=True)
finally:
    loop.close()
assert seen[-1] == "ended" and under_way.cancelled()
"""


def test_a_coroutine_that_was_begun_goes_on_beside_and_ends_with_the_loop():
    file = find_spec("burnish.training.watchdog").origin
    words = [sys.executable, "-c", BESIDE, file]
    child = subprocess.Popen(words, stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "working\n"
    time.sleep(0.1)
    child.send_signal(signal.SIGINT)
    out, _ = child.communicate(timeout=120)
    assert out == "interrupted\n"
    assert child.returncode == 0
