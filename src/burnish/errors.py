"""Three families of failure: your input, the world outside, and bugs.

`UserError` is printed without a traceback; `BoundaryError` and its children are named for what failed
outside this process or package. Anything else is a bug and is never caught.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

_FULL = re.compile(r"\b(CUDA|HIP)\b.*out of memory|CUBLAS_STATUS_ALLOC_FAILED")
LONGEST_LINE = 300
"""Characters of another library's error that are told."""


class BurnishError(Exception):
    """Base of every error that burnish raises on purpose."""


class UserError(BurnishError):
    """Something in your input. One line: what, where, got, expected, next step."""


class MediaError(UserError):
    """An image or a sound that a model cannot read; `sha256` says which, where it is one."""

    def __init__(self, *args: object, sha256: str = "") -> None:
        super().__init__(*args)
        self.sha256 = sha256


class ArgumentError(UserError, ValueError):
    """An argument of a public function that it cannot work with.

    The line is made by `burnish.arguments`: the argument's name, what it got, what it expects.
    """


class NoServer(UserError):
    """The first questions of a judge found no server, so the others would not either."""


class RunChanged(UserError):
    """A run's folder was begun with something else than what is asked for now.

    `began` names it: `with other contents of my.py`.
    """

    def __init__(self, run: str, began: str, undo: str) -> None:
        super().__init__(
            f"run '{run}' was started {began}; {undo}, choose another run.name, or start a new run "
            "with --again"
        )
        self.began = began


class BoundaryError(BurnishError):
    """Something outside failed; the message says what and where."""


class ModelError(BoundaryError):
    """A language model could not be reached, loaded or understood."""


class RewardError(BoundaryError):
    """A reward function or checker broke its contract."""


class JudgeError(BoundaryError):
    """A judge could not be reached or understood."""


class SandboxError(BoundaryError):
    """Generated code could not be run under the promised limits."""


class RolloutError(BoundaryError):
    """An environment, a tool or a rollout function broke its contract; the rollout fails."""


class StoreError(BoundaryError):
    """The run folder could not be read or written."""


class ProcessDied(BoundaryError):
    """Another process of the run died first; the line has its last words."""


class GuardTripped(BurnishError):
    """A guard stopped the run before a bad number could reach the weights.

    `stage` is the guard (reward, advantage, logprob, loss, gradient), `tensor` what was not finite.
    `samples` are ids of trajectories; `names` are what people call these samples.
    """

    def __init__(
        self,
        message: str,
        *,
        stage: str = "",
        tensor: str = "",
        step: int = 0,
        samples: tuple[str, ...] = (),
    ) -> None:
        super().__init__(message)
        self.stage = stage
        self.tensor = tensor
        self.step = step
        self.samples = self.names = samples


PYTHON_WORDS = {
    "another run.name": "another name",
    "--again": "again=True",
    "--out": "out=",
    "set held_out = { by = 'share', share = 0 }": "give held_out=0",
}


@contextmanager
def python_words() -> Iterator[None]:
    """Spell the errors of a call in Python as Python is written, not as a command line."""
    try:
        yield
    except BurnishError as error:
        said = str(error)
        for typed, written in PYTHON_WORDS.items():
            said = said.replace(typed, written)
        error.args = (said, *error.args[1:])
        raise


def is_out_of_memory(error: BaseException) -> bool:
    """True if the error is an out-of-memory error of torch, CUDA or cuBLAS.

    Torch is not loaded for it: an error of torch's means that it is loaded already.
    """
    torch = sys.modules.get("torch")
    if torch is None or not isinstance(error, RuntimeError):
        return False
    return isinstance(error, torch.OutOfMemoryError) or _FULL.search(str(error)) is not None


def first_line(error: BaseException) -> str:
    """What an error of somebody else's code says, in one line; its type where it says nothing.

    >>> first_line(ValueError("wrong field:\\n    got 5\\nand more"))
    'wrong field: got 5'
    """
    lines = [" ".join(line.split()) for line in str(error).strip().splitlines()]
    if not lines:
        return type(error).__name__
    return " ".join(lines[:2] if lines[0].endswith(":") else lines[:1])[:LONGEST_LINE]


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """` Did you mean 'x'?` for the nearest known word, or an empty string."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" Did you mean '{near[0]}'?" if near else ""
