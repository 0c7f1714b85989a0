"""Questions of search self-play in a real browser, wide and narrow."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from browser_page import Served, Watched, at, serve

from played_runs import played_run

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def served(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """`burnish view` over a run of search self-play."""
    folder = tmp_path_factory.mktemp("played")
    played_run(folder / "runs" / "game")
    (folder / "results").mkdir()
    with serve(folder, folder / "runs", folder / "results") as found:
        yield found


@pytest.fixture(scope="module")
def kept_cookies() -> list[Any]:
    """This server has a token of its own."""
    return []


@pytest.mark.parametrize("view", [1440, 390], indirect=True)
def test_questions_have_their_success_rate_over_steps(view: Watched) -> None:
    page = view.open(at("game"))
    view.follow("text=Questions")
    assert page.inner_text("h1") == "Questions of the game"
    assert "3 questions" in page.inner_text(".lead")
    rows = page.locator("tbody tr").all_inner_texts()
    assert len(rows) == 3
    assert "not scored" in rows[0]
    assert "Which <b>a</b>?" in rows[1]
    assert "step 1: 50" in rows[1]
    assert "step 2: 100" in rows[1]
    widths = page.evaluate(
        "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    )
    assert widths[0] <= widths[1]
    view.follow(".choice:text-is('hardest first')")
    assert "Which <b>b</b>?" in page.locator("tbody tr").first.inner_text()
    view.follow("text=step 1: 0")
    assert "/group" in view.path
