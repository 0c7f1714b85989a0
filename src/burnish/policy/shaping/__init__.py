"""Piece 1, reward shaping: one module per rule, rewards in, rewards out."""
