"""Architectures and objectives, torch only; every room to the right may use them."""
