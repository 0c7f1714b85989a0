"""The study of a converted SmolLM2: equal forward passes, resumable rows, an honest table."""

from lab.masked_diffusion.smollm2 import table


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
