"""`burnish serve-model`: our own sampler over HTTP."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from burnish.cli.console import emit_json, say
from burnish.cli.serve_reward import token_of
from burnish.cli.shared_options import AsJson


def serve_model(
    folder: Annotated[Path, Argument(metavar="FOLDER", help="A Hugging Face folder.")],
    host: Annotated[str, Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65535, help="0 takes any free one.")] = 8322,
    device: Annotated[str, Option(help="auto, cpu, cuda or cuda:1.")] = "auto",
    token_env: Annotated[
        str, Option(metavar="NAME", help="Environment variable with the token.")
    ] = "",
    as_json: AsJson = False,
) -> int:
    """Serve a model folder to a trainer: token ids in, token ids and log-probs out.

    It speaks SGLang's words for new weights, and draws what the sampler in
    the trainer's own process would draw.

    \b
      burnish serve-model served --port 8322
      burnish train grpo sampler.kind=remote sampler.folder=served \\
        sampler.urls=http://127.0.0.1:8322/v1 sampler.version_path=/weight_info
    """
    from burnish.engines.serve_model import serve_model as serve

    def ready(url: str) -> None:
        if as_json:
            emit_json({"event": "ready", "url": url, "folder": folder})
        else:
            say(f"model '{folder}' at {url}/v1    stop: Ctrl-C")

    token = token_of(token_env)
    serve(folder, device=device, host=host, port=port, token=token, ready=ready)
    return 0
