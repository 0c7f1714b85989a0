"""The catalogue of metrics: every name is found, the page is printed from it."""

from pathlib import Path

import pytest

from burnish.metrics import REWARD, known, main_reward, reward_parts, table

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(
    ("name", "entry"),
    [
        ("reward/total", "reward/total"), ("reward/a/b/mean", "reward/{reward}/mean"),
        ("loss/kl", "loss/{term}"), ("loss/sft/coefficient", "loss/sft/coefficient"),
        ("pairs/wins/win_rate", "pairs/{reward}/{figure}"),
        ("policy/clipped_share/0.2", "policy/clipped_share/{bucket}"),
        ("bounds/high_mean", "bounds/{figure}"),
    ],
)  # fmt: skip
def test_a_stored_name_has_one_entry(name, entry):
    found = known(name)
    assert found is not None
    assert found.name == entry


def test_the_reward_is_the_total_or_the_only_part():
    parts = ["reward/a/mean", "reward/a/std", "loss/kl"]
    assert reward_parts(parts) == {"a": "reward/a/mean"}
    assert main_reward(parts) == "reward/a/mean"
    assert main_reward([*parts, REWARD]) == REWARD
    assert main_reward([*parts, "reward/b/mean"]) is None


def test_the_page_is_printed_from_the_catalogue():
    assert table() in (DOCS / "metrics.md").read_text(encoding="utf-8")
