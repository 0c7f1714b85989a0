"""Piece 5: how much more likely the new policy makes what the old one wrote, as a log.

`token` compares token by token (PPO). `sequence` takes the mean of a response's log-ratios, the
log of their geometric mean (GSPO, arXiv 2507.18071). `sequence_token` has the same value but lets
each token's gradient pass on its own, for advantages that differ between tokens (GSPO-token).
"""

from __future__ import annotations

from torch import Tensor

from burnish.arguments import as_word
from burnish.policy.tensors import check_shape, check_tensor

RATIO_LEVELS = ("token", "sequence", "sequence_token")

MAX_LOG_RATIO = 20.0
"""Log-ratios are clamped here: exp of more overflows float32 and turns clipped tokens into NaN."""


def log_ratio(logp_BT: Tensor, old_logp_BT: Tensor, mask_BT: Tensor, level: str) -> Tensor:
    """The log-ratio of each token, (B, T); 0 with no gradient where the mask is 0."""
    as_word("ratio_level", level, RATIO_LEVELS)
    check_tensor(logp_BT, "logp_BT", "(B, T)", 2)
    for values, what in ((old_logp_BT, "old_logp_BT"), (mask_BT, "mask_BT")):
        check_tensor(values, what, "(B, T)")
        check_shape(values, what, tuple(logp_BT.shape))
    is_out_BT = ~mask_BT.bool()
    change_BT = (logp_BT - old_logp_BT).masked_fill(is_out_BT, 0.0)
    if level == "token":
        return change_BT.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO)
    tokens_B1 = (~is_out_BT).sum(1, keepdim=True).clamp(min=1)
    mean_B1 = change_BT.sum(1, keepdim=True) / tokens_B1
    if level == "sequence":
        spread_BT = mean_B1.expand_as(change_BT)
    else:
        spread_BT = mean_B1.detach() + (change_BT - change_BT.detach())
    return spread_BT.clamp(-MAX_LOG_RATIO, MAX_LOG_RATIO).masked_fill(is_out_BT, 0.0)
