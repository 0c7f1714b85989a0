"""The plan of a scene as a language model reads and writes it.

The prompt has the script in the form of `scene_text`; the reply is its `[think]` block, a line a
caption. The reply is read strictly and can only fill what is open: a line about something that the
user wrote is ignored, so nothing of the user's can be changed by whatever a model writes.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any, Literal, NamedTuple, get_args

import msgspec

from burnish.arguments import refused, shown
from burnish.boundary import Seed, public
from burnish.errors import ArgumentError
from burnish.lm.base import LM, Sampling
from burnish.models.long_speech.scene import Scene, checked_scene
from burnish.models.long_speech.scene_lines import BLANK, NOTHING, read_line, scene_text
from burnish.records import Message
from burnish.speech.planner import plan_scene

Dimension = Literal["tone", "intonation", "pace", "volume", "intent", "background"]
DIMENSIONS: tuple[Dimension, ...] = get_args(Dimension)
RULE = "Plan how each sentence is said. Replace every <blank> by a short phrase in quotes and write only those lines."  # fmt: skip
_SENTENCE = re.compile(r"sentences\[(0|[1-9][0-9]{0,5})\]\.([a-z]+)")
_ARC = re.compile(r"global\.emotion\.arc\[(0|[1-9][0-9]?)\]\.(at|caption|arousal|valence)")


class Planned(NamedTuple):
    """A planned scene, and who planned it."""

    scene: Scene
    by: str
    """`model`, `model again` (its second reply) or `rules`."""
    problems: tuple[str, ...]
    """What was wrong with the replies that could not be read."""


@public
def open_slots(scene: Scene, dimensions: Sequence[Dimension] = DIMENSIONS) -> list[str]:
    """Paths of the captions that nobody has filled in, in order.

    >>> from burnish.models.long_speech import read_scene
    >>> scene = read_scene({"global": {"speakers": [{"id": "A"}]}, "sentences": [
    ...     {"speaker": "A", "text": "Yes.", "pace": "slow"}]})
    >>> open_slots(scene, ["pace", "volume"])
    ['sentences[0].volume']
    """
    return [
        f"sentences[{place}].{name}"
        for place, sentence in enumerate(scene.sentences)
        for name in dimensions
        if not getattr(sentence, name)
    ]


@public
def plan_prompt(
    scene: Scene, instruction: str = "", dimensions: Sequence[Dimension] = DIMENSIONS
) -> str:
    """What a planner is asked: the rule, the instruction, what is fixed, and the open lines."""
    slots = open_slots.plain(scene, dimensions)
    fixed, _, _ = scene_text.plain(scene).partition("[think]\n")
    # The relation of a sentence is no help to a planner of captions unless somebody wrote it.
    # Not splitlines: a text may hold other breaks than \n, which JSON leaves as they are.
    lines = [
        one
        for one in fixed.removesuffix("\n").split("\n")
        if not one.endswith('.relation.type = "after"')
    ]
    wish = f"{instruction}\n" if instruction else ""
    blanks = "".join(f"{one} = {BLANK}\n" for one in slots)
    return f"{RULE}\n{wish}" + "\n".join(lines) + f"\n[think]\n{blanks}"


def plan_reply(scene: Scene, captions: dict[str, str]) -> str:
    """The reply that fills these slots, as `read_plan` reads it."""
    return "".join(f"{path} = {msgspec.json.encode(one).decode()}\n" for path, one in captions.items())  # fmt: skip


@public
def read_plan(scene: Scene, text: str) -> Scene:
    """The scene with the captions of a reply; anything but such lines is refused.

    >>> from burnish.models.long_speech import read_scene
    >>> scene = read_scene({"global": {"speakers": [{"id": "A"}]}, "sentences": [
    ...     {"speaker": "A", "text": "Yes.", "pace": "slow"}]})
    >>> done = read_plan(scene, 'sentences[0].pace = "fast"\\nsentences[0].tone = "glad"')
    >>> done.sentences[0].pace, done.sentences[0].tone, done.sources
    ('slow', 'glad', {'sentences[0].tone': 'plan'})
    """
    table: dict[str, Any] = msgspec.to_builtins(msgspec.structs.replace(scene, sources={}))
    sources: dict[str, Any] = dict(scene.sources)
    arc: dict[int, dict[str, Any]] = {}
    seen: set[str] = set()
    lines = [one.strip() for one in text.split("\n")]
    for number, line in enumerate(lines, start=1):
        if not line or line == "[think]":
            continue
        path, value = read_line(number, line)
        wanted: Any = float | int if path.endswith((".at", ".arousal", ".valence")) else str
        is_phrase = isinstance(value, wanted) and len(str(value)) <= 200
        if path in seen or (value is not NOTHING and (not is_phrase or isinstance(value, bool))):
            raise ArgumentError(f"text: line {number} is {shown(line)}, expected a phrase, once")
        seen.add(path)
        if value is NOTHING:
            continue
        if found := _ARC.fullmatch(path):
            arc.setdefault(int(found[1]), {})[found[2]] = value
            continue
        place, key = table["global"].setdefault("emotion", {}), "tone"
        if path != "global.emotion.tone":
            found = _SENTENCE.fullmatch(path)
            is_caption = found is not None and found[2] in DIMENSIONS
            if found is None or not is_caption or int(found[1]) >= len(table["sentences"]):
                raise refused(f"text: line {number}", path, "a caption of a sentence")
            place, key = table["sentences"][int(found[1])], found[2]
        if not place.get(key) and str(value).strip():
            place[key] = value
            sources[path] = "plan"
    emotion = table["global"].setdefault("emotion", {})
    if arc and "arc" not in emotion:
        emotion["arc"] = [arc[place] for place in sorted(arc)]
        sources |= {
            f"global.emotion.arc[{place}].{name}": "plan"
            for place, key in enumerate(sorted(arc))
            for name in arc[key]
        }
    return checked_scene({**table, "sources": sources}, "text")


@public
async def plan_with_lm(
    scene: Scene,
    lm: LM,
    *,
    instruction: str = "",
    dimensions: Sequence[Dimension] = ("tone", "pace", "volume"),
    max_tokens: int = 1024,
    temperature: float = 0.0,
    seed: Seed = 0,
) -> Planned:
    """A plan by a language model; asked again with what was wrong, then the rules plan."""
    prompt = plan_prompt(scene, instruction, dimensions)
    messages: list[Message] = [Message("user", prompt)]
    problems: list[str] = []
    sampling = Sampling(temperature=temperature, max_tokens=max_tokens, seed=seed)
    for name in ("model", "model again"):
        (reply,) = await lm.sample(tuple(messages), sampling)
        try:
            planned = read_plan(scene, reply.text)
            if planned.sources == scene.sources and open_slots(scene, dimensions):
                raise ArgumentError("text: it fills in nothing, expected a line a caption")
            return Planned(planned, name, tuple(problems))
        except ArgumentError as error:
            problems.append(str(error))
            again = f"That cannot be read: {error}. {RULE}"
            messages += [Message("assistant", reply.text), Message("user", again)]
    return Planned(plan_scene(scene, seed=seed), "rules", tuple(problems))
