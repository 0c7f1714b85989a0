"""Every page opens, every link leads to a page, nothing overflows, and markup in a run stays text."""

from __future__ import annotations

import re
from urllib.parse import quote

import pytest
from browser_page import Watched, at
from browser_runs import HOSTILE, SCRIPT

pytestmark = pytest.mark.browser

FIRST = [
    at("first"), at("first", "/steps"), at("first", "/settings?show=all"), at("first", "/step?n=3"),
    at("first", "/step?n=3&split=eval:held_out"), at("first", "/samples"), at("first", "/audit"),
]  # fmt: skip
JUDGED = [
    at("judged"), at("judged", "/step?n=5"), at("judged", "/group?step=5&key=5.0"),
    at("judged", "/sample?id=5/train/1"), at("judged", "/samples?q=needle"),
    at("judged", "/prompt?task=task-0"), at("judged", "/audit"),
]  # fmt: skip
OTHERS = ["/", "/compare?a=first&b=second", "/benches", "/bench?key=llmbar-direct"]
PAGES = [*OTHERS, *FIRST, *JUDGED]
TASK = quote(SCRIPT, safe="")
HOSTILE_PAGES = [
    at(HOSTILE), at(HOSTILE, "/settings?show=all"), at(HOSTILE, "/step?n=1"),
    at(HOSTILE, f"/group?step=1&key={TASK}1"), at(HOSTILE, "/sample?id=1/train/1"),
    at(HOSTILE, f"/samples?q={TASK}"), at(HOSTILE, f"/prompt?task={TASK}"), at(HOSTILE, "/audit"),
    "/bench?key=llmbar-direct", "/",
]  # fmt: skip


def is_error(view: Watched) -> bool:
    return view.page.locator("section.problem").count() > 0


@pytest.mark.parametrize("view", [1440, 390], indirect=True)
def test_every_page_opens_and_fits_its_window(view):
    is_wide = view.page.viewport_size["width"] > 600  # type: ignore[index]
    for path in PAGES:
        # Each kind of page is loaded from nothing once; the rest is left to links, which are quick.
        page = view.open(path) if is_wide and path not in FIRST else view.visit(path)
        assert not is_error(view), path
        assert page.title().endswith("burnish")
        widths = page.evaluate(
            "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
        )
        assert widths[0] <= widths[1], path
        inner = "[...document.querySelectorAll('#page *')].filter(e => e.getBoundingClientRect().right > innerWidth + 1 && !e.closest('.scroll, pre, .tokens, svg')).length"
        assert page.evaluate(inner) == 0, path


def test_every_link_leads_to_a_page(view):
    """Links of the same kind differ in their numbers only: one of each kind and page is enough."""
    seen: set[tuple[str, tuple[str, ...]]] = set()
    followed = 0
    for path in PAGES:
        view.visit(path)
        links = view.page.eval_on_selector_all(
            "a[href^='/']", "all => all.map(a => a.getAttribute('href'))"
        )
        assert "/" in links
        for link in links:
            place, _, words = link.partition("?")
            place = re.sub(r"^/run/[^/]+", "/run", place)
            kind = (place, tuple(sorted(word.partition("=")[0] for word in words.split("&"))))
            if kind in seen:
                continue
            seen.add(kind)
            view.visit(link)
            assert not is_error(view), (path, link)
            followed += 1
    assert followed > 15


def test_markup_in_a_run_is_shown_as_text(view):
    for path in HOSTILE_PAGES:
        page = view.visit(path)
        assert not is_error(view), path
        page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
        assert page.locator("#injected").count() == 0, path
        assert page.locator("#page script, #page img:not(.media)").count() == 0, path
    assert HOSTILE in view.texts("td a")
    view.open(at(HOSTILE, "/sample?id=1/train/1"))
    view.page.evaluate("document.querySelectorAll('details').forEach(one => { one.open = true; })")
    text = view.page.inner_text("#page")
    # The name, the reason, the verdict and its reason, the evidence's source, text and error.
    assert text.count(SCRIPT) >= 8


NOT_THERE = {
    at("nobody"): "no run 'nobody'",
    at("first", "/sample?id=99/train/0"): "has no sample '99/train/0'",
    at("first", "/sample?id=%3Cb%3E"): "has no sample '<b>'",
    at("first", "/step?n=77"): "has no samples of step 78",
    at("first", "/group?step=0&key=none"): "has no group 'none'",
    at("first", "/samples?reward_min=low"): "reward_min",
    at("first", "/nothing"): "there is no such page",
    "/compare?a=first&b=nobody": "no run 'nobody'",
    "/bench?key=nothing": "no benchmark result 'nothing'",
    "/elsewhere/deep/down": "there is no such page",
}


def test_what_is_not_there_gets_one_line(view):
    view.refusals_expected = True
    for path, line in NOT_THERE.items():
        view.visit(path)
        lines = view.texts("section.problem p")
        assert line in lines[0], path
        assert "\n" not in lines[0]
        assert lines[1] == "All runs"
    view.page.reload()
    view.ready()
    assert line in view.texts("section.problem p")[0]
    view.follow("section.problem a")
    assert view.path == "/"


def test_a_page_without_the_token_is_refused(view):
    view.refusals_expected = True
    view.page.context.clear_cookies()
    assert view.page.goto(view.base + "/").status == 403  # type: ignore[union-attr]
    assert "no token" in view.page.inner_text("body")


def test_runs_are_listed_newest_first_and_foreign_folders_named(view):
    page = view.open("/")
    assert view.texts("td a.strong") == [HOSTILE, "judged", "second", "first"]
    page.click(".skipped summary")
    assert "notes" in page.inner_text(".skipped")
    row = page.locator("tr", has_text="first").inner_text()
    assert "6 / 6" in row
    assert "finished" in row
