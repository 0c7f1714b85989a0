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


def test_a_chart_is_zoomed_by_dragging_and_by_keys(view):
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
