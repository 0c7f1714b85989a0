"""Three families of failure: your input, the world outside, and bugs.

`UserError` is printed without a traceback and says what to change. `BoundaryError` and its
children are named for what failed outside this process or package. Anything else is a bug and is
never caught.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class BurnishError(Exception):
    """Base of every error that burnish raises on purpose."""


class UserError(BurnishError):
    """Something in your input. One line: what, where, got, expected, next step."""


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


class StoreError(BoundaryError):
    """The run folder could not be read or written."""


class GuardTripped(BurnishError):
    """A guard stopped the run before a bad number could reach the weights.

    `stage` is the guard (reward, advantage, logprob, loss, gradient), `tensor` what was not finite.
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
        self.samples = samples


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """` Did you mean 'x'?` for the nearest known word, or an empty string."""
    near = difflib.get_close_matches(word, list(known), n=1, cutoff=0.6)
    return f" Did you mean '{near[0]}'?" if near else ""
