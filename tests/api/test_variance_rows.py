"""Rows that `burnish variance` cannot measure on, and letters that cannot be the mask."""

import pytest

from burnish.errors import UserError
from burnish.lm import load_model
from burnish.lm.diffusion.convert import choose_mask


def test_a_letter_cannot_be_the_mask():
    tokenizer = load_model("tiny", device="cpu").tokenizer
    with pytest.raises(UserError, match="'E' is no unused special token"):
        choose_mask(tokenizer, tokenizer.vocab_size, "E")
