"""Tasks from a function of your own, endless and with a held-out side.

    # my_tasks.py
    def make(rng, digits=1):
        a, b = (rng.randrange(10**digits) for _ in range(2))
        return {"prompt": f"{a} + {b} =", "answer": a + b}

    Function(path="my_tasks.py:make", options={"digits": 2})

`make` draws everything from the `random.Random` it is given and returns `prompt` (text) or
`messages`; every other key becomes a field that rewards can ask for. `images` and `audio` (bytes of a
file, or a list of them) stand in the messages at `<image>` and `<audio>`, or in front.
A question is held out by a hash of its messages, or of `split_by` (text; not a field) where different
messages ask the same thing. Options are read as the annotations of `make` have them.
"""

from __future__ import annotations

import inspect
import math
import random
from collections.abc import Iterator, Mapping
from functools import cached_property
from itertools import islice
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta

from burnish.arguments import refused
from burnish.boundary import Call, Name, reader
from burnish.errors import ArgumentError, UserError, did_you_mean
from burnish.records import Message, Task
from burnish.seeds import derive, digest
from burnish.source import describe, find_function, source_text
from burnish.tasks.base import EndlessTasks, TaskSettings, content_key, is_held_out
from burnish.tasks.mapping import RowError, read_messages, under_system
from burnish.tasks.media_columns import CheckedBlobs, holds_media, placed, read_media
from burnish.user_code import calling_user_code, kept

TRIES = 2_000
"""Draws without a new question on the wanted side before giving up."""
REPEATS = 3
"""Seeds that are drawn twice to see whether the function repeats itself."""
_NO_FIELDS = frozenset({"prompt", "messages", "split_by"})
MEDIA = ("images", "audio")
"""Keys of a question whose bytes are put into its messages, at `<image>` and `<audio>` or in front."""
_QUESTION = reader(Mapping[str, object])
_PROMPT, _SPLIT_BY = reader(Name), reader(str | None)
_MESSAGES = reader(tuple[Message, ...])


class Function(TaskSettings, frozen=True, kw_only=True, tag="function"):
    """Questions that your own function makes: `my_file.py:name` or `package.module:name`."""

    path: Name
    """Your function: `my_file.py:name` or `package.module:name`."""
    options: dict[str, object] = msgspec.field(default_factory=dict)
    """Fixed arguments of the function."""
    name: str = ""
    """The name of the file or module where empty."""
    system: str = ""
    """A system message; replaces the function's own."""
    labels: tuple[str, ...] | None = None
    """Fields that a judge must not see; all of them where not given."""
    held_out_share: Annotated[float, Meta(ge=0.0, le=0.9)] = 0.2
    """Share of all questions that is never trained on, by content."""
    held_out_size: Annotated[int, Meta(ge=1, le=100_000)] = 200
    """At most this many held-out questions."""

    def build(self, seed: int, root: Path) -> FunctionTasks:
        return FunctionTasks(self, seed, root)


class Drawn(NamedTuple):
    messages: tuple[Message, ...]
    fields: dict[str, Any]
    key: str
    """Decides the side."""


