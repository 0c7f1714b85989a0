"""The terms that a reward model's loss may have; a new one is one line here."""

from __future__ import annotations

from burnish.rewards.models.dir_term import DirTerm
from burnish.rewards.models.term import FunctionTerm

RewardTerm = FunctionTerm | DirTerm
"""What `train.terms` may hold: a union, `FunctionTerm | MineConfig | ...`."""
