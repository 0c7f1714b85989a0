"""A distilled skill in a real browser, wide and narrow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser_page import Served, Watched, serve

from burnish.cli.entry import run

pytestmark = pytest.mark.browser
EXAMPLE = Path(__file__).resolve().parents[3] / "examples" / "trace2skill"


@pytest.fixture(scope="module")
def served(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """`burnish view` over a folder with a distilled skill."""
    folder = tmp_path_factory.mktemp("distilled")
    words = ["--skill", EXAMPLE / "skill" / "tables", "--roles", f"{EXAMPLE / 'roles.py'}:make"]
    given = ["skill", "distill", EXAMPLE / "traces.jsonl", *words, "--out", folder / "runs" / "new"]
    assert run([str(word) for word in given]) == 0
    (folder / "results").mkdir()
    with serve(folder, folder / "runs", folder / "results") as found:
        yield found


@pytest.fixture(scope="module")
def kept_cookies() -> list[Any]:
    """This server has a token of its own."""
    return []


@pytest.mark.parametrize("view", [1440, 390], indirect=True)
def test_edits_stand_beside_the_trajectories_that_speak_for_them(view: Watched) -> None:
    page = view.open("/")
    view.follow("text=tables (changed")
    assert page.inner_text("h1") == "tables"
    assert "5 edits made" in page.inner_text(".lead")
    edits = page.locator("article.edit").all_inner_texts()
    (rule,) = [text for text in edits if "Include the last row" in text]
    assert "3 trajectories of 3 tasks" in rule
    assert "run-08" in rule
    page.locator("article.edit details.trace summary").first.click()
    assert "[assistant]" in page.locator("details.trace[open] pre").first.inner_text()
    assert "+- Include the last row of the table." in page.locator("pre.diff").last.inner_text()
