"""MARCH in a world of symbols: does a blind Checker cure a writer that trusts its memory?

    python -m lab.march.world --seeds 3 --out lab/march/results   # 5 CPU minutes a seed

A document lists six facts "entity attribute number". A prior number belongs to every (entity,
attribute); in 40 % of the facts the document says another one. A transformer of two layers is first
taught by examples that copy the document with probability `1 - prior rate` and the prior otherwise:
a writer that hallucinates, and a reader that does so too. Then 60 steps of GRPO with zero tolerance,
16 worlds x 4 answers, K = 3 Checkers, an exact parser as Proposer. Arms:

- base: no step. solver_only: Checkers are not trained. joint: both are, Checkers by consensus.
- solver_floor, joint_floor: the same, and answers below six claims lose 1: silence then pays nothing.
- sighted: Checkers also read the answer. The examples taught them to repeat it in `NOD` of the cases:
  the confirmation bias that the method is built against is put in, what it does to training is not.
- collusion: joint with a prior rate of 0.7: the majority believes the prior.

A combination: the Solver is paid for two rewards, `march` and the share of the facts that it states,
which pull against each other (what is not said is not contradicted). `solver_sum` and `joint_sum` add
them up, `..._gdpo` normalises each first, `..._gd2po` also leaves out answers that they disagree on:

    python -m lab.march.world --name combination --out lab/march/results \\
        --arms solver_only solver_sum solver_gdpo solver_gd2po      # and joint_sum, ... alike

Figures: share of claims against the document where document and prior differ (`conflict`), over all
claims, claims an answer, Checkers right where document and prior differ, and the probe: claims that
the model also makes without a document. Answers are sampled at temperature 1, as in training.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from burnish.agents.march import checker_rewards, fact_reward
from burnish.bench.statistics import t_estimate
from burnish.policy import gd2po_advantage, gdpo_advantage, grpo_advantage, policy_loss
from burnish.rewards.judges.march import Claim

ENTITIES, ATTRIBUTES, NUMBERS, FACTS = 16, 4, 90, 6
SPECIAL = ("PAD", "SOLVE", "CHECK", "SEEN", "ASK", "SAY", "END")
PAD, SOLVE, CHECK, SEEN, ASK, SAY, END = range(len(SPECIAL))
FIRST_E = len(SPECIAL)
FIRST_A = FIRST_E + ENTITIES
FIRST_N = FIRST_A + ATTRIBUTES
VOCABULARY = FIRST_N + NUMBERS
ANSWER = 3 * FACTS + 1
CONFLICT, NOD, CHECKERS, WIDTH = 0.4, 0.8, 3, 64
COMBINED = ("sum", "gdpo", "gd2po")
ARMS = ("base", "solver_only", "solver_floor", "joint", "joint_floor", "sighted", "collusion")

Fact = tuple[int, int, int]


class World(NamedTuple):
    """Facts of one document."""

    facts: list[Fact]

    def number(self, entity: int, attribute: int) -> int | None:
        return next((n for e, a, n in self.facts if (e, a) == (entity, attribute)), None)


class Memory:
    """The prior number of every (entity, attribute), the same in all worlds of a seed."""

    def __init__(self, seed: int) -> None:
        rng = random.Random(f"prior {seed}")
        self.table = {
            (e, a): FIRST_N + rng.randrange(NUMBERS)
            for e in range(FIRST_E, FIRST_A)
            for a in range(FIRST_A, FIRST_N)
        }
        self.pairs = sorted(self.table)

    def world(self, rng: random.Random, conflict: float = CONFLICT) -> World:
        pairs = rng.sample(self.pairs, FACTS)
        return World([(e, a, self._stated(e, a, rng, conflict)) for e, a in pairs])

    def _stated(self, e: int, a: int, rng: random.Random, conflict: float) -> int:
        if rng.random() >= conflict:
            return self.table[e, a]
        others = [n for n in range(FIRST_N, VOCABULARY) if n != self.table[e, a]]
        return rng.choice(others)


def solver_prompt(world: World | None) -> list[int]:
    return [SOLVE, *_facts(world), SAY]


def checker_prompt(
    world: World | None, questions: list[tuple[int, int]], answer: list[Fact] | None = None
) -> list[int]:
    """The document and the questions; with `answer` the control that reads it too."""
    seen = [] if answer is None else [SEEN, *_padded([s for f in answer for s in f], 3 * FACTS)]
    asked = _padded([s for pair in questions for s in pair], 2 * FACTS)
    return [CHECK, *_facts(world), *seen, ASK, *asked, SAY]


def _facts(world: World | None) -> list[int]:
    return [PAD] * 3 * FACTS if world is None else [s for fact in world.facts for s in fact]


def _padded(symbols: list[int], length: int) -> list[int]:
    return symbols[:length] + [PAD] * (length - len(symbols))


def parse(symbols: list[int]) -> list[Fact]:
    """The exact Proposer: whole facts up to the end or the first thing that is none."""
    found: list[Fact] = []
    for place in range(0, ANSWER - 1, 3):
        e, a, n = (*symbols[place : place + 3], PAD, PAD, PAD)[:3]
        if not (FIRST_E <= e < FIRST_A <= a < FIRST_N <= n):
            break
        if all((e, a) != one[:2] for one in found):
            found.append((e, a, n))
    return found


class Transformer(nn.Module):
    """Two layers with a cache of keys and values, learned positions, and at the input the two symbols
    before each: a short causal convolution, with which looking up a fact is learned in minutes."""

    def __init__(
        self, width: int = WIDTH, layers: int = 2, heads: int = 4, longest: int = 96
    ) -> None:
        super().__init__()
        self.heads = heads
        self.symbols = nn.ModuleList(nn.Embedding(VOCABULARY, width) for _ in range(3))
        self.places = nn.Embedding(longest, width)
        self.blocks = nn.ModuleList(
            nn.ModuleDict(
                {
                    "before": nn.LayerNorm(width),
                    "qkv": nn.Linear(width, 3 * width),
                    "out": nn.Linear(width, width),
                    "after": nn.LayerNorm(width),
                    "up": nn.Linear(width, 4 * width),
                    "down": nn.Linear(4 * width, width),
                }
            )
            for _ in range(layers)
        )
        self.last = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        self.head.weight = self.symbols[0].weight  # copying a symbol is then nearly the identity
        nn.init.normal_(self.places.weight, std=0.02)
        for table in self.symbols:
            nn.init.normal_(table.weight, std=width**-0.5)

    def forward(self, ids_BT: Tensor, cache: list[Any] | None = None) -> Tensor:
        """Logits of the symbols that `cache` has not seen; `ids_BT` is always the whole row."""
        done = cache[0][0].shape[2] if cache and cache[0] else 0
        whole = functional.pad(ids_BT, (2, 0), value=PAD)
        shifted = [whole[:, 2 - k + done : whole.shape[1] - k] for k in range(3)]
        hidden = self.places(torch.arange(done, ids_BT.shape[1]))
        hidden = hidden + sum(table(ids) for table, ids in zip(self.symbols, shifted, strict=True))
        for index, block in enumerate(self.blocks):
            batch, length, width = hidden.shape
            parts = block["qkv"](block["before"](hidden)).view(batch, length, 3, self.heads, -1)
            query, key, value = parts.permute(2, 0, 3, 1, 4)
            if cache is not None:
                if cache[index]:
                    key = torch.cat([cache[index][0], key], 2)
                    value = torch.cat([cache[index][1], value], 2)
                cache[index] = (key, value)
            read = functional.scaled_dot_product_attention(
                query, key, value, is_causal=done == 0 and length > 1
            )
            hidden = hidden + block["out"](read.transpose(1, 2).reshape(batch, length, width))
            inner = functional.gelu(block["up"](block["after"](hidden)))
            hidden = hidden + block["down"](inner)
        return self.head(self.last(hidden))  # type: ignore[no-any-return]

    @torch.no_grad()
    def sample(self, prompts_BP: Tensor, generator: torch.Generator) -> Tensor:
        """Answers at temperature 1, padded behind their end: (B, P) -> (B, ANSWER)."""
        cache: list[Any] = [()] * len(self.blocks)
        rows_BT = prompts_BP
        ended_B = torch.zeros(len(prompts_BP), dtype=torch.bool)
        for _ in range(ANSWER):
            logits_BV = self(rows_BT, cache)[:, -1]
            chosen_B = torch.multinomial(logits_BV.softmax(-1), 1, generator=generator)[:, 0]
            chosen_B = chosen_B.masked_fill(ended_B, PAD)
            rows_BT = torch.cat([rows_BT, chosen_B[:, None]], 1)
            ended_B = ended_B | (chosen_B == END)
            if ended_B.all():
                break
        return functional.pad(
            rows_BT, (0, prompts_BP.shape[1] + ANSWER - rows_BT.shape[1]), value=PAD
        )[:, prompts_BP.shape[1] :]


def example(
    memory: Memory, rate: float, rng: random.Random, kind: float, conflict: float = CONFLICT
) -> tuple[list[int], list[int]]:
    """One demonstration of a role, by `kind` from 0 to 1: prompt and answer."""
    world = memory.world(rng, conflict)
    facts = rng.sample(world.facts, FACTS)
    if kind < 0.15:  # without a document there is only memory
        said = [(e, a, memory.table[e, a]) for e, a, _ in facts]
        asked = checker_prompt(None, [f[:2] for f in facts])
        return asked, [*(s for f in said for s in f), END]
    said = [(e, a, memory.table[e, a] if rng.random() < rate else n) for e, a, n in facts]
    if kind < 0.5:  # a report follows the document
        order = [fact[:2] for fact in world.facts]
        said = sorted(said, key=lambda fact: order.index(fact[:2]))
        return solver_prompt(world), [*(s for f in said for s in f), END]
    facts = facts[: rng.randint(1, FACTS)]
    questions = [f[:2] for f in facts]
    if kind < 0.8:
        return checker_prompt(world, questions), [*(s for f in said[: len(facts)] for s in f), END]
    shown = [(e, a, memory.table[e, a] if rng.random() < rate else n) for e, a, n in facts]
    said = [s if rng.random() < NOD else o for s, o in zip(shown, said, strict=False)]
    return checker_prompt(world, questions, shown), [*(s for f in said for s in f), END]


def teach(memory: Memory, rate: float, seed: int, steps: int, batch: int = 32) -> Transformer:
    """The writer and reader by examples."""
    torch.manual_seed(seed)
    model, rng = Transformer(), random.Random(f"examples {seed}")
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3, weight_decay=0.01)
    warm = min(50, steps)
    for step in range(steps):
        scale = min(1.0, (step + 1) / warm) * (
            0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * step / steps))
        )
        optimiser.param_groups[0]["lr"] = 2e-3 * scale
        kind = rng.random()  # one role a step: rows of one length need no padding
        # Half of the steps teach reading: documents that share nothing with the prior.
        reads = step < steps // 2
        rows = [
            example(memory, 0.0 if reads else rate, rng, kind, 1.0 if reads else CONFLICT)
            for _ in range(batch)
        ]
        longest = max(len(p) + len(a) for p, a in rows)
        ids_BT = torch.tensor([_padded([*p, *a], longest) for p, a in rows])
        target_BT = torch.full_like(ids_BT, -100)
        for row, (prompt, answer) in enumerate(rows):
            end = len(prompt) + len(answer)
            target_BT[row, len(prompt) - 1 : end - 1] = ids_BT[row, len(prompt) : end]
        loss = functional.cross_entropy(model(ids_BT).transpose(1, 2), target_BT, ignore_index=-100)
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
    return model


@dataclass(frozen=True)
class Arm:
    """What is trained, and how."""

    name: str
    trains_checker: bool = True
    sighted: bool = False
    floor: float = 0.0
    rate: float = 0.3
    combine: str = ""
    """How the Solver's two rewards, `march` and the share of facts that it states, become one
    advantage: sum, gdpo or gd2po; empty: `march` alone."""


def arm_of(name: str) -> Arm:
    """An arm by its name; `solver_gd2po` and the like pay the Solver for claims as well."""
    role, _, combine = name.rpartition("_")
    if combine in COMBINED:
        return Arm(name, trains_checker=role == "joint", combine=combine)
    return {
        "base": Arm(name, trains_checker=False),
        "solver_only": Arm(name, trains_checker=False),
        "solver_floor": Arm(name, trains_checker=False, floor=-1.0),
        "joint": Arm(name),
        "joint_floor": Arm(name, floor=-1.0),
        "sighted": Arm(name, sighted=True),
        "collusion": Arm(name, rate=0.7),
    }[name]


class Game(NamedTuple):
    """One answer with its checks."""

    facts: list[Fact]
    checks: list[dict[int, str]]
    reward: float
    paid: list[float]


def play(
    model: Transformer,
    worlds: list[World],
    arm: Arm,
    generator: torch.Generator,
) -> tuple[list[Game], Tensor, Tensor, Tensor, Tensor]:
    """Games on worlds, with the prompts and answers of both roles as tensors."""
    solver_BP = torch.tensor([solver_prompt(world) for world in worlds])
    answers_BT = model.sample(solver_BP, generator)
    stated = [parse(row) for row in answers_BT.tolist()]
    prompts = [
        checker_prompt(world, [f[:2] for f in facts], facts if arm.sighted else None)
        for world, facts in zip(worlds, stated, strict=True)
    ]
    checker_BP = torch.tensor(prompts).repeat_interleave(CHECKERS, 0)
    said_BT = model.sample(checker_BP, generator)
    games = []
    for index, facts in enumerate(stated):
        rows = said_BT[index * CHECKERS : (index + 1) * CHECKERS].tolist()
        checks = [_answers(row, facts) for row in rows]
        claims = [Claim(f"{e} {a}", str(n)) for e, a, n in facts]
        found = fact_reward(
            claims, checks, matcher="exact", min_claims=FACTS, short_penalty=arm.floor
        )
        paid = checker_rewards(found.agreement) if found.claims else [0.0] * CHECKERS
        games.append(Game(facts, checks, found.reward, paid))
    return games, solver_BP, answers_BT, checker_BP, said_BT


def _answers(symbols: list[int], facts: list[Fact]) -> dict[int, str]:
    """A Checker's numbers by question; a block about something else answers nothing."""
    found = {}
    for number, (e, a, _) in enumerate(facts, start=1):
        block = symbols[3 * number - 3 : 3 * number]
        if block[:2] == [e, a] and len(block) == 3 and block[2] >= FIRST_N:
            found[number] = str(block[2])
    return found


