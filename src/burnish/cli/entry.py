"""Where the process begins and ends: every failure becomes one line and an exit code.

| code | meaning                                                              |
|------|----------------------------------------------------------------------|
| 0    | done                                                                 |
| 1    | a bug: the traceback is shown                                        |
| 2    | your input, or a file that you named: the line says what to change   |
| 3    | something outside failed, or a guard or a check stopped the run      |
| 130  | Ctrl-C                                                               |

`BURNISH_DEBUG=1` shows the traceback of every failure.
"""

from __future__ import annotations

import errno
import io
import os
import sys
from collections.abc import Sequence
from typing import Any

from burnish.errors import BurnishError, UserError

USER = 2
STOPPED = 3
INTERRUPTED = 130
WORKING = ("train", "sweep", "judge", "bench")
"""Commands that do more than show something: they are not done when nobody reads on."""
GOES_ON = ("train", "sweep", "align")
"""Commands whose work is worth finishing when nobody reads on."""
TAKES_SETTINGS = ("train", "sweep", "try", "eval", "cluster check")
"""Commands with `key=value` words."""
FULL = (errno.ENOSPC, errno.EDQUOT)
MORE_ROOM = "Free the GPU (nvidia-smi lists who holds it), or ask for a smaller model or batch."


def main() -> None:
    """The console script."""
    for stream in (sys.stdout, sys.stderr):
        # A model may write what a narrow terminal cannot show; that must not end the command.
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    sys.exit(run(sys.argv[1:]))


def run(arguments: Sequence[str]) -> int:
    """Run one command line and give its exit code; writes to stdout and stderr."""
    try:
        import typer

        from burnish.cli.app import burnish_command
        from burnish.cli.console import err, out

        # A program that reads events (`--json`), such as a sweep, is what a run is for: without it, it ends.
        ends = {"--help", "--print-config", "--json"}
        out.goes_on = err.goes_on = bool(
            arguments and arguments[0] in GOES_ON and not ends & {*arguments}
        )
        command = burnish_command()
        try:
            code = command.main(list(arguments), prog_name="burnish", standalone_mode=False)
        except typer.Exit as stop:
            return stop.exit_code
        except typer.Abort:
            raise KeyboardInterrupt from None
        return code if isinstance(code, int) else 0
    except KeyboardInterrupt:
        _complain("stopped.")
        return INTERRUPTED
    except (BrokenPipeError, SystemExit) as left:
        # The reader of a pipe (head, less) left; click and rich make a SystemExit of that. The
        # rest of the output has nowhere to go.
        if not isinstance(left, BrokenPipeError) and not isinstance(
            left.__context__, BrokenPipeError
        ):
            raise
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        is_working = arguments[:1] and arguments[0] in WORKING and "--help" not in arguments
        return STOPPED if is_working else 0
    except BurnishError as error:
        return _ended(str(error), USER if isinstance(error, UserError) else STOPPED)
    except Exception as error:
        # Boundary: typer raises its own or click's errors for bad arguments, by version; they are
        # known by their `format_message`. A full GPU is told by errors of torch's. Any file that was
        # typed may not be there, and any disk be full. All else is a bug and keeps its traceback.
        if isinstance(error, OSError) and (error.filename or error.errno in FULL):
            if not error.filename:
                # What stdout still holds has nowhere to go, and Python would try once more at its end.
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
            name = str(error.filename or "the output")
            shown = name if len(name) <= 200 else f"{name[:40]}... ({len(name)} characters)"
            more = "; free some space or write elsewhere" if error.errno in FULL else ""
            return _ended(
                f"{shown} cannot be used: {error.strerror}{more}.",
                STOPPED if error.errno in FULL else USER,
            )
        if hasattr(error, "format_message"):
            if str(error.format_message()):  # empty where a bare command has shown its help
                _complain(_usage(error, arguments))
            return USER
        from burnish.lm.hardware import device_full

        full = device_full(error, " ".join(["burnish", *arguments[:1]]), MORE_ROOM)
        if full is None:
            raise
        return _ended(str(full), STOPPED)


def _ended(line: str, code: int) -> int:
    if os.environ.get("BURNISH_DEBUG"):
        import traceback

        sys.stderr.write(traceback.format_exc())
    _complain(line)
    return code


def _usage(error: Any, arguments: Sequence[str]) -> str:
    context = getattr(error, "ctx", None)
    path = context.command_path if context is not None else "burnish"
    message = " ".join(str(error.format_message()).split())
    ended = message if message.endswith(("?", "!", ".")) else f"{message}."
    option = str(getattr(error, "option_name", None) or "")
    hint = _as_setting(option, arguments) if path.endswith(TAKES_SETTINGS) else ""
    return f"{ended}{hint} See: {path} --help"


def _as_setting(option: str, arguments: Sequence[str]) -> str:
    """`--steps 4` as the setting that was meant: ` Settings are typed without dashes: steps=4.`"""
    from burnish.config import Config, shapes
    from burnish.config.peers import hint, home

    name, _, value = option.lstrip("-").partition("=")
    name = name.replace("-", "_")
    if not option.startswith("--") or not name:
        return ""
    if not value:
        typed = next((i for i, word in enumerate(arguments) if word == option), len(arguments))
        value = next((w for w in arguments[typed + 1 :][:1] if not w.startswith("-")), "")
        inline = (w.partition("=")[2] for w in arguments if w.startswith(f"{option}="))
        value = value or next(inline, "...")
    homes = shapes.homes(Config, name)
    homes = [key for key in homes if key in (name, f"run.{name}")] or homes
    if meant := home(name, homes):
        return f" Settings are typed without dashes: {meant}={value}."
    return hint(name, value) or (
        f" Settings are typed without dashes, such as {homes[0]}={value}." if homes else ""
    )


def _complain(message: str) -> None:
    from burnish.cli.console import complain

    complain(message)
