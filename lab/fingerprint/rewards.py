"""Rewards on which random text differs: without them a random model earns the same everywhere."""


def letters(text: str) -> float:
    """The share of letters."""
    return sum(map(str.isalpha, text)) / max(len(text), 1)


def digits(text: str) -> float:
    """The share of digits and blanks, which falls where that of letters rises."""
    return sum(one.isdigit() or one.isspace() for one in text) / max(len(text), 1)


def even(text: str) -> float:
    """1 for a text of even length: right and wrong answers."""
    return float(len(text) % 2 == 0)


def longer(prompt: str, first: str, second: str) -> tuple[float, float]:
    """A judge of pairs: the longer text wins."""
    return float(len(first)), float(len(second))


def proxy(question: str, first: str, second: str, rubric: str) -> str:
    """A proxy that needs the word facts; it sees the responses in the opposite order."""
    return "<answer>2</answer>" if "Facts" in rubric else "I cannot say"
