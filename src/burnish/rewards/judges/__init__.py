"""Judges that are language models, and the instructions that they follow."""

from burnish.rewards.judges.instruction import Change, Evolution, evolve_instruction
from burnish.rewards.judges.labelled import (
    Accuracy,
    Disagreement,
    Edit,
    Labelled,
    accuracy_of,
    by_rule,
)

__all__ = [
    "Accuracy",
    "Change",
    "Disagreement",
    "Edit",
    "Evolution",
    "Labelled",
    "accuracy_of",
    "by_rule",
    "evolve_instruction",
]
