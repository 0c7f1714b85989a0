"""Pairs of a reward model and rubrics with their proxy, in a real browser, wide and narrow."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from browser_page import Served, Watched, at, serve

from burnish.lm.tiny import write_byte_tokenizer
from pair_runs import LEAK, MARKUP, paired_run, rubric_run

pytestmark = pytest.mark.browser


@pytest.fixture(scope="module")
def served(chromium: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """`burnish view` over a reward model, a judge that writes rubrics, and an empty results folder."""
    folder = tmp_path_factory.mktemp("pairs")
    paired_run(folder / "runs" / "model")
    rubric_run(folder / "runs" / "judge")
    tokenizer(folder / "runs" / "model" / "checkpoints" / "step-000004")
    (folder / "results").mkdir()
    with serve(folder, folder / "runs", folder / "results") as found:
        yield found


def tokenizer(place: Path) -> None:
    """Texts for the tokens: any tokenizer that knows the ids will do."""
    place.mkdir(parents=True)
    write_byte_tokenizer(place)


@pytest.fixture(scope="module")
def kept_cookies() -> list[Any]:
    """This server has a token of its own."""
    return []


def assert_fits(view: Watched) -> None:
    widths = view.page.evaluate(
        "[document.documentElement.scrollWidth, document.documentElement.clientWidth]"
    )
    assert widths[0] <= widths[1]
    assert view.page.locator("#injected").count() == 0


@pytest.mark.parametrize("view", [1440, 390], indirect=True)
def test_pairs_stand_side_by_side_the_most_wrong_first(view: Watched) -> None:
    page = view.open(at("model"))
    view.follow("text=Held-out pairs")
    assert page.inner_text("h1") == "Held-out pairs, after 4 steps"
    assert "too few to say of 5 pairs right" in page.inner_text(".lead")
    assert_fits(view)
    assert view.texts("article h2") == [f"Question {n}?" for n in (1, 5, 3, 0, 2, 4)]
    assert view.texts("article .head .figure")[:2] == ["−2.000", "+0.500"]
    card = page.locator("article").first
    left, right = card.locator(".pair-side").all()
    assert "label" in left.inner_text()
    assert "higher score" in right.inner_text()
    assert MARKUP in right.inner_text()
    assert "9 tokens · 56 characters · 3 markdown marks" in right.inner_text()
    beside = left.bounding_box()["y"] == right.bounding_box()["y"]  # type: ignore[index]
    assert beside == (page.viewport_size["width"] > 600)  # type: ignore[index]
    rows = page.locator("section.card tbody tr").all_inner_texts()
    assert rows[1].split()[0] == "characters"
    view.follow(".choice:text-is('closest scores first')")
    assert view.texts("article h2")[0] == "Question 3?"
    view.follow(".choice:text-is('wrong 2')")
    assert view.texts("article h2") == ["Question 5?", "Question 1?"]
    view.follow(".choice:text-is('start')")
    assert page.inner_text("h1") == "Held-out pairs, before training"
    assert "number=start" in view.path


@pytest.mark.parametrize("view", [1440, 390], indirect=True)
def test_one_pair_with_its_attributes_and_untrained_tokens(view: Watched) -> None:
    page = view.open(at("model", "/pairs"))
    view.follow("article h2 a")
    assert page.inner_text("h1") == "Pair held_out-4-2-1"
    assert_fits(view)
    cells = page.locator(".pair table tbody tr").all_inner_texts()
    assert [" ".join(cell.split()) for cell in cells] == [
        "tokens 2 9",
        "characters 5 56",
        "markdown marks 0 3",
        "begins by agreeing 0 0",
    ]
    assert "better with probability 0.119; 1 by its label" in page.inner_text(".pair")
    assert page.locator(".tokens .token.trained").count() == 0
    assert "the chosen answer, as the data has it" in page.inner_text(".keys")


def test_a_step_leads_to_its_pairs(view: Watched) -> None:
    page = view.open(at("model", "/steps"))
    view.follow("text=held out")
    view.follow("text=Pairs side by side")
    assert page.inner_text("h1") == "Held-out pairs, after 4 steps"


@pytest.mark.parametrize("view", [1440, 390], indirect=True)
def test_a_rubric_with_what_guard_and_proxy_made_of_it(view: Watched) -> None:
    page = view.open(at("judge", "/sample?id=train-1-1-2"))
    block = page.locator(".rubric")
    assert_fits(view)
    assert view.texts(".rubric mark") == [LEAK]
    text = " ".join(block.inner_text().split())
    assert "leak names a winner: counted as wrong, and the proxy is not asked" in text
    assert "judge's verdict response 1 right" in text
    assert "accuracy +1.0 × 1 · proxy −1.0 × 1 · format +1.0 × 0.500 → 0.500" in text
    view.press("[", moves=True)
    block.locator("summary").click()
    assert f"{MARKUP} <answer>2</answer>" in block.inner_text()
    assert "it saw the two responses in the opposite order" in block.inner_text()
    assert page.locator("#injected").count() == 0
    view.visit(at("judge", "/sample?id=train-1-1-3"))
    assert "reward error" in block.inner_text()
    view.visit(at("judge", "/sample?id=train-1-1-4"))
    assert "The answer has no rubric." in block.inner_text()


def test_the_page_of_judges_says_where_verdicts_and_calls_are(view: Watched) -> None:
    page = view.open("/benches")
    text = page.inner_text("#page")
    assert "burnish judge with --out results/NAME.jsonl" in text
    assert "their calls are in the file that --record names" in text
