"""Deterministic verifiers: each a scorer with a closed config, saying what it saw as evidence."""
