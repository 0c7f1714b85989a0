"""The grid world of GAP: its operations by hand, and rows whose latents are the changed pictures."""

import torch
from studies.gap.grid import CELLS, FIRST_COLOUR, OPS, TAGS, World, changed


def test_operations_by_hand():
    grid = torch.tensor([[0, 1, 2, 3, 4, 5, 2, 3, 4]]).expand(len(OPS), CELLS)
    found = dict(zip(OPS, changed(grid, torch.arange(len(OPS))).tolist(), strict=True))
    assert found == {
        "rotate": [2, 5, 4, 1, 4, 3, 0, 3, 2],
        "flip": [2, 1, 0, 5, 4, 3, 4, 3, 2],
        "transpose": [0, 3, 2, 1, 4, 3, 2, 5, 4],
        "shift rows": [2, 3, 4, 0, 1, 2, 3, 4, 5],
        "shift columns": [2, 0, 1, 5, 3, 4, 4, 2, 3],
        "swap colours": [1, 0, 2, 3, 4, 5, 2, 3, 4],
    }


def test_the_last_latents_hold_the_answer():
    world = World(0)
    rows = world.rows(50, torch.Generator().manual_seed(1), latents=True)
    plain = world.rows(50, torch.Generator().manual_seed(1), latents=False)
    assert rows.is_latent_BT.sum(1).tolist() == [2 * CELLS] * 50
    assert not plain.is_latent_BT.any()
    assert torch.equal(rows.ids_BT[:, : CELLS + 3], plain.ids_BT[:, : CELLS + 3])
    assert torch.equal(rows.ids_BT[:, -2:], plain.ids_BT[:, -2:])
    assert (rows.ids_BT[:, CELLS + 3] == TAGS.start).all()
    asked = rows.ids_BT[:, CELLS + 2] - (FIRST_COLOUR - CELLS)
    slots = rows.vectors_BTD[:, -3 - CELLS : -3]
    patch = slots[torch.arange(50), asked] - world.places[asked]
    # The nearest colour of the asked patch is the answer.
    flat = (world.palette - 0.5).unsqueeze(1).expand(-1, 64, 3).flatten(1) @ world.filters
    assert torch.equal(torch.cdist(patch, flat).argmin(1) + FIRST_COLOUR, rows.ids_BT[:, -2])
