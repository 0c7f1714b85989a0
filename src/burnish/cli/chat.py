"""`burnish chat`: talk to a model in the terminal, or through a pipe."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from msgspec.structs import replace
from typer import Option

from burnish.cli.console import complain, emit_json, err, say, warn
from burnish.cli.shared_options import (
    ApiKeyEnv,
    Attached,
    DecodingWords,
    MaxTokens,
    ModelName,
    Seed,
    System,
    Temperature,
    TopP,
    read_attached,
)
from burnish.errors import BurnishError, UserError

if TYPE_CHECKING:
    from burnish.rollouts.session import Chat

HELP = """/attach FILE      show an image, or play a sound, with the next message
/reset            begin a new conversation
/system TEXT      begin a new one with this system message
/temperature X    0 is greedy
/save FILE        write the conversation as JSON
/quit             leave (or Ctrl-D)"""


def chat(
    model: ModelName,
    attach: Attached = None,
    system: System = "",
    temperature: Temperature = 0.7,
    top_p: TopP = 0.95,
    max_tokens: MaxTokens = 512,
    seed: Seed = 0,
    api_key_env: ApiKeyEnv = "",
    decoding: DecodingWords = "",
    as_json: Annotated[
        bool, Option("--json", help="One JSON object a turn instead of text.")
    ] = False,
) -> int:
    """Talk to a model. /help lists what else can be typed.

    Through a pipe every line is a turn, and only the replies are printed.

    \b
      burnish chat smollm2 --system "You are brief."
      burnish chat my-vlm --attach photo.png
      burnish chat runs/NAME              the newest weights of a run
      echo "What is a kite?" | burnish chat smollm2
    """
    from anyio.from_thread import start_blocking_portal

    from burnish.api.models import continues_text, open_model
    from burnish.lm.base import Sampling

    if continues_text(model):
        warn(
            f"'{model}' was only pre-trained: it continues text and knows no turns, so its replies may "
            f'be empty. See it write: burnish generate {model} "Once there was a"'
        )
    lm = open_model(model, api_key_env, decoding)
    from burnish.rollouts.session import Chat

    sampling = Sampling(temperature=temperature, top_p=top_p, max_tokens=max_tokens)
    talk = Chat(lm, system=system, sampling=sampling, seed=seed)
    talk.attach(*read_attached(attach))
    is_person = sys.stdin.isatty()
    if is_person and not as_json:
        say(f"{lm.name}. /help lists commands, Ctrl-D leaves.", style="bright_black")
    # One event loop for all turns: a server's connections belong to the loop that opened them.
    with start_blocking_portal() as portal:
        for line in _lines(is_person):
            if line.strip() in ("/quit", "/exit"):
                break
            try:
                _turn(talk, line, partial(portal.call, talk.say), is_person, as_json)
            except BurnishError as error:
                complain(str(error))
                if not is_person:
                    # Nobody can mend a piped conversation: the rest would answer something else.
                    return 2 if isinstance(error, UserError) else 3
    return 0


def _lines(is_person: bool) -> Iterator[str]:
    if is_person:
        import readline  # noqa: F401  gives input() its history and its keys
    while True:
        try:
            line = input("> ") if is_person else sys.stdin.readline()
        except EOFError:
            say()
            return
        if not is_person and not line:
            return
        if line.strip():
            yield line.rstrip("\n")


def _turn(talk: Chat, line: str, ask: Callable[[str], str], is_person: bool, as_json: bool) -> None:
    word, _, rest = line.strip().partition(" ")
    said = _obey(talk, word, rest.strip())
    if said is not None:
        (say if is_person else partial(print, file=sys.stderr))(said)
        return
    if word.startswith("/") and is_person:
        raise UserError(f"there is no command {word}; /help lists them")
    with err.status("..."):
        text = ask(line)
    if as_json:
        emit_json({"prompt": line, "reply": text, "is_cut": talk.is_cut})
        return
    say(text, style="green" if is_person else "")
    if talk.is_cut and is_person:
        say("(cut at --max-tokens)", style="bright_black")


def _obey(talk: Chat, word: str, rest: str) -> str | None:
    """What a command says; None where the word is none."""
    match word:
        case "/help":
            return HELP
        case "/attach":
            from burnish.tasks.media_columns import CheckedBlobs

            talk.attach(CheckedBlobs().add_file(_named(word, rest, "photo.png")))
            return f"{rest} goes with the next message"
        case "/reset":
            talk.reset()
            return "a new conversation"
        case "/system":
            talk.reset(rest)
            return f"a new conversation, with the system message: {rest or 'none'}"
        case "/temperature":
            try:
                talk.sampling = replace(talk.sampling, temperature=float(rest))
            except ValueError as error:
                raise UserError(f"/temperature: {error}; expected a number such as 0.7") from None
            return f"temperature {talk.sampling.temperature:g}"
        case "/save":
            talk.save(Path(_named(word, rest, "chat.json")).expanduser())
            return f"saved as {rest}"
    return None


def _named(word: str, rest: str, such_as: str) -> str:
    if not rest:
        raise UserError(f"{word}: got no name, expected a file such as {such_as}")
    return rest
