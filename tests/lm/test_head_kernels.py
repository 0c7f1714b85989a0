"""The kernels of `lm.head` under Triton's interpreter.

Triton decides as it is imported whether it interprets, and beside a GPU the other tests of this
folder need it to compile: there the last test runs this file again in a process of its own.
"""

import math
import os
import subprocess
import sys

import pytest
import torch

if not torch.cuda.is_available():
    # Read when the kernels are first imported.
    os.environ["TRITON_INTERPRET"] = "1"
pytest.importorskip("triton", reason="triton is not installed; it comes with torch for CUDA")

from burnish.lm import fused_kernels as kernels
from burnish.lm.head import score_rows, to_gradient

interpreted = pytest.mark.skipif(
    os.environ.get("TRITON_INTERPRET") != "1", reason="beside a GPU in a process of its own"
)


@interpreted
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("vocabulary", [37, 64, 150])
@pytest.mark.parametrize("temperature", [1.0, 0.6])
def test_the_kernels_compute_what_the_cpu_computes(monkeypatch, dtype, vocabulary, temperature):
    monkeypatch.setattr(kernels, "LOGITS_BLOCK", 64)
    draw = torch.Generator().manual_seed(vocabulary)
    logits = (4 * torch.randn(3, vocabulary, generator=draw)).to(dtype)
    logits[1] += 300  # the first block's top is far above 0
    logits[2] = torch.linspace(-90, 90, vocabulary)  # every block has a new top
    target = torch.tensor([0, vocabulary - 1, vocabulary // 2])
    scores = score_rows(logits.float(), target, temperature)
    for ours, theirs in zip(kernels.score_rows(logits, target, temperature), scores, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-4)
    for of_entropy in (None, torch.tensor([0.4, -1.0, 2.0])):
        of_logp = torch.tensor([1.0, -0.5, 0.25])
        shared = (target, scores.norm_N, scores.entropy_N, of_logp, of_entropy, temperature)
        expected, found = logits.float(), logits.clone()
        to_gradient(expected, *shared)
        kernels.to_gradient(found, *shared)
        # A float32 near 500 is off by 3e-5, and so is the log of a probability beside it.
        tolerance = 2e-4 if dtype == torch.float32 else 1e-2
        torch.testing.assert_close(found.float(), expected, rtol=tolerance, atol=tolerance)


@interpreted
def test_the_kernels_hide_no_nan_and_take_no_rows():
    logits = torch.randn(2, 40)
    logits[1, 7] = math.nan
    logp, entropy, norm = kernels.score_rows(logits, torch.tensor([1, 2]), 1.0)
    assert torch.isfinite(torch.stack([logp, entropy, norm])).all(0).tolist() == [True, False]
    assert kernels.score_rows(logits[:0], torch.tensor([], dtype=torch.long), 1.0)[0].shape == (0,)


@pytest.mark.skipif(
    not torch.cuda.is_available() or os.environ.get("TRITON_INTERPRET") == "1",
    reason="interpreted in this process",
)
def test_the_kernels_are_interpreted_beside_a_gpu():
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:xdist", __file__],
        env={**os.environ, "TRITON_INTERPRET": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=600,
    )
    assert done.returncode == 0, done.stdout[-3000:]
