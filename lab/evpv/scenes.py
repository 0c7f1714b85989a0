"""Trained models instead of simulated ones: a verifier that does not see the scene, and an extractor.

    python -m lab.evpv.scenes --jobs 3                         # SmolLM2-135M, on a GPU
    python -m lab.evpv.scenes --cpu --seeds 0                  # a trial with the tiny model

A scene is a verbose description of counted things; a solution reads two counts off it, adds them and
doubles the sum. Candidates are written by rule: some misread a count (another one of the scene, or one
beside it), some miscalculate. One copy of the model learns as a process reward model to score steps from
question and steps alone; another one, from the description, to list the facts. Best of 8 on held-out
scenes, all arms in one run:

none        the verifier alone
gate        its scores gated by the extractor's facts
dropped     by the same facts with 60 % of them left out
flipped     by the same facts with 60 % of them misread
perfect     by the true facts
sighted     a verifier trained with the scene before its eyes, no gate
"""

from __future__ import annotations

import argparse
import functools
import json
import random
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import anyio

from burnish.concurrency import gather
from burnish.records import Message, Response, Reward, Task
from burnish.rewards.judges.evpv import (
    EvpvJudge,
    FactIndex,
    best_of_k,
    corrupt_drop,
    corrupt_flip,
    weighted_correctness,
)
from burnish.rewards.models.trained_model import (
    ProcessRewardModelConfig,
    ProcessRewardModelReward,
)
from burnish.seeds import derive
from lab.at_once import at_once
from lab.evpv.tables import Row, write_table

RESULTS = Path(__file__).parent / "results"
COLOURS = ("red", "blue", "green", "white", "black", "brown")
THINGS = ("crates", "barrels", "lamps", "chairs", "boats", "carts", "kites", "drums")
PLACES = ("by the wall", "near the gate", "under the roof", "at the pier", "behind the house")
FILLERS = (
    "The light is grey and it has rained.",
    "Somebody has left the door open.",
    "A dog sleeps in the corner.",
    "Nothing moves.",
    "It is early and nobody works yet.",
)
FACTS, CANDIDATES, SPOILT = 4, 8, 0.6
MISREADS, MISCALCULATES = 0.4, 0.25
ARMS = ("none", "gate", "dropped", "flipped", "perfect", "sighted")


class Scene(NamedTuple):
    """Counts of things, how they are told, and what is asked."""

    counts: dict[str, int]
    text: str
    asked: tuple[str, str]

    @property
    def question(self) -> str:
        first, second = self.asked
        return f"How many {first} and {second} are there together, and how many would be twice as many?"


class Sizes(NamedTuple):
    """How much is drawn and trained."""

    scenes: int
    steps: int
    held_out: int
    batch: int


GPU, TRIAL = Sizes(6000, 800, 300, 32), Sizes(24, 2, 4, 4)


def scene(rng: random.Random) -> Scene:
    """Four counts in prose, with sentences that tell nothing between them."""
    names = [f"{colour} {thing}" for colour in COLOURS for thing in THINGS]
    kept = rng.sample(names, FACTS)
    counts = {name: rng.randrange(2, 40) for name in kept}
    told = [f"There are {n} {name} {rng.choice(PLACES)}." for name, n in counts.items()]
    sentences = [*told, *rng.sample(FILLERS, 3)]
    rng.shuffle(sentences)
    first, second = rng.sample(kept, 2)
    return Scene(counts, " ".join(sentences), (first, second))


class Candidate(NamedTuple):
    """A solution by rule, with the truth of each of its steps."""

    text: str
    labels: list[int]

    @property
    def is_right(self) -> bool:
        return all(self.labels)


def candidate(rng: random.Random, of: Scene) -> Candidate:
    """Two counts, their sum and its double; some are misread and some miscalculated."""
    read = [of.counts[name] for name in of.asked]
    if rng.random() < MISREADS:
        place = rng.randrange(2)
        others = [n for n in of.counts.values() if n != read[place]]
        read[place] = rng.choice([*others, read[place] + rng.choice((-1, 1, 2))])
    right = [read[n] == of.counts[name] for n, name in enumerate(of.asked)]
    total, twice = sum(read), 2 * sum(read)
    fault = rng.randrange(2) if rng.random() < MISCALCULATES else None
    if fault == 0:
        total += rng.choice((-10, -1, 1, 10))
        twice = 2 * total
    elif fault == 1:
        twice += rng.choice((-10, -2, 2, 10))
    lines = [
        f"There are {n} {name}. [premise: there are {n} {name}]"
        for n, name in zip(read, of.asked, strict=True)
    ]
    lines += [f"{read[0]} + {read[1]} = {total}.", f"2 * {total} = {twice}."]
    return Candidate("\n".join(lines), [*map(int, right), int(fault != 0), int(fault != 1)])


