"""A model as people name it in Python, and work that is awaited from ordinary code."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, TypeVar

import anyio

from burnish.api.needs import require_torch
from burnish.errors import UserError
from burnish.lm.base import LM
from burnish.lm.named import open_lm
from burnish.store.frames import RunFrames
from burnish.store.manifest import is_ours, newest_weights, read as read_manifest

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
        name = str(model)
        if "://" not in name and not name.startswith("replay:"):
            require_torch("models in this process")
            folder = Path(name).expanduser()
            name = str(newest_weights(folder)) if is_ours(folder) else name
        return open_lm(name, api_key_env=api_key_env or None, decoding=decoding or None)
    if isinstance(model, LM):
        return model
    raise UserError(
        f"model: got {type(model).__name__}; expected smollm2, tiny, a folder, an address such as "
        "http://host:port/v1#model, a Run or an LM."
    )


def continues_text(model: Any) -> bool:
    """Whether a model is a run (or a checkpoint of one) that was only pre-trained, as a causal or a masked
    diffusion model: no turns of a conversation were taught, so it continues text.

    >>> continues_text("tiny")
    False
    """
    folder = model.folder if isinstance(model, RunFrames) else model
    if not isinstance(folder, str | Path) or "://" in str(folder):
        return False
    path = Path(folder).expanduser()
    run = next((one for one in (path, path.parent.parent) if is_ours(one)), None)
    if run is None:
        return False
    config = read_manifest(run).config
    return config.get("train.kind") == "pretrain" or config.get("train.on") == "text"


def text_ids(lm: LM, text: str) -> list[int]:
    """A text as pre-training reads the beginning of a document: the boundary token before it, but for a
    masked diffusion model, whose documents end with it."""
    from burnish.lm.folder import is_diffusion
    from burnish.training.token_cache import boundary_id, plain_backend

    tokenizer = getattr(lm, "tokenizer", None)
    if tokenizer is None:
        raise UserError(
            f"raw: '{lm.name}' takes conversations and no token ids; expected a model in this "
            "process, such as smollm2 or a folder"
        )
    backend = plain_backend(tokenizer)
    loaded = getattr(lm, "loaded", None)
    ends_only = loaded is not None and is_diffusion(loaded)
    before = [] if ends_only else [boundary_id(tokenizer)]
    return [*before, *backend.encode(text, add_special_tokens=False).ids]


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
    from burnish.engines.background import call

    return call(work)