class FunctionTasks(EndlessTasks):
    """Endless questions of a function; the held-out side is the same for every seed."""

    def __init__(self, config: Function, seed: int, root: Path = Path()) -> None:
        self.config = config
        place = config.path.rpartition(":")[0] or config.path
        module = Path(place).stem if place.endswith(".py") else place.rpartition(".")[2]
        self.name = config.name or module
        self._where = f"tasks '{self.name}' ({config.path})"
        self._seed = seed
        self._function = find_function(config.path, "task function", root)
        self._source = source_text(self._function)
        self._options = self._read_options()
        self.fields = frozenset(self._draw("check", 0).fields)
        self._labels = tuple(sorted(self.fields)) if config.labels is None else config.labels
        for label in self._labels:
            if label not in self.fields:
                known = f"{_listed(self.fields)}.{did_you_mean(label, self.fields)}"
                raise UserError(f"{self._where}: labels: no field '{label}', expected {known}")
        first, again = ([self._draw("repeat", k) for k in range(REPEATS)] for _ in range(2))
        if first != again:
            raise UserError(f"{self._where}: another question from the same rng; draw all from it.")
        # Both sides have a question, so that no run stops at its first evaluation.
        self.train(0)
        if config.held_out_share > 0 and next(self._testable(), None) is None:
            share = f"raise held_out_share (now {config.held_out_share}; 0 holds nothing out)"
            raise UserError(f"{self._where}: none of {TRIES:,} draws is held out; {share}.")

    @property
    def fingerprint(self) -> str:
        settings = msgspec.to_builtins(self.config)
        settings["path"] = self.config.path.rpartition(":")[2]
        encoded = msgspec.json.encode(settings, order="deterministic")
        return digest("function", self._source, encoded)

    def train(self, index: int) -> Task:
        with kept(self._where):
            for attempt in range(TRIES):
                drawn = self._draw(self._seed, "train", index, attempt)
                if not is_held_out(drawn.key, self.config.held_out_share):
                    return self._task(str(index), drawn)
        raise UserError(f"{self._where}: {TRIES:,} draws are held out; lower held_out_share.")

    def held_out(self, limit: int | None = None) -> list[Task]:
        return self._held_out[:limit]

    @cached_property
    def _held_out(self) -> list[Task]:
        if self.config.held_out_share == 0:
            return []
        found = islice(self._testable(), self.config.held_out_size)
        with kept(self._where):
            return [self._task(f"held-out/{content_key(drawn.messages)}", drawn) for drawn in found]

    def _testable(self) -> Iterator[Drawn]:
        """Held-out questions, each once, until the function seems to have no more of them."""
        seen: set[str] = set()
        barren, draw = 0, 0
        while barren < TRIES:
            drawn = self._draw("held-out", draw)
            question = content_key(drawn.messages)
            draw += 1
            barren += 1
            if question not in seen and is_held_out(drawn.key, self.config.held_out_share):
                seen.add(question)
                barren = 0
                yield drawn

    def _task(self, task_id: str, drawn: Drawn) -> Task:
        if drawn.fields.keys() != self.fields:
            both = f"{_listed(drawn.fields)} and once {_listed(self.fields)}"
            raise UserError(f"{self._where}: the fields are once {both}; use null for none.")
        return Task(f"{self.name}/{task_id}", drawn.messages, drawn.fields, self._labels, self.name)

    def _draw(self, *seed: str | int) -> Drawn:
        rng = random.Random(derive("function", *seed))
        try:
            with calling_user_code():
                made = self._function(rng, **self._options)
        except (UserError, KeyboardInterrupt):
            raise
        except BaseException as error:  # boundary: the user's function runs here
            raise UserError(f"{self._where} raised {describe(error)}.") from error
        try:
            return self._read(_QUESTION("the question", made, Call()))
        except (UserError, RowError) as error:
            raise UserError(f"{self._where}: {error}") from None

    def _read(self, made: Mapping[str, Any]) -> Drawn:
        media = [name for name in MEDIA if holds_media([made.get(name)])]
        messages = _messages(made, has_media=bool(media))
        if media:
            blobs = CheckedBlobs()
            parts = [part for name in media for part in read_media(made[name], None, blobs)]
            messages = placed(messages, parts)
        messages = under_system(messages, self.config.system)
        fields = {
            name: _plain(value, f"field '{name}'")
            for name, value in made.items()
            if name not in _NO_FIELDS and name not in media
        }
        split_by: str | None = _SPLIT_BY("split_by", made.get("split_by"), Call())
        return Drawn(messages, fields, digest(split_by) if split_by else content_key(messages))

    def _read_options(self) -> dict[str, object]:
        """As the function's own annotations have them, where these say something."""
        options = self.config.options
        try:
            signature = inspect.signature(self._function, eval_str=True)
        except (ValueError, NameError, TypeError, AttributeError, SyntaxError):
            return options  # it does not tell; the first draw will
        names = list(signature.parameters)[1:]
        try:
            signature.bind(random.Random(0), **options)
        except TypeError as error:
            takes = f"the function takes, by task.options, {_listed(names)}"
            raise UserError(f"{self._where}: {error}; {takes}.") from None
        read = dict(options)
        for name, parameter in signature.parameters.items():
            kind = parameter.annotation
            if name not in options or kind is inspect.Parameter.empty:
                continue
            try:
                read[name] = reader(kind)(name, options[name], Call())
            except ArgumentError as error:
                raise UserError(f"{self._where}: task option {error}.") from None
            except TypeError:
                continue  # no type that can be read
        return read


def _messages(made: Mapping[str, Any], *, has_media: bool) -> tuple[Message, ...]:
    prompt, turns = made.get("prompt"), made.get("messages")
    if (prompt is None) == (turns is None):
        raise UserError(f"expected one of 'prompt' and 'messages', got the keys {_listed(made)}")
    if prompt is not None:
        messages: tuple[Message, ...] = (Message("user", _PROMPT("prompt", prompt, Call())),)
    elif isinstance(turns, list) and turns and all(isinstance(turn, dict) for turn in turns):
        # Dicts may hold images and sounds as parts; records are taken as they are.
        messages = read_messages(turns, "messages", has_places=has_media)
    else:
        messages = _MESSAGES("messages", turns, Call())
    if not any(m.role == "user" and m.text.strip() for m in messages):
        raise UserError("no user message with text; expected one")
    return messages


def _plain(value: Any, where: str) -> Any:
    """The value as JSON holds it, so that what a reward sees is what a store reads back."""
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int) and -(2**63) <= value < 2**63:
        return int(value)
    if isinstance(value, float) and math.isfinite(value):
        return float(value)
    if isinstance(value, list | tuple):
        return [_plain(item, where) for item in value]
    if isinstance(value, Mapping) and all(isinstance(key, str) for key in value):
        return {key: _plain(item, where) for key, item in value.items()}
    raise refused(where, value, "text, a number, true/false, a list or a dict with text keys")


def _listed(names: Any) -> str:
    return ", ".join(sorted(map(str, names))) or "none"
