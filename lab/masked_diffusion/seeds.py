"""Which sampler trains best at equal forward counts? Sort 12 digits, 8 seeds an arm, on the CPU.

    python -m lab.masked_diffusion.seeds            # fresh rows without end
    python -m lab.masked_diffusion.seeds --examples 500      # the same 500 rows, many epochs

Every run has the same number of forward passes of a row. Arms with two masks a row have half the rows;
P-POTS pays for its probe with steps. A seed fixes start weights and rows, so arms are compared in
pairs. A finished run is a row of a CSV and is not done again: a study that was cut short goes on with the
same command. `--jobs 8` does eight runs at a time.
"""

from __future__ import annotations

import argparse
import csv
import statistics
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from burnish.bench.statistics import t_estimate
from burnish.models.masked_diffusion import (
    Noise,
    Noised,
    PPots,
    Probe,
    build_noise,
    probe_table,
    token_nll,
)
from burnish.seeds import derive
from lab.at_once import at_once
from lab.masked_diffusion import sorting
from lab.masked_diffusion.sorting import LENGTH, MASK, Rows, Sorter

RESULTS = Path(__file__).parent / "results"
BATCH, STEPS, PEAK = 64, 420, 4e-3
FIT_AT = 120
PROBE_ROWS, PROBE_RATES, PROBE_MASKS = 10, 19, 4
HELD_OUT = 1000
COLUMNS = ("arm", "seed", "steps", "examples", "forwards", "eval_loss", "exact_match", "seconds")


@dataclass(frozen=True)
class Arm:
    """One way to draw rates and masks."""

    rates: str = "uniform"
    masks: str = "independent"
    passes: int = 1
    strata: bool = False

    def noise(self) -> Noise:
        """Its samplers."""
        options = {"mix_uniform": 0.1, "start": FIT_AT} if self.rates == "p_pots" else {}
        return build_noise(
            self.rates, self.masks, passes=self.passes, strata=self.strata, options=options
        )


ARMS = {
    "standard": Arm(),
    "StraTS": Arm(strata=True),
    "P-POTS": Arm("p_pots"),
    "two independent masks": Arm(passes=2),
    "MIRROR": Arm(masks="mirror"),
    "MIRROR + P-POTS": Arm("p_pots", "mirror"),
}


def generator(*parts: str | int) -> torch.Generator:
    """Random numbers for one purpose."""
    return torch.Generator().manual_seed(derive("masked diffusion", *parts))


def train(arm: Arm, seed: int, steps: int, examples: int) -> tuple[Sorter, int]:
    """A trained model, and how many forward passes of a row it took."""
    noise = arm.noise()
    model = Sorter(generator("start", seed))
    data, draws = generator("rows", seed), generator("noise", seed)
    pool = sorting.rows(examples, data) if examples else None
    size = BATCH // noise.masks.forwards
    forwards, budget = 0, steps * BATCH
    # What the probe takes is taken off the steps.
    probe = PROBE_ROWS * PROBE_RATES * PROBE_MASKS if isinstance(noise.rates, PPots) else 0
    own_steps = (budget - probe) // BATCH
    optimiser = torch.optim.AdamW(model.parameters(), lr=PEAK, weight_decay=0.01)
    for step in range(own_steps):
        batch = next_rows(pool, size, data)
        if isinstance(noise.rates, PPots) and noise.rates.wants_probe(step):
            few = Rows(batch.ids_BL[:PROBE_ROWS], batch.eligible_BL[:PROBE_ROWS])
            noise.rates.refit(*probed(model, few, draws), step=step)
            forwards += probe
        for group in optimiser.param_groups:
            group["lr"] = PEAK * min(1.0, (step + 1) / 20) * (1 - 0.9 * step / own_steps)
        u_B = noise.rate_uniforms(size, draws)
        u_FBL = noise.mask_uniforms(size, LENGTH, draws)
        loss, _ = sorting.noised_loss(model, noise, batch, u_B, u_FBL)
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        forwards += size * noise.masks.forwards
    return model, forwards


def probed(model: Sorter, few: Rows, draws: torch.Generator) -> Probe:
    """Rates and losses of a probe."""

    def losses_of(noised: Noised, row_N: Tensor) -> Tensor:
        parts = torch.arange(len(row_N)).split(64)
        nll = [token_nll(model(noised.ids_PBL[0][n]), few.ids_BL[row_N[n]], MASK) for n in parts]
        return noised.loss([torch.cat(nll)]).row_B

    with torch.no_grad():
        sizes = {"rates": PROBE_RATES, "masks": PROBE_MASKS}
        return probe_table(losses_of, *few, MASK, draws, noise=Noise(), **sizes)


