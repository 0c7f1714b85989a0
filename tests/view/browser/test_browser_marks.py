"""Plans of calls and premises on a sample's page: they fit a phone, and a verdict is said once."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import anyio
import pytest
from browser_page import FLAGS, WAIT_MS, Served, Watched, at, serve

from burnish.records import Author, Message, Response, Reward, Span, Task, Trajectory
from burnish.rewards.judges.atp_bench import atp_scorer, render_call
from burnish.rewards.judges.evpv import EvpvJudge
from burnish.store import RunStore, StoredSample

pytestmark = pytest.mark.browser

WIDE = "a photograph of a finished kite over the dunes, seen from below"
PLANNED = f"Step 1: look.\n\nStep 2: {render_call('search', {'query': WIDE})} and {render_call('paint', {'x': WIDE})}"
NEEDS = [{"where": "Step 2", "intent": "a kite", "tool": "search"}]
SOLVED = "The legs are 12 and 24. [premise: AB = 12] [premise: BC = 24]\n\nSo AC is 26.8."
EVIDENCE = "AB = 10. BC = 24."


def sample(task: Task, text: str, scorer: Any) -> StoredSample:
    (reward,) = anyio.run(scorer.score, task, [Response("r", text)])
    span = Span(Author.MODEL, (7, 2), (-0.1, -0.3), trainable=True)
    played = Trajectory("0.0.0", "t", "0.0.policy", (span,), text)
    total = Reward("total", reward.value, parts=(reward,))
    return StoredSample(
        step=0,
        split="train",
        index=0,
        task=task,
        trajectory=played,
        reward=total,
        advantage=0.5,
    )


@pytest.fixture(scope="module")
def served(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("marks")
    ask = (Message("user", "Write."),)
    plan = sample(Task("t", ask, {"needs": NEEDS, "images": []}), PLANNED, atp_scorer())
    judge = EvpvJudge(None, verifier="none")
    premises = sample(Task("t", ask, {"evidence": EVIDENCE}), SOLVED, judge)
    for name, one in (("plan", plan), ("premises", premises)):
        with RunStore.create(folder / "runs" / name, {"steps": 1}, {}, recipe=name) as store:
            store.append_rollouts(0, [one])
            summary = {"score": [2.5, 2.0, 3.0, 40], "measure": "bits_per_byte"}
            store.append_evaluation(1, "held_out", [], summary)
            store.finish("finished")
    (folder / "results").mkdir()
    with serve(folder, folder / "runs", folder / "results") as found:
        yield found


@pytest.fixture(params=[1440, 390])
def view(
    request: pytest.FixtureRequest, chromium: str, served: Served, tmp_path: Path
) -> Iterator[Watched]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium, args=FLAGS, timeout=WAIT_MS)
        page = browser.new_page(viewport={"width": request.param, "height": 844})
        page.goto(served.address)
        watched = Watched(page, served.base)
        yield watched
        browser.close()
    assert watched.heard == []


def assert_fits(view: Watched, path: str) -> None:
    page = view.open(path)
    widths = page.evaluate(
        "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    )
    assert widths[0] <= widths[1], path


def test_marks_fit_and_say_each_verdict_once(view: Watched) -> None:
    assert_fits(view, at("plan", "/sample?id=0/train/0"))
    assert view.texts(".planned mark.ok") == ["[1 search]"]
    assert view.texts(".planned mark.bad") == ["[2 paint]"]
    assert "look.\n\nStep 2" in view.page.inner_text(".planned")
    assert_fits(view, at("premises", "/sample?id=0/train/0"))
    said = view.page.inner_text(".premises table")
    assert said.count("contradicted") == said.count("supported") == 1
    assert "AB = 10" in said
    assert_fits(view, at("plan"))
    assert "held-out bits per byte" in view.page.inner_text(".score")
    assert "of 40 sequences" in view.page.inner_text(".score")
