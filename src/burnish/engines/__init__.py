"""The same rewards on other people's engines: trainers, evaluation harnesses, HTTP."""

from typing import TYPE_CHECKING

from burnish.lazy import lazy_exports

if TYPE_CHECKING:
    from burnish.engines.bridge import (
        Bridge as Bridge,
        TraceFile as TraceFile,
        read_traces as read_traces,
    )
    from burnish.engines.client import RemoteScorer as RemoteScorer
    from burnish.engines.inspect_ai import (
        as_inspect as as_inspect,
        as_inspect_task as as_inspect_task,
    )
    from burnish.engines.openrlhf import as_openrlhf as as_openrlhf
    from burnish.engines.server import (
        ServeSettings as ServeSettings,
        create_app as create_app,
        serve as serve,
    )
    from burnish.engines.servers import Servers as Servers
    from burnish.engines.trl import as_trl as as_trl, as_trl_rollout as as_trl_rollout
    from burnish.engines.trl_trainer import as_trl_trainer as as_trl_trainer
    from burnish.engines.verifiers import (
        as_verifiers as as_verifiers,
        as_verifiers_tasks as as_verifiers_tasks,
    )
    from burnish.engines.verifiers_env import as_verifiers_env as as_verifiers_env
    from burnish.engines.verl import as_verl as as_verl
    from burnish.engines.verl_recipe import (
        as_verl_advantage as as_verl_advantage,
        as_verl_loss as as_verl_loss,
    )

__getattr__, __dir__ = lazy_exports(__name__)
