"""A small invented world in which validity and uniqueness of a question can be decided exactly.

People, companies, cities and countries with functional relations, a short passage about each,
questions as chains of relations, and an oracle. `read` is a reader in code; `make` and `demonstrate`
are task functions: answers for the game, and transcripts for a warm start.
"""

from __future__ import annotations

import random
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from functools import cache
from typing import Annotated, Any, NamedTuple

from msgspec import Meta

from burnish.agents.ssp.rules import as_golds
from burnish.agents.ssp.searching import (
    as_rows,
    passage_line,
    proposer_messages,
    solver_messages,
)
from burnish.arguments import as_text
from burnish.boundary import public_method
from burnish.records import Message
from burnish.rewards.checks.match import normalize_answer
from burnish.rollouts.search import ANSWER, QUESTION, SEARCH, observation
from burnish.seeds import derive
from burnish.tools.search import Passage, PassageIndex

RELATIONS: dict[str, dict[str, str]] = {
    "person": {"birthplace": "city", "employer": "company", "mentor": "person"},
    "company": {"headquarters": "city", "founder": "person"},
    "city": {"country": "country", "mayor": "person"},
    "country": {"capital": "city"},
}
"""Kind of entity -> relation -> kind that it leads to."""
KINDS = tuple(RELATIONS)
_FACT = re.compile(r"The (\w+) of ([A-Z][\w ]{0,60}?) is ([A-Z][\w ]{0,60}?)\.")
_FORWARD = re.compile(r"which (\w+) is the (\w+(?: of the \w+){0,8}) of ([A-Z][\w ]{0,60}?)\?")
_INVERSE = re.compile(r"which (\w+) has ([A-Z][\w ]{0,60}?) as its (\w+)\?")
_SYLLABLES = (
    *("ba", "ko", "mi", "ra", "ve", "lu", "to", "ne", "shi", "dar", "fen", "gor"),
    *("hul", "jas", "kel", "lom", "mor", "nim", "pel", "quo", "rus", "sel", "tam", "ul"),
)


class Query(NamedTuple):
    kind: str
    start: str
    path: tuple[str, ...]
    is_inverse: bool = False
    """Asks who has the start as its `path[0]`: often several."""


class Judged(NamedTuple):
    is_valid: bool
    is_unique: bool
    depth: int


Size = Annotated[int, Meta(ge=2, le=100_000)]
"""Entities of one kind."""
Facts = Mapping[tuple[str, str], str]
"""(entity, relation) -> entity."""


def parse_question(question: str) -> Query | None:
    """The question as a chain of relations; None where it is none of this world.

    >>> parse_question("According to the records, which city is the birthplace of Mara Velin?").path
    ('birthplace',)
    """
    text = as_text("question", question)
    if found := _FORWARD.search(text):
        chain = found[2].split(" of the ")
        return Query(found[1], found[3], tuple(reversed(chain)))
    if found := _INVERSE.search(text):
        return Query(found[1], found[2], (found[3],), is_inverse=True)
    return None


def answers_in(query: Query, facts: Facts) -> list[str]:
    """Every answer to a query, as far as the facts say, in their order."""
    if query.is_inverse:
        return [one for (one, r), to in facts.items() if r == query.path[0] and to == query.start]
    place: str | None = query.start
    for relation in query.path:
        place = facts.get((place, relation)) if place is not None else None
    return [] if place is None else [place]


def facts_of(documents: Iterable[str]) -> dict[tuple[str, str], str]:
    """The facts that passages state, in their order."""
    return {(f[2], f[1]): f[3] for text in documents for f in _FACT.finditer(text)}


def read(question: str, documents: Sequence[str]) -> list[str]:
    """Answers to a question from the passages alone, best first: the reader in code."""
    query = parse_question(question)
    return [] if query is None else answers_in(query, facts_of(documents))


class World:
    @public_method
    def __init__(
        self,
        seed: int = 0,
        people: Size = 240,
        companies: Size = 60,
        cities: Size = 80,
        countries: Size = 20,
    ) -> None:
        counts = {"person": people, "company": companies, "city": cities, "country": countries}
        rng = random.Random(derive("world", seed))
        taken: set[str] = set()
        self.by_kind = {k: [_name(rng, k, taken) for _ in range(n)] for k, n in counts.items()}
        self.kind_of = {name: kind for kind, names in self.by_kind.items() for name in names}
        self.facts: dict[tuple[str, str], str] = {}
        self.pointing: dict[str, list[tuple[str, str]]] = defaultdict(list)
        """Entity -> (other, relation) with other's relation leading to it."""
        for name, kind in self.kind_of.items():
            for relation, target in RELATIONS[kind].items():
                to = rng.choice([one for one in self.by_kind[target] if one != name])
                self.facts[name, relation] = to
                self.pointing[to].append((name, relation))
        self.passages = []
        for name, kind in self.kind_of.items():
            facts = [f"The {r} of {name} is {self.facts[name, r]}." for r in RELATIONS[kind]]
            self.passages.append(Passage(name, " ".join(facts), title=name))
        self.index = PassageIndex(self.passages)

    def ask(self, start: str, path: Sequence[str], *, inverse: bool = False) -> str:
        """The question for a chain of relations, the first of them the start's own."""
        if inverse:
            kind = next(k for k, own in RELATIONS.items() if path[0] in own)
            return f"According to the records, which {kind} has {start} as its {path[0]}?"
        kind = self.kind_of[start]
        for relation in path:
            kind = RELATIONS[kind][relation]
        chain = " of the ".join(reversed(path))
        return f"According to the records, which {kind} is the {chain} of {start}?"

    def answers(self, question: str) -> set[str] | None:
        """Every answer in the whole world; None where the question is not understood."""
        query = parse_question(question)
        return None if query is None else set(answers_in(query, self.facts))

    def judge(self, question: str, answer: Any) -> Judged:
        """The oracle: does the answer fit, and no other?"""
        query = parse_question(question)
        if query is None:
            return Judged(False, False, 0)
        golds = {normalize_answer(gold) for gold in as_golds("answer", answer)}
        fits = {normalize_answer(one) for one in answers_in(query, self.facts)}
        return Judged(bool(fits & golds), bool(fits) and fits <= golds, len(query.path))

    def chain_to(self, answer: str, hops: int, rng: random.Random) -> tuple[str, list[str]]:
        """A start and relations that lead to the answer in so many steps, or in fewer."""
        path: list[str] = []
        place, seen = answer, {answer}
        for _ in range(hops):
            ways = [(name, r) for name, r in self.pointing[place] if name not in seen]
            if not ways:
                break
            place, relation = rng.choice(ways)
            seen.add(place)
            path.insert(0, relation)
        return place, path