def rows_for_verifier(scenes: Sequence[Scene], seed: int, *, sighted: bool) -> list[dict[str, Any]]:
    """Solutions with step labels; the scene stands in the prompt of a sighted verifier alone."""
    rng = random.Random(derive("evpv", "verifier", seed))
    rows = []
    for one in scenes:
        found = candidate(rng, one)
        steps = found.text.split("\n")
        rows.append({"prompt": prompt_of(one, sighted), "steps": steps, "labels": found.labels})
    return rows


def prompt_of(one: Scene, sighted: bool) -> str:
    return f"{one.text}\n\n{one.question}" if sighted else one.question


def extractor_prompt(one: Scene) -> str:
    return f"{one.text}\n\nList what can be counted here, one a line."


def facts_of(one: Scene) -> list[str]:
    return [f"there are {n} {name}" for name, n in one.counts.items()]


def train(
    kind: str, rows: list[dict[str, Any]], model: str, sizes: Sizes, seed: int, work: Path
) -> Path:
    """Train one copy of the model and give its folder."""
    import burnish

    how: dict[str, Any] = {"kind": "sft"}
    if kind != "extractor":
        how = {"kind": "process_reward_model", "separator": "\n"}
    run = burnish.train(
        how["kind"],
        model=model,
        data=rows,
        train={**how, "batch": sizes.batch},
        optimiser={
            "learning_rate": 1e-4,
            "schedule": "cosine",
            "warmup_steps": max(1, sizes.steps // 20),
        },
        steps=sizes.steps,
        evaluation={"prompts": 0},
        checkpoint={"every": 0},
        held_out=0,
        seed=seed,
        runs=work / f"{kind}-{seed}",
        show=False,
    )
    return Path(run.folder)


def extract(folder: Path, scenes: Sequence[Scene]) -> list[list[str]]:
    """The facts that the trained extractor lists."""
    import burnish

    said = burnish.generate(folder, [extractor_prompt(one) for one in scenes], max_tokens=96)
    return [[line for line in answer.text.splitlines() if line.strip()] for answer in said]


def verifier_of(folder: Path) -> ProcessRewardModelReward:
    """What scores steps, from the folder of its training."""
    return ProcessRewardModelReward(
        ProcessRewardModelConfig(path=str(folder), name="prm", split="lines")
    )


def accuracy(
    steps: ProcessRewardModelReward,
    scenes: Sequence[Scene],
    candidates: Sequence[Sequence[Candidate]],
    facts: Sequence[Sequence[str]] | None,
    *,
    sighted: bool = False,
) -> float:
    """Expected accuracy of the best of 8 by step scores, gated where there are facts."""
    judge = EvpvJudge(None, steps=steps, split="lines", undeclared="ignore")
    scorer = steps if facts is None else judge
    calls = []
    for number, (one, drawn) in enumerate(zip(scenes, candidates, strict=True)):
        known = [] if facts is None else list(facts[number])
        evidence = {"type": "facts", "facts": known, "single": True}
        prompt = (Message("user", prompt_of(one, sighted)),)
        task = Task(str(number), prompt, {"evidence": evidence})
        responses = [Response(str(n), c.text) for n, c in enumerate(drawn)]
        calls.append(functools.partial(scorer.score, task, responses))
    total = 0.0
    # All scenes at once, so that the verifier reads them in batches.
    for drawn, rewards in zip(candidates, anyio.run(gather, calls), strict=True):
        scores = [reward.value if facts is not None else _raw(reward) for reward in rewards]
        total += best_of_k(scores, [c.is_right for c in drawn]).bon_at_k[-1]
    return total / len(scenes)


def _raw(reward: Reward) -> float | None:
    """The value of the verifier's own scores."""
    if reward.value is None:
        return None
    return weighted_correctness([2 * (part.value or 0.0) - 1 for part in reward.parts])


def run(seed: int, model: str, sizes: Sizes, work: Path) -> dict[str, float]:
    """All arms of one seed; a finished seed is not repeated."""
    done = work / f"seed-{seed}.json"
    if done.exists():
        found: dict[str, float] = json.loads(done.read_text())
        return found
    began = time.monotonic()

    def tell(what: str) -> None:
        print(f"seed {seed}: {what} after {time.monotonic() - began:.0f} s", file=sys.stderr)

    rng = random.Random(derive("evpv", "scenes", seed))
    scenes = [scene(rng) for _ in range(sizes.scenes)]
    held = [scene(rng) for _ in range(sizes.held_out)]
    drawn = [[candidate(rng, one) for _ in range(CANDIDATES)] for one in held]
    demonstrations = [
        {"prompt": extractor_prompt(one), "completion": "\n".join(facts_of(one))} for one in scenes
    ]
    rows = {
        "blind": rows_for_verifier(scenes, seed, sighted=False),
        "sighted": rows_for_verifier(scenes, seed, sighted=True),
        "extractor": demonstrations,
    }
    folders = {}
    for kind, shown in rows.items():
        folders[kind] = train(kind, shown, model, sizes, seed, work)
        tell(f"{kind} model trained")
    blind, seeing, extractor = folders.values()
    facts = extract(extractor, held)
    tell("facts listed")
    spoilt = {
        name: [spoil(one, SPOILT, seed=seed, sample_id=str(n)) for n, one in enumerate(facts)]
        for name, spoil in (("dropped", corrupt_drop), ("flipped", corrupt_flip))
    }
    verifier = verifier_of(blind)
    arms = {
        "none": accuracy(verifier, held, drawn, None),
        "gate": accuracy(verifier, held, drawn, facts),
        **{name: accuracy(verifier, held, drawn, some) for name, some in spoilt.items()},
        "perfect": accuracy(verifier, held, drawn, [facts_of(one) for one in held]),
        "sighted": accuracy(verifier_of(seeing), held, drawn, None, sighted=True),
    }
    tell("measured")
    flags = [one.is_right for row in drawn for one in row]
    figures = {"pass@1": sum(flags) / len(flags), **arms, "facts found": recall(held, facts)}
    done.parent.mkdir(parents=True, exist_ok=True)
    done.write_text(json.dumps(figures))
    return figures


def recall(scenes: Sequence[Scene], facts: Sequence[Sequence[str]]) -> float:
    """Share of the scenes' counts that the extractor lists as they are."""
    hits = 0
    for one, found in zip(scenes, facts, strict=True):
        index = FactIndex([line for line in found if len(line) <= 400])
        hits += sum(index.match(fact).outcome == "supported" for fact in facts_of(one))
    return hits / (FACTS * len(scenes))


def main() -> None:
    """Run and write `results/scenes.md`."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--jobs", type=int, default=1, help="seeds at a time")
    parser.add_argument("--model", default="smollm2")
    parser.add_argument("--cpu", action="store_true", help="a trial with the tiny model")
    parser.add_argument("--steps", type=int, default=0, help="optimiser steps of each copy")
    parser.add_argument("--work", type=Path, default=Path("runs/evpv-scenes"))
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    sizes = TRIAL if given.cpu else GPU
    sizes = sizes._replace(steps=given.steps) if given.steps else sizes
    model = "tiny" if given.cpu else given.model
    runs = []
    for found in at_once(
        run, [(seed, model, sizes, given.work) for seed in given.seeds], given.jobs
    ):
        runs.append(found)
        shown = {key: round(value, 3) for key, value in found.items()}
        print(f"{len(runs)} of {len(given.seeds)} seeds: {shown}", flush=True)
    rows = [Row(key, [one[key] for one in runs]) for key in runs[0]]
    told = (
        f"{len(runs)} seeds, {sizes.held_out} held-out scenes, {CANDIDATES} candidates, model "
        f"{model}, {sizes.steps} steps a copy; mean [lowest, highest]"
    )
    write_table(given.out / "scenes.md", "Trained verifier and extractor on scenes", told, rows)


if __name__ == "__main__":
    main()
