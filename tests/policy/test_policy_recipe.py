from __future__ import annotations

import subprocess
import sys
import tomllib

import msgspec
import pytest
from policy_cases import RECIPES

import burnish.policy
from burnish.policy import KL, Entropy, Recipe

DAPO = """
dual_clip = 3.0
shaping = [{ kind = "overlong_penalty", limit = 8, buffer = 4 }]
select = { kind = "informative_groups", refill = true }
trust_region = { kind = "static", low = 0.2, high = 0.28 }
aggregate = { mode = "token-mean" }
auxiliary = [{ kind = "kl", coefficient = 0.01 }]
"""


def read(text: str) -> Recipe:
    return msgspec.convert(tomllib.loads(text), Recipe)


def test_a_recipe_is_read_from_toml():
    recipe = read(DAPO)
    assert recipe.shaping == RECIPES["dapo"].shaping
    assert recipe.select == RECIPES["dapo"].select
    assert recipe.auxiliary == (KL(coefficient=0.01),)
    assert msgspec.convert(msgspec.to_builtins(recipe), Recipe) == recipe


def test_a_recipe_says_what_the_trainer_must_bring():
    assert not Recipe().needs_reference
    assert not Recipe(auxiliary=(KL(0.0), Entropy(0.0))).needs_reference
    assert not Recipe(auxiliary=(KL(0.0), Entropy(0.0))).needs_entropy
    both = Recipe(auxiliary=(KL(0.1), Entropy(0.1)))
    assert both.needs_reference
    assert both.needs_entropy


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("dual_clip = 0.5", "dual_clip: got 0.5, expected 0 .off. or above 1"),
        ('trust_region = { kind = "static", low = 1.0 }', "low: got 1.0, expected 0 to below 1"),
        ('trust_region = { kind = "static", high = -0.1 }', "high: got -0.1, expected at least 0"),
        (
            'shaping = [{ kind = "overlong_penalty", limit = 8, buffer = 9 }]',
            "buffer: got 9, expected 1 to 8",
        ),
        (
            'auxiliary = [{ kind = "kl", coefficient = -1.0 }]',
            "coefficient: got -1.0, expected at least 0",
        ),
        (
            'auxiliary = [{ kind = "entropy", coefficient = nan }]',
            "coefficient: got nan, expected finite",
        ),
        (
            'advantage = { kind = "sum_then_normalise", eps = -1.0 }',
            "eps: got -1.0, expected at least 0",
        ),
        ("aggregate = { max_tokens = -1 }", "max_tokens: got -1, expected at least 0"),
        (
            'select = { kind = "informative_groups", max_rounds = 0 }',
            "max_rounds: got 0, expected at least 1",
        ),
        ('ratio = "tokens"', "Invalid enum value 'tokens'"),
        ('select = { kind = "informed_groups" }', "Invalid value 'informed_groups'"),
        ("clip = 0.2", "unknown field `clip`"),
    ],
)
def test_values_out_of_range_are_refused_when_the_recipe_is_read(text, message):
    with pytest.raises(msgspec.ValidationError, match=message):
        read(text)


def test_recipes_import_without_torch():
    code = (
        "import sys; sys.modules['torch'] = None\n"
        "import burnish.policy as policy\n"
        "from burnish.policy.recipe import Recipe\n"
        "assert policy.Recipe() == Recipe()\n"
        "assert 'advantages' in dir(policy)\n"
        "assert policy.loss\n"
        "try:\n    policy.grpo_advantage([1.0, 0.0], [0, 0])\n"
        "except ImportError:\n    raise SystemExit(7)\n"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 7


def test_every_public_name_can_be_had():
    for name in burnish.policy.__all__:
        assert getattr(burnish.policy, name).__doc__
    assert callable(burnish.policy.compute)
    with pytest.raises(AttributeError, match="no attribute 'looss'"):
        _ = burnish.policy.looss
