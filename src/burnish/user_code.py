"""Keep the process usable while users' rewards, judges and task functions run inside it.

Settings of the whole process that user code changes (the working folder, torch's default dtype,
resource limits) are restored afterwards. Environment variables and import paths that it adds stay.
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

_inside: ContextVar[int] = ContextVar("burnish_user_code", default=0)
"""The process in which user code is running; 0 where none is."""
_end_process = os._exit
_before_exit: list[tuple[int, Callable[[int], object]]] = []
"""Process and what to call in it before it ends."""
_logged: set[str] = set()


class ExitRefused(SystemExit):
    """User code tried to end the process."""


@contextmanager
def calling_user_code() -> Iterator[None]:
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
    for pid, tell in _before_exit:
        if pid == os.getpid():
            tell(status)
    _end_process(status)


@contextmanager
def tell_before_exit(tell: Callable[[int], object]) -> Iterator[None]:
    """While inside, `tell(status)` is called before `os._exit` ends this process."""
    if os._exit is _end_process:
        os._exit = _refuse_exit
    entry = (os.getpid(), tell)
    _before_exit.append(entry)
    try:
        yield
    finally:
        _before_exit.remove(entry)


@contextmanager
def restored(tell: Callable[[str], object], *, choices: bool = True) -> Iterator[None]:
    """Afterwards the process is set back to what it was; `tell` gets each change in words.

    Without `choices`, what code may choose for a whole run as it is imported stays.
    """
    settings = [one for one in _settings() if choices or not one.is_choice]
    before = [(setting, setting.read()) for setting in settings]
    streams = [_Stream("stdout"), _Stream("stderr")]
    try:
        yield
    finally:
        changed = [what for setting, value in before if (what := setting.restore(value))]
        changed += [f"sys.{one.name} (closed or replaced)" for one in streams if one.restore()]
        for what in changed:
            tell(what)


@contextmanager
def kept(who: str) -> Iterator[None]:
    """Around one call in the main thread: `calling_user_code` and `restored`, logged once."""

    def tell(what: str) -> None:
        line = f"{who} changed {what}; it was set back."
        if line not in _logged:
            _logged.add(line)
            logger.warning(line)

    with restored(tell), calling_user_code():
        yield


class _Setting(NamedTuple):
    name: str
    read: Callable[[], Any]
    write: Callable[[Any], object]
    differs: Callable[[Any, Any], bool] = operator.ne
    """Of what was before and what is now."""
    is_choice: bool = False
    """Code that is imported before a run may choose it for the run."""

    def restore(self, before: Any) -> str:
        """Set it back where it differs; what it had been changed to, in words."""
        now = self.read()
        if not self.differs(before, now):
            return ""
        with suppress(OSError, ValueError):  # what cannot be restored is reported all the same
            self.write(before)
        text = str(now)
        return f"{self.name} (to {text if len(text) <= 60 else f'{text[:60]}...'})"


def _settings() -> Iterator[_Setting]:
    yield _Setting("the working folder", _folder, os.chdir)
    yield _Setting("the mask of new files", _umask, lambda mask: os.umask(int(mask, 8)))
    yield _Setting("the recursion limit", sys.getrecursionlimit, sys.setrecursionlimit)
    yield _Setting("the locale", _set_locale, _set_locale)
    yield _Setting("the limits of the process", _limits, _set_limits)
    yield _Setting("the environment", _environment, _add_environment, _lacks)
    yield _Setting("the import paths", sys.path.copy, _add_paths, _lacks)
    yield _Setting("imported packages", _packages, sys.modules.update, _replaced)
    yield _Setting("which warnings are errors", _raising, _set_raising)
    if threading.current_thread() is threading.main_thread():
        yield _Setting("signal handlers", _handlers, _set_handlers)
    if "torch" in sys.modules:
        yield from _torch_settings()


def _torch_settings() -> Iterator[_Setting]:
    import torch

    def set_device(name: str) -> None:
        # None is no default at all: naming the CPU would make every call of torch slower.
        torch.set_default_device(None if name == "cpu" else name)

    def set_inference(is_on: bool) -> None:
        # Only the object that entered a mode can leave it; another one over it says the opposite.
        torch.inference_mode(is_on).__enter__()

    yield _Setting("torch's default dtype", torch.get_default_dtype, torch.set_default_dtype)
    yield _Setting("torch's default device", lambda: str(torch.get_default_device()), set_device)
    yield _Setting("torch's number of threads", torch.get_num_threads, torch.set_num_threads)
    yield _Setting("torch's gradient mode", torch.is_grad_enabled, torch.set_grad_enabled)
    yield _Setting("torch's inference mode", torch.is_inference_mode_enabled, set_inference)
    yield _Setting(
        "torch's anomaly detection", torch.is_anomaly_enabled, torch.autograd.set_detect_anomaly
    )
    yield _Setting(
        "torch's precision of matrix products",
        torch.get_float32_matmul_precision,
        torch.set_float32_matmul_precision,
        is_choice=True,
    )
    yield _Setting(
        "torch's deterministic mode",
        torch.are_deterministic_algorithms_enabled,
        torch.use_deterministic_algorithms,
        is_choice=True,
    )


def _folder() -> str:
    try:
        return os.getcwd()
    except OSError:  # it was removed
        return "nothing"


def _packages() -> dict[str, Any]:
    """Packages that a second import would break or double."""
    names = ("burnish", "msgspec", "numpy", "torch")
    return {name: sys.modules[name] for name in names if name in sys.modules}


def _replaced(before: dict[str, Any], now: dict[str, Any]) -> bool:
    return any(now.get(name) is not module for name, module in before.items())


def _umask() -> str:
    mask = os.umask(0o077)
    os.umask(mask)
    return oct(mask)


def _set_locale(name: str | None = None) -> str:
    return locale.setlocale(locale.LC_ALL, name)


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


def _set_limits(limits: dict[str, tuple[int, int]]) -> None:
    for name, (soft, _) in limits.items():
        # A hard limit that was lowered stays so; the soft one may go up to it.
        hard = resource.getrlimit(_LIMITS[name])[1]
        reach = soft if hard == resource.RLIM_INFINITY or 0 <= soft <= hard else hard
        resource.setrlimit(_LIMITS[name], (reach, hard))


def _environment() -> dict[bytes, bytes]:
    """A copy that decodes nothing: `os.environ.copy()` costs more than most calls it guards."""
    data: dict[bytes, bytes] = os.environ._data  # type: ignore[attr-defined]
    return data.copy()


def _add_environment(before: Mapping[bytes, bytes]) -> None:
    os.environb.update({name: before[name] for name in before.keys() - os.environb.keys()})


def _add_paths(before: Sequence[str]) -> None:
    sys.path += [path for path in before if path not in sys.path]


def _lacks(before: Collection[Any], now: Collection[Any]) -> bool:
    """Whether something is gone; what was added is no harm."""
    return not set(before) <= set(now)


def _raising() -> list[Any]:
    return [rule for rule in warnings.filters if rule[0] == "error"]


def _set_raising(before: list[Any]) -> None:
    rules = [rule for rule in warnings.filters if rule[0] != "error" or rule in before]
    warnings.filters[:] = rules  # type: ignore[index]


_SIGNALS = (signal.SIGTERM, signal.SIGPIPE, signal.SIGCHLD)
"""Without SIGINT, which the event loop itself takes and gives back."""


def _handlers() -> list[Any]:
    return [signal.getsignal(number) for number in _SIGNALS]


def _set_handlers(before: list[Any]) -> None:
    for number, handler in zip(_SIGNALS, before, strict=True):
        if handler is not None:  # one that was not set from Python cannot be
            signal.signal(number, handler)


class _Stream:
    """`sys.stdout` or `sys.stderr`: the object, and the descriptor that it writes to."""

    def __init__(self, name: str) -> None:
        self.name, self.stream = name, getattr(sys, name)
        self.number, self.copy = -1, -1
        with suppress(OSError, ValueError, AttributeError):  # a stream that is no file
            number = self.stream.fileno()
            self.number, self.copy = number, os.dup(number)

    def restore(self) -> bool:
        """Put it back; True where it was closed or replaced."""
        is_changed = self.copy >= 0 and self._restore_descriptor()
        if self.copy >= 0 and getattr(self.stream, "closed", False):
            encoding, errors = self.stream.encoding, self.stream.errors
            self.stream = open(  # noqa: SIM115 - it lives as long as the process
                self.number, "w", encoding=encoding, errors=errors, buffering=1, closefd=False
            )
        is_changed |= getattr(sys, self.name) is not self.stream
        setattr(sys, self.name, self.stream)
        return is_changed

    def _restore_descriptor(self) -> bool:
        try:
            is_changed = not os.path.sameopenfile(self.number, self.copy)
        except OSError:  # closed
            is_changed = True
        with suppress(OSError):
            if is_changed:
                os.dup2(self.copy, self.number)
            os.close(self.copy)
        return is_changed
