"""Charts as people use them: smoothed, zoomed by pointer and by keys, with round numbers on their axes."""

from __future__ import annotations

import pytest
from browser_page import Watched, at

pytestmark = pytest.mark.browser

REWARD = "figure:has(.title:text-is('Reward'))"


def axis(view: Watched, chart: str = REWARD) -> list[str]:
    """The numbers under a chart, from left to right."""
    script = """all => all.filter(t => t.getAttribute('y') > 165 && t.textContent !== 'step')
        .map(t => t.textContent)"""
    found: list[str] = view.page.eval_on_selector_all(f"{chart} text.axis", script)
    return found


def test_steps_count_from_one_and_have_round_numbers(view: Watched) -> None:
    page = view.open(at("judged"))
    page.wait_for_selector(f"{REWARD} svg")
    assert "steps 1 to 12" in str(page.get_attribute(f"{REWARD} svg", "aria-label"))
    assert axis(view) == ["2", "4", "6", "8", "10", "12"]
    page = view.open(at("first"))
    held = "figure:has(.title:text-is('Held-out score, 95 % interval'))"
    page.wait_for_selector(f"{held} svg")
    assert axis(view, held)[0] == "start"
    assert axis(view, held)[-1] == "6"


def test_smoothing_keeps_the_raw_line_faint_and_is_remembered(view: Watched) -> None:
    page = view.open(at("first"))
    page.wait_for_selector(f"{REWARD} svg")
    assert page.locator(f"{REWARD} polyline.raw").count() == 0
    lines = page.locator(f"{REWARD} polyline").count()
    raw = page.get_attribute(f"{REWARD} polyline >> nth=0", "points")
    page.focus("input[type=range]")
    for _ in range(30):
        page.keyboard.press("ArrowRight")
    assert page.inner_text(".smoothing output") == "0.60"
    assert page.locator(f"{REWARD} polyline.raw").count() == lines
    assert page.get_attribute(f"{REWARD} polyline.raw >> nth=0", "points") == raw
    assert page.get_attribute(f"{REWARD} polyline:not(.raw) >> nth=0", "points") != raw
    page.reload()
    view.ready()
    page.wait_for_selector(f"{REWARD} polyline.raw")
    page.focus("input[type=range]")
    page.keyboard.press("Home")
    assert page.locator(f"{REWARD} polyline.raw").count() == 0


def test_a_chart_is_zoomed_by_dragging_and_by_keys(view: Watched) -> None:
    page = view.open(at("judged"))
    box = page.locator(f"{REWARD} svg").bounding_box()
    assert box is not None
    middle = box["y"] + 60
    page.mouse.move(box["x"] + box["width"] * 0.5, middle)
    page.mouse.down()
    page.mouse.move(box["x"] + box["width"] - 10, middle, steps=4)
    page.mouse.up()
    assert view.path == at("judged"), "a drag opens no step"
    label = str(page.get_attribute(f"{REWARD} svg", "aria-label"))
    assert "to 12, a part of 1 to 12" in label
    assert axis(view)[-1] == "12"
    assert "2" not in axis(view)
    page.click(f"{REWARD} .reset")
    assert "steps 1 to 12, from" in str(page.get_attribute(f"{REWARD} svg", "aria-label"))
    assert page.is_hidden(f"{REWARD} .reset")
    page.mouse.move(2, 2)
    page.focus(f"{REWARD} svg")
    page.keyboard.press("ArrowRight")
    page.keyboard.press("ArrowRight")
    assert page.inner_text(f"{REWARD} .readout").startswith("step 2: ")
    page.keyboard.press("+")
    assert "a part of 1 to 12" in str(page.get_attribute(f"{REWARD} svg", "aria-label"))
    page.keyboard.press("0")
    assert "steps 1 to 12, from" in str(page.get_attribute(f"{REWARD} svg", "aria-label"))
    view.press("Enter", moves=True)
    assert page.inner_text("h1") == "Step 2"


def test_the_list_of_steps_ends_with_the_last_evaluation_and_begins_with_the_start(
    view: Watched,
) -> None:
    page = view.open(at("first", "/steps"))
    rows = page.locator("tbody tr")
    assert rows.count() == 7
    assert rows.first.locator("td").first.inner_text() == "6"
    assert "held out" in rows.first.inner_text()
    assert "too few to say" in rows.first.inner_text()
    assert rows.last.locator("td").first.inner_text() == "start"
    view.follow("tbody tr:last-child td a")
    assert page.inner_text("h1") == "held out, before training"
    view.follow(".answers a")
    assert page.inner_text("h1").startswith("Answer held_out-start-")


def test_a_page_that_takes_long_says_that_it_is_loading(view: Watched) -> None:
    page = view.page
    held: list[object] = []
    page.route("**/api/v1/runs", lambda route: held.append(route))
    page.goto(view.base + "/")
    page.wait_for_selector(".loading:visible")
    assert page.inner_text(".loading").startswith("Loading")
    for route in held:
        route.continue_()  # type: ignore[attr-defined]
    view.ready()
    assert page.locator(".loading").count() == 0


def test_layers_are_drawn_over_depth_and_over_steps(view: Watched) -> None:
    page = view.open(at("first"))
    depth, steps = (
        f"figure:has(.title:text-is('Y norm over {what}'))" for what in ("depth", "steps")
    )
    page.wait_for_selector(f"{depth} svg")
    assert "layers 1 to 2" in str(page.get_attribute(f"{depth} svg", "aria-label"))
    assert view.texts(f"{depth} .legend .key") == ["step 1", "step 3", "step 5"]
    assert "steps 1 to 5" in str(page.get_attribute(f"{steps} svg", "aria-label"))
    assert view.texts(f"{steps} .legend .key") == ["layer 1", "layer 2"]
    assert page.locator("figure:has(.title:text-is('X norm over depth'))").count() == 0
    assert page.locator("h2:text-is('Layers')").count() == 1
