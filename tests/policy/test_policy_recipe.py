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
    for name in (one for one in dir(burnish.policy) if one[0].islower() and one != "lazy_exports"):
        assert getattr(burnish.policy, name).__doc__
    with pytest.raises(AttributeError, match="no attribute 'looss'"):
        _ = burnish.policy.looss
