"""One run = one folder: its config, every sample with its evidence, every number, in plain SQL."""

from burnish.store.export import export
from burnish.store.frames import RunInfo, find_run, list_runs
from burnish.store.manifest import Manifest, StartRewards, read_start_rewards, write_start_rewards
from burnish.store.reader import (
    STAGE,
    UNSCORED,
    MetricPoint,
    RunEnd,
    RunStatus,
    RunSummary,
    StoredEvaluation,
    StoredEvent,
)
from burnish.store.run import RunStore
from burnish.store.sample import StoredSample

__all__ = [
    "STAGE",
    "UNSCORED",
    "Manifest",
    "MetricPoint",
    "RunEnd",
    "RunInfo",
    "RunStatus",
    "RunStore",
    "RunSummary",
    "StartRewards",
    "StoredEvaluation",
    "StoredEvent",
    "StoredSample",
    "export",
    "find_run",
    "list_runs",
    "read_start_rewards",
    "write_start_rewards",
]
