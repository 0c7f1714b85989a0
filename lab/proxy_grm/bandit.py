"""A judge as a bandit: does pay for rubrics make them transfer, and does the leak guard hold?

A pair differs in six binary attributes, and the type of its question says which of them matters. The
judge, a table of logits by type and for the shown differences, writes a rubric (one attribute) and a
verdict. It is read and paid by `ProxyVerifiedRubric` from the text of its reply, in groups of 8 by GRPO
through `advantages` and `loss`. The proxy follows the attribute that the rubric names, and is wrong in a
tenth of its answers. Transfer is how often an evaluator without noise that the judge never met is right
from the rubric alone. In the leak experiment the judge may also write its verdict into the rubric, and
the proxy repeats a verdict that it reads, without noise; the evaluator does not know what to do with one and guesses.

    python -m lab.proxy_grm.bandit             # some minutes on one core
"""

from __future__ import annotations

import csv
import importlib.util
import re
import statistics
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import anyio
import torch
from torch import Tensor

from burnish.policy import (
    Aggregate,
    LossBatch,
    Recipe,
    RewardBatch,
    SumThenNormalise,
    advantages,
    loss,
)
from burnish.records import Message, Response, Task
from burnish.rewards.judges.proxy_grm import extract_rubric
from burnish.rewards.judges.proxy_rubric import ProxyRubricConfig, ProxyVerifiedRubric
from burnish.rewards.scorer import checked
from burnish.seeds import derive

RESULTS = Path(__file__).parent / "results"
ATTRIBUTES = ("battery", "camera", "weight", "price", "screen", "speed")
TYPES, GROUPS, SAMPLES, STEPS, SEEDS = 6, 16, 8, 200, (0, 1, 2)
MEASURED, NOISE, RATE = 1000, 0.1, 0.3
LEAK = TYPES
"""The action that writes the verdict into the rubric."""


@dataclass(frozen=True)
class Arm:
    """One way to pay a judge."""

    name: str
    proxy: float = 1.0
    """Weight of the proxy's part."""
    variant: int = 0
    may_leak: bool = False
    guard: Any = "refuse"


ARMS = (
    Arm("outcome only", 0.0),
    Arm("proxy 0.5", 0.5),
    Arm("proxy 1", 1.0),
    Arm("variant 1: both or nothing", variant=1),
    Arm("variant 7: refines right verdicts", variant=7),
    Arm("may leak, no guard", may_leak=True, guard="off"),
    Arm("may leak, guard", may_leak=True),
)
RECIPE = Recipe(advantage=SumThenNormalise(), aggregate=Aggregate(mode="token-mean"))


