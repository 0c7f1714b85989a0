"""A run that has done nothing yet is begun again in its folder, as while a function is debugged."""

from __future__ import annotations

import shutil
from pathlib import Path

from burnish.rewards.judges.ledger import LEDGER
from burnish.store import RunStore
from burnish.store.calibration import CALIBRATION
from burnish.training.devices import world_size
from burnish.training.stages import FILE as DIFFICULTY
from burnish.training.warm_start import WARM_START


def begin_anew(folder: Path) -> bool:
    """Empty the folder of a run without a finished step; False where there is work to lose.

    A done warm start is work too. Of several processes none may empty what another one fills.
    """
    if world_size() > 1 or (folder / WARM_START).is_dir():
        return False
    with RunStore.open(folder, read_only=True) as store:
        if _has_steps(store):
            return False
    # Opened once more as its writer: that fails in one line while another process is at work.
    with RunStore.open(folder) as store:
        if _has_steps(store):
            return False
        store.discard()
    for name in (CALIBRATION, DIFFICULTY, LEDGER, f"{LEDGER}-wal", f"{LEDGER}-shm"):
        (folder / name).unlink(missing_ok=True)
    shutil.rmtree(folder / "crash", ignore_errors=True)
    return True


def _has_steps(store: RunStore) -> bool:
    """A step is finished when its numbers are stored."""
    return any(True for _ in store.query("SELECT 1 FROM metrics LIMIT 1"))
