"""Run a user's Python file as a module, from its text as it is now."""

from __future__ import annotations

import sys
from pathlib import Path
from types import ModuleType

from burnish.seeds import digest


def load_source(file: Path) -> ModuleType:
    """The module of a file, run once for each content it has had.

    Python's own loader would trust a cached compilation of the same size and second, and would
    write one beside the user's file. Whatever the file raises passes through.
    """
    text = file.read_bytes()
    name = f"burnish_user_{digest(str(file.resolve()), text)}"
    if name in sys.modules:
        return sys.modules[name]
    module = ModuleType(name)
    module.__file__ = str(file)
    sys.modules[name] = module  # dataclasses look a module up while it is being run
    try:
        exec(compile(text, str(file), "exec"), module.__dict__)
    except BaseException:
        del sys.modules[name]
        raise
    return module
