"""One server that samples with the trainer's weights: what it is asked, and how it is given weights.

A dialect is a subclass: the routes of SGLang, or those of vLLM under `VLLM_SERVER_DEV_MODE=1`.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

import anyio
import msgspec

from burnish.concurrency import gather
from burnish.config.schema import Remote
from burnish.errors import ModelError, UserError, first_line
from burnish.lm import wire
from burnish.lm.base import Completion, JsonObject, Prompt, Sampling
from burnish.lm.capabilities import Capabilities
from burnish.lm.http import OpenAILM
from burnish.lm.jobs import Answer, Job, Limits

if TYPE_CHECKING:
    from torch import Tensor

    from burnish.engines.weight_group import WeightGroup

PROBE_S = 2.0
"""How long a server that left the rotation may take to say that it is there again."""
GENERATE = "/inference/v1/generate"


class Server:
    """Its requests in flight, what weights it has, and why it left the rotation if it did."""

    start: ClassVar[str]
    """The command that starts one on a folder."""
    client: ClassVar[type[OpenAILM]] = OpenAILM
    version_path: ClassVar[str] = ""
    remedy: ClassVar[str] = "Start the server again on the folder."
    """What a person may do where its workers do not have what the folder has."""

    def __init__(self, url: str, settings: Remote, version: int) -> None:
        options: dict[str, Any] = {"api_key_env": settings.api_key_env or None}
        wait = settings.deadline_s
        once = Limits(attempt_s=wait, deadline_s=wait, retries=0)
        few = {"retries": settings.retries, "concurrency": settings.concurrency}
        asked = msgspec.structs.replace(once, **few)
        # Training needs the sampled ids and their log-probs; both servers have them.
        has = Capabilities(logprobs=True, token_ids=True)
        self.lm = self.client(url, settings.model, limits=asked, capabilities=has, **options)
        self.desk = Desk(url, settings.model, limits=once, **options)
        """For all but sampling: an update never waits for a slot that an answer holds."""
        self.url, self.settings, self.version = url, settings, version
        self.out = ""
        """Why it is asked nothing; empty: it is in the rotation."""
        self.tokens = 0
        """Of the requests in flight, at most."""
        self.names_version = False
        """Its answers have named a version of ours."""
        self.heard: tuple[tuple[float, ...], tuple[float, ...]] = ((), ())
        """The canary's log-probs, its own and the trainer's, when it was last verified."""
        self._asked: set[anyio.CancelScope] = set()
        self._known: anyio.Event | None = None
        """Set when it is known which weights it has; none: it is known."""

    def __repr__(self) -> str:
        return f"the server {self.lm.identity}"

    @property
    def answers(self) -> bool:
        """Whether it is in the rotation."""
        return not self.out

    async def connect(self) -> None:
        """Reach it, and find the model's name where none was given."""
        listed = await self.desk.list_models()
        self.lm.max_seed = self.desk.max_seed
        if not self.lm.model:
            if len(listed) != 1:
                named = ", ".join(listed) or "no model"
                raise UserError(f"{self!r} serves {named}; name the one (sampler.model)")
            self.lm.model = self.desk.model = listed[0]

    async def is_there(self) -> bool:
        """Whether it says so soon."""
        with anyio.move_on_after(PROBE_S), contextlib.suppress(ModelError):
            await self.connect()
            return True
        return False

    async def sample(self, prompt: Prompt, sampling: Sampling) -> list[Completion] | None:
        """Its answers; None where it left the rotation meanwhile."""
        tokens = len(prompt) + sampling.n * sampling.max_tokens
        self.tokens += tokens
        # Before the request: an update while it runs must not make its tokens look newer.
        version = self.version
        found = None
        with anyio.CancelScope() as scope:
            self._asked.add(scope)
            try:
                answer = await self.lm.sample(prompt, sampling)
                while self._known is not None:
                    await self._known.wait()
                found = answer if self.answers else None
            finally:
                self._asked.discard(scope)
                self.tokens -= tokens
        if found is None or found[0].weight_version is not None:
            self.names_version |= found is not None
            return found
        # One that named its version before and does not now was started again without it.
        known = -1 if self.names_version else version
        return [msgspec.structs.replace(one, weight_version=known) for one in found]

    @contextlib.contextmanager
    def unsure(self) -> Iterator[None]:
        """Inside its weights change, and what it answers waits; where they are not verified it leaves."""
        known = self._known = anyio.Event()
        try:
            yield
        finally:
            self._known = None
            known.set()

    def leave(self, why: str) -> None:
        """Ask it nothing more; what it was asked is cancelled."""
        self.out = why
        for scope in list(self._asked):
            scope.cancel()

    async def load(self, version: int, weights: Mapping[str, Tensor]) -> None:
        """Have it sample with the weights that lie in the folder, or with these."""
        raise NotImplementedError


class Desk(OpenAILM):
    """All that is asked of a server but answers."""

    async def control(self, method: str, path: str, body: JsonObject | None = None) -> JsonObject:
        """One request beside the OpenAI routes; its JSON."""
        content = None if body is None else msgspec.json.encode(body)

        async def request(job: Job) -> Answer[JsonObject]:
            data = await self._send(method, path, content, root=True)
            return Answer(wire.decode(data or b"{}", JsonObject, path, secret=self._key))

        return await self.pool.call(self._job(path), request)


class SGLang(Server):
    """SGLang, and burnish's own sampling server."""

    start = "python -m sglang.launch_server --model-path %s"

    async def load(self, version: int, weights: Mapping[str, Tensor]) -> None:
        """From the folder; requests in flight are the server's to keep."""
        body = {"model_path": str(Path(self.settings.folder)), "weight_version": str(version)}
        reply = await self.desk.control("POST", "/update_weights_from_disk", body)
        if reply.get("success") is not True:
            said = wire.excerpt(str(reply.get("message", "")).encode())
            raise ModelError(f"{self!r} did not load weights {version}: {said}")


