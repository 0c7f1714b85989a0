"""A reward that differs between almost any two responses, so that every group has signal."""


def distinct_characters(text: str) -> float:
    """How many different characters a response has, and a little for its length."""
    return len(set(text)) + len(text) / 1000
