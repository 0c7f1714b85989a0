"""The generation engine for dense decoders: paged cache, captured graphs, draws on the device."""

from burnish.lm.sampler.engine import Engine
from burnish.lm.sampler.rows import Request

__all__ = ["Engine", "Request"]
