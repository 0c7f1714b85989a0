"""A judge's rubric and what a proxy made of it, as one block (rewards of kind `proxy_rubric`).

    rubric_view(sample)        # None where no proxy was asked about this answer

What was found when the answer was scored is read from the reward's evidence, never computed again.
"""

from __future__ import annotations

from burnish.rewards.judges.proxy_grm import extract_rubric, proxy_choice
from burnish.rewards.judges.proxy_rubric import GUARD
from burnish.store import StoredSample
from burnish.store.sample import flatten
from burnish.view.pages.groups import TEXT
from burnish.view.pages.runs import Page


def rubric_view(sample: StoredSample) -> Page | None:
    """The block of an answer, from the first reward that asked a proxy; one with parts goes first."""
    nodes = [
        (node, guard)
        for node in flatten(sample.reward).values()
        if (guard := next((e for e in node.evidence if e.source == GUARD), None)) is not None
    ]
    if not nodes:
        return None
    node, guard = next((one for one in nodes if one[0].parts), nodes[0])
    finding, *named = guard.observation.split("\n")
    parts = {part.name: part for part in node.parts}
    # In the order of the reward: what came of the rubric, the guard, the proxy's words.
    place = node.evidence.index(guard)
    own, said = node.evidence[:place], node.evidence[place + 1 :]
    text = sample.trajectory.text
    rubric = extract_rubric(text) or ""
    decided = parts.get("proxy", node)
    accuracy = parts.get("accuracy")
    return {
        "reward": node.name,
        "rubric": rubric.removeprefix("<rubric>").removesuffix("</rubric>").strip()[:TEXT],
        "leaks": named,  # sentences of it that name a winner
        "guard": finding,
        "choice": proxy_choice(text) if "<answer>" in text else None,
        "accuracy": None if accuracy is None else accuracy.value,
        # Who decided from the rubric alone, what came of it, and the reply.
        "proxy": said[0].source if said else "",
        "saw": own[0].observation if own else "",
        "said": said[0].observation[:TEXT] if said else "",
        "value": decided.value,
        "status": decided.status.value,
        "parts": [
            {"name": p.name, "value": p.value, "weight": p.weight, "status": p.status.value}
            for p in node.parts
        ],
        "total": node.value,
    }
