"""The grid world of GAP: its operations by hand, rows whose latents are the changed pictures, its report."""

import random
import sys
from pathlib import Path

import pytest
import torch
from lab.gap import report
from lab.gap.grid import ARMS, Cell, add_cell, length_ratio, read_cells
from lab.gap.world import COLOURS, OPS, World, changed, drawn, joined, own_words

sys.path.insert(0, str(Path(__file__).parents[2] / "recipes" / "gap"))
import grid_world


def make(side=3, patch=1):
    return World(0, side, 2, 96, 0.5, own_words(side), patch)


def test_operations_by_hand():
    grid = torch.tensor([[0, 1, 2, 3, 4, 5, 2, 3, 4]]).expand(len(OPS), 9)
    found = dict(zip(OPS, changed(grid, torch.arange(len(OPS)), 3).tolist(), strict=True))
    assert found == {
        "rotate": [2, 5, 4, 1, 4, 3, 0, 3, 2],
        "flip": [2, 1, 0, 5, 4, 3, 4, 3, 2],
        "transpose": [0, 3, 2, 1, 4, 3, 2, 5, 4],
        "shift rows": [2, 3, 4, 0, 1, 2, 3, 4, 5],
        "shift columns": [2, 0, 1, 5, 3, 4, 4, 2, 3],
        "swap colours": [1, 0, 2, 3, 4, 5, 2, 3, 4],
    }


def test_the_recipes_operations_are_the_studys():
    names = list(grid_world.PALETTE)
    draw = torch.Generator().manual_seed(0)
    for number, operation in enumerate(grid_world.OPERATIONS.values()):
        cells = torch.randint(COLOURS, (1, 9), generator=draw)
        wanted = changed(cells, torch.tensor([number]), 3)
        grid = [[names[cells[0, 3 * r + c]] for c in range(3)] for r in range(3)]
        found = [names.index(cell) for row in operation(grid) for cell in row]
        assert found == wanted[0].tolist()


def test_a_record_of_the_recipe_holds_its_own_answer():
    pytest.importorskip("PIL")
    from burnish.models.visual_latent import parse_response, read_picture

    made = grid_world.make(random.Random(3), side=3, operations=2)
    response = parse_response(made["response"], len(made["aux_images"]))
    assert response.answer == made["answer"]
    asked = [
        int(word.rstrip(",?")) for word in made["prompt"].split() if word.rstrip(",?").isdigit()
    ]
    last = read_picture(made["aux_images"][-1])
    pixel = last[8 * (asked[0] - 1), 8 * (asked[1] - 1)].tolist()
    assert tuple(pixel) == grid_world.PALETTE[made["answer"]]


@pytest.mark.parametrize(("side", "patch"), [(3, 1), (4, 2)])
def test_the_last_latents_hold_the_answer(side, patch):
    world, draw = make(side, patch), torch.Generator().manual_seed(1)
    example = world.examples(50, 2, draw)
    rows = world.rows(example, "latents", draw)
    assert rows.is_latent_BT.sum(1).tolist() == [2 * world.slots] * 50
    assert world.rows(example, "text", draw).is_latent_BT.sum() == 0
    assert (rows.ids_BT[:, world.cells + 3] == world.words.tags.start).all()
    # Every cell of the last picture is read back from the last span, by least squares over colours.
    latents = rows.vectors_BTD[:, -3 - world.slots : -3] * (2 * world.size) ** 0.5 / world.scale
    seen = latents - drawn(world.seed, f"places {patch}", world.slots, world.size)
    wide = 3 * 64 * patch**2
    filters = drawn(world.seed, f"filters {patch}", wide, world.size) / wide**0.5
    flat = filters.view(patch**2, 64, 3, world.size).sum(1).flatten(0, 1)
    colours = torch.linalg.lstsq(flat.T, seen.flatten(0, 1).T).solution.T.view(-1, patch**2, 3)
    palette = drawn(world.seed, "palette", COLOURS, 3)
    nearest = torch.cdist(colours.flatten(0, 1), palette).argmin(1)
    across = side // patch
    cells = nearest.view(50, across, across, patch, patch).permute(0, 1, 3, 2, 4).reshape(50, -1)
    assert (cells == example.grids[-1]).float().mean() > 0.98


def test_groups_of_different_lengths_are_padded_on_the_left():
    world, draw = make(), torch.Generator().manual_seed(1)
    groups = [world.rows(world.examples(2, n, draw), "latents", draw) for n in (1, 2)]
    rows = joined(groups)
    short = groups[0].ids_BT.shape[1]
    assert torch.equal(rows.ids_BT[:2, -short:], groups[0].ids_BT)
    assert not rows.mask_BT[:2, :-short].any()
    assert (rows.labels_BT[:2, :-short] == -100).all()
    assert torch.equal(rows.vectors_BTD[2:], groups[1].vectors_BTD)
    assert length_ratio(world, 0.0) == pytest.approx(rows.ids_BT.shape[1] / (9 + 2 + 3))


def cell(arm, seed, accuracy, **more):
    latents = None if arm.startswith("none") else 0.2
    return Cell(
        "tiny",
        arm,
        seed,
        10,
        1000,
        50.0,
        0.4,
        accuracy,
        '{"1": 0.5}',
        0.0 if latents is None else 1.5,
        latents,
        latents,
        latents,
        *[latents] * 6,
        held=100,
        seconds=1.0,
        **more,
    )


@pytest.mark.parametrize(
    ("gains", "verdict"),
    [
        ([0.10, 0.12, 0.11], "used"),
        ([0.10, 0.30, 0.20], "not shown"),  # 0.20 in the mean, -0.05 to 0.45
        ([0.00, 0.01, -0.01], "not used"),
        ([-0.10, -0.11, -0.12], "not used"),
        ([0.30], "not shown"),
    ],
)
def test_latents_are_used_where_every_seed_says_so(gains, verdict):
    """The best of the empty latents counts in each seed, zeros among them."""
    rows = [
        {"arm": "pca", "accuracy": 0.5 + gain, "held": 600.0, "zero": 0.5, "mean": 0.2, "noise": 0.1,
         "shuffle": None}
        for gain in gains
    ]  # fmt: skip
    (line,) = report.matters(rows)
    assert line.endswith(f"{len(gains)} seeds: {verdict}")


def test_cells_come_back_from_their_file_and_become_a_table(tmp_path):
    file = tmp_path / "tiny.csv"
    cells = [cell("none_long", s, 0.4 + s / 10) for s in (0, 1)] + [
        cell("pca", s, 0.6 + s / 10) for s in (0, 1)
    ]
    for one in cells:
        add_cell(file, one)
    assert read_cells(file) == cells
    text = report.write(file)
    assert "| pca | 2 | 0.65 ± 0.07 |" in text
    assert "- pca - none_long: +0.200 ± 0.000, 2 seeds" in text
    assert "- pca: +0.450, 95 % interval -0.185 to +1.085, 2 seeds: not shown" in text
    assert file.with_suffix(".md").is_file()
    assert set(ARMS) >= {"none", "filler", "notes", "pca_gate", "pca_random"}
