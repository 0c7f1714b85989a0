"""Models from random weights, as Hugging Face folders that load, train and sample like any other."""

from __future__ import annotations

import shutil
from collections.abc import Iterable
from itertools import chain
from pathlib import Path
from typing import Annotated, Any, Literal

import msgspec
from msgspec import Meta

from burnish.arguments import refused
from burnish.boundary import Settings, public
from burnish.errors import UserError
from burnish.lm.base import JsonObject
from burnish.lm.embedded import make_once
from burnish.lm.weights import llama_config, read_json, write_json
from burnish.models import quiet_transformers
from burnish.models.blocks.topology import DepthScale, Topology
from burnish.seeds import digest

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
    _write_tokenizer(tokenizer, folder)
    return len(vocab)


@public
def train_bpe(
    texts: Iterable[str], size: Annotated[int, Meta(ge=LEAST, le=1 << 24)], folder: str | Path
) -> int:
    """Learn byte-pair encoding from texts and write it; the size that the vocabulary came to.

    Digits are split one by one, as SmolLM2 does. Every byte has a token, so every text can be
    written. The same texts give the same file.

    >>> import tempfile
    >>> train_bpe(["low lower lowest", "new newer newest"] * 9, 266, tempfile.mkdtemp())
    266
    """
    from tokenizers import Tokenizer, models, pre_tokenizers, trainers

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
    given = iter(texts)
    if (first := next(given, None)) is None:
        raise UserError("there is no text to learn a tokenizer from; expected at least one.")
    tokenizer.train_from_iterator(chain([first], given), trainer)
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    _write_tokenizer(tokenizer, target)
    return int(tokenizer.get_vocab_size(with_added_tokens=True))


def _write_tokenizer(tokenizer: Any, folder: Path) -> None:
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


NEW = "new"
"""The name of such a model in the place of a path."""
BYTE = "byte"
"""The tokenizer with one token a byte, in the place of a folder."""
LLAMA = "llama"
LAYOUT = 1
"""Counts changes of what this module writes, so that an older folder is not taken for a new one."""
ROUND = 64
"""What a chosen inner width is a multiple of."""


class NewModel(Settings, frozen=True, kw_only=True):
    """Sizes of a model that starts from random weights: `model.path = "new"`."""

    layers: Annotated[int, Meta(ge=1, le=1000)] = 6
    """Blocks of attention and feed-forward."""
    width: Annotated[int, Meta(ge=2, le=65536)] = 256
    """Of the hidden states."""
    heads: Annotated[int, Meta(ge=1, le=1024)] = 4
    """Query heads; the width is shared among them."""
    kv_heads: Annotated[int, Meta(ge=0, le=1024)] = 0
    """Key and value heads, of which several query heads share one; 0: as many as `heads`."""
    inner: Annotated[int, Meta(ge=0, le=1_000_000)] = 0
    """Width inside the feed-forward; 0: 8/3 of the width, rounded up to a multiple of 64."""
    context: Annotated[int, Meta(ge=8, le=1 << 24)] = 1024
    """Longest row."""
    topology: str = LLAMA
    """`llama`, or where the norms of the residual streams stand in a model of the SiameseNorm family:
    pre, post, peri, hybrid, siamese (siamese_post_pre) or siamese_hybrid_pre."""
    normalized_input: bool | None = None
    """Of two streams: their sum is normalised; none: as the topology has it."""
    depth_scale: DepthScale | Literal[""] = ""
    """Of two streams: what X gets of an update: sqrt_2i, sqrt_l or none; empty: as the topology has
    it."""
    tied: bool = True
    """The output projection is the embedding."""
    rope_theta: Annotated[float, Meta(gt=1.0, le=1e9)] = 10_000.0
    """Base of the rotary positions."""
    std: Annotated[float, Meta(ge=0.0, le=1.0)] = 0.0
    """Standard deviation of the first weights, 0: 1 / sqrt(2.5 x width); matrices that write to the
    stream have it divided by the root of twice the layers."""
    tokenizer: Annotated[str, Meta(min_length=1)] = BYTE
    """`byte` (one token a byte) or a folder with a tokenizer.json, as `burnish tokenizer train`
    writes it."""

    def check(self) -> None:
        if self.width % (2 * self.heads):
            need = f"a multiple of {2 * self.heads} with heads = {self.heads}"
            raise refused("width", self.width, need)
        if self.kv_heads and self.heads % self.kv_heads:
            raise refused("kv_heads", self.kv_heads, f"a divisor of heads = {self.heads}, or 0")
        if self.topology != LLAMA:
            self.streams()
        elif self.normalized_input is not None or self.depth_scale:
            raise refused(
                "topology", "llama", "siamese or siamese_hybrid_pre for two streams' settings"
            )

    @property
    def first_std(self) -> float:
        """Standard deviation of the first weights."""
        return self.std or (2.5 * self.width) ** -0.5

    def streams(self) -> Topology:
        """The topology with its settings; refuses what contradicts itself."""
        return Topology(self.topology, self.normalized_input, self.depth_scale or None)


