"""A model by the text that a person types."""

import anyio
import pytest

from burnish.errors import UserError
from burnish.lm.base import Sampling
from burnish.lm.http import OpenAILM, Prices
from burnish.lm.jobs import Limits
from burnish.lm.local import LocalLM
from burnish.lm.named import LazyLM, open_lm
from burnish.lm.new_model import tiny_model
from burnish.lm.replay import RecordingLM, ReplayLM, ScriptedLM
from burnish.records import Message

QUESTION = [Message("user", "Hello?")]


def test_a_server_and_its_model():
    lm = open_lm(
        "http://127.0.0.1:8000/v1#org/my%20model",
        limits=Limits(concurrency=3),
        prices=Prices(prompt_usd=2.0),
        api_key_env=None,
    )
    assert isinstance(lm, OpenAILM)
    assert lm.name == "org/my model"
    assert lm.prices.prompt_usd == 2.0
    assert lm.pool.limits.concurrency == 3


def test_a_recorded_model(tmp_path):
    path = tmp_path / "log.jsonl"
    sampling = Sampling(max_tokens=4)
    anyio.run(RecordingLM(ScriptedLM(["hi"]), path).sample, QUESTION, sampling)
    lm = open_lm(f"replay:{path}")
    assert isinstance(lm, ReplayLM)
    assert anyio.run(lm.sample, QUESTION, sampling)[0].text == "hi"


def test_a_folder_now_or_at_the_first_question(tmp_path):
    folder = tiny_model(tmp_path / "model")
    lm = open_lm(str(folder), device="cpu")
    assert isinstance(lm, LocalLM)
    late = open_lm(str(folder), device="cpu", late=True)
    assert isinstance(late, LazyLM)
    assert late.name == lm.name == str(folder)
    sampling = Sampling(max_tokens=4, temperature=0.0)
    first, second = (anyio.run(m.sample, QUESTION, sampling)[0] for m in (lm, late))
    assert first.token_ids == second.token_ids
    scored = anyio.run(late.score, first.prompt_ids, first.token_ids)
    assert len(scored.logprobs) == len(first.token_ids)


@pytest.mark.parametrize(
    ("name", "options", "says"),
    [
        ("", {}, "no model ''"),
        ("smolm2", {}, "Did you mean 'smollm2'"),
        ("no/such/folder", {}, "no folder of that name"),
        ("http://127.0.0.1:8000/v1", {}, "names a server but no model"),
        ("http://127.0.0.1:8000/v1#", {}, "names a server but no model"),
        ("ftp://host/v1#m", {}, "base_url"),
        ("replay:nowhere.jsonl", {}, "no file nowhere.jsonl"),
        ("tiny", {"prices": 1}, "no option 'prices'"),
        ("http://h/v1#m", {"limit": 1}, "Did you mean 'limits'"),
        ("http://h/v1#m", {"api_key_env": "BURNISH_TEST_NO_SUCH_KEY"}, "BURNISH_TEST_NO_SUCH_KEY"),
    ],
)
def test_mistakes_are_one_line(name, options, says):
    with pytest.raises(UserError) as caught:
        open_lm(name, **options)
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)
