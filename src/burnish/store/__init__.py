"""One run = one folder: its config, every sample with its evidence, every number, in plain SQL."""

from typing import TYPE_CHECKING

from burnish.lazy import lazy_exports

if TYPE_CHECKING:
    from burnish.store.frames import (
        RunInfo as RunInfo,
        export as export,
        find_run as find_run,
        list_runs as list_runs,
    )
    from burnish.store.manifest import (
        Manifest as Manifest,
        StartRewards as StartRewards,
        read_start_rewards as read_start_rewards,
        write_start_rewards as write_start_rewards,
    )
    from burnish.store.reader import (
        STAGE as STAGE,
        UNSCORED as UNSCORED,
        MetricPoint as MetricPoint,
        RunEnd as RunEnd,
        RunStatus as RunStatus,
        RunSummary as RunSummary,
        StoredEvaluation as StoredEvaluation,
        StoredEvent as StoredEvent,
    )
    from burnish.store.run import RunStore as RunStore
    from burnish.store.sample import StoredSample as StoredSample

__getattr__, __dir__ = lazy_exports(__name__)
