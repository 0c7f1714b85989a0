"""The word problems of the recipe `diffusion_words`: every step is possible and adds up."""

import re
from random import Random

from hypothesis import given, strategies as st
from recipes.diffusion_words.problems import make


@given(st.integers(0, 2**32), st.sampled_from([0, 2, 3]))
def test_nobody_gives_away_what_they_do_not_have(seed, steps):
    found = make(Random(seed), steps)
    have = int(re.search(r"has (\d+) ", found["prompt"]).group(1))
    *lines, last = found["demonstration"].splitlines()
    assert len(lines) == steps or (not steps and len(lines) in (2, 3))
    for line in lines:
        first, sign, second, result = re.fullmatch(r"(\d+)([-+*])(\d+)=(\d+)", line).groups()
        assert int(first) == have
        assert int(second) > 0
        have = {"+": have + int(second), "-": have - int(second), "*": have * int(second)}[sign]
        assert int(result) == have >= 1
    assert last == f"#### {have}"
    assert found["answer"] == str(have)
    given_away = [int(n) for n in re.findall(r"gives (-?\d+) away", found["prompt"])]
    assert all(n >= 1 for n in given_away)


def test_one_thing_is_never_given_away():
    many = [make(Random(seed)) for seed in range(5000)]
    ones = [one for one in many if re.search(r"=1\n\d", one["demonstration"])]
    assert ones, "no problem passes through one thing: nothing was tested"
    assert all(re.search(r"=1\n1[+*]", one["demonstration"]) for one in ones)