def _name(rng: random.Random, kind: str, taken: set[str]) -> str:
    """A name that nobody has yet, nor any of its words."""
    while True:
        words = ["".join(rng.sample(_SYLLABLES, rng.randint(2, 3))).capitalize() for _ in range(2)]
        name = " ".join(words[: 2 if kind == "person" else 1])
        if not taken & set(name.split()) and not {"The", "According"} & set(name.split()):
            taken.update(name.split())
            return name


@cache
def world_of(seed: int = 0, people: int = 240, companies: int = 60, cities: int = 80) -> World:
    return World(seed, people, companies, cities)


def corpus(**options: Any) -> PassageIndex:
    """The world's passages as a retriever, for `corpus = "burnish.agents.ssp.world:corpus"`."""
    return world_of(**options).index


def make(
    rng: random.Random, hops: Sequence[int] = (1, 2), question_hops: int = 2, **options: Any
) -> dict[str, Any]:
    """An answer to propose a question for, and a question to it for a solver that is evaluated.

    Answers are held out as a whole, so an evaluated question has an answer that no proposer got.
    """
    world = world_of(**options)
    while True:
        answer = rng.choice(list(world.kind_of))
        start, path = world.chain_to(answer, question_hops, rng)
        if len(path) == question_hops:
            break
    chosen = rng.choice(list(hops))
    return {
        "messages": as_rows(proposer_messages(answer, chosen)),
        "answer": answer,
        "hops": chosen,
        "question": world.ask(start, path),
        "split_by": answer,
    }


def demonstrate(
    rng: random.Random, hops: Sequence[int] = (1, 2), top_k: int = 3, **options: Any
) -> dict[str, Any]:
    """One turn of a templated transcript, of a proposer or of a solver, for supervised tuning."""
    world = world_of(**options)
    while True:
        role = rng.choice(("proposer", "solver"))
        answer = rng.choice(list(world.kind_of))
        transcript = (propose_script if role == "proposer" else solve_script)(
            world, answer, rng.choice(list(hops)), rng, top_k
        )
        if transcript:
            break
    turn = rng.choice([i for i, message in enumerate(transcript) if message.role == "assistant"])
    return {
        "messages": as_rows(transcript[:turn]),
        "demonstration": transcript[turn].text,
        "role": role,
        "split_by": answer,
    }


def propose_script(
    world: World, answer: str, hops: int, rng: random.Random, top_k: int = 3
) -> list[Message]:
    """A whole proposer's conversation as a template plays it; empty where search finds no chain."""
    said = proposer_messages(answer, hops)
    place, path = answer, list[str]()
    for _ in range(hops):
        lines = _search(world, place, top_k, said, f"Who is linked to {place}?")
        stated = facts_of(lines)
        ways = [(n, r) for (n, r), to in stated.items() if to == place and n != answer]
        if not ways:
            return []
        place, relation = rng.choice(ways)
        path.insert(0, relation)
    if hops == 1:
        _search(world, place, top_k, said, f"I check {place}.")
    text = (
        f"<think>From {place} to {answer}.</think><{QUESTION}>{world.ask(place, path)}</{QUESTION}>"
    )
    return [*said, Message("assistant", text)]


def solve_script(
    world: World, answer: str, hops: int, rng: random.Random, top_k: int = 3
) -> list[Message]:
    """A whole solver's conversation to a question with this answer; empty where there is none."""
    start, path = world.chain_to(answer, hops, rng)
    if not path:
        return []
    said = solver_messages(world.ask(start, path))
    place = start
    for relation in path:
        lines = _search(world, place, top_k, said, f"I need the {relation} of {place}.")
        found = facts_of(lines).get((place, relation))
        if found is None:
            return []
        place = found
    text = f"<think>It is {place}.</think><{ANSWER}>{place}</{ANSWER}>"
    return [*said, Message("assistant", text)]


def _search(world: World, query: str, top_k: int, said: list[Message], thought: str) -> list[str]:
    lines = [passage_line(passage) for passage in world.index.search(query, top_k)]
    call = f"<think>{thought}</think><{SEARCH}>{query}</{SEARCH}>"
    said += [Message("assistant", call), observation(lines)]
    return lines
