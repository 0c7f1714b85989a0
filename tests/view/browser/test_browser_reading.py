"""Texts can be read by day and by night (WCAG AA), and fingers find what they press."""

from __future__ import annotations

import pytest
from browser_page import Watched, at

pytestmark = pytest.mark.browser

PAGES = [
    "/",
    at("judged"),
    at("judged", "/step?n=5"),
    at("judged", "/group?step=5&key=5.0"),
    at("judged", "/sample?id=5/train/1"),
    at("judged", "/samples?q=needle"),
    at("judged", "/audit"),
    "/compare?a=first&b=second",
    "/bench?key=llmbar-direct",
]

FAINT = """
() => {
  const parse = (text) => {
    const found = text.match(/[\\d.]+/g).map(Number);
    const share = text.startsWith("color(") ? 255 : 1;
    const [r, g, b] = found.slice(0, 3).map((part) => part * share);
    return { r, g, b, a: found.length > 3 ? found[3] : 1 };
  };
  const over = (top, below) => ({
    r: top.r * top.a + below.r * (1 - top.a), g: top.g * top.a + below.g * (1 - top.a),
    b: top.b * top.a + below.b * (1 - top.a), a: 1 });
  const behind = (node) => {
    const layers = [];
    for (let one = node; one; one = one.parentElement) layers.push(parse(getComputedStyle(one).backgroundColor));
    return layers.reverse().reduce((below, top) => over(top, below), { r: 255, g: 255, b: 255, a: 1 });
  };
  const light = (colour) => {
    const [r, g, b] = [colour.r, colour.g, colour.b].map((part) => {
      const share = part / 255;
      return share <= 0.04045 ? share / 12.92 : ((share + 0.055) / 1.055) ** 2.4;
    });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b;
  };
  const faint = [];
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement;
    if (!walker.currentNode.textContent.trim() || !node.checkVisibility() || node.closest("svg, .skip, option")) continue;
    const style = getComputedStyle(node);
    const below = behind(node);
    const [one, two] = [light(over(parse(style.color), below)), light(below)].sort((a, b) => b - a);
    const size = parseFloat(style.fontSize), isLarge = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    const ratio = (one + 0.05) / (two + 0.05);
    if (ratio < (isLarge ? 3 : 4.5)) faint.push(`${ratio.toFixed(2)} ${node.className} ${walker.currentNode.textContent.trim().slice(0, 30)}`);
  }
  return [...new Set(faint)];
}
"""

SMALL = """
() => [...document.querySelectorAll("#bar a, #bar button, .button, .choice, .more, select, input")]
  .filter((one) => one.checkVisibility())
  .map((one) => [one, (one.closest("label") || one).getBoundingClientRect()])
  .filter(([, box]) => box.height < 24 || box.width < 24)
  .map(([one, box]) => `${one.tagName} ${one.textContent.slice(0, 20)} ${box.width} x ${box.height}`)
"""


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_every_text_stands_out_from_what_is_behind_it(view: Watched, theme: str) -> None:
    view.open("/").evaluate(f"localStorage.setItem('theme', '{theme}')")
    view.open("/")
    for path in PAGES:
        page = view.visit(path)
        assert page.evaluate(FAINT) == [], path
    view.visit(at("judged", "/sample?id=5/train/1"))
    for key in "234":
        view.press(key)
        assert view.page.evaluate(FAINT) == [], f"tokens by key {key}"


@pytest.mark.parametrize("view", [390], indirect=True)
def test_what_is_pressed_is_large_enough(view: Watched) -> None:
    for path in PAGES:
        page = view.visit(path)
        assert page.evaluate(SMALL) == [], path
