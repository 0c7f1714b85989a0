"""A sampling server in front of a model folder, for tests.

It speaks the routes of SGLang and vLLM, samples with a real tiny model, and loads the folder's
weights when it is told to. `faults` are played on purpose.
"""

import json
from pathlib import Path
from typing import Any

from hostile_server import Behaviour, Handler, Seen, status

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
        self.load()

    def load(self) -> None:
        loaded = load_model(self.folder, device="cpu")
        if self.drops:
            weights = loaded.module.state_dict()
            weights[self.drops].copy_(self.weights[self.drops])
        self.weights = {k: v.clone() for k, v in loaded.module.state_dict().items()}
        self.lm = LocalLM(loaded)

    def __call__(self, number: int, seen: Seen) -> Behaviour:
        self.paths.append(seen.path)
        if self.refuses and seen.path in ("/update_weights_from_disk", "/collective_rpc"):
            return status(500, "out of memory")
        answers = {
            "/v1/models": lambda body: {"data": [{"id": "m"}]},
            "/v1/completions": self.complete,
            "/update_weights_from_disk": self.update,
            "/collective_rpc": self.reload,
            "/reset_prefix_cache": lambda body: None,
            "/weights": self.report,
        }
        return lambda handler, body: self.send(handler, answers[seen.path](body))

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

    def report(self, body: dict[str, Any]) -> dict[str, Any]:
        checksum = weights_checksum(self.weights.items())
        return {"weight_version": self.version, "weights_checksum": checksum}

    def complete(self, body: dict[str, Any]) -> dict[str, Any]:
        known = {k: body[k] for k in ("max_tokens", "seed", "temperature", "top_p") if k in body}
        stop = tuple(body.get("stop") or ())
        sampling = Sampling(n=body.get("n", 1), stop=stop, **known)
        (found,) = self.lm.sample_batch([self.lm.request(body["prompt"], sampling)])
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
            for i, c in enumerate(found)
        ]
        return {"model": "m", "choices": choices, "metadata": {"weight_version": self.version}}
