"""Fresh models of given sizes: random weights as a Hugging Face folder, or as a module."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from burnish.arguments import as_path, as_seed, as_word
from burnish.models import check_known
from burnish.models.siamesenorm.configuration_siamesenorm import SiameseNormConfig
from burnish.models.siamesenorm.modeling_siamesenorm import SiameseNormForCausalLM


def new_model(
    folder: str | Path | None = None,
    *,
    seed: int = 0,
    dtype: str = "float32",
    **sizes: Any,
) -> SiameseNormForCausalLM:
    """A model with random weights; written to `folder` too, where there is one.

    `sizes` are the settings of `SiameseNormConfig`. The folder gets config and weights; a tokenizer
    comes from elsewhere. The same seed gives the same weights.

    >>> from burnish.models.siamesenorm import new_model
    >>> model = new_model(norm_topology="siamese", num_hidden_layers=2, hidden_size=32)
    >>> model.num_parameters()
    53856
    """
    dtype = as_word("dtype", dtype, ("float32", "bfloat16", "float16", "float64"))
    check_known(SiameseNormConfig, sizes)
    config = SiameseNormConfig(**sizes)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(as_seed("seed", seed))
        model: SiameseNormForCausalLM = SiameseNormForCausalLM(config).to(getattr(torch, dtype))
    config.dtype = dtype
    if folder is not None:
        target = as_path("folder", folder, "a folder to write")
        target.mkdir(parents=True, exist_ok=True)
        model.save_pretrained(target)
    return model
