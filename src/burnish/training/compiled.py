"""Layers of a model through torch.compile, where that works; one line says where it does not."""

from __future__ import annotations

import logging
from typing import Any

logger = logging.getLogger(__name__)


def compile_layers(module: Any) -> bool:
    """Compile every layer of the built-in decoder in place; False where they stay as they are.

    A layer is compiled once for all, since all have the same shapes. What is saved, and the names
    of parameters, do not change.
    """
    layers = getattr(getattr(module, "model", None), "layers", None)
    if layers is None or not hasattr(module, "architecture"):
        logger.warning("train.compile: this model is not the built-in decoder; it runs as it is.")
        return False
    try:
        from torch._dynamo import config
        from torch._inductor import config as _  # noqa: F401  (the compiler itself is there)
    except ImportError as error:
        logger.warning("train.compile: no compiler here (%s); the model runs as it is.", error)
        return False
    # A layer that cannot be compiled runs as it is, instead of ending the run.
    config.suppress_errors = True
    config.recompile_limit = max(config.recompile_limit, 16)
    for layer in layers:
        layer.compile(dynamic=False)
    return True