def new_model_folder(sizes: NewModel, seed: int) -> Path:
    """The folder of a fresh model in burnish's cache; the same for the same sizes and seed.

    >>> from burnish.lm import load_model
    >>> folder = new_model_folder(NewModel(layers=1, width=16, heads=2), seed=0)
    >>> load_model(folder, device="cpu").parameters
    8304
    """
    from burnish.lm.tokenizer import FILES, Tokenizer

    source = None if sizes.tokenizer == BYTE else Path(sizes.tokenizer).expanduser()
    if source is not None and not (source / "tokenizer.json").is_file():
        raise UserError(
            f"model.new.tokenizer: {source} has no tokenizer.json; expected byte or the folder of a "
            "tokenizer. Make one: burnish tokenizer train DATA --size 4096 --out FOLDER"
        )
    files = [source / n for n in FILES if (source / n).is_file()] if source is not None else []
    settings = msgspec.json.encode({**msgspec.structs.asdict(sizes), "tokenizer": ""})
    name = digest(f"{LAYOUT} {seed}", settings, *(file.read_bytes() for file in files))

    def build(folder: Path) -> None:
        if source is None:
            write_byte_tokenizer(folder)
        for own in files:
            shutil.copyfile(own, folder / own.name)
        file = folder / "tokenizer_config.json"
        write_json(file, {**read_json(file), "model_max_length": sizes.context})
        inner = sizes.inner or ROUND * -(-8 * sizes.width // (3 * ROUND))
        if sizes.topology == LLAMA:
            write_llama(folder, seed, _shape(sizes, inner), scales_outputs=True)
        else:
            _write_own(folder, sizes, inner, seed)
        # An answer ends with its own token or with that between documents.
        tokenizer = Tokenizer.from_folder(folder)
        end = tokenizer.backend.token_to_id("<|endoftext|>")
        if end is not None and end not in tokenizer.eos_ids:
            file = folder / "generation_config.json"
            write_json(file, {**read_json(file), "eos_token_id": [*tokenizer.eos_ids, end]})

    return make_once(f"new-{name}", build)


def _shape(sizes: NewModel, inner: int) -> JsonObject:
    """The sizes as a `config.json` names them."""
    return {
        "hidden_size": sizes.width,
        "intermediate_size": inner,
        "num_hidden_layers": sizes.layers,
        "num_attention_heads": sizes.heads,
        "num_key_value_heads": sizes.kv_heads or sizes.heads,
        "max_position_embeddings": sizes.context,
        "rope_theta": sizes.rope_theta,
        "initializer_range": sizes.first_std,
        "tie_word_embeddings": sizes.tied,
    }


def write_llama(
    folder: Path, seed: int, shape: JsonObject, *, scales_outputs: bool = False
) -> Path:
    """Write config and random weights beside the tokenizer that lies in `folder`.

    `scales_outputs` divides the std of matrices that write to the stream by the root of 2 x layers.
    """
    import torch

    from burnish.lm.architecture import read_architecture
    from burnish.lm.decoder import Decoder, init_weights
    from burnish.lm.weights import WEIGHTS, write_weights

    ids = _special_ids(folder)
    config = llama_config(**ids, rms_norm_eps=1e-5, **shape)
    decoder = Decoder(read_architecture(config))
    init_weights(decoder, seed, std=shape["initializer_range"])
    with torch.no_grad():
        for name, parameter in decoder.named_parameters():
            if scales_outputs and name.endswith(("o_proj.weight", "down_proj.weight")):
                parameter.div_((2 * shape["num_hidden_layers"]) ** 0.5)
        write_weights(folder / WEIGHTS, decoder.weights_to_save())
    write_json(folder / "config.json", config)
    named = ("bos_token_id", "eos_token_id", "pad_token_id")
    write_json(folder / "generation_config.json", {name: ids[name] for name in named})
    return folder


def _write_own(folder: Path, sizes: NewModel, inner: int, seed: int) -> None:
    """A model of the SiameseNorm family, beside the tokenizer that lies in the folder."""
    from burnish.models.siamesenorm import new_model as new_siamese

    streams = sizes.streams()
    with quiet_transformers():
        new_siamese(
            folder,
            seed=seed % 2**31,
            norm_topology=streams.kind,
            normalized_input=streams.normalized_input,
            depth_scale=streams.depth_scale,
            **_shape(sizes, inner),
            **_special_ids(folder),
        )


def _special_ids(folder: Path) -> JsonObject:
    """Ids of special tokens and the size of the vocabulary, by the tokenizer in the folder."""
    from burnish.lm.tokenizer import Tokenizer

    tokenizer = Tokenizer.from_folder(folder)
    named = tokenizer.special_tokens
    begin = tokenizer.backend.token_to_id(named.get("bos_token", ""))
    end = tokenizer.backend.token_to_id(named.get("eos_token", ""))
    ids = tokenizer.backend.get_vocab(with_added_tokens=True).values()
    return {
        "bos_token_id": begin,
        "eos_token_id": end,
        "pad_token_id": tokenizer.pad_id,
        "vocab_size": max(ids) + 1,
    }


def tiny_model(folder: str | Path, *, seed: int = 0, layers: int = 2) -> Path:
    """Write the folder and return it: 115,264 weights as it comes, the same for the same seed."""
    target = Path(folder)
    target.mkdir(parents=True, exist_ok=True)
    write_byte_tokenizer(target)
    sizes = NewModel(layers=layers, width=64, heads=4, kv_heads=2, std=0.02)
    return write_llama(target, seed, _shape(sizes, 192))


def cached_tiny_model() -> Path:
    """The default tiny model in burnish's cache folder, written once."""

    def build(folder: Path) -> None:
        tiny_model(folder)

    return make_once("tiny-llama-115k-v1", build)
