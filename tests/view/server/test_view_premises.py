"""The premises of a solution beside its evidence, and what is no such reward."""

import anyio
from msgspec.structs import replace

from burnish.records import (
    Author,
    Evidence,
    Message,
    Response,
    Reward,
    Span,
    Task,
    Trajectory,
    Verdict,
)
from burnish.rewards.judges.evpv import EvpvJudge
from burnish.store import RunStore, StoredSample
from burnish.store.blobs import shared_blobs
from burnish.view.pages.premises import premises_view
from burnish.view.pages.sample_page import sample_page

TASK = Task("t", (Message("user", "Area?"),), {"evidence": ["<b>AB</b> = 10", {"csv": "a,b\n1,2"}]})
TEXT = "One side. [premise: AB = 12]\n\nAnother. [premise: CD = 3]\n\nSo 36."


def stored(reward):
    span = Span(Author.MODEL, (7, 2), (-0.1, -0.3), trainable=True)
    trajectory = Trajectory("0.0.0", "t", "0.0", (span,), TEXT)
    return StoredSample(
        step=0, split="train", index=0, task=TASK, trajectory=trajectory, reward=reward, advantage=0.5
    )  # fmt: skip


def test_the_page_of_a_sample_has_steps_premises_and_evidence(tmp_path):
    task = Task("t", TASK.messages, {"evidence": "AB = 10"})
    judge = EvpvJudge(None, verifier="none")
    (scored,) = anyio.run(judge.score, task, [Response("r", TEXT)])
    whole = Reward("total", scored.value, parts=(Reward("length", 1.0), scored))
    with RunStore.create(tmp_path / "run", {"steps": 1}, {}, recipe="evpv") as store:
        store.append_rollouts(0, [stored(whole)])
        store.finish("finished")
    found = sample_page(tmp_path / "run", "train-1-1-1", 0)["premises"]
    assert found is not None
    assert (found["name"], [step["value"] for step in found["steps"]]) == ("evpv", [0.0, 0.5, 1.0])
    first = found["steps"][0]
    assert (first["text"], first["premises"][0]["claim"], first["premises"][0]["support"]) == (
        "One side.",
        "AB = 12",
        0.0,
    )
    assert first["premises"][0]["why"] == "contradicted: AB = 10 (sentence 1)"
    assert found["steps"][2]["premises"] == []
    assert found["evidence"] == ["<b>AB</b> = 10", "a,b\n1,2"]  # text: the page shows it as such


def test_the_cost_of_all_replies_is_told_and_other_rewards_are_none():
    part = Reward(
        "step 1", 1.0, evidence=(Evidence("step", "a"), Evidence("m", "1", cost_usd=0.25)),
    )  # fmt: skip
    plain = Reward("prm", 1.0, parts=(part,))
    assert premises_view(stored(plain)) is None
    assert premises_view(stored(Reward("x", 1.0))) is None
    judge = EvpvJudge(None, verifier="none")
    (scored,) = anyio.run(judge.score, TASK, [Response("r", TEXT)])
    parts = (part, *scored.parts[1:])
    costly = Reward(
        "evpv", 1.0, parts=parts, verdicts=scored.verdicts, evidence=(Evidence("m", "x", cost_usd=0.5),)
    )  # fmt: skip
    assert premises_view(stored(costly))["cost_usd"] == 0.75


def test_the_picture_of_the_prompt_has_a_frame_where_a_fact_decided(tmp_path, monkeypatch):
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path / "cache"))
    png = b"\x89PNG\r\n\x1a\n" + b"0" * 20
    part, other = shared_blobs().add(png), shared_blobs().add(png + b"1")
    place = f"picture {part.sha256[:12]}, box 10 20 30 40"
    wrong = Verdict("Tea = 9", 0.0, reason=f"contradicted: Tea = 3 ({place})")
    foreign = Verdict("Salt = 9", 1.0, reason=f"supported: x (picture {'0' * 12}, box 1 2 3 4)")
    step = Reward("step 1", 0.0, verdicts=(wrong, wrong, foreign))
    task = Task("t", (Message("user", (part, other)),), {"evidence": [{"image": "aGk=" * 5000}]})
    sample = replace(stored(Reward("evpv", 0.0, parts=(step,))), task=task)
    found = premises_view(sample)
    (picture,) = found["pictures"]
    assert picture["sha256"] == part.sha256
    assert [
        tuple(box[k] for k in ("claim", "support", "left", "bottom")) for box in picture["boxes"]
    ] == [("Tea = 9", 0.0, 10, 40)]
    assert found["evidence"] == ["a picture of 20,000 characters, read by ocr"]
