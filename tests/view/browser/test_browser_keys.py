"""Keys alone lead through the viewer; theme, history, focus; and a run that grows while it is watched."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
from browser_page import Watched, at
from browser_runs import judged_metrics, judged_sample

from burnish.store import RunStore

pytestmark = pytest.mark.browser


def test_a_walk_with_keys_alone(view):
    page = view.open("/")
    for _ in range(2):
        view.press("j")
    assert "judged" in page.inner_text("tr.chosen")
    view.press("Enter", moves=True)
    assert page.inner_text("h1") == "judged"
    view.press("]", moves=True)
    assert page.inner_text("h1") == "Steps"
    view.press("j")
    view.press("j")
    view.press("k")
    view.press("Enter", moves=True)
    assert page.inner_text("h1") == "Step 12"
    view.press("[", moves=True)
    assert page.inner_text("h1") == "Step 11"
    view.press("ArrowDown")
    view.press("Enter", moves=True)
    assert page.inner_text("h1") == "Step 11, prompt 1"
    view.press("]", moves=True)
    assert page.inner_text("h1") == "Step 11, prompt 2"
    view.press("j")
    view.press("Enter", moves=True)
    assert page.inner_text("h1") == "Answer train-11-2-3"
    view.press("]", moves=True)
    assert page.inner_text("h1") == "Answer train-11-2-4"
    for title in ("Step 11, prompt 2", "Step 11", "Steps", "judged"):
        view.press("u", moves=True)
        assert page.inner_text("h1") == title


def test_search_help_and_escape(view):
    page = view.open(at("first"))
    view.press("/")  # the field of this page: it finds a curve
    assert page.evaluate("document.activeElement.type") == "search"
    page.keyboard.type("length")
    view.press("Escape")
    assert page.evaluate("document.activeElement.tagName") == "BODY"
    page = view.open(at("judged", "/audit"))
    view.press("/", moves=True)
    assert page.inner_text("h1") == "Samples"
    view.press("/")
    page.keyboard.type("j?t")  # letters in a field are letters
    assert page.input_value("input[type=search]") == "j?t"
    view.press("Escape")
    view.press("?")
    assert page.is_visible("dialog[open]")
    assert "colour tokens" in page.inner_text("dialog")
    view.press("Escape")
    page.wait_for_selector("dialog[open]", state="detached")
    page.keyboard.press("Control+j")
    assert page.locator(".chosen").count() == 0


def test_back_leads_to_the_place_one_was_at(view):
    page = view.open(at("judged", "/samples"))
    page.locator(".result").nth(40).scroll_into_view_if_needed()
    place = page.evaluate("scrollY")
    assert place > 500
    page.locator(".result").nth(40).click()
    page.wait_for_selector("h1:has-text('Answer')")
    assert page.evaluate("scrollY") == 0
    assert page.evaluate("document.activeElement.id") == "page"
    page.go_back()
    page.wait_for_selector("h1:has-text('Samples')")
    view.until(f"Math.abs(scrollY - {place}) < 5")


def test_a_server_that_is_gone_is_told_and_forgotten_when_it_is_back(view):
    view.refusals_expected = True
    page = view.open(at("judged"))
    page.route("**/api/**", lambda route: route.abort())
    view.until("document.body.classList.contains('lost')")
    assert page.inner_text("h1") == "judged"
    page.unroute("**/api/**")
    view.until("document.body.classList.contains('lost')", False)
    page.route("**/api/**", lambda route: route.abort())
    view.follow("text=Steps")
    assert "the server does not answer" in page.inner_text("section.problem")


def test_a_growing_run_moves_without_a_reload(view, served):
    folder = served.runs / "growing"
    try:
        _grow(view, folder)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _grow(view: Watched, folder: Path) -> None:
    with RunStore.create(folder, {"steps": 9}, {}) as store:
        for step in range(2):
            _append(store, step)
        page = view.page
        view.open("/")
        page.wait_for_selector("tr:has-text('growing') .live")
        view.open(at("growing"))
        page.evaluate("window.mark = 'not reloaded'")
        assert "2 of 9 steps · 16 answers" in page.inner_text("#page")
        line = "document.querySelector('svg polyline').getAttribute('points')"
        before = page.evaluate(line)
        page.fill("input[aria-label='Find a curve']", "status")
        _append(store, 2)
        page.wait_for_selector("text=3 of 9 steps · 24 answers")
        view.until(
            "document.querySelector('svg polyline').getAttribute('points').split(' ').length", 3
        )
        assert page.evaluate(line) != before
        # What somebody is typing is left alone.
        assert page.input_value("input[aria-label='Find a curve']") == "status"
        assert page.evaluate("document.activeElement.type") == "search"
        store.append_event("guard", "something to look at", {}, 2)
        page.wait_for_selector("text=something to look at")
        store.finish("finished")
        page.wait_for_selector(".chip.finished")
        assert page.locator(".live").count() == 0
        assert page.evaluate("window.mark") == "not reloaded"


def _append(store: RunStore, step: int) -> None:
    store.append_rollouts(step, [judged_sample(step, index) for index in range(8)])
    store.append_metrics(step, {**judged_metrics(step), "status/ok": 0.75})
