"""Tokenizers of one's own: one token a byte, or byte-pair encoding learned from texts.

    write_byte_tokenizer(folder)
    train_bpe(texts, 4096, folder)

Both write what transformers reads as `PreTrainedTokenizerFast`, with a chat template, so that a model
that was pre-trained with them goes on to SFT and GRPO. The first four ids are special tokens.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any

from burnish.errors import UserError
from burnish.lm.weights import write_json

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>")
LEAST = 256 + len(SPECIAL_TOKENS)
"""Ids of the smallest vocabulary: every byte has one."""


def write_byte_tokenizer(folder: Path) -> int:
    """A tokenizer with one token a byte and four special ones; the size of its vocabulary."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    byte_symbols = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: index for index, token in enumerate((*SPECIAL_TOKENS, *byte_symbols))}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    _write(tokenizer, folder)
    return len(vocab)


def train_bpe(texts: Iterable[str], size: int, folder: str | Path) -> int:
    """Learn byte-pair encoding from texts and write it; the size that the vocabulary came to.

    Digits are split one by one, as SmolLM2 does. Every byte has a token, so every text can be
    written. The same texts give the same file.

    >>> import tempfile
    >>> train_bpe(["low lower lowest", "new newer newest"] * 9, 266, tempfile.mkdtemp())
    266
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

    if isinstance(size, bool) or not isinstance(size, int) or not LEAST <= size <= 1 << 24:
        raise UserError(
            f"size: got {size!r}, expected a whole number from {LEAST} (every byte and "
            f"{len(SPECIAL_TOKENS)} special tokens) to {1 << 24}"
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    trainer: Any = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_some(texts), trainer)
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    _write(tokenizer, target)
    return int(tokenizer.get_vocab_size(with_added_tokens=True))


def _some(texts: Iterable[str]) -> Iterable[str]:
    """The texts; refuses none at all."""
    is_empty = True
    for text in texts:
        is_empty = False
        yield text
    if is_empty:
        raise UserError("there is no text to learn a tokenizer from; expected at least one.")


def _write(tokenizer: Any, folder: Path) -> None:
    from tokenizers import AddedToken, decoders

    tokenizer.decoder = decoders.ByteLevel()
    tokenizer.add_special_tokens(
        [AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS]
    )
    tokenizer.save(str(folder / "tokenizer.json"))
    end, start, stop, pad = SPECIAL_TOKENS
    write_json(
        folder / "tokenizer_config.json",
        {
            "bos_token": start,
            "eos_token": stop,
            "pad_token": pad,
            "unk_token": end,
            "model_max_length": 1024,
            "tokenizer_class": "PreTrainedTokenizerFast",
        },
    )
    (folder / "chat_template.jinja").write_text(CHAT_TEMPLATE, encoding="utf-8")
