"""A model as people name it in Python, and work that is awaited from ordinary code."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import anyio

from burnish.api.needs import require_torch
from burnish.engines.background import call
from burnish.errors import UserError
from burnish.lm.base import LM
from burnish.lm.named import open_lm
from burnish.store.frames import RunFrames
from burnish.store.manifest import is_ours, newest_weights

T = TypeVar("T")


def open_model(model: Any, api_key_env: str = "", decoding: str = "") -> LM:
    """The model of a name, a folder, a server's address, a run (its newest weights), or an `LM`.

    `decoding` is how a masked diffusion model writes, such as `steps=8,order=entropy`.

    >>> open_model("tiny").name
    'tiny'
    """
    if isinstance(model, RunFrames):
        model = newest_weights(model.folder)
    if isinstance(model, str | Path):
        return _open_named(str(model), api_key_env, decoding)
    if isinstance(model, LM):
        return model
    raise UserError(
        f"model: got {type(model).__name__}; expected smollm2, tiny, a folder, an address such as "
        "http://host:port/v1#model, a Run or an LM."
    )


def _open_named(name: str, api_key_env: str, decoding: str) -> LM:
    if "://" in name:
        return open_lm(name, api_key_env=api_key_env or None, decoding=decoding or None)
    if not name.startswith("replay:"):
        require_torch("models in this process")
        folder = Path(name).expanduser()
        name = str(newest_weights(folder)) if is_ours(folder) else name
    return open_lm(name, decoding=decoding or None)


@asynccontextmanager
async def opened(model: Any) -> AsyncIterator[LM]:
    """The model while inside; one that was opened here is closed afterwards."""
    lm = open_model(model)
    try:
        yield lm
    finally:
        close = getattr(lm, "aclose", None)
        if close is not None and lm is not model:
            await close()


def wait_for(work: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """The result of `work()`, also where this thread runs an event loop, as in a notebook."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return anyio.run(work)
    return call(work)
