"""In place of `burnish train` in a sweep: does what the learning rate says, without torch."""

import json
import os
import signal
import sys
import time
from pathlib import Path

from burnish.store import RunStore
from burnish.store.manifest import SUFFIX

FINISH, FAIL, GUARD, WAIT, KILLED, LARGE, CHATTY = 1e-5, 2e-5, 3e-5, 4e-5, 5e-5, 6e-5, 7e-5
SETTINGS = ("optimiser.learning_rate", "run.seed")


def emit(**event: object) -> None:
    sys.stdout.write(json.dumps(event) + "\n")
    sys.stdout.flush()


def name_of(folder: Path, words: list[str]) -> str:
    """The name that the sweep has given the run of these words."""
    runs = [
        run for file in folder.glob(f"*{SUFFIX}") for run in json.loads(file.read_text())["runs"]
    ]
    return next(run["name"] for run in runs if run["words"] == words)


def main() -> int:
    place = sys.argv.index("--json")
    words, folder = sys.argv[1:place], Path(sys.argv[place + 2])
    given = dict(word.split("=") for word in words[1:])
    what = float(given["optimiser.learning_rate"])
    run = folder / name_of(folder, words)
    config = {key: json.loads(given[key]) for key in SETTINGS if key in given}
    is_new = not (run / "config.json").is_file()
    store = RunStore.create(run, config, {}, recipe=words[0]) if is_new else RunStore.open(run)
    threads = os.environ["OMP_NUM_THREADS"]
    store.append_event("environment", threads, {"cuda": os.environ.get("CUDA_VISIBLE_DEVICES")})
    memory = {"weights": 1 << 20, "activations": (10 << 30) if what == LARGE else (1 << 20)}
    forecast = {"memory": memory, "available": 16 << 30}
    emit(event="started", done=0, steps=3, forecast=forecast)
    emit(event="held_out", step=0, score={"value": 0.25})
    if what == CHATTY:
        sys.stdout.write("a function of the user's own prints\n")
    if what == FAIL:
        sys.stderr.write("warning: something\nburnish: the data is gone; expected a file.\n")
        return 2
    if what == GUARD:
        store.finish("stopped", {"reason": "no useful group"})
        emit(event="finished", status="stopped", reason="no useful group")
        return 3
    if what == KILLED:
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        end = time.monotonic() + (120 if what == WAIT else 0.3)
        while time.monotonic() < end:
            time.sleep(0.01)
    except KeyboardInterrupt:
        store.finish("stopped", {"reason": "interrupted with Ctrl-C"})
        return 130
    emit(event="step", step=0, remaining_s=1.0, stage="")
    store.append_metrics(0, {"reward/total": 0.5})
    store.finish("finished")
    return 0


if __name__ == "__main__":
    sys.exit(main())
