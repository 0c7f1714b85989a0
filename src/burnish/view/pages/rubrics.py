"""A judge's rubric and what a proxy made of it, as one block (rewards of kind `proxy_rubric`).

    rubric_view(sample)        # None where no proxy was asked about this answer

What was found when the answer was scored is read from the reward's evidence, never computed again.
"""

from __future__ import annotations

from msgspec import Struct

from burnish.records import Evidence, Reward
from burnish.rewards.judges.proxy_grm import extract_rubric, proxy_choice
from burnish.rewards.judges.proxy_rubric import GUARD
from burnish.store import StoredSample
from burnish.store.sample import flatten
from burnish.view.pages.groups import TEXT


class RubricPart(Struct, frozen=True):
    name: str
    value: float | None
    weight: float
    status: str


class RubricView(Struct, frozen=True, kw_only=True):
    """What the judge wrote, what the guard and the proxy made of it, and what it was paid."""

    reward: str
    """The reward that asked the proxy."""
    rubric: str
    """Without its tags; empty where the answer has none."""
    leaks: list[str]
    """Sentences of it that name a winner."""
    guard: str
    """What the leak guard did."""
    choice: int | None
    """The response that the judge names as better, 1 or 2; null where it names both or none."""
    accuracy: float | None
    """1 where that is right, -1 where not; null where no reward says."""
    proxy: str
    """Who decided from the rubric alone."""
    saw: str
    """What came of it."""
    said: str
    """The proxy's reply; empty where it was not asked or failed."""
    value: float | None
    """What the proxy's decision is worth: 1, -1, or null where it failed."""
    status: str
    parts: list[RubricPart]
    """Of the reward; empty where it is the proxy's decision alone."""
    total: float | None


def rubric_view(sample: StoredSample) -> RubricView | None:
    """The block of an answer, from the first reward that asked a proxy; one with parts goes first."""
    nodes = [node for node in flatten(sample.reward).values() if _guard(node) is not None]
    node = next((one for one in nodes if one.parts), nodes[0] if nodes else None)
    guard = None if node is None else _guard(node)
    if node is None or guard is None:
        return None
    finding, *named = guard.observation.split("\n")
    parts = {part.name: part for part in node.parts}
    # In the order of the reward: what came of the rubric, the guard, the proxy's words.
    place = node.evidence.index(guard)
    own, said = node.evidence[:place], node.evidence[place + 1 :]
    text = sample.trajectory.text
    rubric = extract_rubric(text) or ""
    decided = parts.get("proxy", node)
    accuracy = parts.get("accuracy")
    return RubricView(
        reward=node.name,
        rubric=rubric.removeprefix("<rubric>").removesuffix("</rubric>").strip()[:TEXT],
        leaks=named,
        guard=finding,
        choice=proxy_choice(text) if "<answer>" in text else None,
        accuracy=None if accuracy is None else accuracy.value,
        proxy=said[0].source if said else "",
        saw=own[0].observation if own else "",
        said=said[0].observation[:TEXT] if said else "",
        value=decided.value,
        status=decided.status.value,
        parts=[RubricPart(p.name, p.value, p.weight, p.status.value) for p in node.parts],
        total=node.value,
    )


def _guard(node: Reward) -> Evidence | None:
    return next((one for one in node.evidence if one.source == GUARD), None)
