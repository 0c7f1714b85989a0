"""A role that searches: prompts, the search tool, and the loop of replies and observations.

Every search is a turn of its own: the observation is a message in `<information>` tags that the chat
template renders, so what was sampled is what is trained, and the loss mask is 0 on every observation.
(The paper goes on inside one assistant message, with hard-wired markup.) Passages are data: our tags
inside them are defused and counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import msgspec

from burnish.agents.ssp.rules import as_golds
from burnish.records import Message, Trajectory
from burnish.rollouts.base import Players
from burnish.rollouts.search import (
    ANSWER,
    QUESTION,
    SEARCH,
    defuse,
    first_action,
    observation,
    parse_queries,
)
from burnish.rollouts.session import Session, renderer_of
from burnish.rollouts.tool import Tool
from burnish.tools.search import Passage, Retriever

PROPOSER = """Write a question whose only correct answer is: {answer}

Work backwards from the answer. Do not begin by asking for the answer itself: find a linked concept, \
chain {hops} facts, and check every fact by a search. The answer must not stand in the question, and no \
other answer may fit. Searching is mandatory.
Think before each action in <think> </think>. Search with <search> query </search>; results come in \
<information> </information>. Before you finish, check that the question is not too easy. Then write \
it in <question> </question>.{examples}"""
SOLVER = """Answer the question. Think in <think> </think> after every new information. If you lack \
knowledge, search with <search> query </search>; results come in <information> </information>. Search \
as often as you need. Give the short final answer in <answer> </answer>.

Question: {question}"""
STOPS = {final: (f"</{SEARCH}>", f"</{final}>") for final in (QUESTION, ANSWER)}


def proposer_messages(answer: Any, hops: int = 2, examples: str = "") -> list[Message]:
    """What a proposer is asked; of several aliases it is told the first."""
    shown = f"\n\nExamples of such questions:\n{examples.strip()}" if examples.strip() else ""
    text = PROPOSER.replace("{examples}", shown).replace("{hops}", str(hops))
    return [Message("user", text.replace("{answer}", as_golds("answer", answer)[0]))]


def solver_messages(question: str) -> list[Message]:
    return [Message("user", SOLVER.replace("{question}", question))]


def as_rows(messages: Sequence[Message]) -> list[dict[str, str]]:
    """Messages as a task's field holds them."""
    return [{"role": message.role, "content": message.text} for message in messages]


def passage_line(passage: Passage) -> str:
    text = " ".join(passage.text.split())
    return f"({' '.join(passage.title.split())}) {text}" if passage.title.strip() else text


def documents_of(trajectory: Trajectory) -> list[str]:
    """Every passage that a trajectory was shown, each once; errors are none."""
    shown = [message.text for message in trajectory.messages if message.role == "tool"]
    lines = [line for text in shown for line in text.splitlines()]
    return list(dict.fromkeys(line for line in lines if line and not line.startswith("Error: ")))


class Searcher:
    """The search tool of a game; a failure is an observation, never an exception."""

    def __init__(self, retriever: Retriever, top_k: int) -> None:
        self.retriever, self.top_k = retriever, top_k
        self.tool = Tool(self._search, name=SEARCH, deadline_s=10.0, max_characters=4000)

    def _search(self, query: str) -> str:
        """Search the corpus.

        Args:
            query: words to look for
        """
        return "\n".join(passage_line(p) for p in self.retriever.search(query, self.top_k))

    async def search(self, queries: Sequence[str]) -> tuple[list[str], int, int]:
        """Lines of results, errors among the queries, and tags of ours that passages held."""
        lines: dict[str, None] = {}
        errors = defused = 0
        for query in queries:
            result = await self.tool.call({"query": query})
            errors += result.is_error
            for line in result.text.splitlines():
                plain, count = defuse(line)
                defused += count
                lines[plain] = None
        return list(lines), errors, defused


async def play_searching(
    players: Players, session: Session, searcher: Searcher, final: str
) -> None:
    """Generate, search and observe until the final tag, a reply without a call, or a limit.

    Counts are kept in the session's `info` under `search` as they come, so that a conversation which
    meets a limit has them too.
    """
    stops = tuple(dict.fromkeys((*STOPS[final], *players.sampling.stop)))
    players = replace(players, sampling=msgspec.structs.replace(players.sampling, stop=stops))
    counts = session.info["search"] = {"calls": 0, "errors": 0, "defused": 0}
    while True:
        await players.generate(session)
        text = _with_closing_tag(session, final)
        action = first_action(text, final)
        queries = parse_queries.plain(action.text) if action.tag == SEARCH else []
        if not queries:
            return
        lines, errors, defused = await searcher.search(queries)
        counts["calls"] += len(queries)
        counts["errors"] += errors
        counts["defused"] += defused
        session.observe([observation(lines)], [Message("tool", "\n".join(lines), name=SEARCH)])


def _with_closing_tag(session: Session, final: str) -> str:
    """The reply with the closing tag at which generation stopped; it was sampled, but left out.

    Where the tokens are known they say whether it was.
    """
    text, ids = session.text, session.spans[-1].token_ids if session.spans else ()
    renderer = renderer_of(session.lm)
    whole = renderer.decode(ids) if renderer is not None and ids else text
    closing = [stop for stop in STOPS[final] if whole.find(stop) >= len(text)]
    if renderer is None or not ids:
        # A server says no more than that it stopped: the tag that is open is the one it stopped at.
        opened = max(STOPS[final], key=lambda stop: text.rfind(stop.replace("</", "<")))
        start = text.rfind(opened.replace("</", "<"))
        closing = [opened] if start >= 0 and opened not in text[start:] else []
    if not closing:
        return text
    stop = min(closing, key=whole.find) if whole != text else closing[0]
    said = Message("assistant", text + stop)
    session.text, session.messages[-1], session.shown[-1] = said.text, said, said
    return said.text
