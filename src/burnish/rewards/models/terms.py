"""The terms that a loss on pairs may have (`reward_model`, `dpo`); a new one is one line here."""

from __future__ import annotations

from burnish.rewards.models.dir_term import DirTerm
from burnish.rewards.models.term import FunctionTerm

PairTerm = FunctionTerm | DirTerm
"""What `train.terms` may hold: a union, `FunctionTerm | MineConfig | ...`."""
