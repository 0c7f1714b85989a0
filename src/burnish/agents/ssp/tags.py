"""Tags of search self-play: what a reply asks for, and what a trajectory says.

Every reader here takes time in proportion to its text. Text inside an observation is never read as the
model's own.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from burnish.arguments import as_list, as_text, refused
from burnish.records import Message, Trajectory

SEARCH, ANSWER, QUESTION, INFORMATION = "search", "answer", "question", "information"
MOST_QUERIES = 5
"""Of one search tag that holds a JSON list."""


class Proposal(NamedTuple):
    """What a proposer's trajectory says."""

    question: str | None
    """In the first pair of question tags."""
    queries: tuple[str, ...]
    observations: tuple[str, ...]


def tag_pairs(text: str, tag: str) -> list[str]:
    """What stands between pairs of a tag, in order; a pair that is not closed is none.

    >>> tag_pairs("<search> a </search> b <search>c", "search")
    ['a']
    """
    return [inner.strip() for inner, _ in _scan(text, tag)[0]]


def _scan(text: str, tag: str) -> tuple[list[tuple[str, int]], str]:
    """The inside of each pair with the place behind it, and the text without the pairs."""
    found: list[tuple[str, int]] = []
    outside, place = [], 0
    opening, closing = f"<{tag}>", f"</{tag}>"
    while (start := text.find(opening, place)) >= 0:
        end = text.find(closing, start + len(opening))
        if end < 0:
            break
        outside.append(text[place:start])
        place = end + len(closing)
        found.append((text[start + len(opening) : end], place))
    return found, "".join([*outside, text[place:]])


def extract_answer(text: str) -> str | None:
    """The text in the last pair of answer tags; None where there is no pair.

    >>> extract_answer("<answer>Rome</answer> no, <answer> Paris </answer>")
    'Paris'
    >>> extract_answer("Paris") is None
    True
    """
    found = tag_pairs(as_text("text", text), ANSWER)
    return found[-1] if found else None


class Action(NamedTuple):
    """What a reply asks for."""

    tag: str
    """`search`, the final tag (`answer` or `question`), or empty where the reply asks for nothing."""
    text: str = ""


def first_action(text: str, final: str) -> Action:
    """The first closed search or final tag of a reply: what stands behind it was not asked for.

    >>> first_action("<think>hm</think><search>Vel</search><answer>x</answer>", "answer")
    Action(tag='search', text='Vel')
    """
    ends = [
        (place, tag, inner) for tag in (SEARCH, final) for inner, place in _scan(text, tag)[0][:1]
    ]
    if not ends:
        return Action("")
    _, tag, inner = min(ends)
    return Action(tag, inner.strip())


def parse_queries(text: str) -> list[str]:
    """The queries of one search tag: its text, or the items of a JSON list of texts.

    >>> parse_queries('["Paris mayor", "Paris river"]')
    ['Paris mayor', 'Paris river']
    """
    asked = as_text("text", text).strip()
    if asked.startswith("[") and len(asked) <= 10_000:
        try:
            listed = json.loads(asked)
        except (ValueError, RecursionError):
            listed = None
        if isinstance(listed, list) and all(isinstance(item, str) for item in listed):
            return [item.strip() for item in listed if item.strip()][:MOST_QUERIES]
    return [asked] if asked else []


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
        pairs, said = _scan(trajectory, INFORMATION)
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
