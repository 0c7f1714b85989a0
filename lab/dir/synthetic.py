"""DIR on synthetic pairs: what each cure leaves of a planted habit, straight and bent.

A response has a quality q and an attribute l, both standard normal. The reward model, an MLP of 64
and 32, sees 15 features: two noisy views of q, three of l (itself, tanh, square) and ten of noise.
Training labels are drawn from `sigma(dq + 1.5 ds)` with `s = l` (linear) or `s = (1 - l^2) / sqrt 2`
(inverted U: a middle value is liked best). Test labels follow q alone; a pair is aligned where s agrees
with its label and conflicting where it does not.

The attribute that DIR gets is "the habit favours the chosen one", `ds > 0`; an arm of the bent habit
gets the raw "chosen has more l" instead. The length penalty, Pearson's and the product of experts
work on l, as they do in the literature; one more arm gives Pearson's the values of s.

    python -m lab.dir.synthetic            # about three minutes on one core
"""

from __future__ import annotations

import csv
import importlib.util
import statistics
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from burnish.rewards.models import (
    BiasPenalty,
    attribute_correlation,
    bradley_terry_loss,
    grouped_pair_metrics,
    probe_auc,
)
from burnish.rewards.models.dir import represent
from burnish.rewards.models.dir_term import BiasSettings
from burnish.seeds import derive
from lab.dir.baselines import pearson_penalty, product_of_experts_loss

RESULTS = Path(__file__).parent / "results"
PAIRS, TEST_PAIRS, BATCH, EPOCHS, SEEDS = 6000, 4000, 128, 8, (0, 1, 2)
STRENGTH = 1.5
Shape = Literal["linear", "inverted U"]
SHAPES: Mapping[Shape, Callable[[Tensor], Tensor]] = {
    "linear": lambda values: values,
    "inverted U": lambda values: (1 - values * values) / 2**0.5,
}


@dataclass(frozen=True)
class Arm:
    """One way to train."""

    name: str
    kind: Literal["none", "dir", "pearson", "experts", "penalty"] = "none"
    lam: float = 0.0
    target_auc: float | None = None
    representation: Literal["difference", "concat"] = "difference"
    attribute: Literal["habit", "value"] = "habit"


LAMBDAS = (0.1, 0.3, 1.0, 3.0, 10.0)
ARMS = (
    Arm("Bradley-Terry"),
    Arm("length penalty, best line", "penalty", attribute="value"),
    Arm("Pearson 1 on l", "pearson", 1.0, attribute="value"),
    Arm("Pearson 1 on s", "pearson", 1.0),
    Arm("product of experts", "experts", attribute="value"),
    *(Arm(f"DIR {lam:g}", "dir", lam) for lam in LAMBDAS),
    Arm("DIR 1, concat", "dir", 1.0, representation="concat"),
    Arm("DIR, target AUC 0.55", "dir", 1.0, target_auc=0.55),
    Arm("DIR 3, label of l", "dir", 3.0, attribute="value"),
)


@dataclass(frozen=True)
class Side:
    """Responses of one side of the pairs."""

    features: Tensor
    quality: Tensor
    attribute: Tensor

    def __getitem__(self, rows: Tensor) -> Side:
        return Side(self.features[rows], self.quality[rows], self.attribute[rows])


def responses(count: int, draw: torch.Generator) -> Side:
    """Features (count, 15), quality and attribute."""
    quality, attribute = (torch.randn(count, generator=draw) for _ in range(2))
    noisy = [quality + 0.5 * torch.randn(count, generator=draw) for _ in range(2)]
    views = [attribute, attribute.tanh(), attribute.square()]
    noise = [torch.randn(count, generator=draw) for _ in range(10)]
    return Side(torch.stack([*noisy, *views, *noise], 1), quality, attribute)


def pairs(count: int, seed: int, strength: float, shape: Shape) -> tuple[Side, Side]:
    """Chosen and rejected responses; `strength` of the habit 0 is the truth, by quality alone."""
    draw = torch.Generator().manual_seed(derive(seed, "dir", shape, str(strength)))
    first, second = responses(count, draw), responses(count, draw)
    value = SHAPES[shape]
    margin = first.quality - second.quality
    if strength:
        margin = margin + strength * (value(first.attribute) - value(second.attribute))
        wins = torch.rand(count, generator=draw) < margin.sigmoid()
    else:
        wins = margin > 0
    both = [torch.stack([getattr(first, f), getattr(second, f)]) for f in Side.__annotations__]
    rows, place = torch.arange(count), (~wins).long()
    return (
        Side(*(values[place, rows] for values in both)),
        Side(*(values[1 - place, rows] for values in both)),
    )


