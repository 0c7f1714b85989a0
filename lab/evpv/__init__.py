"""Experiments behind the card of EVPV."""
