"""What noise documents do to the RAG check: precision and recall against an exact oracle.

    python -m lab.ssp.noise

No training. Half of the questions have exactly one answer (chains of one or two relations), half are
ambiguous ("which person has X as its employer", where several have). Each was written from what two or
three searches showed (BM25, top 3). A reader in code answers from those documents and `noise` blocks of
other questions' documents, shuffled, by burnish's own functions. The oracle knows the whole world.

Readers: `first` takes the first answer that fits in the order of reading; `any` takes one of those that
fit at random; `every` (the uniqueness probe) accepts only where all that fit are the answer; `short` is
`first` with room for 12 passages, the rest is cut off, as in a small context.
"""

from __future__ import annotations

import argparse
import csv
import random
import statistics
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import NamedTuple

from burnish.agents.ssp import exact_match, is_unique, noise_blocks, shuffled_documents
from burnish.agents.ssp.searching import passage_line
from burnish.agents.ssp.world import World, parse_question, read
from burnish.seeds import derive

RESULTS = Path(__file__).parent / "results"
NOISE = (0, 1, 4, 7)
ROOM = 12
Reader = Callable[[str, Sequence[str], str], bool]


class Asked(NamedTuple):
    """A question, its answer, what its writer saw, and what the oracle says."""

    question: str
    answer: str
    documents: list[str]
    is_unique: bool


def first(question: str, documents: Sequence[str], answer: str) -> bool:
    found = read(question, documents)
    return bool(found) and exact_match(found[0], answer) == 1.0


def any_of(question: str, documents: Sequence[str], answer: str) -> bool:
    found = read(question, documents)
    chosen = random.Random(derive(question, *documents)).choice(found) if found else ""
    return exact_match(chosen, answer) == 1.0


def every(question: str, documents: Sequence[str], answer: str) -> bool:
    return is_unique(read(question, documents), answer)


def short(question: str, documents: Sequence[str], answer: str) -> bool:
    return first(question, documents[:ROOM], answer)


READERS: dict[str, Reader] = {"first": first, "any": any_of, "every": every, "short": short}


def ask(world: World, is_clear: bool, rng: random.Random) -> Asked | None:
    """One question with its documents; None where the draw gives none."""
    answer = rng.choice(list(world.kind_of))
    if is_clear:
        start, path = world.chain_to(answer, rng.choice((1, 2)), rng)
        question = world.ask(start, path) if path else ""
    else:
        relation, start = rng.choice([(r, to) for (n, r), to in world.facts.items() if n == answer])
        question = world.ask(start, [relation], inverse=True)
        path = [relation]
    if not path or world.judge(question, answer).is_unique != is_clear:
        return None
    places = [answer, start]
    if is_clear and len(path) == 2:
        places.insert(1, world.facts[start, path[0]])
    lines = [passage_line(p) for place in places for p in world.index.search(place, 3)]
    documents = list(dict.fromkeys(lines))
    # As in the game, the writer has read what its question is about.
    if answer not in read(question, documents) or parse_question(question) is None:
        return None
    return Asked(question, answer, documents, is_clear)


def questions(world: World, count: int, ambiguous: float, rng: random.Random) -> list[Asked]:
    found: list[Asked] = []
    while len(found) < count:
        one = ask(world, len(found) >= ambiguous * count, rng)
        if one is not None:
            found.append(one)
    return found


def measured(seed: int, count: int, ambiguous: float) -> dict[tuple[str, int], tuple[float, ...]]:
    """Precision, recall, and the share of ambiguous questions that pass, by reader and noise."""
    # Few companies and countries, so that ambiguous questions have several answers.
    world = World(seed, people=260, companies=20, cities=100, countries=20)
    asked = questions(world, count, ambiguous, random.Random(derive("ssp noise", seed)))
    found = {}
    for noise in NOISE:
        read_by: dict[str, list[bool]] = {name: [] for name in READERS}
        for place, one in enumerate(asked):
            # A batch of 32: noise comes from the others of the step.
            mates = random.Random(derive(seed, "batch", place)).sample(range(count), 31)
            others = [asked[mate].documents for mate in mates if mate != place]
            own = derive(seed, "noise", place)
            blocks = noise_blocks(one.documents, others, noise, own)
            documents = shuffled_documents(one.documents, blocks, own)
            for name, reader in READERS.items():
                read_by[name].append(reader(one.question, documents, one.answer))
        for name, accepted in read_by.items():
            right = sum(a and q.is_unique for a, q in zip(accepted, asked, strict=True))
            clear = sum(q.is_unique for q in asked)
            total = sum(accepted)
            passed = (total - right) / (len(asked) - clear)
            found[name, noise] = (right / total if total else 0.0, right / clear, passed)
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description="The RAG check against an oracle, by noise.")
    parser.add_argument("--questions", type=int, default=400)
    parser.add_argument("--ambiguous", type=float, default=0.5)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    runs = [measured(seed, given.questions, given.ambiguous) for seed in range(given.seeds)]
    head = ["reader", "noise blocks", "precision", "recall", "ambiguous questions that pass"]
    rows: list[list[object]] = []
    for key in runs[0]:
        columns = zip(*(run[key] for run in runs), strict=True)
        cells = [f"{statistics.fmean(c):.3f} ± {statistics.stdev(c):.3f}" for c in columns]
        rows.append([*key, *cells])
    lines = [head, ["---"] * len(head), *rows]
    text = "\n".join("| " + " | ".join(map(str, line)) + " |" for line in lines)
    note = (
        f"`python -m lab.ssp.noise`: {given.questions} questions a seed, {given.ambiguous:.0%} of "
        f"them ambiguous, {given.seeds} seeds, mean ± standard deviation.\n\n"
    )
    given.out.mkdir(parents=True, exist_ok=True)
    (given.out / "noise.md").write_text(note + text + "\n")
    with (given.out / "noise.csv").open("w", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([head, *rows])
    print(text)


if __name__ == "__main__":
    main()