class TokensLM(OpenAILM):
    """Samples by vLLM's route of tokens in and tokens out."""

    async def _sample(
        self, prompt: Prompt, sampling: Sampling, schema: JsonObject | None = None
    ) -> list[Completion]:
        if not wire.is_token_ids(prompt):
            return await super()._sample(prompt, sampling, schema)
        body = wire.request_body(self.model, prompt, sampling, logprobs=True, token_ids=False)
        asked = {"model": body.pop("model"), "token_ids": body.pop("prompt"), "output_mode": "text"}
        reply = await self.post(
            GENERATE,
            {**asked, "return_token_ids": True, "sampling_params": body},
            len(prompt) + sampling.n * sampling.max_tokens,
            needs_choices=True,
        )
        where = self._shown(GENERATE)
        found = wire.completions_of(reply, sampling, logprobs=True, where=where, secret=self._key)
        return wire.with_usage(found, reply.counted, self.prices.cost_usd(reply.counted))

    async def _send(
        self, method: str, path: str, content: bytes | None, *, root: bool = False
    ) -> bytes:
        return await super()._send(method, path, content, root=root or path == GENERATE)


class VLLM(Server):
    """vLLM, whose answers name the version of the weights of each token."""

    start = (
        "VLLM_SERVER_DEV_MODE=1 vllm serve %s --enable-scale-out --logprobs-mode "
        'processed_logprobs --weight-transfer-config \'{"backend": "burnish"}\''
    )
    client = TokensLM
    version_path = "/weight_info"
    remedy = (
        "Its reload_weights leaves copies of some weights as they were (a tied head that was packed); "
        "sampler.weights = 'group' gives it all of them."
    )
    _group: WeightGroup | None = None

    async def load(self, version: int, weights: Mapping[str, Tensor]) -> None:
        """Answers in flight wait and go on with the new weights, reading the text so far with them.

        A server that could not take them stays paused: nobody knows what it has.
        """
        await self.desk.control("POST", "/pause?mode=keep")
        if self.settings.weights == "group":
            await self._send(version, weights)
        else:
            await self.desk.control("POST", "/collective_rpc", {"method": "reload_weights"})
            await self.desk.control("POST", "/update_weight_version", {"new_version": str(version)})
        # Cached prefixes were computed with the old weights, those of answers in flight too.
        reply = await self.desk.control("POST", "/reset_prefix_cache?reset_running_requests=true")
        if reply.get("success") is not True:
            raise ModelError(f"{self!r} keeps prefixes of older weights in its cache: {reply}")
        await self.desk.control("POST", "/resume")

    def leave(self, why: str) -> None:
        """A group whose other end may be gone is not used again."""
        super().leave(why)
        self._group = None

    async def _send(self, version: int, weights: Mapping[str, Tensor]) -> None:
        group = self._group or await self._meet(weights)
        self._group = None  # until all has arrived
        await self.desk.control("POST", "/start_weight_update")
        tensors = list(weights.values())
        about = {
            "names": list(weights),
            "dtypes": [str(tensor.dtype).removeprefix("torch.") for tensor in tensors],
            "shapes": [list(tensor.shape) for tensor in tensors],
        }

        def broadcast() -> None:
            for tensor in tensors:
                group.send(tensor)

        await self._beside("/update_weights", {"update_info": about}, broadcast)
        await self.desk.control("POST", "/finish_weight_update", {"weight_version": str(version)})
        self._group = group

    async def _meet(self, weights: Mapping[str, Tensor]) -> WeightGroup:
        """A group of the trainer and this server's workers."""
        from burnish.engines.weight_group import Place, WeightGroup, address_towards, dist

        size = 1 + int((await self.desk.control("GET", "/get_world_size"))["world_size"])
        parts = urlsplit(self.url)
        here = address_towards(str(parts.hostname), parts.port or 80)
        wait_s = self.settings.deadline_s
        wait = timedelta(seconds=wait_s)
        store = dist.TCPStore("0.0.0.0", 0, size, True, wait, wait_for_workers=False)
        # Where the server is at 127.0.0.1 both may have one GPU, which NCCL refuses.
        device = next(iter(weights.values())).device
        kind = "cpu" if here.startswith("127.") else device.type
        place = Place(here, store.port, size, kind, wait_s)
        body = {"init_info": {"place": list(place)}}
        found: WeightGroup = await self._beside(
            "/init_weight_transfer_engine", body, lambda: WeightGroup(place, 0, store, device)
        )
        return found

    async def _beside(self, path: str, body: JsonObject, work: Callable[[], Any]) -> Any:
        """A request that the workers answer once this side has done its part in a thread."""

        async def part() -> Any:
            try:
                return await in_daemon(work)
            except RuntimeError as error:  # boundary: torch's word for the other end
                raise ModelError(f"{self!r}: {path}: {first_line(error)}") from error

        calls: list[Callable[[], Any]] = [partial(self.desk.control, "POST", path, body), part]
        return (await gather(calls))[1]


async def in_daemon(work: Callable[[], Any]) -> Any:
    """What `work` returns; a thread that nobody waits for any more does not hold up the exit."""
    future: Future[Any] = Future()
    future.set_running_or_notify_cancel()  # who no longer waits does not cancel it

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # boundary: carried to who waits for it
            future.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return await asyncio.wrap_future(future)


DIALECTS: dict[str, type[Server]] = {"sglang": SGLang, "vllm": VLLM}
