"""A language model by the text that a person types.

Nothing is asked here: a server is reached, and a replay searched, at the first question.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import anyio.to_thread

from burnish.errors import UserError, did_you_mean
from burnish.lm.base import (
    LM,
    SHIPPED,
    VISUAL,
    Completion,
    Messages,
    Prompt,
    Sampling,
    Scores,
    TokenIds,
    shipped_model,
)
from burnish.lm.connections import shown_address
from burnish.lm.weights import files_identity

FORMS = "smollm2, tiny, a model folder, http://host:port/v1#model or replay:FILE.jsonl"


def open_lm(name: str, **options: Any) -> LM:
    """The model of that name.

    Options of a server: `api_key_env`, `limits`, `prices`, `pool`, `accept_models`, `structured`,
    `media` (limits of images and sounds); of a folder or a shipped model: `dtype`, `device`, `max_rows`, `late` (load it at the first question),
    `decoding` (of a diffusion model, such as `steps=8`); of a replay: `model`. None means not given.
    """
    given = {key: value for key, value in options.items() if value is not None}
    text = name.strip()
    opener = _replay if text.startswith("replay:") else _server if "://" in text else _local
    known = SERVER if opener is _server else [*inspect.signature(opener).parameters][1:]
    for option in given:
        if option not in known:
            raise UserError(
                f"model '{shown_address(text)}' has no option '{option}'; expected {', '.join(known)}."
                f"{did_you_mean(option, known)}"
            )
    return opener(text, **given)


SERVER = ("api_key_env", "limits", "prices", "pool", "accept_models", "structured", "media")


def _server(name: str, **options: Any) -> LM:
    from burnish.lm.http import OpenAILM

    url, mark, model = name.partition("#")
    if not mark or not model:
        raise UserError(
            f"model '{shown_address(name)}' names a server but no model; expected http://host:port/v1#model"
        )
    return OpenAILM(url, unquote(model), **options)


def _replay(name: str, *, model: str | None = None) -> LM:
    from burnish.lm.replay import ReplayLM

    path = Path(name.removeprefix("replay:")).expanduser()
    if not path.is_file():
        raise UserError(f"model '{name}': there is no file {path}; expected replay:FILE.jsonl")
    return ReplayLM(path, model=model)


def _local(
    name: str,
    *,
    dtype: str = "auto",
    device: str = "auto",
    max_rows: int | None = None,
    late: bool = False,
    decoding: str = "",
) -> LM:
    if not name or (shipped_model(name) is None and not Path(name).expanduser().is_dir()):
        raise UserError(
            f"there is no model '{name}' and no folder of that name; expected {FORMS}."
            f"{did_you_mean(name, SHIPPED)}"
        )

    def load() -> LM:
        try:
            from burnish.lm.folder import load_model
            from burnish.lm.local import LocalLM
        except ModuleNotFoundError as error:
            if (error.name or "burnish").partition(".")[0] == "burnish":
                raise
            raise UserError(
                f"model '{name}' needs '{error.name}', which is not installed: pip install 'burnish[torch]'"
            ) from error

        loaded = load_model(name, dtype=dtype, device=device)
        return LocalLM(loaded, max_rows=max_rows, decoding=decoding)

    folder = Path(name).expanduser()

    def check_media(messages: Messages) -> None:
        from burnish.lm.tokenizer import refuse_media

        try:
            from burnish.lm.media_model import has_processor
        except ModuleNotFoundError:  # loading it will say what to install
            return
        if not name.startswith(VISUAL) and (shipped_model(name) or not has_processor(folder)):
            refuse_media(messages)

    return LazyLM(name, load, lambda: files_identity(name, folder), check_media) if late else load()


class LazyLM:
    """A model in this process that is loaded when it is first asked."""

    def __init__(
        self,
        name: str,
        load: Callable[[], LM],
        identity: Callable[[], str] = str,
        check_media: Callable[[Messages], None] | None = None,
    ) -> None:
        """`identity` says which files would be loaded now, `check_media` what they can read."""
        self.name, self._load, self._identity = name, load, identity
        self._check_media = check_media
        self._lm: LM | None = None
        self._lock = threading.Lock()  # invariant: the model is loaded once

    @property
    def identity(self) -> str:
        """That of the loaded model; before, that of its files as they are now."""
        return self._identity() if self._lm is None else getattr(self._lm, "identity", "")

    def check_media(self, messages: Messages) -> None:
        """Refuse images and sounds that the model cannot read, without loading it."""
        check = getattr(self._lm, "check_media", self._check_media)
        if check is not None:
            check(messages)

    async def sample(self, prompt: Prompt, sampling: Sampling) -> list[Completion]:
        return await (await self._loaded()).sample(prompt, sampling)

    async def score(self, prompt_ids: TokenIds, response_ids: TokenIds) -> Scores:
        return await (await self._loaded()).score(prompt_ids, response_ids)

    async def _loaded(self) -> LM:
        def once() -> LM:
            with self._lock:
                if self._lm is None:
                    self._lm = self._load()
                return self._lm

        return await anyio.to_thread.run_sync(once) if self._lm is None else self._lm
