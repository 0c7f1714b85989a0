"""What a trajectory of search self-play says: its answer, question, queries and observations.

Text inside an observation is never read as the model's own. The tags themselves are those of every
search by tags (`rollouts/search.py`).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from burnish.arguments import as_list, as_text, refused
from burnish.records import Message, Trajectory
from burnish.rollouts.search import (
    ANSWER,
    INFORMATION,
    QUESTION,
    SEARCH,
    parse_queries,
    scan_tags,
    tag_pairs,
)


class Proposal(NamedTuple):
    """What a proposer's trajectory says."""

    question: str | None
    """In the first pair of question tags."""
    queries: tuple[str, ...]
    observations: tuple[str, ...]


def extract_answer(text: str) -> str | None:
    """The text in the last pair of answer tags; None where there is no pair.

    >>> extract_answer("<answer>Rome</answer> no, <answer> Paris </answer>")
    'Paris'
    >>> extract_answer("Paris") is None
    True
    """
    found = tag_pairs(as_text("text", text), ANSWER)
    return found[-1] if found else None


def parse_proposal(trajectory: Any, tag: str = QUESTION) -> Proposal:
    """The question, the queries and the observations of a proposer's trajectory.

    A trajectory is a text with tags (observations in information tags), a list of messages, a dict
    with `messages`, `output` or `text` or with `question`, `queries` and `observations`, or a
    `Trajectory`. Tags inside an observation are data.
    """
    if isinstance(trajectory, Mapping) and {"question", "queries"} <= trajectory.keys():
        asked = trajectory["question"]
        read = [
            tuple(
                as_text(f"trajectory: {key}", one) for one in as_list(f"trajectory: {key}", value)
            )
            for key, value in (
                ("queries", trajectory["queries"]),
                ("observations", trajectory.get("observations", ())),
            )
        ]
        question = None if asked is None else as_text("trajectory: question", asked).strip()
        return Proposal(question, *read)
    said, observations = _said_and_seen(trajectory)
    questions = tag_pairs(said, tag)
    queries = [query for text in tag_pairs(said, SEARCH) for query in parse_queries(text)]
    return Proposal(questions[0] if questions else None, tuple(queries), tuple(observations))


def _said_and_seen(trajectory: Any) -> tuple[str, list[str]]:
    if isinstance(trajectory, Trajectory):
        return _of_messages(trajectory.messages)
    if isinstance(trajectory, Mapping):
        for key in ("messages", "output", "text"):
            if key in trajectory:
                return _said_and_seen(trajectory[key])
        raise refused("trajectory", trajectory, "a dict with messages, output or text")
    if isinstance(trajectory, str):
        pairs, said = scan_tags(trajectory, INFORMATION)
        return said, [text for inner, _ in pairs if (text := inner.strip())]
    return _of_messages(as_list("trajectory", trajectory, least=1))


def _of_messages(messages: Sequence[Any]) -> tuple[str, list[str]]:
    """Words of the assistant, and what followed them by others."""
    said: list[str] = []
    seen: list[str] = []
    for message in messages:
        if isinstance(message, Message):
            role, content = message.role, message.text
        elif isinstance(message, Mapping) and isinstance(message.get("content"), str):
            role, content = str(message.get("role", "")), message["content"]
        else:
            raise refused("trajectory", message, "messages with role and content")
        if role == "assistant":
            said.append(content)
        elif said:
            inner = tag_pairs(content, INFORMATION) or [content.strip()]
            seen += [text for text in inner if text]
    return "\n".join(said), seen
