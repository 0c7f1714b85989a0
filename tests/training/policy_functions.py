"""Pieces of a recipe that go wrong, named in configs by path."""

import torch


def nan_advantage(rewards_BK, groups_B, weights_K):
    """NaN for the third rollout."""
    values_B = rewards_BK[:, 0] - rewards_BK[:, 0].mean()
    values_B[2] = torch.nan
    return values_B, torch.zeros_like(rewards_BK)


def infinite_term(batch):
    """A term of the loss that overflows."""
    return batch.logp_BT * 0 + torch.inf


def overflow_away_from_start(batch):
    """Nothing while the policy is the one that sampled; infinite after its first update."""
    gap = (batch.logp_BT - batch.old_logp_BT).abs().max().detach()
    return batch.logp_BT * 0 + (torch.inf if gap > 1e-6 else 0.0)
