"""Task games and data converters for the studies; each module's `make` fits `kind = "function"`."""
