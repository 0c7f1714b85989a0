"""Contrastive reward (CLIPO, arXiv 2603.10101); `component` has the settings and the outline."""
