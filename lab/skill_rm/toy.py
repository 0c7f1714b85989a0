"""The toys of `python -m lab.run_toys skill_rm`."""

from lab.skill_rm.masking import TOYS

__all__ = ["TOYS"]
