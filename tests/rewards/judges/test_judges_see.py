"""Every judge behind a server receives the task's own bytes, fenced; one that cannot see is refused."""

from __future__ import annotations

import base64
import json
import random
import struct
import zlib
from typing import Any

import anyio
import msgspec
import pytest
from hostile_server import HostileServer, ok

from burnish.errors import UserError
from burnish.lm.call_log import judges_built
from burnish.lm.named import open_lm
from burnish.lm.replay import ScriptedLM
from burnish.records import Message, Response, Task, TextPart
from burnish.rewards.config import RewardConfig, build
from burnish.rewards.judges.build import build_judge
from burnish.rewards.judges.judge_model import JudgeModel
from burnish.rewards.judges.march.roles import checker_messages, documents_of, sighted_messages
from burnish.rewards.judges.openrs import evolve
from burnish.rewards.judges.openrs.meta_rubric import RubricLibrary
from burnish.rewards.judges.prompting import MEDIA_BEFORE, MEDIA_BEHIND, UNSEEN, check_reads_media
from burnish.store.blobs import shared_blobs

EVPV = "AB is 10. [premise: AB = 10]\n\nSo half of it is 5."
CLAIMS = "- Question: Which colour is the bar? [Answer: red]"
CHECKS = "1. Evidence: seen [Answer: red]"
TEXTS = ("It is blue.", "It is red.")


