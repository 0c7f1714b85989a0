"""Support by passages: worked values, the passages as evidence, a source that changes."""

import json
import math

import pytest
from reward_cases import a_task, score, values

from burnish.errors import UserError
from burnish.rewards.checks.support import SupportConfig
from burnish.rewards.config import build


@pytest.fixture
def source(tmp_path, monkeypatch):
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "manuals.jsonl"
    rows = [{"id": "lamp", "text": "lamp has batteries"}, {"id": "cup", "text": "cup has handle"}]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_support_by_hand(source):
    scorer = build(SupportConfig(source=source.name), base=source.parent)
    # Of two passages one holds "lamp", both hold "has", none holds "wings".
    lamp, has, wings = (math.log(1 + (2 - n + 0.5) / (n + 0.5)) for n in (1, 2, 0))
    whole, part, none, both = score(
        scorer, a_task(), "Lamp has batteries!", "lamp has wings", "wings.",
        "Lamp has batteries. Wings.",
    )  # fmt: skip
    assert values([whole, none, both]) == pytest.approx([1.0, 0.0, 0.5])
    assert part.value == pytest.approx((lamp + has) / (lamp + has + wings))
    seen = str(part.evidence[0].observation)
    assert "lamp: 'lamp has batteries'" in seen
    assert "not in it: wings" in seen
    assert "no passage found" in str(none.evidence[0].observation)
    assert len(both.evidence) == 2


def test_no_words_are_no_support(source):
    scorer = build(SupportConfig(source=str(source)))
    assert values(score(scorer, a_task(), "", "?!\n...")) == [0.0, 0.0]


def test_a_lone_letter_is_no_word_to_look_up(tmp_path, monkeypatch):
    monkeypatch.setenv("BURNISH_CACHE", str(tmp_path / "cache"))
    path = tmp_path / "texts.jsonl"
    path.write_text(json.dumps({"id": "x", "text": "a lamp I have, 7 volts"}) + "\n")
    scorer = build(SupportConfig(source=str(path)))
    assert values(score(scorer, a_task(), "A", "I a. A.", "7", "a lamp")) == [0.0, 0.0, 1.0, 1.0]


def test_a_long_response_is_bounded(source):
    scorer = build(SupportConfig(source=str(source)))
    (found,) = score(scorer, a_task(), "lamp. " * 5000)
    assert len(found.evidence) == 40


def test_the_fingerprint_follows_the_source(source, tmp_path):
    other = tmp_path / "other.jsonl"
    other.write_text(source.read_text().replace("handle", "saucer"))
    one, two = (build(SupportConfig(source=str(path))).fingerprint for path in (source, other))
    assert one != two
    moved = tmp_path / "moved.jsonl"
    moved.write_text(source.read_text())
    assert build(SupportConfig(source=str(source))).fingerprint == one


def test_a_source_that_is_not_there(tmp_path):
    with pytest.raises(UserError, match="no such file or folder"):
        _ = build(SupportConfig(source="nowhere/"), base=tmp_path).fingerprint
