"""The study of a converted SmolLM2: equal forward passes, resumable rows, an honest table."""

from pathlib import Path

import pytest
from lab.masked_diffusion.smollm2 import ARMS, PROBE, Plan, table, words_of

from burnish.config.recipes import resolve

PLAN = Plan("tiny", 100, 32, 8, 3e-4, Path("runs"))
PROBED = PROBE["probe_rows"] * PROBE["probe_rates"] * PROBE["probe_masks"]


@pytest.mark.parametrize("name", ARMS)
def test_every_arm_has_the_same_forward_passes(name):
    words, forwards = words_of(name, 1, PLAN)
    config = resolve(words).resolved.value
    assert config.run.seed == 1
    per_step = config.train.batch * ARMS[name].forwards
    cost = PROBED if ARMS[name].probes else 0
    assert forwards == config.steps * per_step + cost
    assert 3200 - per_step < forwards <= 3200


def test_the_table_has_mean_range_and_spread_and_marks_the_likelihood():
    row = {"model": "tiny", "steps": "1", "batch": "1", "forwards": "9", "seconds": "2"}
    rows = [
        {**row, "arm": "standard", "seed": str(seed), "exact_match": mark, "eval_loss": loss}
        for seed, (mark, loss) in enumerate([("0.2", "1.0"), ("0.4", "2.0"), ("", "3.0")])
    ]
    rows.append({**row, "arm": "causal", "seed": "0", "exact_match": "1.0", "eval_loss": "0.5"})
    found = table(rows)
    assert "| standard | 3 | 9 | 0.300 [0.200, 0.400] | 2.0000 ± 1.0000 | 2 |" in found
    assert "0.5000 (a likelihood, not a bound)" in found