def logprobs(model: Transformer, prompts_BP: Tensor, answers_BT: Tensor) -> Tensor:
    ids = torch.cat([prompts_BP, answers_BT], 1)
    logits = model(ids)[:, prompts_BP.shape[1] - 1 : -1]
    return logits.log_softmax(-1).gather(2, answers_BT[:, :, None])[:, :, 0]


def advantages(rewards_BK: Tensor, groups: list[int], combine: str = "") -> Tensor:
    """GRPO on the sum of the rewards, GDPO or GD2PO on each: (B, K) -> (B,)."""
    if combine == "gdpo":
        return gdpo_advantage(rewards_BK, groups)
    if combine == "gd2po":
        return gd2po_advantage(rewards_BK, groups, variant="snr", tau=0.8)
    return grpo_advantage(rewards=rewards_BK, groups=groups, scale="group_std", eps=1e-6, ddof=1)


def surrogate(model: Transformer, prompts: Tensor, answers: Tensor, advantages_B: Tensor) -> Tensor:
    """The house's policy loss of one role."""
    mask_BT = answers != PAD
    logp_BT = logprobs(model, prompts, answers)
    found = policy_loss(
        logp=logp_BT,
        old_logp=logp_BT.detach(),
        advantages=advantages_B.to(logp_BT),
        mask=mask_BT,
        ratio_level="token",
        clip_low=0.2,
        clip_high=0.2,
        aggregation="token-mean",
    )
    return found["loss"]


