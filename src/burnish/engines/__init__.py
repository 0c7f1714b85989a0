"""The same rewards on other people's engines: trainers, evaluation harnesses, HTTP.

    GRPOTrainer(model, reward_funcs=as_trl(scorer), ...)
    compute_score = as_verl(scorer)
    RemoteScorer("http://127.0.0.1:8321")      # a scorer that `burnish serve-reward` serves

Each name is imported when it is first used; an engine's own package only inside its adapter.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from burnish.lazy import lazy_exports

if TYPE_CHECKING:
    from burnish.engines.adapters import as_inspect, as_openrlhf, as_verl
    from burnish.engines.bridge import Bridge, TraceFile, read_traces
    from burnish.engines.client import RemoteScorer
    from burnish.engines.server import ServeSettings, create_app, serve
    from burnish.engines.trl import as_trl, as_trl_rollout
    from burnish.engines.verifiers import (
        VerifiersEnv,
        as_verifiers,
        as_verifiers_env,
        legacy_functions,
    )

__all__ = [
    "Bridge",
    "RemoteScorer",
    "ServeSettings",
    "TraceFile",
    "VerifiersEnv",
    "as_inspect",
    "as_openrlhf",
    "as_trl",
    "as_trl_rollout",
    "as_verifiers",
    "as_verifiers_env",
    "as_verl",
    "create_app",
    "legacy_functions",
    "read_traces",
    "serve",
]

__getattr__, __dir__ = lazy_exports(__name__)
