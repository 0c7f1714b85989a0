"""Piece 6, trust region: how far a rollout's probability ratio may move before it is clipped."""
