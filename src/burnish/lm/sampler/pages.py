"""Who owns which page of the key-value cache.

A row's keys lie in pages of a fixed number of tokens. The full pages of a prompt are written once
and read by all its rows; its last, partly filled page is copied for each row, which writes on from
there. Page 0 belongs to nobody: rows that are done but still in a batch write there.
"""

from __future__ import annotations

from dataclasses import dataclass, field


def pages_for(tokens: int, page: int) -> int:
    """How many pages hold this many tokens."""
    return -(-tokens // page)


@dataclass(eq=False)
class PromptPages:
    """The pages of one prompt that has been computed, and how many rows are reading them."""

    pages: list[int]
    full: int
    """How many of them are full; at most one more follows."""
    readers: int = 0


@dataclass
class Pages:
    """Free pages, handed out lowest first."""

    count: int
    """With page 0."""
    page: int
    """Tokens a page holds."""
    seats: int = 0
    """Where one page holds a whole row, pages 1 to `seats` belong to the seats of that number."""
    free: list[int] = field(init=False)
    prompts: dict[tuple[int, ...], PromptPages] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.free = list(range(self.count - 1, self.seats, -1))

    def needed(self, prompt: tuple[int, ...], new: int) -> int:
        """Pages that a further row of this prompt would take, the prompt's own included."""
        missing = 0 if prompt in self.prompts else pages_for(len(prompt), self.page)
        return missing + self.private(prompt, new)

    def private(self, prompt: tuple[int, ...], new: int) -> int:
        """Pages that a row has to itself, beside what its seat brings."""
        if self.seats:
            return 0
        return pages_for(len(prompt) + new, self.page) - len(prompt) // self.page

    def take(self, count: int) -> list[int]:
        """Pages for a new owner."""
        return [self.free.pop() for _ in range(count)]

    def give(self, pages: list[int]) -> None:
        """Take pages back."""
        self.free += pages

    def hold_prompt(self, prompt: tuple[int, ...]) -> None:
        """Pages for a prompt that is about to be computed."""
        taken = self.take(pages_for(len(prompt), self.page))
        self.prompts[prompt] = PromptPages(taken, len(prompt) // self.page)

    def drop_prompt(self, prompt: tuple[int, ...]) -> None:
        """A prompt that nobody reads gives its pages back."""
        self.give(self.prompts.pop(prompt).pages)

    def idle(self, besides: tuple[int, ...]) -> list[tuple[int, ...]]:
        """Prompts that nobody is reading, oldest first."""
        return [p for p, held in self.prompts.items() if not held.readers and p != besides]
