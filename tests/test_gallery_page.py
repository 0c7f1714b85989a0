"""`docs/gallery.md` is what its script makes of the recipes as they are."""

from __future__ import annotations

import importlib.util
import re
from pathlib import Path
from types import ModuleType

import pytest

from burnish.config.recipes import all_recipes

DOCS = Path(__file__).resolve().parents[1] / "docs"


@pytest.fixture(scope="module")
def maker() -> ModuleType:
    pytest.importorskip("tokenizers")
    spec = importlib.util.spec_from_file_location("make_gallery", DOCS / "make_gallery.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_committed_page_is_up_to_date(maker: ModuleType) -> None:
    made = maker.gallery()
    assert made == maker.PAGE.read_text(encoding="utf-8"), "run: python docs/make_gallery.py"
    assert set(re.findall(r"^## (\w+)$", made, re.M)) == set(all_recipes())


def test_a_right_answer_earns_more_than_a_wrong_one() -> None:
    page = (DOCS / "gallery.md").read_text(encoding="utf-8")
    section = page.partition("## grpo\n")[2].partition("\n## ")[0]
    rows = [line.split("|") for line in section.splitlines() if line.startswith("| ")]
    earned = {row[1].strip(): row[3].strip() for row in rows}
    assert (earned["right"], earned["wrong"], earned["empty"]) == ("1.000", "0.000", "0.000")


@pytest.mark.parametrize("page", ["gallery.md", "viewer.md", "notebook.md"])
def test_links_and_pictures_are_there(page: str) -> None:
    for link in re.findall(r"\]\(([^)#:]+)\)", (DOCS / page).read_text(encoding="utf-8")):
        assert (DOCS / link).exists(), link
    for link in re.findall(r'<img[^>]+src="([^"]+)"', (DOCS / page).read_text(encoding="utf-8")):
        assert (DOCS / link).exists(), link


def test_pictures_are_small() -> None:
    sizes = {path.name: path.stat().st_size for path in (DOCS / "pictures").glob("*.png")}
    assert len(sizes) >= 8
    assert max(sizes.values()) <= 150_000
    assert sum(sizes.values()) <= 1_200_000
