"""`burnish serve-reward`: a recipe's rewards, or a scorer of your own, over HTTP."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from burnish.cli.console import emit_json, say
from burnish.cli.shared_options import AsJson
from burnish.config.recipes import resolve
from burnish.errors import UserError
from burnish.source import find_function, find_module

if TYPE_CHECKING:
    from burnish.rewards.scorer import Scorer


def serve_reward(
    words: Annotated[
        list[str],
        Argument(
            metavar="RECIPE|SCORER KEY=VALUE",
            help="A recipe, or file.py:name of a scorer or a reward function.",
        ),
    ],
    host: Annotated[str, Option(help="Address to listen on.")] = "127.0.0.1",
    port: Annotated[int, Option(min=0, max=65535, help="0 takes any free one.")] = 8321,
    token_env: Annotated[
        str, Option(metavar="NAME", help="Environment variable with the token.")
    ] = "",
    concurrency: Annotated[int, Option(min=1, help="Tasks scored at the same time.")] = 16,
    deadline_s: Annotated[
        float, Option("--deadline", metavar="SECONDS", help="Wall clock of one task.")
    ] = 120.0,
    as_json: AsJson = False,
) -> int:
    """Serve a recipe's rewards or your own scorer over HTTP, for any trainer.

    Every reply carries the whole reward: value or null, status, parts and
    evidence. Only this machine can reach it unless --host says otherwise,
    and then a token is needed.

    \b
      burnish serve-reward grpo
      burnish serve-reward my_rewards.py:scorer --port 9000
      curl localhost:8321/score -H 'content-type: application/json' \\
        -d '{"task": {"prompt": "3 + 4?", "fields": {"answer": "7"}}, "responses": ["7"]}'
    """
    from burnish.engines.server import ServeSettings, serve

    scorer = scorer_of(words)
    token = token_of(token_env)
    settings = ServeSettings(concurrency=concurrency, deadline_s=deadline_s)

    def ready(url: str) -> None:
        needs = sorted(scorer.needs)
        if as_json:
            emit_json({"event": "ready", "url": url, "name": scorer.name, "needs": needs})
            return
        asks = f"needs the fields {', '.join(needs)}" if needs else "needs no fields"
        say(f"reward '{scorer.name}' ({scorer.scope.value}, {asks}) at {url}")
        say(f"try: curl {url}/about    stop: Ctrl-C")

    serve(scorer, host=host, port=port, token=token, settings=settings, ready=ready)
    return 0


def scorer_of(words: Sequence[str]) -> Scorer:
    """`file.py:name` and `package.module:name` are a scorer or a reward function; else a recipe."""
    from burnish.rewards.config import build_all

    if (":" in words[0] or words[0].endswith(".py")) and "=" not in words[0]:
        if len(words) > 1:
            raise UserError(f"'{words[1]}' follows a scorer; settings belong to a recipe.")
        return _named(words[0])
    asked = resolve(words)
    return build_all(asked.resolved.value.rewards, base=asked.root)


def token_of(variable: str) -> str:
    """The token that an environment variable holds: never on the command line, where all see it."""
    if not variable:
        return ""
    token = os.environ.get(variable, "").strip()
    if len(token) < 16 or not token.isascii() or not token.isprintable():
        raise UserError(
            f"--token-env: {variable} holds {len(token)} characters; expected at least 16 "
            "printable ASCII ones."
        )
    return token


def _named(path: str) -> Scorer:
    from burnish.rewards.function import from_function
    from burnish.rewards.scorer import Scorer

    place, _, name = path.rpartition(":")
    if not place.endswith(".py") and str(Path.cwd()) not in sys.path:
        sys.path.insert(0, str(Path.cwd()))
    found = getattr(find_module(place, f"scorer '{path}'"), name, None) if place else None
    return (
        found if isinstance(found, Scorer) else from_function(find_function(path, "scorer"), name)
    )
