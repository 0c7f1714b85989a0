"""Piece 3, select and weigh: which rollouts are trained on, and how much each counts."""
