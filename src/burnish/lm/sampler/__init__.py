"""The generation engine for dense decoders: paged cache, captured graphs, draws on the device."""

from burnish.lm.sampler.engine import Engine as Engine
from burnish.lm.sampler.rows import Request as Request
