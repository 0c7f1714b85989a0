"""Child of tiny_step.py: burnish."""

import json
import sys
import tempfile
import time
from pathlib import Path

START = time.perf_counter() - time.process_time()

from burnish.config import Config, load  # noqa: E402
from burnish.training import build  # noqa: E402
from burnish.training.events import StepDone  # noqa: E402

RECIPE = {
    "steps": int(sys.argv[1]),
    "model": {"path": "tiny"},
    "task": {"kind": "arithmetic", "level": 1},
    "rewards": [{"kind": "function", "path": "_tiny_reward.py:has_digit"}],
    "rollout": {"prompts": 2, "samples": 4, "max_tokens": 16},
    "evaluation": {"prompts": 0},
    "checkpoint": {"every": 0},
    "guards": {"useless_steps": 1000},
}

marks = []
with tempfile.TemporaryDirectory() as folder:
    trainer = build(load(Config, RECIPE), Path(folder) / "run", root=Path(__file__).parent)
    for event in trainer.run():
        if isinstance(event, StepDone):
            marks.append((time.process_time(), time.perf_counter() - START))
print(json.dumps(marks))
