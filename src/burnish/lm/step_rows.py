"""A solution as the tokens that a step head reads: the prompt, then step by step.

    row = step_row(tokenizer, task.messages, ["3 + 4 = 7.", "So the answer is 7."], "\\n\\n")
    row.ids[row.ends[0]]                       # the last token of the first step's separator

Each step is encoded on its own with the separator behind it, and the score is read at its last
token. What stands behind a step therefore changes neither its tokens nor its score: a solution that
is still being written can be scored as far as it goes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from burnish.lm.tokenizer import Tokenizer
from burnish.records import Message, Span


class StepRow(NamedTuple):
    """A prompt and the steps of an answer to it, as ids."""

    prompt: tuple[Span, ...]
    answer: tuple[int, ...]
    ends: tuple[int, ...]
    """Place of each step's last token among those of the answer."""

    @property
    def start(self) -> int:
        """Tokens of the prompt."""
        return sum(len(span.token_ids) for span in self.prompt)

    @property
    def ids(self) -> list[int]:
        """The whole row."""
        return [*(token for span in self.prompt for token in span.token_ids), *self.answer]

    @property
    def places(self) -> list[int]:
        """Place of each step's last token in the whole row."""
        return [self.start + end for end in self.ends]


def step_row(
    tokenizer: Tokenizer, messages: Sequence[Message], steps: Sequence[str], separator: str
) -> StepRow:
    """The row of one solution; the text of control tokens in a step is plain text."""
    answer: list[int] = []
    ends = []
    for step in steps:
        answer += _encoded(tokenizer, f"{step.strip()}{separator}")
        ends.append(len(answer) - 1)
    return StepRow(tokenizer.render_spans(messages), tuple(answer), tuple(ends))


def _encoded(tokenizer: Tokenizer, text: str) -> list[int]:
    control = tokenizer.control
    if not control.stand_in((), text):
        return tokenizer.encode(text)
    return list(control.encode(control.plain(text)).ids)
