"""A sampling server in front of a model folder, for tests.

It speaks the routes of SGLang and vLLM, samples with a real tiny model, and loads the folder's
weights, or those of a process group, when it is told to. `faults` are played on purpose.
"""

import json
import threading
from pathlib import Path
from typing import Any

import torch
from hostile_server import Behaviour, Handler, Seen, status

from burnish.engines.weight_group import Place, WeightGroup
from burnish.lm.base import Sampling
from burnish.lm.folder import load_model
from burnish.lm.local import LocalLM
from burnish.lm.weights import weights_checksum


class Serving:
    """What a `HostileServer` answers with; `Serving(folder)` is its behaviour."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.version = "default"
        self.refuses = False
        self.paths: list[str] = []
        self.drops = ""
        """A tensor whose new values are lost at every load."""
        self.group: WeightGroup | None = None
        self.holds: Any = None
        """Called before an answer is written, with the request."""
        self._lock = threading.Lock()  # invariant: one request at a time uses the model
        self.load()

    def load(self) -> None:
        loaded = load_model(self.folder, device="cpu")
        if self.drops:
            weights = loaded.module.state_dict()
            weights[self.drops].copy_(self.weights[self.drops])
        self.weights = {k: v.clone() for k, v in loaded.module.state_dict().items()}
        self.lm = LocalLM(loaded)

    def __call__(self, number: int, seen: Seen) -> Behaviour:
        path = seen.path.partition("?")[0]
        self.paths.append(path)
        if self.refuses and path in ("/update_weights_from_disk", "/collective_rpc"):
            return status(500, "out of memory")
        answers = {
            "/v1/models": lambda body: {"data": [{"id": "m"}]},
            "/v1/completions": self.complete,
            "/inference/v1/generate": self.generate,
            "/update_weights_from_disk": self.update,
            "/collective_rpc": self.reload,
            "/update_weight_version": self.name_version,
            "/pause": lambda body: {},
            "/resume": lambda body: {},
            "/reset_prefix_cache": lambda body: {"success": True},
            "/weights": self.report,
            "/weight_info": lambda body: {"weight_version": self.version},
            "/get_world_size": lambda body: {"world_size": 1},
            "/init_weight_transfer_engine": self.meet,
            "/start_weight_update": lambda body: {},
            "/update_weights": self.receive,
            "/finish_weight_update": self.name_version,
        }
        return lambda handler, body: self.send(handler, answers[path](body))

    def send(self, handler: Handler, content: Any) -> None:
        handler.send(200, b"" if content is None else json.dumps(content).encode())

    def update(self, body: dict[str, Any]) -> dict[str, Any]:
        if Path(body["model_path"]) != self.folder:
            return {"success": False, "message": "no such model"}
        self.version = body["weight_version"]
        self.load()
        return {"success": True, "message": "Succeeded to update model weights."}

    def reload(self, body: dict[str, Any]) -> dict[str, Any]:
        assert body == {"method": "reload_weights"}
        self.load()
        return {"results": [None]}

    def name_version(self, body: dict[str, Any]) -> dict[str, Any]:
        self.version = body.get("new_version") or body["weight_version"]
        return {}

    def meet(self, body: dict[str, Any]) -> dict[str, Any]:
        self.group = WeightGroup.join(Place(*body["init_info"]["place"]), 1, torch.device("cpu"))
        return {}

    def receive(self, body: dict[str, Any]) -> dict[str, Any]:
        assert self.group is not None
        sent = body["update_info"]
        own = self.lm.loaded.module.requires_grad_(False).state_dict()
        for name, dtype, shape in zip(sent["names"], sent["dtypes"], sent["shapes"], strict=True):
            tensor = self.group.receive(dtype, shape)
            if name != self.drops:
                own[name].copy_(tensor)
        return {}

    def report(self, body: dict[str, Any]) -> dict[str, Any]:
        checksum = weights_checksum(self.weights.items())
        return {"weight_version": self.version, "weights_checksum": checksum}

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        if "prompt_logprobs" in body:
            return self.read(body["prompt"])
        choices = [
            {
                "index": i,
                "text": c.text,
                "finish_reason": c.finish.value,
                "token_ids": list(c.token_ids),
                "prompt_token_ids": list(c.prompt_ids),
                "logprobs": {
                    "tokens": [f"token_id:{t}" for t in c.token_ids],
                    "token_logprobs": list(c.logprobs),
                },
            }
            for i, c in enumerate(self.sampled(body["prompt"], body))
        ]
        return {"model": "m", "choices": choices, "metadata": {"weight_version": self.version}}

    def generate(self, body: dict[str, Any]) -> dict[str, Any]:
        """vLLM's route of tokens in and tokens out, which tells the version of each token."""
        choices = [
            {
                "index": i,
                "text": c.text,
                "finish_reason": c.finish.value,
                "token_ids": list(c.token_ids),
                "logprobs": {"content": [{"token": "", "logprob": p} for p in c.logprobs]},
                "weight_versions": [{"version": self.version, "start": 0, "end": len(c.token_ids)}],
            }
            for i, c in enumerate(self.sampled(body["token_ids"], body["sampling_params"]))
        ]
        return {"model": "m", "choices": choices, "prompt_token_ids": body["token_ids"]}

    def sampled(self, prompt: list[int], asked: dict[str, Any]) -> list[Any]:
        known = {k: asked[k] for k in ("max_tokens", "seed", "temperature", "top_p") if k in asked}
        stop = tuple(asked.get("stop") or ())
        sampling = Sampling(n=asked.get("n", 1), stop=stop, **known)
        if self.holds is not None:
            self.holds(prompt)
        with self._lock:
            (found,) = self.lm.sample_batch([self.lm.request(prompt, sampling)])
        return found

    def read(self, ids: list[int]) -> dict[str, Any]:
        """Log-probs of given tokens, by the weights that are in memory."""
        with self._lock:
            (found,) = self.lm.score_batch([(ids[:1], ids[1:])])
        rows = [{str(t): {"logprob": p}} for t, p in zip(ids[1:], found.logprobs, strict=True)]
        choice = {"index": 0, "text": "", "finish_reason": "length"}
        return {"model": "m", "choices": [{**choice, "prompt_logprobs": [None, *rows]}]}
