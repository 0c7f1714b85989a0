"""Code of the user's own runs inside our process: what it may not do to it, and what is set back.

    with own_code():                        # os._exit() raises in here instead of ending the run
        value = function(text)

    before = Surroundings()                 # before a reward, a judge or a task function runs
    ...
    for line in before.restore():           # afterwards: "the working folder (to /tmp)"
        logger.warning(line)

A function that changes the working folder, torch's default dtype or the limits of the process means
it for itself; the run goes on with what it had. Only what is wrong for everybody is set back:
environment variables and import paths that were added stay.
"""

from __future__ import annotations

import locale
import logging
import operator
import os
import resource
import signal
import sys
import threading
import warnings
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, NamedTuple, NoReturn

logger = logging.getLogger(__name__)

_inside: ContextVar[int] = ContextVar("burnish_own_code", default=0)
"""The process in which code of the user's own is running; 0 where none is."""
_end_process = os._exit


class ExitRefused(SystemExit):
    """Code of the user's own tried to end the process."""


@contextmanager
def own_code() -> Iterator[None]:
    """Around a call of the user's code: `os._exit` raises `ExitRefused` there.

    It would end the run without a word and with exit code 0. Elsewhere, and in processes that the
    code forks, it does what it always did. A fork that comes back from the call ends here.
    """
    if os._exit is _end_process:
        os._exit = _refuse_exit
    owner = os.getpid()
    token = _inside.set(owner)
    try:
        yield
    finally:
        with suppress(ValueError):  # a coroutine that is thrown away ends in another context
            _inside.reset(token)
        if os.getpid() != owner:
            _end_process(1)


def _refuse_exit(status: int) -> NoReturn:
    if _inside.get() == os.getpid():
        raise ExitRefused(f"os._exit({status}) was called, which would end the whole run")
    _end_process(status)


@contextmanager
def kept(who: str) -> Iterator[None]:
    """Around user's code in the main thread: what it changes is set back, and told once."""
    before = Surroundings()
    try:
        with own_code():
            yield
    finally:
        for what in before.restore():
            line = f"{who} changed {what}; it was set back."
            if line not in _told:
                _told.add(line)
                logger.warning(line)
        before.close()


_told: set[str] = set()


class Setting(NamedTuple):
    """One thing that belongs to the whole process."""

    name: str
    read: Callable[[], Any]
    put_back: Callable[[Any], object]
    shown: Callable[[Any], str] = str
    differs: Callable[[Any, Any], bool] = operator.ne
    """Of what was before and what is now."""
    is_choice: bool = False
    """Code that is imported before a run may choose it for the run."""


class Surroundings:
    """The state of the process as it was when this was made."""

    def __init__(self) -> None:
        self._before = [(setting, setting.read()) for setting in _settings()]
        self._streams = [_Stream(name) for name in ("stdout", "stderr")]

    def restore(self, *, choices: bool = True) -> list[str]:
        """Set back what differs now; each in words, with what it had been changed to.

        Without `choices`, what code may choose for a whole run as it is imported stays.
        """
        changed = []
        for setting, before in self._before:
            if setting.is_choice and not choices:
                continue
            try:
                now = setting.read()
            except OSError:  # the working folder was removed
                now = "nothing"
            if now != "nothing" and not setting.differs(before, now):
                continue
            with suppress(OSError, ValueError):  # what cannot be set back is told all the same
                setting.put_back(before)
            changed.append(f"{setting.name} (to {setting.shown(now)})")
        return changed + [stream.name for stream in self._streams if stream.restore()]

    def close(self) -> None:
        """Let go of what is held."""
        for stream in self._streams:
            stream.close()


def _settings() -> Iterator[Setting]:
    yield Setting("the working folder", os.getcwd, os.chdir)
    yield Setting("the mask of new files", _umask, os.umask, oct)
    yield Setting("the recursion limit", sys.getrecursionlimit, sys.setrecursionlimit)
    yield Setting("the locale", _locale, lambda name: locale.setlocale(locale.LC_ALL, name))
    yield Setting("the limits of the process", _limits, _put_limits, _few)
    yield Setting("the environment", os.environ.copy, _put_environment, _few, _lacks)
    yield Setting("the import paths", sys.path.copy, _put_paths, _few, _lacks)
    yield Setting("imported packages", _packages, sys.modules.update, _few, _replaced)
    yield Setting("which warnings are errors", _raising, _put_raising, _few)
    if threading.current_thread() is threading.main_thread():
        yield Setting("signal handlers", _handlers, _put_handlers, _few)
    if "torch" in sys.modules:
        yield from _torch_settings()


