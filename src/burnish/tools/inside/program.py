"""The role `program`: run a text as `__main__`, like `python file.py` would."""

from __future__ import annotations

import builtins
import contextlib
import os
import sys
import types

from .run_spec import RunSpec

NAME = "program.py"


def run(spec: RunSpec) -> None:
    """Run the program, print an uncaught error as Python does, end with its exit code."""
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
    """What the shell would see."""
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
