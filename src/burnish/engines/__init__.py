"""The same rewards on other people's engines: trainers, evaluation harnesses, HTTP."""

from typing import TYPE_CHECKING

from burnish.lazy import lazy_exports

if TYPE_CHECKING:
    from burnish.engines.adapters import (
        as_inspect as as_inspect,
        as_openrlhf as as_openrlhf,
        as_verl as as_verl,
    )
    from burnish.engines.bridge import (
        Bridge as Bridge,
        TraceFile as TraceFile,
        read_traces as read_traces,
    )
    from burnish.engines.client import RemoteScorer as RemoteScorer
    from burnish.engines.server import (
        ServeSettings as ServeSettings,
        create_app as create_app,
        serve as serve,
    )
    from burnish.engines.servers import Servers as Servers
    from burnish.engines.trl import as_trl as as_trl, as_trl_rollout as as_trl_rollout
    from burnish.engines.verifiers import (
        VerifiersEnv as VerifiersEnv,
        as_verifiers as as_verifiers,
        as_verifiers_env as as_verifiers_env,
        legacy_functions as legacy_functions,
    )

__getattr__, __dir__ = lazy_exports(__name__)
