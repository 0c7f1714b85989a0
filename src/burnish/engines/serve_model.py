"""Our own sampler over HTTP, in the words of SGLang: `burnish serve-model FOLDER`.

    serve_model(Path("served"), port=8322)              # until Ctrl-C or SIGTERM

| request                         | body                            | reply                              |
|---------------------------------|---------------------------------|------------------------------------|
| GET /health                     |                                 | `{"status": "ok"}`, without a token |
| GET /v1/models                  |                                 | the model, and the largest seed    |
| POST /v1/completions            | `prompt` as token ids, sampling | tokens, log-probs, weight version  |
| POST /update_weights_from_disk  | `{model_path, weight_version}`  | `{success, message}`               |
| GET /weight_info                |                                 | `{weight_version, weights_checksum}` |

Requests that come together are one batch, and new weights go in between two batches: answers under
way are kept, and each says which weights sampled it. With equal weights and seeds it draws what the
sampler in the trainer's process draws.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import anyio.to_thread
import msgspec
import torch
from msgspec import Meta, Struct

from burnish.boundary import Seed
from burnish.engines.messages import read
from burnish.engines.server import JsonService, ServeSettings, as_json, serve_app
from burnish.errors import BurnishError, UserError
from burnish.lm.base import Completion, JsonObject, Sampling
from burnish.lm.folder import load_model
from burnish.lm.local import LocalLM
from burnish.lm.sampler import Request
from burnish.lm.weights import read_weights, weight_files, weights_checksum
from burnish.web.asgi import Refused, json_body, while_connected

if TYPE_CHECKING:
    from starlette.applications import Starlette
    from starlette.requests import Request as HttpRequest
    from starlette.responses import Response as HttpResponse

MOST_BYTES = 32 << 20
"""Of one request."""
MAX_SEED = 2**63 - 1
PORT = 8322
UNNAMED = -1
"""The version of weights that nobody has named yet."""


class CompletionBody(Struct, frozen=True):
    """The body of `/v1/completions`; other fields are ignored, as servers of this protocol do."""

    prompt: Annotated[tuple[int, ...], Meta(min_length=1)]
    max_tokens: int = 256
    temperature: float = 1.0
    top_k: int = 0
    top_p: float = 1.0
    min_p: float = 0.0
    n: int = 1
    seed: Seed = 0
    stop: tuple[str, ...] = ()
    logprobs: int | None = None

    def sampling(self) -> Sampling:
        fields = msgspec.structs.asdict(self)
        del fields["prompt"], fields["logprobs"]
        return Sampling(**fields, top_logprobs=self.logprobs or 0)


class UpdateBody(Struct, frozen=True):
    """The body of `/update_weights_from_disk`."""

    model_path: str
    weight_version: Annotated[str, Meta(pattern=r"^[0-9]{1,15}\Z")]


class ServedModel(LocalLM):
    """A model whose weights can be replaced between two batches."""

    def __init__(self, folder: Path, device: str = "auto") -> None:
        super().__init__(load_model(folder, device=device))
        self.folder = folder.absolute()
        self.weight_version = UNNAMED
        self._between = threading.Lock()
        """Held while a batch is sampled and while weights are replaced or read."""

    def sample_batch(self, requests: Sequence[Request]) -> list[list[Completion]]:
        with self._between:
            return super().sample_batch(requests)

    @torch.no_grad()
    def load(self, version: int) -> None:
        """Read the folder's weights; all of them, or none where one does not fit."""
        found = {k: v for file in weight_files(self.folder) for k, v in read_weights(file).items()}
        own = self.loaded.module.weights_to_save()
        shapes = {name: (tensor.shape, tensor.dtype) for name, tensor in own.items()}
        unfit = {n for n, t in found.items() if shapes.get(n) != (t.shape, t.dtype)}
        if wrong := sorted(unfit | (own.keys() - found.keys())):
            raise UserError(
                f"{self.folder}: weight {wrong[0]} is missing, or of another shape or type than the "
                "model's; expected the weights of the model that was loaded"
            )
        with self._between:
            for name, tensor in found.items():
                own[name].copy_(tensor)
            self.weight_version = version

    def info(self) -> JsonObject:
        with self._between:
            checksum = weights_checksum(self.loaded.module.weights_to_save().items())
            return {"weight_version": shown(self.weight_version), "weights_checksum": checksum}


