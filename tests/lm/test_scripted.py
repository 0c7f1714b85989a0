"""The scripted model: three kinds of script, stop strings, token ids, recorded calls."""

import anyio
import pytest

from burnish.errors import ModelError, UserError
from burnish.lm import LM, Sampling
from burnish.lm.replay import ScriptedLM
from burnish.records import Finish, Message


class Characters:
    """A tokenizer with one token a character."""

    def encode(self, text):
        return [ord(c) for c in text]

    def decode(self, ids):
        return "".join(map(chr, ids))


def say(lm, prompt="hello", **sampling):
    messages = [Message("user", prompt)] if isinstance(prompt, str) else prompt
    return anyio.run(lm.sample, messages, Sampling(**sampling))


def test_it_is_an_lm():
    assert isinstance(ScriptedLM([]), LM)


def test_a_dict_answers_by_the_last_user_message():
    lm = ScriptedLM({"hello": "hi", "bye": "ciao"})
    messages = [Message("user", "hello"), Message("assistant", "hi"), Message("user", "bye")]
    assert [c.text for c in say(lm, messages, n=2)] == ["ciao", "ciao"]


def test_a_dict_without_the_prompt_names_the_nearest():
    with pytest.raises(ModelError, match=r"no line for the prompt 'helo' .*Did you mean 'hello'"):
        say(ScriptedLM({"hello": "hi"}), "helo")


def test_a_list_answers_in_order_and_then_is_out_of_lines():
    lm = ScriptedLM(["a", "b", "c"])
    assert [c.text for c in say(lm, n=2)] == ["a", "b"]
    assert [c.text for c in say(lm)] == ["c"]
    with pytest.raises(ModelError, match="has said all of its 3 lines"):
        say(lm)


def test_a_function_sees_messages_and_index():
    lm = ScriptedLM(lambda messages, index: f"{messages[-1].content} {index}", name="echo")
    completions = say(lm, n=3)
    assert [c.text for c in completions] == ["hello 0", "hello 1", "hello 2"]
    assert {c.model for c in completions} == {"echo"}


def test_a_bare_text_is_a_mistake():
    with pytest.raises(UserError, match="expected a dict, a list or a function"):
        ScriptedLM("abc")


def test_stop_strings_end_the_text_at_the_first_of_them():
    (completion,) = say(ScriptedLM(["one END two STOP"]), stop=("STOP", "END"))
    assert completion.text == "one "
    assert completion.finish is Finish.STOP


def test_a_tokenizer_gives_ids_certain_logprobs_and_a_budget():
    lm = ScriptedLM(["abcdef", "ab"], tokenizer=Characters())
    cut, whole = say(lm, n=2, max_tokens=4)
    assert (cut.text, cut.token_ids, cut.finish) == ("abcd", (97, 98, 99, 100), Finish.LENGTH)
    assert (whole.text, whole.logprobs, whole.finish) == ("ab", (0.0, 0.0), Finish.STOP)


def test_token_prompts_need_a_tokenizer():
    ids = Characters().encode("hello")
    lm = ScriptedLM({"hello": "hi"}, tokenizer=Characters())
    (completion,) = say(lm, ids)
    assert (completion.text, completion.prompt_ids) == ("hi", tuple(ids))
    with pytest.raises(UserError, match="5 token ids but has no tokenizer"):
        say(ScriptedLM({"hello": "hi"}), ids)


def test_calls_are_recorded():
    lm = ScriptedLM(["a", "b"])
    say(lm, "first", seed=4)
    say(lm, "second")
    assert [call.prompt[0].content for call in lm.calls] == ["first", "second"]
    assert lm.calls[0].sampling.seed == 4
    assert lm.calls[1].texts == ("b",)


def test_scoring_is_refused():
    with pytest.raises(ModelError, match="cannot score"):
        anyio.run(ScriptedLM([]).score, [1], [2])
