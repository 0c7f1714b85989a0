"""`burnish chat` through a pipe and in a terminal, and the conversation behind it."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Callable

import anyio
import pytest
from cli_words import Typed
from judge_server import JudgeServer

from burnish.errors import UserError
from burnish.lm import LocalLM, Sampling, ScriptedLM, load_model
from burnish.records import ImagePart
from burnish.rollouts.session import Chat

Piped = Callable[..., Typed]


@pytest.fixture
def piped(typed, monkeypatch):
    """A command line that reads the given text."""

    def run(text: str, *words: object) -> Typed:
        monkeypatch.setattr(sys, "stdin", io.StringIO(text))
        return typed(*words)

    return run


@pytest.fixture(scope="module")
def lm():
    return LocalLM(load_model("tiny"))


class Terminal(io.StringIO):
    """A standard input with a person behind it."""

    def isatty(self) -> bool:
        return True


WORDS = ("chat", "tiny", "--max-tokens", 8)


def test_every_piped_line_is_a_turn_and_only_replies_are_printed(piped):
    done = piped("Hello.\n\nAnd you?\n", *WORDS, "--json")
    assert (done.code, done.err) == (0, "")
    turns = [json.loads(line) for line in done.out.splitlines()]
    assert [turn["prompt"] for turn in turns] == ["Hello.", "And you?"]
    assert all(turn["reply"] for turn in turns)


def test_the_same_seed_gives_the_same_replies(piped):
    first, again, other = (piped("Hi.\n", *WORDS, "--seed", n).out for n in (1, 1, 2))
    assert first == again != other


def test_commands_work_in_a_pipe(piped, tmp_path):
    place = tmp_path / "talk.json"
    text = f"Hi.\n/system Be brief.\n/temperature 0\nHello.\n/save {place}\n/quit\nnever said\n"
    done = piped(text, *WORDS)
    assert done.code == 0
    saved = json.loads(place.read_text())
    assert [m["role"] for m in saved["messages"]] == ["system", "user", "assistant"]
    assert [m["content"] for m in saved["messages"][:2]] == ["Be brief.", "Hello."]
    assert saved["sampling"]["temperature"] == 0


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("/temperature hot", "expected a number such as 0.7"),
        ("/temperature 1e-40", "expected 0 (greedy) or from 1e-06 on"),
        ("/save", "/save: got no name"),
        ("/save /no/such/folder/x.json", "cannot write /no/such/folder/x.json"),
    ],
)
def test_a_mistake_ends_a_pipe_and_not_a_talk(piped, line, message):
    done = piped(f"{line}\nHello.\n", *WORDS)
    assert done.code == 2
    assert message in done.err
    assert done.out == ""


def test_a_person_is_told_and_may_go_on(typed, monkeypatch):
    lines = iter(["/nothing", "/help", "Hello.", "/reset"])

    def typed_in(prompt: str) -> str:
        for line in lines:
            return line
        raise EOFError

    monkeypatch.setattr("builtins.input", typed_in)
    monkeypatch.setattr(sys, "stdin", Terminal())
    done = typed(*WORDS)
    assert done.code == 0
    assert "there is no command /nothing" in done.err
    assert "/save FILE" in done.out
    assert "a new conversation" in done.out


def test_a_server_answers_several_turns(piped):
    with JudgeServer(lambda prompt: f"heard: {prompt}") as server:
        done = piped("One.\nTwo.\n/reset\nThree.\n", "chat", server.model)
    assert done.code == 0
    assert done.out == "heard: One.\nheard: One.\nheard: Three.\n"  # it answers the first message


def test_a_server_that_fails_ends_a_pipe_with_code_3(piped):
    with JudgeServer(lambda prompt: None) as server:
        done = piped("One.\n", "chat", server.model)
    assert (done.code, done.out) == (3, "")
    assert "500" in done.err


# --- the conversation


def test_sampled_tokens_stay_in_the_conversation(lm):
    chat = Chat(lm, sampling=Sampling(max_tokens=6))
    anyio.run(chat.say, "One.")
    session = chat._session
    assert session is not None
    before = session.token_ids
    anyio.run(chat.say, "Two.")
    assert chat._session is not None
    assert chat._session.token_ids[: len(before)] == before
    assert [m.role for m in chat.messages] == ["user", "assistant", "user", "assistant"]


def test_a_conversation_that_is_too_long_can_be_reset(lm):
    chat = Chat(lm, sampling=Sampling(max_tokens=6))
    anyio.run(chat.say, "One.")
    before = chat.messages
    with pytest.raises(UserError, match="/reset begins a new one"):
        anyio.run(chat.say, "word " * 100_000)
    assert chat.messages == before
    anyio.run(chat.say, "Short.")
    assert len(chat.messages) == 4
    chat.reset()
    assert chat.messages == []


def test_an_image_that_cannot_be_read_does_not_hold_up_the_next_message(lm):
    chat = Chat(lm, sampling=Sampling(max_tokens=2))
    chat.attach(ImagePart("0" * 64))
    with pytest.raises(UserError, match="reads text only"):
        anyio.run(chat.say, "What is this?")
    anyio.run(chat.say, "Hello.")
    assert [m.role for m in chat.messages] == ["user", "assistant"]


def test_nothing_is_overwritten(tmp_path):
    chat = Chat(ScriptedLM(["a reply"]), system="Be brief.")
    anyio.run(chat.say, "Hi.")
    chat.save(tmp_path / "talk.json")
    with pytest.raises(UserError, match="File exists"):
        chat.save(tmp_path / "talk.json")
    row = json.loads((tmp_path / "talk.json").read_text())
    assert [m["content"] for m in row["messages"]] == ["Be brief.", "Hi.", "a reply"]
