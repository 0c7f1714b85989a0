"""Samples by filter and text, groups, one answer with its tokens and reward tree, prompts, audit, judges."""

from __future__ import annotations

import re
from urllib.parse import parse_qs, urlsplit

import pytest
from browser_page import Watched, at
from browser_runs import HOSTILE, REPLY, SCRIPT

pytestmark = pytest.mark.browser


def asked(view: Watched) -> dict[str, list[str]]:
    return parse_qs(urlsplit(view.page.url).query)


def test_filters_change_the_address_and_the_result_and_survive_a_reload(view):
    page = view.open(at("judged", "/samples"))
    assert view.texts("[role=status]")[0] == "96 answers"
    page.select_option("select[name=status]", "timeout")
    page.wait_for_url("**status=timeout**")
    view.counted("24 answers")
    assert set(view.texts(".result .chip")) == {"timeout"}
    page.select_option("select[name=status]", "ok")
    view.counted("72 answers")
    page.fill("input[aria-label='most step']", "3")
    page.keyboard.press("Enter")
    view.counted("18 answers")
    assert asked(view) == {"status": ["ok"], "step_max": ["3"]}
    shown = page.inner_text(".results")
    page.reload()
    view.ready()
    assert page.inner_text(".results") == shown
    assert page.input_value("input[aria-label='most step']") == "3"
    page.go_back()
    view.counted("72 answers")
    page.go_back()
    view.counted("24 answers")
    page.go_forward()
    view.counted("72 answers")
    page.click("text=clear")
    view.counted("96 answers")
    assert asked(view) == {}


def test_text_search_marks_what_it_found(view):
    page = view.open(at("judged", "/samples"))
    page.fill("input[type=search]", "needle")
    page.keyboard.press("Enter")
    page.wait_for_url("**q=needle**")
    page.wait_for_selector("mark")
    assert view.texts("[role=status]")[0] == "1 answer"
    assert view.texts("mark") == ["needle"]
    assert view.page.evaluate("document.activeElement.type") == "search"
    page.fill("input[type=search]", "train-6-1-2")
    page.keyboard.press("Enter")
    page.wait_for_url("**/sample?id=train-6-1-2")
    view.ready()
    assert page.inner_text("h1") == "Answer train-6-1-2"
    page = view.open(at("judged", "/samples"))
    page.fill("input[type=search]", "no such words")
    page.keyboard.press("Enter")
    page.wait_for_selector("text=No answer fits")


def test_a_group_stands_side_by_side_and_opens_its_reasons(view):
    page = view.open(at("judged", "/step?n=5"))
    assert view.texts(".choice[aria-current]") == ["all groups"]
    view.follow("text=Why is the sky blue?")
    cards = page.locator("article.member")
    assert cards.count() == 4
    tops = {round(cards.nth(place).bounding_box()["y"]) for place in range(2)}  # type: ignore[index]
    assert len(tops) == 1
    figures = [float(text) for text in view.texts("article.member > .line .figure")]
    assert figures == sorted(figures, reverse=True)
    assert "left out of the loss" in cards.last.inner_text()
    cards.first.locator("summary", has_text="why").click()
    assert "stays with the question" in cards.first.inner_text()


def test_the_reward_tree_shows_parts_verdicts_evidence_and_raw_replies(view):
    page = view.open(at("judged", "/sample?id=5/train/1"))
    assert view.texts("aside .node .name") == ["total", "judge", "format"]
    assert "× 0.750" in page.inner_text("aside")
    verdicts = view.texts(".verdicts li")
    assert "1.00" in verdicts[0]
    assert "no verdict" in verdicts[1]
    assert view.texts("aside .evidence .chip.oracle") == ["oracle"]
    assert "1 piece of evidence holds the label" in page.inner_text("aside")
    assert "$0.0125" in page.inner_text("aside")
    page.click(".evidence summary")
    assert page.inner_text(".evidence pre") == REPLY
    assert len(view.texts(".peers li")) == 4
    view.follow(".peers li:last-child a")
    assert "no reply within 60 s" in page.inner_text("aside")
    assert "no reward (timeout)" in page.inner_text("aside")


