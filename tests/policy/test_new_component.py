"""Adding an advantage rule touches two files: its module, and the list of components."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import burnish

MODULE = '''
"""Advantage `above_median`: each rollout against the median of the batch."""

from __future__ import annotations

from burnish.policy.base import Component
from burnish.policy.batch import Estimate, RewardBatch
from burnish.policy.groups import weighted_sum


class AboveMedian(Component, frozen=True, tag="above_median"):
    """The weighted sum minus its median over the batch, times `scale`."""

    scale: float = 1.0

    def estimate(self, batch: RewardBatch) -> Estimate:
        """The sum minus the median."""
        total_B = weighted_sum(batch.rewards_BK, batch.weights_K)
        values_B = self.scale * (total_B - total_B.nanmedian()).nan_to_num(nan=0.0)
        return Estimate(values_B, batch.rewards_BK, ~total_B.isnan())
'''

USE = """
import json, sys
from pathlib import Path

import torch
from burnish.cli.methods import differences
from burnish.cli.recipes import read_card
from burnish.config import Config, load
from burnish.errors import UserError
from burnish.policy import Recipe, RewardBatch, advantages

path = Path(sys.argv[1])
recipe = load(Config, path, []).value.policy
rewards_BK = torch.tensor([[1.0], [5.0], [2.0]], dtype=torch.float64)
one = torch.ones(3)
batch = RewardBatch(rewards_BK, torch.ones(1), torch.zeros(3).long(), one, one == 0)
try:
    load(Config, path, ["policy.advantage.kind=above_meadian"])
except UserError as error:
    refusal = str(error)
print(json.dumps({
    "values": advantages(recipe, batch).values_B.tolist(),
    "differs": differences(read_card(path), Recipe()),
    "refusal": refusal,
}))
"""


def test_a_rule_is_its_module_and_its_name_in_the_list(tmp_path):
    source = Path(burnish.__file__).parent
    shutil.copytree(source, tmp_path / "burnish", ignore=shutil.ignore_patterns("__pycache__"))
    policy = tmp_path / "burnish" / "policy"
    (policy / "above_median.py").write_text(MODULE)
    components = policy / "components.py"
    listed = components.read_text().replace(
        "\nAdvantage = ",
        "\nfrom burnish.policy.above_median import AboveMedian\nAdvantage = AboveMedian | ",
    )
    components.write_text(listed)
    recipe = tmp_path / "mine.toml"
    recipe.write_text(
        'task = { kind = "arithmetic" }\nrewards = [{ kind = "numeric" }]\n'
        '[policy]\nadvantage = { kind = "above_median", scale = 2.0 }\n'
    )
    done = subprocess.run(
        [sys.executable, "-c", USE, str(recipe)],
        env={"PYTHONPATH": str(tmp_path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found = json.loads(done.stdout)
    assert found["values"] == [-2.0, 6.0, 0.0]
    assert found["differs"]["advantage"] == "above_median scale=2.0"
    assert "Did you mean 'above_median'?" in found["refusal"]
