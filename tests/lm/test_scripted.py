"""The scripted model: three kinds of script, stop strings, token ids, recorded calls."""

import anyio
import pytest

from burnish.errors import ModelError
from burnish.lm import Sampling
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


def test_a_dict_answers_by_the_last_user_message():
    lm = ScriptedLM({"hello": "hi", "bye": "ciao"})
    messages = [Message("user", "hello"), Message("assistant", "hi"), Message("user", "bye")]
    assert [c.text for c in say(lm, messages, n=2)] == ["ciao", "ciao"]


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


def test_stop_strings_end_the_text_at_the_first_of_them():
    (completion,) = say(ScriptedLM(["one END two STOP"]), stop=("STOP", "END"))
    assert completion.text == "one "
    assert completion.finish is Finish.STOP


def test_a_tokenizer_gives_ids_certain_logprobs_and_a_budget():
    lm = ScriptedLM(["abcdef", "ab"], tokenizer=Characters())
    cut, whole = say(lm, n=2, max_tokens=4)
    assert (cut.text, cut.token_ids, cut.finish) == ("abcd", (97, 98, 99, 100), Finish.LENGTH)
    assert (whole.text, whole.logprobs, whole.finish) == ("ab", (0.0, 0.0), Finish.STOP)
