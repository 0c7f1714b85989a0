"""A small recipe, a run whose every text is an attack, and a client that has the token."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

from starlette.testclient import TestClient

from burnish.records import (
    Author,
    Evidence,
    Message,
    Reward,
    Span,
    Status,
    Task,
    Trajectory,
    Verdict,
    Visibility,
)
from burnish.store import RunStore, StoredSample
from burnish.view.pages.runs import Runs
from burnish.view.server.app import make_app
from burnish.view.server.routes import Viewer

TOKEN = "a-token-for-tests"
BASE = "http://127.0.0.1:8000"
SCRIPT = "<script>alert('x')</script><img src=x onerror=alert(1)>"
HOSTILE = "<img src=x onerror=alert(1)>"
"""A run's name; a folder may be called so."""

RECIPE = """
steps = 6

[model]
path = "tiny"
threads = 1

[task]
kind = "arithmetic"

[[rewards]]
kind = "length"
name = "brief"
unit = "characters"
min = 2
edge = 8

[[rewards]]
kind = "length"
name = "wordy"
unit = "characters"
min = 4
edge = 30
weight = 0.5

[rollout]
prompts = 2
samples = 4
max_tokens = 8

[evaluation]
prompts = 5
every = 3

[checkpoint]
every = 3

[guards]
useless_steps = 1000
"""


class Client:
    """Asks a viewer as the browser would after its first page."""

    def __init__(self, http: TestClient, viewer: Viewer) -> None:
        self.http = http
        self.viewer = viewer

    def get(self, path: str, code: int = 200, /, **parameters: Any) -> Any:
        """The JSON of an answer below /api/v1, whose status is checked."""
        answer = self.http.get(f"/api/v1{path}", params=parameters)
        assert answer.status_code == code, answer.text[:500]
        assert answer.headers["content-type"] == "application/json"
        return answer.json()

    def run(self, run: str, page: str = "", code: int = 200, /, **parameters: Any) -> Any:
        """A page of one run."""
        return self.get(f"/runs/{quote(run, safe='')}{page}", code, **parameters)

    def indexed(self, name: str) -> None:
        """Wait until all of a run is in the index."""
        deadline = time.monotonic() + 120
        while time.monotonic() < deadline:
            if self.run(name, "/pulse")["index"]["ready"]:
                return
            time.sleep(0.02)
        raise TimeoutError("the index was not ready after 120 s")


@contextlib.contextmanager
def open_client(runs: Path, results: Path | None = None, token: str = TOKEN) -> Iterator[Client]:
    """A viewer over a folder of runs, and a client with the token."""
    viewer = Viewer(Runs(folder=runs), results)
    headers = {"authorization": f"Bearer {token}"}
    with TestClient(make_app(viewer, TOKEN), base_url=BASE, headers=headers) as http:
        yield Client(http, viewer)
    viewer.close()


def hostile_run(folder: Path) -> Path:
    """Two steps; prompts, answers, reasons, judge replies and names are all markup."""
    with RunStore.create(folder, {"steps": 2, SCRIPT: SCRIPT}, {SCRIPT: SCRIPT}) as store:
        for step in range(2):
            store.append_rollouts(step, [hostile_sample(step, index) for index in range(4)])
            store.append_token_values(step, "entropy", {i: [0.5, 0.25, 0.125] for i in range(4)})
            store.append_metrics(step, {"reward/total": float(step), SCRIPT: 1.0})
        store.append_event(SCRIPT, SCRIPT, {SCRIPT: SCRIPT}, 1)
        store.finish("finished", {"reason": SCRIPT})
    return folder


def hostile_sample(step: int, index: int) -> StoredSample:
    """Index 0 and 1 are a mixed group, 2 and 3 one whose judge was late."""
    slot = index // 2
    task = Task(f"{SCRIPT}{slot}", (Message("user", f"{SCRIPT} {slot}?"),), {"answer": SCRIPT})
    reply = Evidence("judge", f"I say {SCRIPT}", Visibility.VISIBLE, cost_usd=0.25)
    label = Evidence("numeric", SCRIPT, Visibility.ORACLE, error=SCRIPT)
    verdict = Verdict(SCRIPT, 1.0, confidence=0.5, evidence=(0,), reason=SCRIPT)
    if slot == 0:
        judge = Reward(
            "judge", float(index), evidence=(reply, label), verdicts=(verdict,), reason=SCRIPT
        )
        reward = Reward("total", float(index), parts=(judge,))
    else:
        late = Reward.failed("judge", Status.TIMEOUT, SCRIPT)
        reward = Reward.failed("total", Status.TIMEOUT, SCRIPT, parts=(late,))
    return StoredSample(
        step=step, split="train", index=index, task=task,
        trajectory=Trajectory(
            id=f"{step}.{slot}.{index % 2}", task_id=task.id, group=f"{step}.{slot}",
            spans=(
                Span(Author.PROMPT, (1, 2)),
                Span(Author.MODEL, (3, 4, 5), (-0.1, -0.2, -0.3), trainable=True),
                Span(Author.TOOL, (6,)),
            ),
            text=f"{SCRIPT} answer {index}", weight_version=step, info={SCRIPT: SCRIPT},
        ),
        reward=reward, advantage=(-1.0, 1.0, 0.0, 0.0)[index], keep=slot == 0,
    )  # fmt: skip