class Model(nn.Module):
    """15 -> 64 -> 32 -> a reward without a bias; and the second expert, which sees l alone."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(nn.Linear(15, 64), nn.ReLU(), nn.Linear(64, 32), nn.ReLU())
        self.score = nn.Linear(32, 1, bias=False)
        self.expert = nn.Linear(1, 1, bias=False)

    def forward(self, side: Side) -> tuple[Tensor, Tensor]:
        hidden = self.trunk(side.features)
        return hidden, self.score(hidden)[:, 0]


def habit(arm: Arm, shape: Shape, side: Side) -> Tensor:
    return SHAPES[shape](side.attribute) if arm.attribute == "habit" else side.attribute


def train(arm: Arm, shape: Shape, seed: int) -> Model:
    """A reward model of one arm; all arms of a seed have the same start, pairs and order."""
    chosen, rejected = pairs(PAIRS, seed, STRENGTH, shape)
    torch.manual_seed(derive(seed, "model"))
    model = Model()
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3)
    rule = BiasSettings(
        lam=arm.lam, head_width=64, head_steps=3, head_learning_rate=1e-3, queue=0,
        target_auc=arm.target_auc, lam_rate=0.05,
    )  # fmt: skip
    penalty = BiasPenalty("habit", rule, 32, representation=arm.representation, seed=seed)
    for epoch in range(EPOCHS):
        draw = torch.Generator().manual_seed(derive(seed, "order", epoch))
        for rows in torch.randperm(PAIRS, generator=draw).split(BATCH):
            good, bad = chosen[rows], rejected[rows]
            (h_w, r_w), (h_l, r_l) = model(good), model(bad)
            loss = bradley_terry_loss(r_w, r_l)
            if arm.kind == "dir":
                labels = (habit(arm, shape, good) > habit(arm, shape, bad)).long()
                moved = represent(h_w, h_l, arm.representation)
                penalty.prepare(moved.detach(), labels)
                found = penalty.part(moved, torch.arange(BATCH)[: len(rows)])
                loss = loss if found is None else loss + found
            elif arm.kind == "pearson":
                values = torch.cat([habit(arm, shape, good), habit(arm, shape, bad)])
                loss = loss + arm.lam * pearson_penalty(torch.cat([r_w, r_l]), values)
            elif arm.kind == "experts":
                ours = (model.expert(side.attribute[:, None])[:, 0] for side in (good, bad))
                loss = product_of_experts_loss(r_w, r_l, *ours)
            optimiser.zero_grad(set_to_none=True)
            loss.backward()
            optimiser.step()
    return model


@torch.no_grad()
def measure(arm: Arm, model: Model, shape: Shape, seed: int) -> dict[str, Any]:
    """Accuracy on aligned and conflicting test pairs, and what is left of the habit."""
    chosen, rejected = pairs(TEST_PAIRS, seed + 1000, 0.0, shape)
    (h_w, r_w), (h_l, r_l) = model(chosen), model(rejected)
    if arm.kind == "penalty":  # the slope of the reward in l, taken out after training
        train_w, train_l = pairs(PAIRS, seed, STRENGTH, shape)
        values = torch.cat([train_w.attribute, train_l.attribute])
        rewards = torch.cat([model(train_w)[1], model(train_l)[1]])
        centred = values - values.mean()
        slope = (centred * rewards).sum() / centred.square().sum()
        r_w, r_l = r_w - slope * chosen.attribute, r_l - slope * rejected.attribute
    favoured = SHAPES[shape](chosen.attribute) > SHAPES[shape](rejected.attribute)
    found = grouped_pair_metrics(r_w.tolist(), r_l.tolist(), (~favoured).long().tolist())
    aligned, conflicting = found["natural_accuracy"], found["adversarial_accuracy"]
    assert aligned is not None
    assert conflicting is not None
    values = SHAPES[shape](torch.cat([chosen.attribute, rejected.attribute]))
    return {
        "aligned": aligned,
        "conflicting": conflicting,
        "mean": (aligned + conflicting) / 2,
        "probe AUC": probe_auc(h_w - h_l, favoured.long()),
        "correlation": attribute_correlation(torch.cat([r_w, r_l]).tolist(), values.tolist()),
    }


def main() -> None:
    torch.set_num_threads(1)
    rows = []
    for shape in SHAPES:
        for arm in ARMS:
            if shape == "linear" and arm.name in ("Pearson 1 on s", "DIR 3, label of l"):
                continue  # s is l
            for seed in SEEDS:
                found = measure(arm, train(arm, shape, seed), shape, seed)
                rows.append({"shape": shape, "arm": arm.name, "seed": seed, **found})
            print(rows[-1], flush=True)
    write(rows)


def write(rows: list[dict[str, Any]]) -> None:
    """`synthetic.csv`, `synthetic.md` and, with matplotlib, `synthetic.png`."""
    RESULTS.mkdir(exist_ok=True)
    with (RESULTS / "synthetic.csv").open("w", encoding="utf-8", newline="") as file:
        writer = csv.DictWriter(file, rows[0])
        writer.writeheader()
        writer.writerows(rows)
    lines = ["# DIR on synthetic pairs", "", (__doc__ or "").split("\n\n")[1], ""]
    keys = ("aligned", "conflicting", "mean", "probe AUC", "correlation")
    for shape in SHAPES:
        lines += [f"## Habit: {shape}", "", f"| arm | {' | '.join(keys)} |", "|---|" + "--:|" * 5]
        for arm in ARMS:
            mine = [r for r in rows if (r["shape"], r["arm"]) == (shape, arm.name)]
            if mine:
                cells = [_cell([r[key] for r in mine]) for key in keys]
                lines.append(f"| {arm.name} | {' | '.join(cells)} |")
        lines.append("")
    lines += [
        f"Mean ± standard deviation over {len(SEEDS)} seeds; accuracy is over {TEST_PAIRS} test pairs "
        "whose labels follow quality alone. Probe AUC: a linear probe on the difference of hidden "
        "states finds the habit. Correlation: of reward and s.",
        "",
        "Repeat: `python -m lab.dir.synthetic`.",
        "",
    ]
    (RESULTS / "synthetic.md").write_text("\n".join(lines), encoding="utf-8")
    if importlib.util.find_spec("matplotlib"):
        _draw(rows)


def _cell(values: list[float]) -> str:
    return f"{statistics.fmean(values):.3f} ± {statistics.stdev(values):.3f}"


def _draw(rows: list[dict[str, Any]]) -> None:
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(9, 3.8), sharey=True)
    for axis, shape in zip(axes, SHAPES, strict=True):
        means = {
            arm.name: [
                statistics.fmean(
                    r[key] for r in rows if (r["shape"], r["arm"]) == (shape, arm.name)
                )
                for key in ("aligned", "conflicting")
            ]
            for arm in ARMS
            if any((r["shape"], r["arm"]) == (shape, arm.name) for r in rows)
        }
        sweep = ["Bradley-Terry", *(f"DIR {lam:g}" for lam in LAMBDAS)]
        axis.plot(
            *zip(*(means[name] for name in sweep), strict=True), "o-", label="DIR, lambda 0 to 10"
        )
        for name in sweep[1:]:
            axis.annotate(name.removeprefix("DIR "), means[name], fontsize=7, xytext=(4, 4),
                          textcoords="offset points")  # fmt: skip
        for name, point in means.items():
            if name not in sweep:
                axis.plot(*point, "s", markersize=5, label=name)
        axis.plot([0.5, 1], [0.5, 1], ":", color="grey", linewidth=0.8)
        axis.set_title(f"habit: {shape}", fontsize=9, loc="left")
        axis.set_xlabel("accuracy on aligned pairs", fontsize=8)
        axis.legend(fontsize=6, frameon=False, loc="lower left")
    axes[0].set_ylabel("accuracy on conflicting pairs", fontsize=8)
    figure.tight_layout()
    figure.savefig(RESULTS / "synthetic.png", dpi=130)
    plt.close(figure)


if __name__ == "__main__":
    main()
