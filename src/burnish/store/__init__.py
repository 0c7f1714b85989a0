"""One run = one folder: its config, every sample with its evidence, every number, in plain SQL."""

from typing import TYPE_CHECKING

from burnish.lazy import lazy_exports

if TYPE_CHECKING:
    from burnish.store.frames import RunInfo as RunInfo
    from burnish.store.frames import export as export
    from burnish.store.frames import find_run as find_run
    from burnish.store.frames import list_runs as list_runs
    from burnish.store.manifest import Manifest as Manifest
    from burnish.store.manifest import StartRewards as StartRewards
    from burnish.store.manifest import read_start_rewards as read_start_rewards
    from burnish.store.manifest import write_start_rewards as write_start_rewards
    from burnish.store.reader import STAGE as STAGE
    from burnish.store.reader import UNSCORED as UNSCORED
    from burnish.store.reader import MetricPoint as MetricPoint
    from burnish.store.reader import RunEnd as RunEnd
    from burnish.store.reader import RunStatus as RunStatus
    from burnish.store.reader import RunSummary as RunSummary
    from burnish.store.reader import StoredEvaluation as StoredEvaluation
    from burnish.store.reader import StoredEvent as StoredEvent
    from burnish.store.run import RunStore as RunStore
    from burnish.store.sample import StoredSample as StoredSample

__getattr__, __dir__ = lazy_exports(__name__)