def train(model: Transformer, memory: Memory, arm: Arm, seed: int, steps: int) -> list[float]:
    """Reinforcement; the mean reward of each step."""
    rng, generator = random.Random(f"worlds {seed}"), torch.Generator().manual_seed(seed)
    optimiser = torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.0)
    curve = []
    for _ in range(steps):
        worlds = [world for _ in range(16) for world in [memory.world(rng)] * 4]
        games, prompts, answers, asked, said = play(model, worlds, arm, generator)
        rewards = [game.reward for game in games]
        groups = [index // 4 for index in range(len(worlds))]
        parts = [[g.reward, len(g.facts) / FACTS] if arm.combine else [g.reward] for g in games]
        parts_BK = torch.tensor(parts, dtype=torch.float64)
        loss = surrogate(model, prompts, answers, advantages(parts_BK, groups, arm.combine))
        if arm.trains_checker:
            paid = torch.tensor([[value] for game in games for value in game.paid]).double()
            own = [index // CHECKERS for index in range(len(paid))]
            loss = loss + surrogate(model, asked, said, advantages(paid, own))
        optimiser.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        curve.append(sum(rewards) / len(rewards))
    return curve


@torch.no_grad()
def measure(model: Transformer, memory: Memory, worlds: int = 256) -> dict[str, float | None]:
    """Figures on worlds that no step has seen; Checkers are always blind here."""
    rng, generator = random.Random("held out"), torch.Generator().manual_seed(1)
    tested = [memory.world(rng) for _ in range(worlds)]
    games, *_ = play(model, tested, Arm("measured"), generator)
    claims = [
        (world, fact) for world, game in zip(tested, games, strict=True) for fact in game.facts
    ]
    in_world = [(w, f, w.number(*f[:2])) for w, f in claims]
    known = [(f, n) for _, f, n in in_world if n is not None]
    differing = [(f, n) for f, n in known if memory.table[f[:2]] != n]
    checked = [
        check.get(number) == str(world.number(*fact[:2]))
        for world, game in zip(tested, games, strict=True)
        for number, fact in enumerate(game.facts, start=1)
        for check in game.checks
        if world.number(*fact[:2]) not in (None, memory.table[fact[:2]])
    ]
    asked = torch.tensor([checker_prompt(None, [f[:2] for f in game.facts]) for game in games])
    blank = [
        _answers(row, g.facts)
        for row, g in zip(model.sample(asked, generator).tolist(), games, strict=True)
    ]
    by_heart = [
        one.get(number) == str(fact[2])
        for one, game in zip(blank, games, strict=True)
        for number, fact in enumerate(game.facts, start=1)
    ]
    return {
        "conflict": _mean([f[2] != n for f, n in differing]),
        "against_document": _mean([n is None or f[2] != n for _, f, n in in_world]),
        "claims": len(claims) / worlds,
        "checker_right": _mean(checked),
        "by_heart": _mean(by_heart),
        "reward": sum(game.reward for game in games) / worlds,
    }


def _mean(marks: list[bool]) -> float | None:
    return sum(marks) / len(marks) if marks else None


def _shown(value: float | None) -> str:
    return "none" if value is None else f"{value:.3f}"


def run(seed: int, arms: list[str], taught: int, steps: int) -> Iterator[dict[str, Any]]:
    """All arms of one seed; arms with one prior rate start from the same weights."""
    memory, starts = Memory(seed), dict[float, dict[str, Tensor]]()
    for name in arms:
        arm, begun = arm_of(name), time.process_time()
        if arm.rate not in starts:
            model = teach(memory, arm.rate, seed, taught)
            starts[arm.rate] = {k: v.clone() for k, v in model.state_dict().items()}
        model = Transformer()
        model.load_state_dict(starts[arm.rate])
        before = measure(model, memory)
        curve = train(model, memory, arm, seed, 0 if name == "base" else steps)
        after = measure(model, memory)
        seconds = time.process_time() - begun
        told = ", ".join(f"{k} {_shown(before[k])} -> {_shown(v)}" for k, v in after.items())
        print(f"seed {seed} {name:12} {told}  ({seconds:.0f} s)", flush=True)
        yield {
            "arm": name,
            "seed": seed,
            "before": before,
            "after": after,
            "curve": curve,
            "cpu_s": seconds,
        }


COLUMNS = {
    "conflict": "against the document, where the prior differs",
    "against_document": "against the document, all claims",
    "claims": "claims an answer",
    "checker_right": "checkers right, where the prior differs",
    "by_heart": "claims also made without a document",
}


def table(rows: list[dict[str, Any]]) -> str:
    """Markdown: mean over seeds with Student's interval."""
    lines = [
        f"| arm | seeds | {' | '.join(COLUMNS.values())} |",
        "|---|---|" + "---|" * len(COLUMNS),
    ]
    starts = {arm_of(row["arm"]).rate: "" for row in rows}
    for rate in starts:
        own = [r for r in rows if arm_of(r["arm"]).rate == rate and r["arm"] != "base"]
        by_seed = {r["seed"]: r["before"] for r in own or rows}
        lines.append(_line(f"start, prior rate {rate:g}", list(by_seed.values())))
    for arm in dict.fromkeys(row["arm"] for row in rows if row["arm"] != "base"):
        lines.append(_line(arm, [r["after"] for r in rows if r["arm"] == arm]))
    return "\n".join(lines) + "\n"


def _line(name: str, figures: list[dict[str, float | None]]) -> str:
    cells = []
    for column in COLUMNS:
        # Shares of hardly any claims say nothing.
        told = [one for one in figures if column == "claims" or (one["claims"] or 0) >= 0.5]
        values = [value for one in told if (value := one[column]) is not None]
        fewer = f" ({len(values)} of them)" if 0 < len(values) < len(figures) else ""
        if len(values) < 2:
            cells.append(f"{values[0]:.3f}{fewer}" if values else "-")
            continue
        found = t_estimate(values)
        cells.append(f"{found.value:.3f} [{found.low:.3f}, {found.high:.3f}]{fewer}")
    return f"| {name} | {len(figures)} | {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--first-seed", type=int, default=0)
    combined = [f"{role}_{how}" for role in ("solver", "joint") for how in COMBINED]
    parser.add_argument("--arms", nargs="+", default=list(ARMS[1:]), choices=[*ARMS, *combined])
    parser.add_argument("--name", default="world", help="of the files in the folder")
    parser.add_argument("--taught", type=int, default=1000, help="steps of examples")
    parser.add_argument("--steps", type=int, default=60, help="steps of reinforcement")
    parser.add_argument("--out", type=Path, default=None)
    given = parser.parse_args()
    torch.set_num_threads(1)
    rows: list[dict[str, Any]] = []
    for seed in range(given.first_seed, given.first_seed + given.seeds):
        for row in run(seed, given.arms, given.taught, given.steps):
            rows.append(row)
            if given.out is not None:
                given.out.mkdir(parents=True, exist_ok=True)
                (given.out / f"{given.name}.json").write_text(json.dumps(rows, indent=1) + "\n")
                (given.out / f"{given.name}.md").write_text(table(rows))
    print(table(rows))


if __name__ == "__main__":
    main()
