"""Experiments on burnish's methods: baseline, control and method from the same start weights."""
