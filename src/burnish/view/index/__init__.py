"""The search index of a run: compact columns and folded texts, kept in the cache folder."""
