"""The reward of `store_growth.py` and `threads.py`."""


def has_digit(text: str) -> float:
    """1 where a response holds a digit."""
    return float(any(c.isdigit() for c in text))
