"""The door of the sandboxed process: `python -c ... ORDER_FD REPORT_FD`.

Three processes, each with its own part. The *outer* one enters the namespaces and waits. The
*keeper* (process 1 of the new table) starts the third, waits for it, reports how it ended, and
takes everything else with it when it goes. Foreign code runs only in the third, which has no
descriptor of the report.
"""

from __future__ import annotations

import builtins
import contextlib
import json
import os
import signal
import sys
import types
from collections.abc import Callable
from functools import partial
from typing import Any

from . import confine, kernel
from .descend import end_below, remove
from .run_spec import RunSpec, from_json


class Report:
    def __init__(self, descriptor: int) -> None:
        self.descriptor = descriptor

    def say(self, **line: Any) -> None:
        os.write(self.descriptor, json.dumps(line).encode() + b"\n")


def main(order_descriptor: int, report_descriptor: int) -> None:
    """Read the spec, split into the three processes, return only in the one that runs code."""
    report = Report(report_descriptor)
    with open(order_descriptor, "rb") as pipe:
        spec = from_json(pipe.read())
    sys.dont_write_bytecode = True
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    try:
        play = _role(spec.role)
        _outer(spec)
        _keeper(spec, report)
        _third(spec, report)
    except Exception as error:  # boundary: whatever went wrong, the parent is told and no code runs
        report.say(problem=f"{type(error).__name__}: {error}")
        os._exit(1)
    play(spec)


def _role(name: str) -> Callable[[RunSpec], None]:
    """The role's function, imported before the files of this package are out of sight."""
    if name == "program":
        return run_program
    if name == "candidate":
        from . import candidate

        return candidate.serve
    from . import examiner

    return examiner.examine


def _outer(spec: RunSpec) -> None:
    """Enter the namespaces and wait; returns in the child that is process 1 of them."""
    if sys.platform != "linux":
        return
    if "namespaces" not in spec.layers:
        kernel.prctl(kernel.PR_SET_CHILD_SUBREAPER, 1)
        if spec.has_own_table:
            kernel.die_with_parent()
        else:
            # Nothing but this process would end the others, so it must live to do that.
            signal.signal(signal.SIGTERM, partial(_leave_nothing, spec.work))
            kernel.die_with_parent(signal.SIGTERM)
        return
    kernel.die_with_parent()
    as_nobody = "nobody" in spec.layers
    mount = "mount" in spec.layers
    mapped = spec.user_namespace and as_nobody
    confine.enter(user=spec.user_namespace, as_nobody=as_nobody, mount=mount)
    held = confine.hold(spec.readable) if mount else []
    if mapped:
        confine.become_inner_root()
    if mount:
        confine.new_root(held, spec)
    kernel.die_with_parent()  # a change of identity has taken it away
    keeper = os.fork()
    if keeper:
        # Asked to end it, this process waits: process 1 is gone only when all others are.
        signal.signal(signal.SIGTERM, lambda *_: os.kill(keeper, signal.SIGKILL))
        os.closerange(0, 64)
        os.waitpid(keeper, 0)
        os._exit(0)
    kernel.die_with_parent()


def _leave_nothing(work: str, _signal: int, _frame: object) -> None:
    """The parent is gone: end all that was started here, clear up, end oneself."""
    end_below(os.getpid())
    with contextlib.suppress(OSError):  # there is nobody left to be told
        remove(work)
    os._exit(1)


def _keeper(spec: RunSpec, report: Report) -> None:
    """Wait for the third process and report its end; returns in the third."""
    third = os.fork()
    if not third:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        return
    confine.keep_only([report.descriptor])
    os.closerange(0, 3)
    while True:
        pid, status, usage = os.wait4(-1, 0)
        if pid == third:
            break
    seconds = usage.ru_utime + usage.ru_stime
    if not spec.has_own_table:
        end_below(os.getpid())
    code = os.waitstatus_to_exitcode(status)
    report.say(exit=code, cpu_s=seconds, peak_kb=usage.ru_maxrss)
    os._exit(0)


def _third(spec: RunSpec, report: Report) -> None:
    """Become the process that runs the code."""
    confine.confine(spec)
    for name, text in spec.files:
        path = os.path.join(spec.work, name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "w", encoding="utf-8", errors="surrogateescape") as file:
            file.write(text)
    os.environ.clear()
    os.environ.update(HOME=spec.work, TMPDIR=spec.work, LANG="C.UTF-8", PATH="")
    ours = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    sys.path[:] = [path for path in sys.path if path != ours] + list(spec.import_paths)
    report.say(ready=True)
    wanted = [*(spec.talk or ()), *(() if spec.answer is None else (spec.answer,))]
    confine.keep_only(wanted)


NAME = "program.py"


def run_program(spec: RunSpec) -> None:
    """The role `program`: run a text as `__main__`. Print an uncaught error as Python does, end with its exit
    code."""
    offer_exit()
    module = types.ModuleType("__main__")
    sys.modules["__main__"] = module
    sys.argv = [NAME]
    code = 0
    try:
        exec(compile(spec.code, NAME, "exec", dont_inherit=True), vars(module))
    except SystemExit as leaving:
        code = exit_code(leaving)
    except BaseException as error:
        code = 1
        print_error(error)
    with contextlib.suppress(Exception):  # the program may have closed or replaced it
        sys.stdout.flush()
    sys.exit(code)


def offer_exit() -> None:
    """`exit()` and `quit()`, which belong to the module `site` that is not loaded here."""

    def leave(code: object = None) -> None:
        raise SystemExit(code)

    for name in ("exit", "quit"):
        setattr(builtins, name, leave)


def exit_code(leaving: SystemExit) -> int:
    if leaving.code is None or isinstance(leaving.code, int):
        return leaving.code or 0
    os.write(2, f"{leaving.code}\n".encode(errors="replace"))
    return 1


def print_error(error: BaseException) -> None:
    """The traceback from the program's own first line on."""
    import traceback  # most programs need none

    frames = error.__traceback__
    while frames is not None and frames.tb_frame.f_code.co_filename != NAME:
        frames = frames.tb_next
    try:
        text = "".join(traceback.format_exception(type(error), error, frames))
    except Exception:  # boundary: the error's own text is foreign code
        text = f"{type(error).__name__}\n"
    os.write(2, text.encode(errors="replace"))
