"""Models outside the built-in families, through transformers, behind the decoder's interface."""

from __future__ import annotations

import inspect
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from burnish.errors import ModelError, UserError


class TransformersDecoder(nn.Module):
    """A transformers causal language model that looks like `Decoder`."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model
        self._config = model.config.get_text_config()

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
        """Longest sequence that the model was made for."""
        return int(getattr(self._config, "max_position_embeddings", 2048))

    @property
    def cache_bytes_per_token(self) -> int:
        """What one token of one row costs in the key-value cache, at most."""
        config = self._config
        heads = getattr(config, "num_key_value_heads", None) or config.num_attention_heads
        size = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
        return int(2 * config.num_hidden_layers * heads * size * self.head_weight.element_size())

    def forward(
        self,
        ids_BS: Tensor,
        positions_BS: Tensor,
        mask: Tensor | None = None,
        cache: TransformersCache | None = None,
    ) -> Tensor:
        """Final-normed hidden states, (B, S, D); masks and cache as in `Decoder.forward`."""
        past = 0 if cache is None else cache.length
        window = getattr(self._config, "sliding_window", None)
        if mask is not None and window and past + ids_BS.shape[1] > window:
            raise ModelError(
                f"{past + ids_BS.shape[1]} tokens exceed this model's sliding window of {window}; "
                "padded or packed rows must stay within it."
            )
        output = self.model.base_model(
            input_ids=ids_BS,
            position_ids=positions_BS,
            attention_mask=None if mask is None else self._additive(mask),
            past_key_values=None if cache is None else cache.states,
            use_cache=cache is not None,
        )
        hidden: Tensor = output.last_hidden_state
        return hidden

    def logits(self, hidden: Tensor) -> Tensor:
        """Next-token logits, with the scaling and soft capping that some families apply."""
        logits: Tensor = self.model.get_output_embeddings()(hidden)
        if scaling := getattr(self._config, "logits_scaling", None):
            logits = logits / scaling
        if cap := getattr(self._config, "final_logit_softcapping", None):
            logits = torch.tanh(logits / cap) * cap
        return logits

    def new_cache(self, rows: int, capacity: int) -> TransformersCache:
        """An empty cache; transformers grows it, so rows and capacity are not needed."""
        from transformers import DynamicCache

        return TransformersCache(DynamicCache(config=self.model.config))

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

    @torch.inference_mode()
    def check(self, folder: Path) -> None:
        """Refuse a model whose logits this adapter would get wrong, instead of being wrong."""
        parameters = inspect.signature(self.model.base_model.forward).parameters
        if "position_ids" not in parameters or "past_key_values" not in parameters:
            raise UserError(
                f"{folder}: {type(self.model).__name__} takes no positions or no key-value cache; "
                "burnish cannot pad or share prompts with it. Serve it over HTTP instead."
            )
        ids = torch.tensor([[1, 2, 3, 1]], device=self.head_weight.device)
        expected = self.model(ids).logits.float()
        got = self.logits(self(ids, torch.arange(4, device=ids.device).unsqueeze(0))).float()
        if not torch.allclose(got, expected, rtol=1e-2, atol=1e-2):
            raise UserError(
                f"{folder}: the logits of {type(self.model).__name__} are not its head applied to "
                f"its hidden states (difference {float((got - expected).abs().max()):.3g}); "
                "burnish cannot train or sample it in this process. Serve it over HTTP instead."
            )
        self._check_masks(folder)

    def _check_masks(self, folder: Path) -> None:
        """Refuse a model that sees what a mask hides: two answers behind one prompt, and padding.

        Recurrent and convolutional layers carry a state past the mask.
        """
        device = self.head_weight.device
        plain = [[1, 2, 3, 1], [1, 2, 2, 3]]
        apart = self(
            torch.tensor(plain, device=device), torch.arange(4, device=device).expand(2, 4)
        )
        packed = torch.tensor([[1, 2, 3, 1, 2, 3]], device=device)
        positions = torch.tensor([[0, 1, 2, 3, 2, 3]], device=device)
        mask = torch.ones(6, 6, dtype=torch.bool, device=device).tril()
        mask[4:, 2:4] = False
        together = self(packed, positions, mask.unsqueeze(0))
        padded = torch.tensor([[3, 3, *plain[0]]], device=device)
        seen = torch.ones(6, 6, dtype=torch.bool, device=device).tril()
        seen[:, :2] = torch.eye(6, 2, dtype=torch.bool, device=device)
        places = torch.tensor([[0, 0, 0, 1, 2, 3]], device=device)
        behind = self(padded, places, seen.unsqueeze(0), self.new_cache(1, 6))
        pairs = [
            ("packed", together[0, 2:4], apart[0, 2:]),
            ("packed", together[0, 4:6], apart[1, 2:]),
            ("padded", behind[0, 2:], apart[0]),
        ]
        limit = 1e-4 if self.head_weight.dtype in (torch.float32, torch.float64) else 5e-2
        for what, got, expected in pairs:
            gap = float((got - expected).abs().max() / expected.abs().max().clamp_min(1e-6))
            if not gap <= limit:
                raise UserError(
                    f"{folder}: {type(self.model).__name__} computes {what} rows differently from "
                    f"plain ones (relative difference {gap:.2g}); it keeps a state that a mask "
                    "cannot hide. Serve it over HTTP instead."
                )

    def _additive(self, mask_BSK: Tensor) -> Tensor:
        """0 where a query may attend, the lowest number where not; every backend reads this."""
        dtype = self.head_weight.dtype
        hidden = torch.zeros(mask_BSK.shape, dtype=dtype, device=mask_BSK.device)
        return hidden.masked_fill_(~mask_BSK, torch.finfo(dtype).min).unsqueeze(1)


class TransformersCache:
    """transformers' growing cache with the two moves that generation needs."""

    def __init__(self, states: Any) -> None:
        self.states = states

    @property
    def length(self) -> int:
        return int(self.states.get_seq_length())

    def select(self, rows: Tensor, capacity: int | None = None) -> TransformersCache:
        """These rows in this order, in place; a row may be named more than once."""
        self.states.batch_select_indices(rows)
        return self

    def repeat(self, times: int, capacity: int | None = None) -> TransformersCache:
        """Every row `times` times in a row, in place."""
        self.states.batch_repeat_interleave(times)
        return self
