"""Pages of methods in a real browser, wide and narrow: they open, fit, and markup in them stays text."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import anyio
import pytest
from browser_page import at, serve

from burnish.cli.entry import run
from burnish.records import Author, Message, Response, Reward, Span, Task, Trajectory
from burnish.rewards.judges.atp_bench import atp_scorer, render_call
from burnish.rewards.judges.evpv import EvpvJudge
from burnish.store import RunStore, StoredSample
from pair_runs import LEAK, MARKUP, paired_run, rubric_run
from played_runs import played_run

pytestmark = pytest.mark.browser
EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "trace2skill"
CALL = render_call("search", {"query": f"{MARKUP} a finished kite over the dunes, seen from below"})
PLAN = ({"needs": [{"intent": "a kite", "tool": "search"}], "images": []}, f"Step 1: {CALL}")
SOLUTION = ({"evidence": f"AB = 10. {MARKUP}"}, "Legs. [premise: AB = 12]\n\nSo AC is 26.8.")

PAGES = {
    at("model", "/pairs"): [MARKUP, "too few to say of 5 pairs right"],
    at("model", "/sample?id=held_out-4-2-1"): ["better with probability 0.119; 1 by its label"],
    at("judge", "/sample?id=train-1-1-1"): [MARKUP, "opposite order"],
    at("judge", "/sample?id=train-1-1-2"): [LEAK, "names a winner"],
    at("game", "/questions"): ["3 questions", "Which <b>a</b>?", "step 2: 100"],
    at("plan", "/sample?id=0/train/0"): ["[1 search]", MARKUP],
    at("premises", "/sample?id=0/train/0"): ["contradicted", MARKUP],
    "/skill?key=skill": ["3 trajectories of 3 tasks", "Include the last row"],
}


def scored_run(folder: Path, given: tuple[dict[str, Any], str], scorer: Any) -> None:
    fields, text = given
    task = Task("t", (Message("user", "Write."),), fields)
    (reward,) = anyio.run(scorer.score, task, [Response("r", text)])
    span = Span(Author.MODEL, (7, 2), (-0.1, -0.3), trainable=True)
    sample = StoredSample(
        step=0, split="train", index=0, task=task,
        trajectory=Trajectory("0.0.0", "t", "0.0.policy", (span,), text),
        reward=Reward("total", reward.value, parts=(reward,)),
    )  # fmt: skip
    with RunStore.create(folder, {"steps": 1}, {}, recipe=folder.name) as store:
        store.append_rollouts(0, [sample])
        store.finish("finished")


@pytest.fixture(scope="module")
def served(chromium, tmp_path_factory):
    """`burnish view` over one run of each kind and a distilled skill."""
    folder = tmp_path_factory.mktemp("methods")
    runs = folder / "runs"
    paired_run(runs / "model")
    rubric_run(runs / "judge")
    played_run(runs / "game")
    scored_run(runs / "plan", PLAN, atp_scorer())
    scored_run(runs / "premises", SOLUTION, EvpvJudge(None, verifier="none"))
    words = ["--skill", EXAMPLE / "skill" / "tables", "--roles", f"{EXAMPLE / 'roles.py'}:make"]
    given = ["skill", "distill", EXAMPLE / "traces.jsonl", *words, "--out", runs / "skill"]
    assert run([str(word) for word in given]) == 0
    (folder / "results").mkdir()
    with serve(folder, runs, folder / "results") as found:
        yield found


@pytest.fixture(scope="module")
def kept_cookies():
    """This server has a token of its own."""
    return []


@pytest.mark.parametrize("view", [1440, 390], indirect=True)
def test_every_page_of_a_method_opens_fits_and_shows_markup_as_text(view):
    for path, said in PAGES.items():
        page = view.open(path)
        assert view.page.locator("section.problem, #injected").count() == 0, path
        text = " ".join(str(page.text_content("#page")).split())
        assert [one for one in said if " ".join(one.split()) not in text] == [], path
        widths = page.evaluate(
            "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
        )
        assert widths[0] <= widths[1], path
