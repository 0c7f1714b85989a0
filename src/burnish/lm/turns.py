"""How a turn ends: one rule for all who write, fill or score answers."""

from __future__ import annotations

from burnish.errors import UserError
from burnish.lm.tokenizer import Tokenizer
from burnish.records import Message


def end_of_turn(tokenizer: Tokenizer) -> tuple[int, ...]:
    """The token that the chat template writes behind an answer; () where a model has none.

    Models may know several end tokens; the template says which of them ends a turn.
    """
    dialogue = [Message("user", "a"), Message("assistant", "b")]
    try:
        ids = tokenizer.render(dialogue, add_generation_prompt=False) if tokenizer.template else []
    except UserError:  # a template for other roles; it cannot say
        ids = []
    written = [token for token in ids if token in tokenizer.eos_ids]
    return tuple(written[-1:]) or tokenizer.eos_ids[:1]
