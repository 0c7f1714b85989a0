"""Ctrl-C in the middle of sampling ends the process, and leaves a run that continues."""

import signal
import subprocess
import sys
import time

SCRIPT = """
import functools, time, sys
import anyio
from burnish.training.event_loop import EventLoop

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
    child = subprocess.Popen([sys.executable, "-c", SCRIPT], stdout=subprocess.PIPE, text=True)
    assert child.stdout is not None
    assert child.stdout.readline() == "working\n"
    child.send_signal(signal.SIGINT)
    started = time.monotonic()
    out, _ = child.communicate(timeout=20)
    assert out == "interrupted\n"
    assert child.returncode == 0
    assert time.monotonic() - started < 10
