"""The GPU study of SiameseNorm: its table goes on where it was, and counts what failed."""

import pytest
import torch
from lab.siamesenorm import gpu


def test_rows_are_read_as_they_were_written(tmp_path):
    cells = gpu.TINY.cells()
    rows = {cells[0]: gpu.Found("ok", step_ms=1.5), cells[-1]: gpu.Found("diverged")}
    file = tmp_path / "gpu.csv"
    gpu.write_rows(file, rows)
    assert gpu.read_rows(file) == rows
    with file.open("a", encoding="utf-8") as out:
        out.write("text,pre,4")
    assert gpu.read_rows(file) == rows


def test_diverged_trainings_have_no_loss_and_are_counted():
    cells = [gpu.Cell("text", "pre", 24, 1e-3, 0, seed) for seed in range(2)]
    table = gpu.report({cells[0]: gpu.Found("ok", 2.0), cells[1]: gpu.Found("diverged")})
    assert table.splitlines()[-1].startswith("| text | 24 | pre | 0.001 | 0 | 2 | 2.000 |")
    assert "| 0 | 1 | - | - |" in table


def test_held_out_sums_are_not_trained_on():
    text = gpu.make_text(None)
    trained = set(bytes(text.sums.tolist()).decode().split("\n"))
    assert text.held_sums
    assert not trained & {one.strip() for one in text.held_sums}


@pytest.mark.parametrize("arm", list(gpu.ARMS))
def test_the_decoder_and_the_model_of_transformers_are_one_function(arm):
    ids = torch.randint(0, 256, (2, 16), generator=torch.Generator().manual_seed(0))
    theirs = gpu.TINY._replace(is_transformers=True)
    with torch.no_grad():
        one, other = (gpu.logits_of(gpu.model_of(arm, 4, p, 3), ids) for p in (gpu.TINY, theirs))
    assert torch.allclose(one, other, atol=1e-5)
    outputs, inputs = (
        torch.cat(
            [
                p.flatten()
                for n, p in gpu.model_of(arm, 8, gpu.TINY, 3).named_parameters()
                if n.endswith(end)
            ]
        ).std()
        for end in ("o_proj.weight", "q_proj.weight")
    )
    assert float(inputs / outputs) == pytest.approx(4.0, rel=0.1)  # the root of 2 x 8 layers
