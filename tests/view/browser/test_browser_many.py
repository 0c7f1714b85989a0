"""The page of many runs in a real browser, wide and narrow."""

import pytest
from browser_page import serve

from seed_runs import SWEEP, make_run, make_sweep

pytestmark = pytest.mark.browser

MARKUP = "<b id=injected>bold</b>"


@pytest.fixture(scope="module")
def served(chromium, tmp_path_factory):
    """`burnish view` over a sweep, and over a run whose setting is markup."""
    folder = tmp_path_factory.mktemp("many")
    runs = make_sweep(folder / "runs")
    make_run(runs / "odd-0", 0, 2e-6, (0.25, None), {"task.kind": MARKUP})
    (folder / "results").mkdir()
    with serve(folder, runs, folder / "results") as found:
        yield found


@pytest.fixture(scope="module")
def kept_cookies():
    """This server has a token of its own."""
    return []


@pytest.mark.parametrize("view", [1440, 390], indirect=True)
def test_a_sweep_fits_its_window_with_table_curves_and_settings(view):
    page = view.open(f"/compare?sweep={SWEEP}")
    assert page.inner_text("h1") == SWEEP
    widths = page.evaluate(
        "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    )
    assert widths[0] <= widths[1]
    text = " ".join(page.inner_text("#page").split())
    assert "0.600 [0.352, 0.848]" in text
    assert "+0.100 [−0.148, +0.348]" in text
    assert "optimiser.learning_rate" in text
    charts = page.locator("section.charts figure")
    assert charts.count() >= 2
    assert charts.first.locator("polygon.band").count() == 2
    assert charts.first.locator("polyline.line").count() == 2
    assert view.texts("section.charts figure:first-child .legend .key") == [
        "learning_rate=1e-06",
        "learning_rate=3e-06",
    ]
    assert page.locator("a[href^='/run/']").count() == 6


def test_runs_are_ticked_and_sweeps_linked_in_the_list(view):
    page = view.open("/")
    assert "small-sweep (6 of 7 runs, 1 failed)" in page.inner_text("#page")
    for name in ("slow-0", "fast-0", "odd-0"):
        page.check(f"input[aria-label='choose {name} to compare']")
    view.follow("text=Compare them")
    assert page.inner_text("h1") == "3 runs"
    text = page.inner_text("#page")
    assert "run 'odd-0' has no score after 4 steps" in text
    assert "their held-out tasks differ" in text or "no seed with a score in both" in text
    assert MARKUP in text
    assert page.locator("#injected").count() == 0
    view.open("/")
    view.follow("a.choice")
    assert page.inner_text("h1") == SWEEP
