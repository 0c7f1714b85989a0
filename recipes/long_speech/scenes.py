"""Short scenes with an instruction in plain words, and what follows from it for every sentence.

    [task]
    kind = "function"
    path = "scenes.py:make"

A prompt has an instruction ("Start worn out, then boil with rage, end under the breath."), the lines of
a dialogue, and the captions that are open; the answer is the plan. The words of the instruction are not
those that the resolver of captions knows, so that a planner has to translate. Goals are in the task's
field `goals`: which attribute of which sentence has to be higher, lower or as it is. In some scenes the
user has fixed a caption himself. With `dropout`, some captions are neither asked for nor shown
(dimension dropout), so that a planner is asked for any part of a plan.
"""

from __future__ import annotations

from collections.abc import Sequence
from random import Random
from typing import Any, NamedTuple

from burnish.models.long_speech import drop_dimensions, planned_captions, read_scene
from burnish.models.long_speech.scene_lines import BLANK
from burnish.speech import open_slots, plan_prompt, read_plan
from burnish.speech.plan_text import plan_reply

NAMES = ("Ann", "Ben", "Cleo", "Dan", "Eva", "Finn")
LINES = (
    "The harbour is closed.", "Nobody told me.", "We leave at seven.", "Where is the key?",
    "I have read your letter.", "The train is gone.", "Come with me.", "That was my chair.",
    "It rained all night.", "You said so yourself.", "The soup is cold.", "They are here.",
    "I will not sign it.", "Look at the sky.", "Give it back.", "She has won again.",
    "The door was open.", "My brother called.", "I lost the map.", "Tell me the truth.",
)  # fmt: skip
DIMENSIONS = ("tone", "pace", "volume")


class State(NamedTuple):
    """One way to say a sentence: its captions, what has to change, and words for it."""

    tone: str
    pace: str
    volume: str
    arousal: float
    goals: dict[str, int]
    words: tuple[str, ...]


STATES = {
    "tired": State("tired", "slow", "soft", 0.2, {"rate": -1, "gain_db": -1}, ("worn out", "as after a long night", "half asleep")),
    "furious": State("furious", "fast", "loud", 1.0, {"pitch_st": 1, "rate": 1, "gain_db": 1}, ("boiling with rage", "seething", "beside oneself with anger")),
    "whispering": State("neutral", "medium", "whispered", 0.1, {"gain_db": -1}, ("under the breath", "so that nobody else hears", "into one ear")),
    "cheerful": State("cheerful", "medium", "normal", 0.65, {"pitch_st": 1, "gain_db": 1}, ("with a smile", "in high spirits", "beaming")),
    "hurried": State("neutral", "fast", "normal", 0.6, {"rate": 1, "gain_db": 0}, ("with no time to lose", "in a hurry", "out of breath from haste")),
    "sad": State("sad", "slow", "soft", 0.15, {"pitch_st": -1, "rate": -1, "gain_db": -1}, ("with a heavy heart", "close to tears", "full of sorrow")),
    "shouting": State("neutral", "medium", "shouted", 0.9, {"pitch_st": 1, "gain_db": 1}, ("across the whole square", "at the top of the lungs", "as over a storm")),
    "plain": State("neutral", "medium", "normal", 0.5, {"pitch_st": 0, "rate": 0, "gain_db": 0}, ("as always", "like reading a list", "as if nothing had happened")),
}  # fmt: skip
ORDER = ("first", "second", "third", "fourth", "fifth", "sixth")


def make(
    rng: Random,
    sentences: int = 3,
    fixed: float = 0.3,
    wrong: float = 0.0,
    states: Sequence[str] = tuple(STATES),
    dropout: float = 0.0,
) -> dict[str, Any]:
    """A scene, its instruction, its goals, and a demonstration with the chance `wrong` of a wrong word.

    `dropout` is the chance of a caption to be left out of the prompt and the demonstration; one stays.
    """
    names = rng.sample(NAMES, 2)
    lines = rng.sample(LINES, sentences)
    chosen = [rng.choice(list(states)) for _ in lines]
    rows: list[dict[str, Any]] = [
        {"speaker": names[i % 2], "text": line} for i, line in enumerate(lines)
    ]
    goals = [
        {"sentence": i, "attribute": attribute, "direction": direction}
        for i, name in enumerate(chosen)
        for attribute, direction in STATES[name].goals.items()
    ]
    if rng.random() < fixed:
        place, name = rng.randrange(sentences), rng.choice(DIMENSIONS)
        rows[place][name] = getattr(STATES[chosen[place]], name)
    document = {"global": {"speakers": [{"id": name} for name in names]}, "sentences": rows}
    scene = read_scene(document)
    slots = open_slots(scene, DIMENSIONS)
    reply = {}
    for path in slots:
        place, name = int(path[10 : path.index("]")]), path.rpartition(".")[2]
        state = rng.choice(list(states)) if rng.random() < wrong else chosen[place]
        reply[path] = getattr(STATES[state], name)
    said = _instruction(rng, chosen)
    prompt = plan_prompt(scene, said, DIMENSIONS)
    if dropout:
        planned = read_plan(scene, plan_reply(scene, reply))
        draws = [rng.random() for _ in planned_captions(planned)]
        left = planned_captions(drop_dimensions(planned, draws, dropout)) or slots[:1]
        for path in set(slots) - set(left):
            prompt = prompt.replace(f"{path} = {BLANK}\n", "")
            del reply[path]
    return {
        "prompt": prompt,
        "instruction": said,
        "scene": document,
        "states": chosen,
        "goals": goals,
        "arousal": [STATES[name].arousal for name in chosen],
        "demonstration": plan_reply(scene, reply).rstrip("\n"),
    }


def _instruction(rng: Random, chosen: Sequence[str]) -> str:
    words = [rng.choice(STATES[name].words) for name in chosen]
    if rng.random() < 0.5 and len(words) > 2:
        return f"Start {words[0]}, then {', then '.join(words[1:-1])}, end {words[-1]}."
    parts = [f"the {ORDER[i]} sentence {one}" for i, one in enumerate(words)]
    return f"Say {', '.join(parts)}."
