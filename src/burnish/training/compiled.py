"""Layers of a model through torch.compile, where that works; one line says where it does not."""

from __future__ import annotations

import importlib
import logging
from typing import Any

logger = logging.getLogger(__name__)


def compile_layers(module: Any) -> bool:
    """Compile every layer of the built-in decoder in place; False where they stay as they are.

    What is saved, and the names of parameters, do not change.
    """
    layers = getattr(getattr(module, "model", None), "layers", None)
    if layers is None or not hasattr(module, "architecture"):
        logger.warning("train.compile: this model is not the built-in decoder; it runs as it is.")
        return False
    try:
        from torch._dynamo import config

        importlib.import_module("torch._inductor.compile_fx")
    except ImportError as error:
        logger.warning("train.compile: no compiler here (%s); the model runs as it is.", error)
        return False
    # A layer that cannot be compiled runs as it is, instead of ending the run.
    config.suppress_errors = True
    # Layers share their code and differ in their numbers: each is compiled, with and without gradients.
    config.recompile_limit = max(config.recompile_limit, 4 * len(layers))
    for layer in layers:
        layer.compile(dynamic=False)
    return True
