"""The same rewards on other people's engines: trainers, evaluation harnesses, HTTP.

    GRPOTrainer(model, reward_funcs=as_trl(scorer), ...)
    compute_score = as_verl(scorer)
    RemoteScorer("http://127.0.0.1:8321")      # a scorer that `burnish serve-reward` serves

Each name is imported when it is first used; an engine's own package only inside its adapter.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from burnish.engines.bridge import Bridge
    from burnish.engines.client import RemoteScorer
    from burnish.engines.inspect import as_inspect
    from burnish.engines.openrlhf import as_openrlhf
    from burnish.engines.server import ServeSettings, create_app, serve
    from burnish.engines.trace import TraceFile, read_traces
    from burnish.engines.trl import as_trl
    from burnish.engines.verifiers import as_verifiers, legacy_functions
    from burnish.engines.verl import as_verl

__all__ = [
    "Bridge",
    "RemoteScorer",
    "ServeSettings",
    "TraceFile",
    "as_inspect",
    "as_openrlhf",
    "as_trl",
    "as_verifiers",
    "as_verl",
    "create_app",
    "legacy_functions",
    "read_traces",
    "serve",
]

_HOME = {
    "Bridge": "bridge",
    "RemoteScorer": "client",
    "ServeSettings": "server",
    "TraceFile": "trace",
    "as_inspect": "inspect",
    "as_openrlhf": "openrlhf",
    "as_trl": "trl",
    "as_verifiers": "verifiers",
    "as_verl": "verl",
    "create_app": "server",
    "legacy_functions": "verifiers",
    "read_traces": "trace",
    "serve": "server",
}


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module '{__name__}' has no attribute '{name}'")
    return getattr(importlib.import_module(f"{__name__}.{_HOME[name]}"), name)


def __dir__() -> list[str]:
    return sorted(__all__)
