"""Models outside the built-in families, through transformers, behind the decoder's interface.

`lm/generate.py` samples them with transformers' own `generate`, which knows every kind of cache.
For training they compute packed rows where they can (`packs`) and plain rows always.
"""

from __future__ import annotations

import inspect
from enum import StrEnum
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from burnish.errors import ModelError, UserError

_WINDOWS = ("sliding_window", "attention_chunk_size", "window_size", "attention_window_size")
"""Settings under which families keep how far a layer looks back."""


class Together(StrEnum):
    """Which prompts a model samples in one batch as it samples them alone."""

    ANY = "any"
    """Of different lengths, padded on the left."""
    SAME_LENGTH = "same length"
    """Only without padding."""
    NONE = "none"
    """It must be given one row at a time."""


class TransformersDecoder(nn.Module):
    """A transformers causal language model that looks like `Decoder`."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self._config = model.config.get_text_config()
        self.packs = True
        """Whether several responses may share one row; not where a layer carries a state."""
        self.together = Together.ANY
        """Which prompts may be sampled in one batch."""

    @classmethod
    def from_folder(
        cls, folder: Path, dtype: torch.dtype, device: torch.device
    ) -> TransformersDecoder:
        """Load a local folder; code that comes with it is not run."""
        import transformers

        try:
            model = transformers.AutoModelForCausalLM.from_pretrained(
                str(folder), dtype=dtype, local_files_only=True, trust_remote_code=False
            )
        except (ValueError, KeyError, OSError) as error:
            reason = str(error).strip().splitlines()[0]
            raise UserError(f"{folder} cannot be loaded by transformers: {reason}") from error
        # `generate` would add what the folder's own file asks for, such as a repetition penalty.
        model.generation_config = transformers.GenerationConfig()
        adapter = cls(model.to(device).eval())
        adapter.check(folder)
        return adapter

    def train(self, mode: bool = True) -> TransformersDecoder:
        """Dropout stays off in training too, or trainer and sampler would disagree."""
        super().train(mode)
        self.model.eval()
        return self

    @property
    def head_weight(self) -> Tensor:
        """The output projection, (V, D)."""
        weight: Tensor = self.model.get_output_embeddings().weight
        return weight

    @property
    def max_positions(self) -> int:
        """Longest sequence that the model was made for and computes alike in any batch."""
        config = self._config
        longest = int(getattr(config, "max_position_embeddings", 2048))
        rope = getattr(config, "rope_parameters", None) or {}
        if rope.get("rope_type") != "longrope":
            return longest
        # Beyond the length before stretching, positions follow the longest row of the batch.
        outside = getattr(config, "original_max_position_embeddings", longest)
        return min(longest, int(rope.get("original_max_position_embeddings", outside)))

    @property
    def cache_bytes_per_token(self) -> int:
        """What one token of one row costs in the key-value cache, at most."""
        config = self._config
        width = int(config.hidden_size)
        if queries := getattr(config, "num_attention_heads", None):
            heads = getattr(config, "num_key_value_heads", None) or queries
            width = heads * (getattr(config, "head_dim", None) or width // queries)
        return int(2 * config.num_hidden_layers * width * self.head_weight.element_size())

    def forward(self, ids_BS: Tensor, positions_BS: Tensor, mask: Tensor | None = None) -> Tensor:
        """Final-normed hidden states, (B, S, D); `mask` as in `Decoder.forward`.

        Rows without a mask, or whose mask is causal with padding on the right, go to the model
        as they are and count their positions from 0: every causal model computes those.
        """
        if mask is None or _is_plain(mask):
            output = self.model.base_model(input_ids=ids_BS, use_cache=False)
        else:
            self._refuse_what_it_cannot_pack(ids_BS.shape[1])
            output = self._packed(ids_BS, positions_BS, mask)
        hidden: Tensor = output.last_hidden_state
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Next-token logits, with the scaling and soft capping that some families apply."""
        logits: Tensor = self.model.get_output_embeddings()(hidden)
        if scaling := getattr(self._config, "logits_scaling", None):
            logits = logits / scaling
        if scale := getattr(self._config, "logit_scale", None):
            logits = logits * scale
        cap = getattr(self._config, "final_logit_softcapping", None)
        if cap := cap or getattr(self._config, "logits_soft_cap", None):
            logits = torch.tanh(logits / cap) * cap
        return logits

    def weights_to_save(self) -> dict[str, Tensor]:
        """The state dict without the tensors that are tied to others."""
        seen: set[tuple[int, torch.Size]] = set()
        weights: dict[str, Tensor] = {}
        tied = set(getattr(self.model, "all_tied_weights_keys", None) or ())
        for name, tensor in self.model.state_dict().items():
            place = (tensor.data_ptr(), tensor.shape)
            if name not in tied and place not in seen:
                weights[name] = tensor
            seen.add(place)
        return weights

    # Not inference_mode here: a model may keep a tensor that it computes on the way, and training
    # could not use it.
    @torch.no_grad()
    def check(self, folder: Path) -> None:
        """Refuse a model that this adapter would get wrong; find out what else it can do."""
        kind = type(self.model).__name__
        if not self.model.can_generate():
            raise UserError(f"{folder}: {kind} cannot generate text; expected a causal model")
        ids = torch.tensor([[1, 2, 3, 1], [1, 2, 2, 3]], device=self.head_weight.device)
        hidden = self(ids, torch.arange(4, device=ids.device).expand(2, 4))
        if self._gap(hidden[0, :2], hidden[1, :2]) > self._noise:
            raise UserError(
                f"{folder}: in {kind} later tokens change earlier ones; expected a causal model. "
                "If it can be one, set is_decoder to true in its config.json."
            )
        expected = self.model(ids).logits.float()
        got = self.logits(hidden).float()
        if not torch.allclose(got, expected, rtol=1e-2, atol=1e-2):
            raise UserError(
                f"{folder}: the logits of {kind} are not its head applied to its hidden states "
                f"(difference {float((got - expected).abs().max()):.3g}); burnish cannot train or "
                "score it in this process. Serve it over HTTP instead."
            )
        self.packs = self._packs_exactly(hidden)
        self.together = self._find_together(folder)

    def _packs_exactly(self, apart: Tensor) -> bool:
        """Whether a mask hides one answer from the other behind the same prompt.

        Recurrent and convolutional layers carry a state past any mask, and some position schemes
        count places in the row and not `position_ids`. `apart`: (2, 4, D), the two rows alone.
        """
        parameters = inspect.signature(self.model.base_model.forward).parameters
        if not {"position_ids", "attention_mask"} <= set(parameters):
            return False
        device = self.head_weight.device
        ids = torch.tensor([[1, 2, 3, 1, 2, 3]], device=device)
        positions = torch.tensor([[0, 1, 2, 3, 2, 3]], device=device)
        mask = torch.ones(1, 6, 6, dtype=torch.bool, device=device).tril()
        mask[:, 4:, 2:4] = False
        try:
            together = self._packed(ids, positions, mask).last_hidden_state[0]
        # Boundary: a family's own code, given a mask that it may never have met.
        except Exception:
            return False
        gaps = self._gap(together[:4], apart[0]), self._gap(together[4:], apart[1, 2:])
        return max(gaps) <= self._noise

    def _find_together(self, folder: Path) -> Together:
        """The largest batches whose cached steps give the logits of one plain pass."""
        trials = {
            Together.ANY: [[1, 2, 3, 1], [1, 2]],
            Together.SAME_LENGTH: [[1, 2, 3], [1, 3, 2]],
            Together.NONE: [[1, 2, 3]],
        }
        for together, prompts in trials.items():
            if self._gap_of_steps(prompts) <= self._noise:
                return together
        raise UserError(
            f"{folder}: {type(self.model).__name__} computes other logits token by token than in "
            "one pass, so what it samples could not be trained. Serve it over HTTP instead."
        )

    def _gap_of_steps(self, prompts: list[list[int]], steps: int = 3) -> float:
        """How far `generate`'s logits are from those of each row alone in one pass."""
        from transformers import GenerationConfig

        device = self.head_weight.device
        longest = max(map(len, prompts))
        missing = [longest - len(prompt) for prompt in prompts]
        output = self.model.generate(
            input_ids=torch.tensor(
                [[3] * gap + prompt for gap, prompt in zip(missing, prompts, strict=True)],
                device=device,
            ),
            attention_mask=torch.tensor(
                [[0] * gap + [1] * (longest - gap) for gap in missing], device=device
            ),
            generation_config=GenerationConfig(
                max_new_tokens=steps,
                do_sample=False,
                output_logits=True,
                return_dict_in_generate=True,
            ),
        )
        gaps = []
        for row, gap in enumerate(missing):
            alone = self.model(output.sequences[row : row + 1, gap:-1]).logits[0, -steps:]
            gaps.append(self._gap(torch.stack([step[row] for step in output.logits]), alone))
        return max(gaps)

    @property
    def _noise(self) -> float:
        """Relative difference that rounding alone explains."""
        return 1e-4 if self.head_weight.dtype in (torch.float32, torch.float64) else 5e-2

    def _gap(self, got: Tensor, expected: Tensor) -> float:
        """Largest difference relative to the largest value; infinite where it is no number."""
        gap = float((got - expected).abs().max() / expected.abs().max().clamp_min(1e-6))
        return gap if gap == gap else float("inf")

    def _refuse_what_it_cannot_pack(self, length: int) -> None:
        kind = type(self.model).__name__
        if not self.packs:
            raise UserError(
                f"{kind} computes responses that share a row differently from separate ones: it "
                "keeps a state that a mask cannot hide. Set update.share_prompts = false."
            )
        found = [getattr(self._config, name, None) for name in _WINDOWS]
        window = min((w for w in found if isinstance(w, int) and w > 0), default=length)
        if length > window:
            raise ModelError(
                f"a packed row of {length} tokens exceeds the attention window of {kind}, "
                f"{window} tokens; set update.share_prompts = false"
            )

    def _packed(self, ids_BS: Tensor, positions_BS: Tensor, mask_BSK: Tensor) -> Any:
        """The base model's output under an additive mask, which every backend reads."""
        dtype = self.head_weight.dtype
        hidden = torch.zeros(mask_BSK.shape, dtype=dtype, device=mask_BSK.device)
        hidden = hidden.masked_fill_(~mask_BSK, torch.finfo(dtype).min).unsqueeze(1)
        return self.model.base_model(
            input_ids=ids_BS, position_ids=positions_BS, attention_mask=hidden, use_cache=False
        )


def _is_plain(mask_BSS: Tensor) -> bool:
    """Whether every row is one causal sequence, with nothing but padding after it."""
    keys_BS = mask_BSS.sum(dim=-1)
    all_S = torch.arange(1, keys_BS.shape[1] + 1, device=keys_BS.device)
    real_BS = (keys_BS == all_S).cumprod(dim=-1).bool()
    return bool((real_BS | (keys_BS == 1)).all())
