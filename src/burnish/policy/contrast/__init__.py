"""Piece 1 by contrast (CLIPO, arXiv 2603.10101): right rollouts that resemble no other right one pay.

`pool` makes one vector of a rollout's hidden states, `head` projects it, `losses` compares the
projections inside a group, and `reward` turns the losses of right rollouts into a small penalty.
The policy sees the changed reward alone; no gradient of the contrastive loss reaches it.
"""