def test_two_runs_are_compared_from_the_list(view):
    page = view.open("/")
    assert page.is_hidden("text=Compare them")
    page.check("input[aria-label='choose first to compare']")
    assert page.is_hidden("text=Compare them")
    page.check("input[aria-label='choose second to compare']")
    view.follow("text=Compare them")
    assert asked(view) == {"a": ["first"], "b": ["second"]}
    text = page.inner_text("#page")
    assert "B − A" in text
    assert "too few to say" in page.inner_text(".verdict")
    legend = page.locator(".legend").first
    assert [legend.locator(".key").nth(place).inner_text() for place in (0, 1)] == [
        "A first",
        "B second",
    ]
    assert page.locator("figure .legend").first.locator(".key").all_inner_texts() == [
        "A first",
        "B second",
    ]
    assert page.locator(".pairs article >> nth=0").locator(".side-mark").all_inner_texts() == [
        "A",
        "B",
    ]
    assert "run.seed" in text
    assert page.locator("section.charts figure").count() >= 4
    assert page.locator(".pairs article").count() == 5
    view.follow("text=3 steps")
    assert asked(view)["step"] == ["3"]


def test_the_audit_ranks_findings_with_links_to_answers(view):
    page = view.open(at("judged", "/audit"))
    assert page.inner_text(".finding h2 >> nth=0") == "1. Length"
    strengths = [
        float(text.replace("strength", "").strip()) for text in view.texts(".finding .meter")
    ]
    assert strengths == sorted(strengths, reverse=True)
    assert page.locator(".finding >> nth=0").locator(".links a").count() == 10
    view.follow(".finding .links a")
    assert re.search(r"sample\?id=train-\d+-\d-\d", view.page.url)


def test_judges_with_confusion_and_disagreements(view):
    page = view.open("/benches")
    assert "is not a result" in page.inner_text("#page")
    accuracy = page.locator("tr", has_text="llmbar-direct").locator("td").nth(3).inner_text()
    assert accuracy.split("\n\n") == ["40 % [12 %, 77 %] too few to say"] * 2
    view.follow("text=llmbar-direct")
    assert page.locator("section.card").count() == 2
    block = page.locator("section.card").first
    assert "40 % [12 %, 77 %] too few to say right of all" in block.inner_text()
    cells = block.locator("table.matrix").first.locator("td").all_inner_texts()
    # rows: label first, second; columns: first, second, none, tie
    assert cells == ["1", "0", "0", "1", "1", "1", "1", "0"]
    assert page.locator("article").count() == 2
    assert "said first, label second" in page.inner_text("article >> nth=0")
    assert f"Which is right? {SCRIPT}" in page.inner_text("article .message >> nth=0")
    answers = page.locator("article >> nth=0").locator(".beside > div").all_inner_texts()
    assert "judge chose this" in answers[0]
    assert "the right one" in answers[0]
    assert "label" in answers[1]
    assert page.locator("#injected").count() == 0
    page.click("article summary >> nth=0")
    page.click("article .evidence summary >> nth=0")
    assert SCRIPT in page.inner_text("article .evidence pre >> nth=0")
    view.follow("text=no verdict 2")
    assert asked(view)["kind"] == ["failed"]
    assert "parse error" in page.inner_text("article >> nth=0")
    view.follow(".choice:text-is('direct@tiny')")
    assert page.locator("article").count() == 1


def test_an_image_is_shown_and_a_sound_can_be_played(view):
    page = view.open(at(HOSTILE, "/sample?id=0/train/0"))
    view.until("document.querySelector('img.media').naturalWidth", 1)
    play = "document.querySelector('audio.media').play().then(() => 'plays', (e) => e.message)"
    assert page.evaluate(play) == "plays"
    view.until("document.querySelector('audio.media').duration", 0.5)
    assert view.texts(".message pre") == [f"{SCRIPT} prompt"]
    assert page.query_selector("#injected") is None
    assert "× 1" in page.inner_text("figcaption >> nth=0")