def shown(version: int | None) -> str:
    """A version as replies name it."""
    return str(version) if version is not None and version > UNNAMED else "default"


class SamplerService(JsonService):
    """A served model as an ASGI app."""

    def __init__(self, served: ServedModel, token: str) -> None:
        super().__init__(token)
        self.served = served

    async def answer(self, request: HttpRequest) -> HttpResponse:
        """The reply of one route."""
        match request.method, request.scope["path"]:
            case "GET", "/v1/models":
                model = {"id": self.served.name, "object": "model", "max_seed": MAX_SEED}
                return as_json({"object": "list", "data": [model]})
            case "POST", "/v1/completions":
                return await self._complete(request)
            case "POST", "/update_weights_from_disk":
                return await self._update(request)
            case "GET", "/weight_info":
                return as_json(await anyio.to_thread.run_sync(self.served.info))
        raise Refused(404, f"{request.method[:20]} {request.scope['path'][:60]}: no such route.")

    async def _complete(self, request: HttpRequest) -> HttpResponse:
        body = read(await json_body(request, MOST_BYTES), CompletionBody, "the body")
        sample = partial(self.served.sample, body.prompt, body.sampling())
        found = await while_connected(request, sample)
        written = sum(len(one.token_ids) for one in found)
        reply = {
            "model": self.served.name,
            "usage": {"prompt_tokens": len(body.prompt), "completion_tokens": written},
            "choices": [_choice(i, one) for i, one in enumerate(found)],
            "metadata": {"weight_version": shown(found[0].weight_version)},
        }
        return as_json(reply)

    async def _update(self, request: HttpRequest) -> HttpResponse:
        body = read(await json_body(request, MOST_BYTES), UpdateBody, "the body")
        if Path(body.model_path) != self.served.folder:
            raise Refused(422, f"model_path is {body.model_path}; expected {self.served.folder}.")
        try:
            await anyio.to_thread.run_sync(self.served.load, int(body.weight_version))
        except BurnishError as error:
            return as_json({"success": False, "message": str(error)}, 400)
        return as_json({"success": True, "message": ""})


def _choice(index: int, one: Completion) -> JsonObject:
    tops = [{f"token_id:{t}": value for t, value in row.items()} for row in one.top_logprobs]
    return {
        "index": index,
        "text": one.text,
        "finish_reason": one.finish.value,
        "token_ids": one.token_ids,
        "prompt_token_ids": one.prompt_ids,
        "logprobs": {
            "tokens": [f"token_id:{token}" for token in one.token_ids],
            "token_logprobs": one.logprobs,
            "top_logprobs": tops or None,
        },
    }


def sampler_app(served: ServedModel, token: str = "") -> Starlette:
    """The server as an ASGI app; with a token, every request but `/health` must carry it."""
    from starlette.applications import Starlette
    from starlette.routing import Mount

    return Starlette(routes=[Mount("/", SamplerService(served, token))])


def serve_model(
    folder: Path,
    *,
    device: str = "auto",
    host: str = "127.0.0.1",
    port: int = PORT,
    token: str = "",
    ready: Callable[[str], None] | None = None,
) -> None:
    """Serve a model folder until Ctrl-C or SIGTERM. Port 0 is any free one.

    An address that others can reach needs a token.
    """
    # The trainer keeps at most so many requests open; a sampled answer has no deadline of its own.
    settings = ServeSettings(max_connections=4096)
    app = partial(sampler_app, ServedModel(folder, device), token)
    serve_app(app, settings, host=host, port=port, token=token, ready=ready)
