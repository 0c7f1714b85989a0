"""A plan of calls on a sample's page: its pieces, its marks, and evidence that is none."""

import anyio
import msgspec
import pytest

from burnish.records import Author, Evidence, Message, Response, Reward, Span, Task, Trajectory
from burnish.rewards.judges.atp_bench import atp_scorer, render_call
from burnish.store import RunStore, StoredSample
from burnish.view.pages.plans import plan_view
from burnish.view.pages.sample_page import sample_page

CALL = render_call("search", {"query": "<b>kite</b>"})
TEXT = f'Step 1: look. {CALL} <tool name="paint">{{}}</tool>'
NEEDS = [{"where": "Step 1", "intent": "a kite", "tool": "search"}, {"intent": "x", "tool": "code"}]
TASK = Task("t", (Message("user", "Write."),), {"needs": NEEDS, "images": []})


def stored(reward):
    span = Span(Author.MODEL, (7, 2), (-0.1, -0.3), trainable=True)
    trajectory = Trajectory("0.0.0", "t", "0.0.policy", (span,), TEXT)
    return StoredSample(
        step=0, split="train", index=0, task=TASK, trajectory=trajectory, reward=reward,
        advantage=0.5,
    )  # fmt: skip


def scored():
    (reward,) = anyio.run(atp_scorer().score, TASK, [Response("r", TEXT)])
    return Reward("total", reward.value, parts=(reward,))


def test_the_page_of_a_sample_has_its_plan(tmp_path):
    with RunStore.create(tmp_path / "run", {"steps": 1}, {}, recipe="atp") as store:
        store.append_rollouts(0, [stored(scored())])
        store.finish("finished")
    found = sample_page(tmp_path / "run", "train-1-1-1", 0)["plan"]
    assert "".join(piece["text"] for piece in found["pieces"]) == TEXT
    assert [piece["call"] for piece in found["pieces"]] == [0, 1, 0, 2]
    marks = [(item.kind, item.valid, item.correct) for item in found["plan"].items]
    assert marks == [("search", True, True), ("paint", False, False)]
    assert [gap.kind for gap in found["plan"].missed] == ["code"]
    assert found["plan"].metrics["f1"] == 0.5
    msgspec.json.encode(found)


@pytest.mark.parametrize("observation", ["", "5", "{}", '{"items": 3}', "[" * 9999])
def test_other_evidence_of_that_name_is_no_plan(observation):
    assert plan_view(stored(Reward("a", 1.0, evidence=(Evidence("plan", observation),)))) is None


def test_places_outside_of_the_text_cut_nothing():
    reward = scored()
    text = reward.parts[0].evidence[-1].observation.replace('"start":14', '"start":-5')
    found = plan_view(stored(Reward("a", 1.0, evidence=(Evidence("plan", text),))))
    assert "".join(piece["text"] for piece in found["pieces"]) == TEXT
