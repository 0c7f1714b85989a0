"""Reports: what they say of a run, that texts stay texts, and charts by hand."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from hypothesis import given, strategies as st

from burnish.records import Author, Evidence, Message, Reward, Span, Status, Task, Trajectory
from burnish.store import RunStore, StoredSample
from burnish.view.report import contents_of, html_page, markdown
from burnish.view.report.page import line_chart, ticks

EVIL = "<script>alert(1)</script><img src=x onerror=alert(2)>|`*"


class Page(HTMLParser):
    """The tags and attributes of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str | None]] = []
        self.text = ""
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.attributes += attrs

    def handle_data(self, data: str) -> None:
        self.text += data


def sample(step: int, index: int, reward: Reward, text: str) -> StoredSample:
    task = Task("t", (Message("user", f"prompt {EVIL}"),))
    span = Span(Author.MODEL, (1,), (-0.5,), trainable=True)
    trajectory = Trajectory(f"{step}.{index}", "t", f"{step}", (span,), text)
    return StoredSample(
        step=step, split="train", index=index, task=task, trajectory=trajectory, reward=reward
    )


def scored(value: float) -> Reward:
    seen = Evidence("judge", f"said {EVIL}")
    part = Reward("style", value, evidence=(seen,), reason=f"because {EVIL}")
    return Reward("total", value, parts=(part,))


@pytest.fixture
def store(tmp_path):
    origins = {"steps": "command line", "run.name": "command line"}
    config = {"steps": 6, "run": {"name": f"run {EVIL}"}, "rewards": [{"kind": "x"}]}
    store = RunStore.create(tmp_path / "run", config, origins, recipe="grpo", config_hash="abc")
    memory = {"memory_bytes": 2**30, "available_bytes": 2**31}
    store.append_event("forecast", "1 GiB of memory", memory, 0)
    store.append_event("time", "about 3 to 4 s for the 3 steps left, from 3 steps", {}, 3)
    for step in range(6):
        failed = Reward.failed("total", Status.TIMEOUT, f"late {EVIL}")
        rows = [
            sample(step, 0, scored(step / 10), f"low {EVIL}"),
            sample(step, 1, scored(1.0), "x"),
        ]
        store.append_rollouts(step, [*rows, sample(step, 2, failed, "none")])
        store.append_metrics(step, {"reward/total": step / 10, "time/step_s": 1.0 + step})
    store.append_event("guard", f"tripped {EVIL}", {}, 5)
    store.append_evaluation(6, "held_out", [], {"score": [0.5, 0.4, 0.6, 20]})
    store.finish("finished", {"reason": f"done {EVIL}"})
    return store


def test_what_a_report_says(store):
    report = contents_of(store)
    assert report.command == f"burnish train grpo 'run.name=run {EVIL}' steps=6"
    what, expected, came = report.facts[0]
    assert what == "time after step 3"
    assert expected == "about 3 to 4 s for the 3 steps left, from 3 steps"
    assert came.endswith(" s, one step 3.5 s (median of 6)")
    assert report.facts[-1][1] == "1.00 GiB of 2.0 free"
    assert report.best[0].reward == "1"
    assert [shown.reward for shown in report.worst] == ["0", "0.1", "0.2"]
    assert [shown.name for shown in report.failed] == ["train-6-1-3", "train-5-1-3", "train-4-1-3"]
    assert report.failed[0].parts == (("total", "timeout", f"late {EVIL}"),)
    assert [event.kind for event in report.events] == ["guard"]
    assert ("rewards", "[{'kind': 'x'}]", "default") in report.settings


def test_texts_stay_texts_in_the_page(store):
    page = html_page(contents_of(store))
    seen = Page(page)
    assert "script" not in seen.tags
    assert "img" not in seen.tags
    assert not [name for name, _ in seen.attributes if name.startswith("on")]
    for said in ("prompt", "low", "said", "because", "late", "tripped", "done"):
        assert f"{said} {EVIL}" in seen.text


def test_markdown_keeps_texts_in_fences(store):
    text = markdown(contents_of(store))
    outside = re.sub(r"^(`{3,})\n.*?^\1$", "", text, flags=re.DOTALL | re.MULTILINE)
    assert "<script>" not in outside.replace("\\<script\\>", "")
    assert "| time after step 3 | about 3 to 4 s for the 3 steps left, from 3 steps |" in text
    rows = [line for line in outside.splitlines() if line.startswith("|")]
    assert all(len(re.findall(r"(?<!\\)\|", row)) in (3, 4, 5) for row in rows)


def test_a_setting_cannot_end_the_fence_of_the_command(tmp_path):
    name = "x\n```\n<script>alert(1)</script>\n```"
    config, origins = {"run": {"name": name}}, {"run.name": "command line"}
    with RunStore.create(tmp_path / "run", config, origins, recipe="grpo") as store:
        text = markdown(contents_of(store))
    outside = re.sub(r"^(`{3,})\n.*?^\1$", "", text, flags=re.DOTALL | re.MULTILINE)
    assert "````" in text
    assert "<script>" not in outside


def test_a_part_without_a_reason_shows_what_it_saw_and_no_control_characters(tmp_path):
    part = Reward("digit", 1.0, evidence=(Evidence("digit", "matched '5' \x0c"),))
    with RunStore.create(tmp_path / "run", {"steps": 1}, {}) as store:
        store.append_rollouts(
            0, [sample(0, 0, Reward("total", 1.0, parts=(part,)), "a\x0cb\tc\nd")]
        )
        contents = contents_of(store)
    for text in (html_page(contents), markdown(contents)):
        assert "matched" in text
        assert "a\\x0cb\tc\nd" in text
        assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", text)


def test_a_run_that_has_just_begun(tmp_path):
    with RunStore.create(tmp_path / "young", {}, {}) as store:
        report = contents_of(store)
        assert "0 steps" in markdown(report)
        assert "too few" in Page(html_page(report)).text


@given(st.floats(-1e9, 1e9), st.floats(1e-6, 1e9))
def test_a_few_ticks_within_any_range(low, span):
    found = ticks(low, low + span)
    assert len(found) <= 6
    assert all(low - span * 1e-6 - 1e-3 <= t <= low + span * 1.000001 + 1e-3 for t in found)


def test_a_chart_by_hand():
    svg = line_chart({"one": [(0, 0.0), (10, 1.0)]}, label="a <b>")
    assert 'aria-label="a &lt;b&gt;"' in svg
    # 152 pixels for -0.06 to 1.06: 0.06 / 1.12 of them is 8.1 from either edge.
    assert 'points="52.0,155.9 430.0,20.1"' in svg
    assert line_chart({"none": []}, label="") == ""
    assert "circle" in line_chart({"one": [(3, 1.0)]}, label="x")
    assert "nan" not in line_chart({"one": [(0, float("nan")), (1, 2.0)]}, label="x")


def test_the_page_asks_for_nothing(store: RunStore) -> None:
    page = html_page(contents_of(store))
    assert not re.search(r"(?:src|href)\s*=", page.replace("src=x onerror", ""))
    assert "default-src 'none'" in page
    assert "url(" not in page
