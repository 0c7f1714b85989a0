"""The studies of masked diffusion run, resume and count what they should."""

import csv
import math
import sys

import pytest
import torch
from lab.masked_diffusion import seeds, sorting, steps
from lab.masked_diffusion.sorting import DIGITS, MASK, Sorter


@pytest.fixture(autouse=True)
def small(monkeypatch):
    monkeypatch.setattr(seeds, "HELD_OUT", 4)
    monkeypatch.setattr(seeds, "FIT_AT", 1)
    monkeypatch.setattr(seeds, "PROBE_RATES", 5)
    monkeypatch.setattr(seeds, "PROBE_ROWS", 2)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def test_the_loss_of_an_untrained_model_is_that_of_a_guess():
    model, held_out = Sorter(generator()), sorting.rows(1000, generator(1))
    with torch.no_grad():
        model.head.weight.zero_()
        model.head.bias.zero_()
    # All 11 tokens but the mask are alike.
    assert sorting.evaluation_loss(model, held_out) == pytest.approx(math.log(11), abs=0.15)
    assert sorting.exact_match(model, held_out) == 0.0


def test_a_study_that_was_cut_short_goes_on(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(seeds, "BATCH", 4)
    monkeypatch.setattr(
        seeds, "ARMS", {"standard": seeds.Arm(), "MIRROR": seeds.Arm(masks="mirror")}
    )
    command = ["seeds", "--steps", "2", "--examples", "6", "--out", str(tmp_path)]
    monkeypatch.setattr(sys, "argv", [*command, "--seeds", "1"])
    seeds.main()
    first = (tmp_path / "seeds_6.csv").read_text()
    monkeypatch.setattr(sys, "argv", [*command, "--seeds", "2"])
    seeds.main()
    assert (tmp_path / "seeds_6.csv").read_text().startswith(first)
    with (tmp_path / "seeds_6.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [(row["arm"], row["seed"]) for row in rows] == [
        *(("standard", "0"), ("MIRROR", "0")),
        *(("standard", "1"), ("MIRROR", "1")),
    ]
    text = (tmp_path / "seeds_6.md").read_text()
    assert "the same 6 rows" in text
    assert "| MIRROR | 2 | 2 |" in text
    assert "standard" in capsys.readouterr().out


def test_the_sampler_writes_a_sorter_as_the_plain_loop_does():
    model, held_out = Sorter(generator(3)), sorting.rows(40, generator(4))
    # Its own greedy answers are the truth: all are right, and fewer steps change some.
    ids = held_out.ids_BL.masked_fill(held_out.eligible_BL, MASK)
    with torch.no_grad():
        for _ in range(DIGITS):
            logits = model(ids)
            logits[..., MASK] = -torch.inf
            sure, token = logits.softmax(-1).max(-1)
            place = sure.masked_fill(ids != MASK, -1.0).argmax(1, keepdim=True)
            ids = ids.scatter(1, place, token.gather(1, place))
    own = sorting.Rows(ids, held_out.eligible_BL)
    assert steps.exact_match(model, own, steps.WAYS["confidence"].decoding(12)) == 1.0
    assert steps.exact_match(model, own, steps.WAYS["confidence"].decoding(1)) < 1.0


def test_the_steps_study_writes_its_table_and_repeats_no_seed(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(seeds, "BATCH", 4)
    command = ["steps", "--steps", "2", "--rows", "3", "--out", str(tmp_path)]
    for count in (1, 2):
        monkeypatch.setattr(sys, "argv", [*command, "--seeds", str(count)])
        steps.main()
    text = (tmp_path / "steps.md").read_text()
    assert "2 sorters of 2 training steps" in text
    assert "| confidence, blocks of 4 | 0.000 [0.000, 0.000] |" in text
    with (tmp_path / "steps.csv").open(newline="") as file:
        rows = list(csv.DictReader(file))
    assert [row["seed"] for row in rows] == ["0"] * 32 + ["1"] * 32
    assert "seed 1 after" in capsys.readouterr().out
