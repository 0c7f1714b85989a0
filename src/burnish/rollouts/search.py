"""A search environment: the model writes a query in tags, reads passages, and ends with an answer.

    [rollout]
    kind = "env"
    path = "search"
    options = { source = "manuals/", k = 3, searches = 4 }

`<search>words</search>` (or a JSON list of queries) is answered with `<information>`, numbered
passages, `</information>`. The first closed tag of a reply counts; one with `<answer>` or without a
query ends the rollout. For models whose chat template has tool
calls, the tool `search` is the same thing in their own form. Passages are data: our tags inside them
are shown in brackets, `(answer)`, and counted in `info`; only the model's replies are read.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from burnish.arguments import as_whole
from burnish.records import Message, Task
from burnish.rollouts.env import Observation
from burnish.rollouts.search_tags import (
    ANSWER,
    SEARCH,
    defuse,
    first_action,
    observation,
    parse_queries,
)
from burnish.rollouts.tool import Tool
from burnish.tools.search.passages import Passage, Retriever, query_words
from burnish.tools.search.tool import (
    AsyncSearch,
    SearchSettings,
    as_settings,
    open_settings,
    shown_passages,
)

INSTRUCTION = (
    "Look things up before you answer: write <search>words to look for</search> and stop. "
    "The passages that were found come back inside <information> and </information>. "
    "You may search {searches} times. Then write the answer inside <answer> and </answer>."
)


class SearchEnv:
    """One rollout's searches; `seen` are the passages that the model has read, in order."""

    tools: Sequence[Tool] = ()

    def __init__(
        self,
        search: AsyncSearch | Retriever,
        *,
        k: int = 3,
        characters: int = 500,
        searches: int = 4,
        instruction: str = INSTRUCTION,
    ) -> None:
        """At most `searches` queries, `k` passages each; an empty `instruction` adds none."""
        self._search = search if isinstance(search, AsyncSearch) else AsyncSearch(search)
        self.k = as_whole("k", k, low=1)
        self.characters = as_whole("characters", characters, low=1)
        self.searches = as_whole("searches", searches, low=0)
        self.instruction = instruction.replace("{searches}", str(self.searches))
        self.queries: list[str] = []
        self.seen: list[Passage] = []
        self.tags = 0

    async def reset(self, task: Task, seed: int) -> Observation:
        self.queries, self.seen, self.tags = [], [], 0
        if not self.instruction:
            return Observation()
        first = task.messages[0] if task.messages else None
        if first is not None and first.role == "system" and isinstance(first.content, str):
            opening = Message("system", f"{first.content}\n\n{self.instruction}")
            return Observation((opening, *task.messages[1:]))
        return Observation((Message("system", self.instruction), *task.messages))

    async def step(self, reply: Message) -> Observation:
        asked = first_action(reply.text, ANSWER)
        queries = parse_queries(asked.text) if asked.tag == SEARCH else []
        if asked.tag != SEARCH:
            return Observation(done=True, info=self._info())
        if len(self.queries) >= self.searches:
            told = "No searches are left. Write the answer inside <answer> and </answer>."
            return Observation((Message("user", told),))
        lines: dict[str, None] = {}
        for query in queries[: self.searches - len(self.queries)] or [""]:
            lines |= dict.fromkeys(await self._look_up(query))
        return Observation((observation(list(lines)),))

    async def cut(self) -> Observation:
        """Keep what was searched for, also where a limit ended the rollout."""
        return Observation(info=self._info())

    async def _look_up(self, query: str) -> list[str]:
        """What a query found, as lines; a query without words counts too."""
        self.queries.append(query)
        if not query_words(query):
            return ["the query has no words"]
        passages = await self._search.search(query, self.k)
        self.seen += passages
        told = [defuse(line) for line in shown_passages(passages, self.characters).splitlines()]
        self.tags += sum(count for _, count in told)
        return [line for line, _ in told]

    def _info(self) -> dict[str, Any]:
        ids = [passage.id for passage in self.seen]
        return {"queries": list(self.queries), "passages": ids, "tags_in_passages": self.tags}


def search_env(
    root: Path = Path(), *, searches: int = 4, instruction: str = INSTRUCTION, **options: Any
) -> SearchEnv:
    """The environment that a recipe names `search`; further options are `SearchSettings`."""
    settings = as_settings("environment 'search'", options)
    return SearchEnv(
        _shared(root, settings),
        k=settings.k,
        characters=settings.characters,
        searches=searches,
        instruction=instruction,
    )


@cache
def _shared(root: Path, settings: SearchSettings) -> AsyncSearch:
    """One search for all rollouts, so that equal queries are looked up once."""
    return AsyncSearch(open_settings(settings, root))
