"""What the pool's tests let children do. Imported by import path inside the child."""

import os
import signal
import sys
import time


def double(number: int) -> int:
    return 2 * number


def pid_of() -> int:
    return os.getpid()


def nap(seconds: float) -> str:
    time.sleep(seconds)
    return "awake"


def spin_or_nap(seconds: float | None) -> str:
    """A nap that uses no processor time; without a length, work that never ends."""
    while seconds is None:
        pass
    return nap(seconds)


def work(seconds: float) -> int:
    """So much processor time, then the number of the process."""
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass
    return os.getpid()


def spin_in_c(exponent: int) -> int:
    """Holds the interpreter lock in C code: no thread or signal handler of Python's gets in."""
    return len(str(9 ** (9**exponent)))


def die() -> None:
    sys.stderr.write("famous last words\n")
    sys.stderr.flush()
    os.kill(os.getpid(), signal.SIGKILL)


def fail(text: str) -> None:
    raise ValueError(text)


def hoard(megabytes: int) -> int:
    return len(bytearray(megabytes << 20))


def length(text: str) -> int:
    return len(text)


def not_a_number() -> float:
    return float("nan")


def chatter(number: int) -> int:
    print("noise on standard output")  # noqa: T201 (the noise is the test)
    return number


def has_module(name: str) -> bool:
    return name in sys.modules