class Judge:
    """Logits of a rubric by type of question, and of a verdict by type and differences."""

    def __init__(self, seed: int, actions: int) -> None:
        draw = torch.Generator().manual_seed(derive(seed, "judge"))
        self.rubric = 0.1 * torch.randn(TYPES, actions, generator=draw, dtype=torch.float64)
        self.verdict = 0.1 * torch.randn(TYPES, 6, generator=draw, dtype=torch.float64)
        for table in self.parameters():
            table.requires_grad_()

    def parameters(self) -> list[Tensor]:
        return [self.rubric, self.verdict]

    def logits(self, types_B: Tensor, differences_BA: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities of the rubric (B, actions) and of the verdict (B, 2)."""
        first_B = (self.verdict[types_B] * differences_BA).sum(1)
        two_B2 = torch.stack([first_B, -first_B], 1)
        return self.rubric[types_B].log_softmax(1), two_B2.log_softmax(1)


def questions(count: int, draw: torch.Generator) -> tuple[Tensor, Tensor, Tensor]:
    """Types, differences of -1 or 1 (count, 6), and the better response, 1 or 2."""
    types_B = torch.randint(TYPES, (count,), generator=draw)
    signs_BA = 2.0 * torch.randint(2, (count, 6), generator=draw).double() - 1
    better_B = torch.where(signs_BA.gather(1, types_B[:, None])[:, 0] > 0, 1, 2)
    return types_B, signs_BA, better_B


def shown(signs: list[float], side: int) -> str:
    """A response: the attributes in which it is ahead."""
    good = [n for n, s in zip(ATTRIBUTES, signs, strict=True) if (s > 0) == (side == 1)]
    return f"good {' '.join(good)}" if good else "nothing to say"


def reply(rubric: int, verdict: int) -> str:
    """What the judge writes."""
    words = f"Response {verdict} is better." if rubric == LEAK else f"{ATTRIBUTES[rubric]} 100%"
    return f"<rubric>{words}</rubric><eval>both read</eval><answer>{verdict}</answer>"


class NoisyProxy:
    """Follows the attribute of a rubric; repeats a verdict that it reads there."""

    name = fingerprint = "noisy proxy"

    def __init__(self, seed: int) -> None:
        self.draw = torch.Generator().manual_seed(derive(seed, "proxy"))

    async def choose(self, pair: Any, rubric: str) -> Any:
        from burnish.rewards.judges.proxy_rubric import ProxyReply

        is_wrong = float(torch.rand(1, generator=self.draw)) < NOISE
        choice = follow(rubric, pair.first)
        leaked = re.search(r"Response ([12])", rubric)
        if leaked:  # nothing to weigh, so nothing to get wrong
            return ProxyReply(int(leaked[1]), "")
        return ProxyReply(3 - choice if is_wrong else choice, "")


def follow(rubric: str, first: str) -> int:
    """The response that is ahead in the attribute that the rubric names; 1 where it names none."""
    named = next((name for name in ATTRIBUTES if name in rubric), None)
    return 1 if named is None or named in first else 2


def train(arm: Arm, seed: int) -> list[dict[str, float]]:
    """Own accuracy, transfer, leak rate and paid reward, every ten steps."""
    judge = Judge(seed, TYPES + arm.may_leak)
    optimiser = torch.optim.SGD(judge.parameters(), lr=RATE * GROUPS)
    # The proxy sees the same order, so that a leaked number means what the judge meant.
    scorer = ProxyVerifiedRubric(
        ProxyRubricConfig(guard=arm.guard, order="same"), NoisyProxy(seed),
        (1.0, arm.proxy, 0.5), variant=arm.variant,
    )  # fmt: skip
    draw = torch.Generator().manual_seed(derive(seed, "rollouts"))
    curve = []
    for step in range(STEPS):
        types_G, signs_GA, better_G = questions(GROUPS, draw)
        groups_B = torch.arange(GROUPS).repeat_interleave(SAMPLES)
        types_B, signs_BA = types_G[groups_B], signs_GA[groups_B]
        with torch.no_grad():
            rubric_BV, verdict_B2 = judge.logits(types_B, signs_BA)
            acts_BT = torch.cat(
                [rubric_BV.exp().multinomial(1, generator=draw),
                 verdict_B2.exp().multinomial(1, generator=draw)], 1
            )  # fmt: skip
        rewards_B = paid(scorer, step, signs_GA, better_G, acts_BT)
        batch = RewardBatch(
            rewards_B[:, None], torch.ones(1), groups_B,
            torch.full((len(groups_B),), 2.0), torch.zeros(len(groups_B), dtype=torch.bool),
        )  # fmt: skip
        found = advantages(RECIPE, batch)
        logp_BT = taken(judge, types_B, signs_BA, acts_BT)
        update = LossBatch(
            logp_BT, logp_BT.detach(), torch.ones_like(logp_BT), found.values_B,
            found.low_B, found.high_B, found.keep_B,
        )  # fmt: skip
        optimiser.zero_grad()
        loss(RECIPE, update).total.backward()
        optimiser.step()
        if step % 10 == 9:
            curve.append(
                {"step": step + 1, **measure(judge, seed), "reward": float(rewards_B.mean())}
            )
    return curve


def taken(judge: Judge, types_B: Tensor, signs_BA: Tensor, acts_BT: Tensor) -> Tensor:
    """Log-probabilities of the two actions, (B, 2)."""
    tables = judge.logits(types_B, signs_BA)
    return torch.cat([t.gather(1, acts_BT[:, i : i + 1]) for i, t in enumerate(tables)], 1)


def paid(
    scorer: ProxyVerifiedRubric, step: int, signs_GA: Tensor, better_G: Tensor, acts_BT: Tensor
) -> Tensor:
    """The reward of each reply, by the reward component itself."""

    async def all_groups() -> list[float]:
        values = []
        for group, (signs, label) in enumerate(
            zip(signs_GA.tolist(), better_G.tolist(), strict=True)
        ):
            fields = {
                "question": f"{step}-{group}", "response_1": shown(signs, 1),
                "response_2": shown(signs, 2), "label": label,
            }  # fmt: skip
            task = Task(f"{step}-{group}", (Message("user", "which?"),), fields)
            mine = acts_BT[group * SAMPLES : (group + 1) * SAMPLES].tolist()
            texts = [Response(str(n), reply(a, v + 1)) for n, (a, v) in enumerate(mine)]
            rewards = [reward.value for reward in await checked(scorer, task, texts)]
            assert None not in rewards  # this proxy never fails
            values += [float(value) for value in rewards if value is not None]
        return values

    return torch.tensor(anyio.run(all_groups), dtype=torch.float64)


@torch.no_grad()
def measure(judge: Judge, seed: int) -> dict[str, float]:
    """By sampling: own accuracy, accuracy of an unseen evaluator from the rubric, leak rate."""
    draw = torch.Generator().manual_seed(derive(seed, "measure"))
    types_B, signs_BA, better_B = questions(MEASURED, draw)
    rubric_BV, verdict_B2 = judge.logits(types_B, signs_BA)
    rubrics = rubric_BV.exp().multinomial(1, generator=draw)[:, 0].tolist()
    verdicts = (verdict_B2.exp().multinomial(1, generator=draw)[:, 0] + 1).tolist()
    guesses = (torch.randint(2, (MEASURED,), generator=draw) + 1).tolist()
    rows = zip(rubrics, verdicts, signs_BA.tolist(), better_B.tolist(), guesses, strict=True)
    own, transfer = [], []
    for rubric, verdict, signs, better, guess in rows:
        text = extract_rubric(reply(rubric, verdict)) or ""
        choice = guess if rubric == LEAK else follow(text, shown(signs, 1))
        own.append(verdict == better)
        transfer.append(choice == better)
    leaked = sum(rubric == LEAK for rubric in rubrics) / MEASURED
    return {"own": statistics.fmean(own), "transfer": statistics.fmean(transfer), "leaks": leaked}


def main() -> None:
    torch.set_num_threads(1)
    rows = []
    for arm in ARMS:
        for seed in SEEDS:
            rows += [{"arm": arm.name, "seed": seed, **row} for row in train(arm, seed)]
        print(rows[-1], flush=True)
    write(rows)


def write(rows: list[dict[str, Any]]) -> None:
    """`bandit.csv`, `bandit.md` and, with matplotlib, `bandit.png`."""
    RESULTS.mkdir(exist_ok=True)
    with (RESULTS / "bandit.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    keys = ("own", "transfer", "leaks", "reward")
    lines = ["# Proxy-GRM: a judge as a bandit", "", (__doc__ or "").split("\n\n")[1], ""]
    lines += [
        "| arm | own accuracy | transfer | leak rate | reward that it is paid |",
        "|---|" + "--:|" * 4,
    ]
    for arm in ARMS:
        last = [r for r in rows if r["arm"] == arm.name and r["step"] == STEPS]
        cells = [_cell([r[key] for r in last]) for key in keys]
        lines.append(f"| {arm.name} | {' | '.join(cells)} |")
    lines += [
        "",
        f"Mean ± standard deviation over {len(SEEDS)} seeds after {STEPS} steps of {GROUPS} groups of "
        f"{SAMPLES}; accuracy over {MEASURED} new pairs.",
        "",
        "Repeat: `python -m lab.proxy_grm.bandit`.",
        "",
    ]
    (RESULTS / "bandit.md").write_text("\n".join(lines), encoding="utf-8")
    if importlib.util.find_spec("matplotlib"):
        _draw(rows)


def _cell(values: list[float]) -> str:
    return f"{statistics.fmean(values):.3f} ± {statistics.stdev(values):.3f}"


def _draw(rows: list[dict[str, Any]]) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 3, figsize=(11, 3.2))
    for axis, key in zip(axes, ("transfer", "leaks", "reward"), strict=True):
        for arm in ARMS:
            steps = sorted({r["step"] for r in rows})
            means = [
                statistics.fmean(r[key] for r in rows if (r["arm"], r["step"]) == (arm.name, step))
                for step in steps
            ]
            axis.plot(steps, means, label=arm.name, linewidth=1.2)
        axis.set_title(key, fontsize=9, loc="left")
        axis.set_xlabel("steps", fontsize=8)
    axes[1].legend(fontsize=6, frameon=False)
    figure.tight_layout()
    figure.savefig(RESULTS / "bandit.png", dpi=130)
    plt.close(figure)


if __name__ == "__main__":
    main()
