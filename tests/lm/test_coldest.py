"""The lowest temperature: 0 is greedy, and nothing between 0 and a millionth is sampled with."""

import anyio
import pytest

from burnish.lm import LocalLM, Sampling, load_model
from burnish.lm.base import COLDEST
from burnish.records import Message

PROMPT = [Message("user", "What is 2 + 3?")]


@pytest.fixture(scope="module")
def lm():
    return LocalLM(load_model("tiny"))


def test_the_coldest_sampling_is_greedy(lm):
    (cold,) = anyio.run(lm.sample, PROMPT, Sampling(temperature=COLDEST, max_tokens=8, seed=3))
    (greedy,) = anyio.run(lm.sample, PROMPT, Sampling(temperature=0, max_tokens=8))
    assert cold.token_ids == greedy.token_ids
    assert all(value <= 0 for value in cold.logprobs)
