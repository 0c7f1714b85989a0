"""A tiny random Llama as a Hugging Face folder, for tests, benchmarks and dry runs.

It knows nothing, but everything around it is real: a byte-level tokenizer, a chat template, a
config and safetensors that transformers reads too.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from burnish.lm.architecture import read_architecture
from burnish.lm.embedded import make_once
from burnish.lm.weights import write_json

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>", "<|pad|>")


def tiny_model(
    folder: str | Path,
    *,
    seed: int = 0,
    layers: int = 2,
    hidden_size: int = 64,
    intermediate_size: int = 192,
    heads: int = 4,
    kv_heads: int = 2,
    dtype: str = "float32",
) -> Path:
    """Write the folder and return it: 115,264 weights as it comes, the same for the same seed."""
    import torch

    from burnish.lm.decoder import Decoder, init_weights
    from burnish.lm.weights import WEIGHTS, write_weights

    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    vocab_size = write_byte_tokenizer(target)
    config: dict[str, Any] = {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "attention_bias": False,
        "attention_dropout": 0.0,
        "bos_token_id": 1,
        "dtype": dtype,
        "eos_token_id": 2,
        "head_dim": hidden_size // heads,
        "hidden_act": "silu",
        "hidden_size": hidden_size,
        "initializer_range": 0.02,
        "intermediate_size": intermediate_size,
        "max_position_embeddings": 1024,
        "mlp_bias": False,
        "num_attention_heads": heads,
        "num_hidden_layers": layers,
        "num_key_value_heads": kv_heads,
        "pad_token_id": 3,
        "rms_norm_eps": 1e-5,
        "rope_parameters": {"rope_theta": 10000.0, "rope_type": "default"},
        "tie_word_embeddings": True,
        "vocab_size": vocab_size,
    }
    decoder = Decoder(read_architecture(config))
    init_weights(decoder, seed)
    weights = {k: v.to(getattr(torch, dtype)) for k, v in decoder.weights_to_save().items()}
    with torch.no_grad():
        write_weights(target / WEIGHTS, weights)
    write_json(target / "config.json", config)
    write_json(
        target / "generation_config.json",
        {"bos_token_id": 1, "eos_token_id": 2, "pad_token_id": 3},
    )
    return target


def cached_tiny_model() -> Path:
    """The default tiny model in burnish's cache folder, written once."""
    return make_once("tiny-llama-115k-v1", _build_default)


def _build_default(folder: Path) -> None:
    tiny_model(folder)


def write_byte_tokenizer(folder: Path) -> int:
    """A tokenizer with one token a byte and four special ones; the size of its vocabulary."""
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    byte_symbols = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocab = {token: index for index, token in enumerate((*SPECIAL_TOKENS, *byte_symbols))}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=[]))
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
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
    return len(vocab)
