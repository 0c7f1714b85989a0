"""The toys of `python -m studies.run_toys skill_rm`."""

from studies.skill_rm.masking import TOYS

__all__ = ["TOYS"]