def png(shade: int) -> bytes:
    """A picture of one pixel."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
        )

    head = struct.pack(">IIBBBBB", 1, 1, 8, 2, 0, 0, 0)
    pixel = zlib.compress(bytes([0, shade, 0, 0]))
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", pixel) + chunk(b"IEND", b"")


@pytest.fixture
def pictured(tmp_path, monkeypatch):
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path / "cache"))
    parts = [shared_blobs().add(png(shade)) for shade in (1, 2)]
    asked = (TextPart("Which colour is "), *parts, TextPart("?"))
    fields = {"documents": ["A chart of sales."], "evidence": "AB = 10"}
    return Task("t", (Message("user", asked),), fields)


def answers(reply: str) -> Any:
    def behaviour(number: int, seen: Any) -> Any:
        said = json.dumps(seen.body)
        return ok(CLAIMS if "List what an answer claims" in said else reply)

    return behaviour


def scored(
    table: dict[str, Any], task: Task, reply: str, texts: tuple[str, ...] = TEXTS
) -> tuple[list[Any], list[Any]]:
    """Rewards of the texts, and the last message of each request that the server received."""
    with HostileServer(answers(reply)) as server:
        filled = json.loads(json.dumps(table).replace("SERVER", server.url))
        scorer = build(msgspec.convert(filled, RewardConfig))
        responses = [Response(f"r{n}", text) for n, text in enumerate(texts)]
        rewards = anyio.run(scorer.score, task, responses)
    contents = [seen.body["messages"][-1]["content"] for seen in server.requests]
    return rewards, contents


def assert_shows_both_pictures(content: Any) -> None:
    assert isinstance(content, list), "the judge got text alone"
    sent = [part["image_url"]["url"] for part in content if part["type"] == "image_url"]
    held = [base64.b64decode(url.removeprefix("data:image/png;base64,")) for url in sent]
    assert held == [png(1), png(2)]
    texts = [part["text"] for part in content if part["type"] == "text"]
    assert texts[0].endswith(MEDIA_BEFORE)
    mark = texts[1].split()[-2]
    assert len(mark) >= 16
    assert sum(text.count(mark) for text in texts[1:]) == 4  # two fences, each opened and closed
    assert texts[-1].strip() == MEDIA_BEHIND


DIRECT = {"kind": "judge", "with": "direct", "model": "SERVER#m"}
SEEING = {
    "versus, lm": (
        {"kind": "versus", "judge": {"kind": "lm", "url": "SERVER", "model": "m"}},
        "<scores>8, 3</scores>",
        TEXTS,
    ),
    "versus, judge": (
        {"kind": "versus", "judge": DIRECT},
        '{"reasons": "Seen.", "winner": "A"}',
        TEXTS,
    ),
    "evpv": ({"kind": "evpv", "model": "SERVER#m"}, "1", (EVPV,)),
    "march": ({"kind": "march", "model": "SERVER#m"}, CHECKS, ("The bar is red.",)),
}


def with_setting(table: dict[str, Any], **more: Any) -> dict[str, Any]:
    """The reward with a setting of its judge."""
    return {**table, "judge": {**table["judge"], **more}} if "judge" in table else {**table, **more}


@pytest.mark.parametrize("name", SEEING)
def test_a_judge_behind_a_server_receives_the_pictures(name, pictured):
    table, reply, texts = SEEING[name]
    rewards, contents = scored(table, pictured, reply, texts)
    assert any(reward.value is not None for reward in rewards), [r.reason for r in rewards]
    asked = [c for c in contents if not (isinstance(c, str) and c.startswith("List what"))]
    assert asked
    for content in asked:
        assert_shows_both_pictures(content)


@pytest.mark.parametrize("name", SEEING)
def test_marks_alone_where_the_recipe_says_so(name, pictured):
    table, reply, texts = SEEING[name]
    marked = with_setting(table, media="mark")
    _, contents = scored(marked, pictured, reply, texts)
    asked = [c for c in contents if not c.startswith("List what")]
    assert all(c.endswith(UNSEEN) for c in asked)
    assert asked


@pytest.mark.parametrize("name", SEEING)
def test_the_limits_hold_and_nothing_is_sent_beyond_them(name, pictured):
    table, reply, texts = SEEING[name]
    small = with_setting(table, media_count=1)
    rewards, contents = scored(small, pictured, reply, texts)
    assert all(reward.value is None for reward in rewards)
    assert any("at most 1 a request (media_count)" in reward.reason for reward in rewards)
    assert not any(isinstance(content, list) for content in contents)


class TestMarch:
    """Pictures are documents: Checkers see them, the Proposer does not."""

    def test_the_proposer_reads_the_answer_alone(self, pictured):
        table, reply, texts = SEEING["march"]
        _, contents = scored(table, pictured, reply, texts)
        proposer = [c for c in contents if isinstance(c, str)]
        assert len(proposer) == 1
        assert proposer[0].startswith("List what")
        assert len(contents) == 1 + 3

    def test_each_picture_has_its_line_among_the_passages(self, pictured):
        (message,) = checker_messages(["One."], ["Which?"], media=pictured.media)
        first, second = (part.sha256[:12] for part in pictured.media)
        assert f"[2] (image {first}: see below)\n[3] (image {second}: see below)" in message.text

    def test_without_pictures_the_words_are_as_ever(self):
        (message,) = checker_messages(["One."], ["Which?"])
        assert isinstance(message.content, str)

    def test_the_control_sees_pictures_and_answer(self, pictured):
        (message,) = sighted_messages(["One."], ["Which?"], "Red.", media=pictured.media)
        assert message.media == pictured.media
        assert message.text.endswith("Answer under test: Red.")

    def test_pictures_may_be_the_only_documents(self, pictured):
        fields = {"documents": []}
        assert documents_of(Task("t", pictured.messages, fields)) == []
        with pytest.raises(UserError, match="expected a list of texts"):
            documents_of(Task("t", (Message("user", "?"),), fields))


def test_the_refiner_of_rubrics_sees_the_cases(pictured):
    lm = ScriptedLM(lambda messages, index: "[]")
    rubric = RubricLibrary.shipped().for_request("Which colour?")
    pair = evolve.Preference("p", pictured, Response("a", "red"), Response("b", "blue"), 1)
    failure = evolve.Failure(pair, -1.0)
    propose = evolve.refiner(JudgeModel(lm, repairs=0))
    anyio.run(propose, rubric, [failure], random.Random(0))
    assert lm.calls[0].prompt[0].media == pictured.media


def judges_of(table: dict[str, Any]) -> list[Any]:
    """The judges that a reward of a recipe makes."""
    with judges_built() as judges:
        build(msgspec.convert(table, RewardConfig))
    return list(judges)


class TestRefused:
    """A judge in this process that reads text alone is refused before anything starts."""

    LINE = r"judge 'tiny': .* reads text only.* Or set media = 'mark' \(--media mark\)"

    def test_without_loading_it(self, pictured):
        judge = JudgeModel(open_lm("tiny", late=True))
        with pytest.raises(UserError, match=self.LINE):
            check_reads_media([judge], pictured.media)
        check_reads_media([judge], ())
        check_reads_media([JudgeModel(open_lm("tiny", late=True), media="mark")], pictured.media)
        check_reads_media([JudgeModel(open_lm("visual:tiny", late=True))], pictured.media)
        check_reads_media([JudgeModel(open_lm("http://127.0.0.1:9/v1#m"))], pictured.media)

    def test_where_it_is_asked_about_texts_alone_it_is_not(self, pictured):
        for table in (
            {"kind": "evpv", "options": {"verifier": "none", "pictures": "ocr"}},
            {"kind": "judge", "with": "citations"},
        ):
            check_reads_media(judges_of({**table, "model": "tiny"}), pictured.media)
        seeing = judges_of({"kind": "evpv", "model": "tiny", "options": {"pictures": "ocr"}})
        with pytest.raises(UserError, match=self.LINE):
            check_reads_media(seeing, pictured.media)

    @pytest.mark.parametrize("order", [("evpv", "citations"), ("citations", "evpv")])
    def test_one_that_two_scorers_share_is_refused_in_any_order(self, order, pictured):
        judge = JudgeModel(open_lm("tiny", late=True))
        first, second = (build_judge(name, judge) for name in order)
        seen = {one.name: one.shows_media for one in (first, second)}  # type: ignore[attr-defined]
        assert seen == {"evpv": True, "citations": False}
        with pytest.raises(UserError, match=self.LINE):
            check_reads_media([judge], pictured.media)

    def test_a_run_is_refused_before_its_model_is_loaded(self, tmp_path, monkeypatch):
        pytest.importorskip("torch", reason="torch is not installed")
        from burnish.config import Config, load
        from burnish.training import build as build_run

        monkeypatch.setenv("BURNISH_CACHE", str(tmp_path / "cache"))
        judge = {**DIRECT, "model": "tiny"}
        table = {
            "model": {"path": str(tmp_path / "there is no such model")},
            "task": {"kind": "scenes"},
            "rewards": [{"kind": "versus", "judge": judge}],
        }
        with pytest.raises(UserError, match=self.LINE):
            build_run(load(Config, table), tmp_path / "run")
        assert not (tmp_path / "run").exists()


def test_a_picture_whose_bytes_are_gone_is_named(pictured):
    for part in pictured.media:
        shared_blobs().path(part.sha256).unlink()
    table, reply, texts = SEEING["versus, lm"]
    rewards, contents = scored(table, pictured, reply, texts)
    assert not contents
    assert all(reward.value is None for reward in rewards)
    assert any(pictured.media[0].sha256[:12] in reward.reason for reward in rewards)
