import math

import torch

from burnish.policy.contrast import component
from burnish.policy.contrast.component import pool_hidden, pool_packed


def test_the_mean_over_the_mask_by_hand():
    hidden = [[[1.0, 10.0], [3.0, 20.0], [100.0, 100.0]], [[5.0, 6.0], [7.0, 8.0], [0.0, 1.0]]]
    pooled = pool_hidden(torch.tensor(hidden), [[1, 1, 0], [1, 0, 1]])
    assert pooled.dtype == torch.float32
    assert pooled.tolist() == [[2.0, 15.0], [2.5, 3.5]]


def test_a_rollout_without_tokens_is_nan_and_hidden_padding_may_hold_anything():
    hidden = torch.tensor([[[1.0, 2.0], [math.nan, math.inf]], [[math.nan] * 2] * 2])
    pooled = pool_hidden(hidden, torch.tensor([[True, False], [False, False]]))
    assert pooled[0].tolist() == [1.0, 2.0]
    assert pooled[1].isnan().all()


def test_half_precision_is_summed_in_float32():
    # In bfloat16 a sum of ones stops growing at 256.
    hidden = torch.ones(1, 1000, 2, dtype=torch.bfloat16)
    assert pool_hidden(hidden, torch.ones(1, 1000)).tolist() == [[1.0, 1.0]]
    assert pool_packed(hidden[0], torch.zeros(1000, dtype=torch.int64), 1).tolist() == [[1.0, 1.0]]


def test_packed_tokens_pool_as_padded_ones(monkeypatch):
    draw = torch.Generator().manual_seed(0)
    hidden = torch.randn(5, 9, 4, generator=draw)
    mask = torch.rand(5, 9, generator=draw) < 0.6
    mask[2] = False
    rollout = mask.nonzero()[:, 0]
    expected = pool_hidden(hidden, mask)
    packed = pool_packed(hidden[mask], rollout, 5)
    torch.testing.assert_close(packed, expected, equal_nan=True)
    assert packed[2].isnan().all()
    monkeypatch.setattr(component, "PACKED_ROWS", 3)
    torch.testing.assert_close(
        pool_packed(hidden[mask], rollout, 5), packed, rtol=0, atol=0, equal_nan=True
    )


def test_no_gradient_comes_out():
    hidden = torch.randn(2, 3, 4, requires_grad=True)
    assert not pool_hidden(hidden, torch.ones(2, 3)).requires_grad
    assert not pool_packed(hidden[0], torch.zeros(3, dtype=torch.int64), 1).requires_grad