def _torch_settings() -> Iterator[Setting]:
    import torch

    yield Setting("torch's default dtype", torch.get_default_dtype, torch.set_default_dtype)
    yield Setting(
        "torch's default device",
        lambda: str(torch.get_default_device()),
        # None is no default at all: naming the CPU would make every call of torch slower.
        lambda name: torch.set_default_device(None if name == "cpu" else name),
    )
    yield Setting("torch's number of threads", torch.get_num_threads, torch.set_num_threads)
    yield Setting("torch's gradient mode", torch.is_grad_enabled, _put_gradients)
    yield Setting("torch's inference mode", torch.is_inference_mode_enabled, _put_inference)
    yield Setting(
        "torch's precision of matrix products",
        torch.get_float32_matmul_precision,
        torch.set_float32_matmul_precision,
        is_choice=True,
    )
    yield Setting(
        "torch's deterministic mode",
        torch.are_deterministic_algorithms_enabled,
        torch.use_deterministic_algorithms,
        is_choice=True,
    )
    yield Setting(
        "torch's anomaly detection", torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly
    )


def _packages() -> dict[str, Any]:
    """Packages that a second import would break or double."""
    names = ("burnish", "msgspec", "numpy", "torch")
    return {name: sys.modules[name] for name in names if name in sys.modules}


def _replaced(before: dict[str, Any], now: dict[str, Any]) -> bool:
    return any(now.get(name) is not module for name, module in before.items())


def _umask() -> int:
    mask = os.umask(0o077)
    os.umask(mask)
    return mask


def _locale() -> str:
    return locale.setlocale(locale.LC_ALL)


_LIMITS = {
    "open files": resource.RLIMIT_NOFILE,
    "file size": resource.RLIMIT_FSIZE,
    "memory": resource.RLIMIT_AS,
    "data": resource.RLIMIT_DATA,
    "processor time": resource.RLIMIT_CPU,
    "core dumps": resource.RLIMIT_CORE,
}


def _limits() -> dict[str, tuple[int, int]]:
    return {name: resource.getrlimit(kind) for name, kind in _LIMITS.items()}


def _put_limits(limits: dict[str, tuple[int, int]]) -> None:
    for name, (soft, _) in limits.items():
        # A hard limit that was lowered stays so; the soft one may go up to it.
        hard = resource.getrlimit(_LIMITS[name])[1]
        reach = soft if hard == resource.RLIM_INFINITY or 0 <= soft <= hard else hard
        resource.setrlimit(_LIMITS[name], (reach, hard))


def _put_environment(before: Mapping[str, str]) -> None:
    for name in before.keys() - os.environ.keys():
        os.environ[name] = before[name]


def _put_paths(before: Sequence[str]) -> None:
    sys.path += [path for path in before if path not in sys.path]


def _lacks(before: Collection[str], now: Collection[str]) -> bool:
    """Whether something is gone; what was added is no harm."""
    return not set(before) <= set(now)


def _few(now: Any) -> str:
    text = str(now)
    return text if len(text) <= 60 else f"{text[:60]}..."


def _raising() -> list[Any]:
    return [rule for rule in warnings.filters if rule[0] == "error"]


def _put_raising(before: list[Any]) -> None:
    kept = [rule for rule in warnings.filters if rule[0] != "error" or rule in before]
    warnings.filters[:] = kept  # type: ignore[index]


_SIGNALS = (signal.SIGTERM, signal.SIGPIPE, signal.SIGCHLD)
"""Without SIGINT, which the event loop itself takes and gives back."""


def _handlers() -> list[Any]:
    return [signal.getsignal(number) for number in _SIGNALS]


def _put_handlers(before: list[Any]) -> None:
    for number, handler in zip(_SIGNALS, before, strict=True):
        if handler is not None:  # one that was not set from Python cannot be
            signal.signal(number, handler)


def _put_gradients(is_enabled: bool) -> None:
    import torch

    torch.set_grad_enabled(is_enabled)


def _put_inference(is_enabled: bool) -> None:
    import torch

    # A mode is left by the object that entered it, which nobody has; one over it says the opposite.
    torch.inference_mode(is_enabled).__enter__()


class _Stream:
    """`sys.stdout` or `sys.stderr`: the object, and the descriptor that it writes to."""

    def __init__(self, name: str) -> None:
        self.key = name
        self.name = f"sys.{name} (closed or replaced)"
        self.stream = getattr(sys, name)
        self.number, self.copy = -1, -1
        try:
            self.number = self.stream.fileno()
            self.copy = os.dup(self.number)
        except (OSError, ValueError, AttributeError):  # a stream that is no file
            self.number = -1

    def restore(self) -> bool:
        """Put it back where it is closed or another one; True where it was."""
        is_changed = self._restore_descriptor()
        if getattr(self.stream, "closed", False) and self.number >= 0:
            encoding, errors = self.stream.encoding, self.stream.errors
            self.stream = open(  # noqa: SIM115 - it lives as long as the process
                self.number, "w", encoding=encoding, errors=errors, buffering=1, closefd=False
            )
        if getattr(sys, self.key) is self.stream:
            return is_changed
        setattr(sys, self.key, self.stream)
        return True

    def _restore_descriptor(self) -> bool:
        if self.copy < 0:
            return False
        try:
            if os.path.sameopenfile(self.number, self.copy):
                return False
        except OSError:  # closed
            pass
        with suppress(OSError):
            os.dup2(self.copy, self.number)
        return True

    def close(self) -> None:
        if self.copy >= 0:
            with suppress(OSError):
                os.close(self.copy)
            self.copy = -1