def next_rows(pool: Rows | None, size: int, data: torch.Generator) -> Rows:
    """Fresh rows, or some of the pool."""
    if pool is None:
        return sorting.rows(size, data)
    chosen = torch.randperm(len(pool.ids_BL), generator=data)[:size]
    return Rows(pool.ids_BL[chosen], pool.eligible_BL[chosen])


def run(name: str, seed: int, steps: int, examples: int) -> dict[str, object]:
    """One row of the table, on one thread."""
    torch.set_num_threads(1)
    began = time.process_time()
    model, forwards = train(ARMS[name], seed, steps, examples)
    held_out = sorting.rows(HELD_OUT, generator("held out"))
    values = {
        "eval_loss": sorting.evaluation_loss(model, held_out),
        "exact_match": sorting.exact_match(model, held_out),
    }
    cells = [name, seed, steps, examples, forwards]
    cells += [round(value, 6) for value in values.values()]
    return dict(zip(COLUMNS, [*cells, round(time.process_time() - began, 1)], strict=True))


def main() -> None:
    parser = argparse.ArgumentParser(description="Samplers of masked diffusion over seeds.")
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--examples", type=int, default=0, help="0: fresh rows at every step")
    parser.add_argument("--jobs", type=int, default=1, help="runs at a time, a thread each")
    parser.add_argument("--out", type=Path, default=RESULTS)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    stem = f"seeds_{given.examples}" if given.examples else "seeds"
    file = given.out / f"{stem}.csv"
    done = {tuple(row[key] for key in COLUMNS[:4]) for row in read(file)}
    wanted = [(name, seed) for seed in range(given.seeds) for name in ARMS]
    missing = [
        (name, seed, given.steps, given.examples)
        for name, seed in wanted
        if (name, str(seed), str(given.steps), str(given.examples)) not in done
    ]
    for row in at_once(run, missing, given.jobs):
        append(file, row)
        print(*row.values(), flush=True)
    done_rows = read(file)
    text = summary([row for row in done_rows if row["steps"] == str(given.steps)], given)
    (given.out / f"{stem}.md").write_text(text)
    print(text)


def read(file: Path) -> list[dict[str, str]]:
    """Rows of finished runs."""
    if not file.is_file():
        return []
    with file.open(newline="") as stream:
        return list(csv.DictReader(stream))


def append(file: Path, row: Mapping[str, object]) -> None:
    """One more finished run."""
    is_new = not file.is_file()
    with file.open("a", newline="") as stream:
        writer = csv.DictWriter(stream, list(row), lineterminator="\n")
        if is_new:
            writer.writeheader()
        writer.writerow(row)


def summary(rows: list[dict[str, str]], given: argparse.Namespace) -> str:
    """The table over seeds, differences to the first arm paired by seed."""
    data = f"the same {given.examples} rows" if given.examples else "fresh rows"
    option = f" --examples {given.examples}" if given.examples else ""
    first = {row["seed"]: float(row["eval_loss"]) for row in rows if row["arm"] == "standard"}
    lines = [
        f"`python -m lab.masked_diffusion.seeds{option}`: {given.steps} steps of {BATCH} forward "
        f"passes on {data}; {HELD_OUT} held-out rows, 4 stratified rates each, greedy decoding in 12 "
        "steps. Mean [lowest, highest] ± standard deviation over seeds; the last column is the paired "
        "difference of the loss with Student's 95 % interval.\n",
        "| arm | seeds | rows a step | exact match | eval loss | eval loss less standard's |",
        "|---|---|---|---|---|---|",
    ]
    for name, arm in ARMS.items():
        own = [row for row in rows if row["arm"] == name]
        if len(own) < 2:
            continue
        exact = [float(row["exact_match"]) for row in own]
        loss = [float(row["eval_loss"]) for row in own]
        apart = t_estimate([float(row["eval_loss"]) - first[row["seed"]] for row in own])
        less = f"{apart.value:+.4f} [{apart.low:+.4f}, {apart.high:+.4f}]"
        cells = [name, len(own), BATCH // arm.noise().masks.forwards, spread(exact, 3)]
        cells += [spread(loss, 4), "" if name == "standard" else less]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines) + "\n"


def spread(values: list[float], digits: int) -> str:
    """Mean, range and standard deviation."""
    mean, sd = statistics.fmean(values), statistics.stdev(values)
    return (
        f"{mean:.{digits}f} [{min(values):.{digits}f}, {max(values):.{digits}f}] ± {sd:.{digits}f}"
    )


if __name__ == "__main__":
    main()
