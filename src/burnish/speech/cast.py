"""Who speaks with which voice: descriptions to voices, and one engine made of several.

Every speaker keeps his voice through the scene, two speakers never share one, and every line is
brought to the same level, so that only the script makes it louder or softer.
"""

from __future__ import annotations

import math
import os
import re
import unicodedata
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from burnish.arguments import as_path, as_word, shown
from burnish.boundary import Seed, public
from burnish.errors import UserError, did_you_mean
from burnish.media import resample
from burnish.models.long_speech.engine import (
    Capabilities,
    Line,
    SpeechEngine,
    Spoken,
    ToneEngine,
)
from burnish.models.long_speech.scene import Scene, Speaker, spoken_text
from burnish.seeds import derive
from burnish.speech.acoustics import level_db
from burnish.tensors import as_finite, torch

if TYPE_CHECKING:
    from torch import Tensor

SAMPLE_RATE = 24_000
LEVEL_DB = -26.0
"""Level of the speech in every line before its own gain."""
ENGINES = ("espeak", "hibari", "piper", "tone", "mixed")
"""Engines by name; any other is a run of `burnish train speech`, or what `save_speech_folder` wrote."""


class Voice(NamedTuple):
    """One voice that an engine has, as measured on one sentence."""

    engine: str
    name: str
    gender: str
    age: str
    f0: float
    """In Hz; 0: not known."""
    texture: str = ""


_ESPEAK = "Alicia female adult 254|Andrea female young 248|Annie female young 238|anika female young 267|aunty female old 173|belinda female adult 230|f1 female adult 181|f2 female adult 196|f3 female adult 213|f4 female adult 180|f5 female young 206|grandma female old 205|linda female adult 230|shelby female adult 183|steph female adult 185|Alex male adult 104|Andy male adult 96|Gene male adult 96|Gene2 male young 116|Lee male adult 96|Marco male young 131|Mario male adult 109|Michael male adult 109|Mike male adult 91|Nguyen male young 152|Reed male young 118|Storm male adult 86|adam male adult 102|announcer male adult 72|boris male adult 103|david male adult 76|ed male young 127|edward male adult 103|grandpa male old 104|gustave male adult 108|john male adult 101|m1 male adult 94|m2 male adult 100|m3 male adult 106|m4 male adult 94|m7 male adult 106|m8 male old 86|max male adult 102|paul male adult 86|robert male adult 100|travis male adult 105|croak male old 106 hoarse|whisper male adult 100 whisper|whisperf female adult 190 whisper|robosoft3 male adult 100 robot|zac child child 354|caleb child child 427"  # fmt: skip
VOICES = (
    *(
        Voice("espeak", name, gender, age, float(f0), "".join(texture))
        for name, gender, age, f0, *texture in (row.split() for row in _ESPEAK.split("|"))
    ),
    Voice("hibari", "heart", "female", "adult", 188.0),
    Voice("piper", "joe", "male", "adult", 90.0),
)
"""Voices with their pitch in Hz: of espeak measured with `measure_speech` at espeak's own pitch."""
_WORDS = {
    "gender": {
        "female": "female woman girl lady mother she her wife daughter queen sister actress aunt grandmother witch nurse",
        "male": "male man boy gentleman father he his husband son king brother actor uncle grandfather sailor monk",
    },
    "age": {
        "child": "child kid boy girl toddler",
        "young": "young teen teenage teenager youthful student twenties girl",
        "old": "old elderly aged ancient grandmother grandfather senior eighty seventy sixty",
        "adult": "adult middle-aged grown forty thirty fifty",
    },
    "texture": {
        "hoarse": "hoarse rough raspy croaky gravelly harsh",
        "whisper": "whispering whisper breathy ghost ghostly",
        "robot": "robot robotic machine android computer",
    },
    "pitch": {
        "low": "deep low bass dark booming",
        "high": "high bright shrill squeaky light",
    },
}  # fmt: skip

_FIRST_NAMES = {
    "woman": "alice amy anna ann anne annie barbara beatrice carol clara claire diana dora elena eliza elizabeth ella emily emma eva grace hannah helen irene jane julia juliet kate laura lena lily linda lisa lucy maria marie mary mia nina nora olivia ophelia rachel rose ruth sara sarah sophia susan victoria",
    "man": "adam albert alex andrew arthur ben bernardo bob carl charles daniel david edward eric francisco frank fred george hamlet hans harry henry horatio jack james john joseph karl leo louis marcellus mark martin max michael noah oliver otto patrick paul peter philip ralph richard robert romeo samuel simon stephen thomas tim tom victor walter william",
}  # fmt: skip
"""Of whom nothing says what they sound like, a first name does."""


@public
def design_voice(
    description: str,
    *,
    taken: Sequence[Voice] = (),
    seed: Seed = 0,
) -> Voice:
    """The voice of espeak-ng that is nearest to a description and unlike those that are taken.

    A description that is a voice's own name gets it. Ties are decided by the seed.

    >>> design_voice("an old woman").name, design_voice("m3").name
    ('aunty', 'm3')
    """
    return _nearest(description, [one for one in VOICES if one.engine == "espeak"], taken, seed)


def _nearest(
    description: str, offered: Sequence[Voice], taken: Sequence[Voice], seed: int
) -> Voice:
    for one in offered:
        if description.strip() == one.name and one not in taken:
            return one
    wished = _wishes(description)
    target = {"low": 85.0, "high": 240.0}.get(wished["pitch"])

    def cost(voice: Voice) -> tuple[float, int]:
        is_child = voice.age == "child"
        total = 8.0 * (bool(wished["gender"]) and not is_child and voice.gender != wished["gender"])
        total += 2.0 * (voice.age != (wished["age"] or "adult"))
        total += 20.0 * (is_child and wished["age"] != "child")
        total += 6.0 * (voice.texture != wished["texture"])
        if target and voice.f0:
            total += abs(12 * math.log2(voice.f0 / target)) / 6
        # Where there is a choice of engines, a neural voice is worth an age that does not fit.
        total -= 1.0 * (voice.engine != "espeak")
        pitches = [one.f0 for one in taken if one.f0 and voice.f0]
        is_near = any(abs(12 * math.log2(voice.f0 / f0)) < 1.0 for f0 in pitches)
        total += 3.0 * is_near + 1000.0 * taken.count(voice)
        return total, derive(seed, description, voice.name)

    return min(offered, key=cost)


def _wishes(description: str) -> dict[str, str]:
    """Gender, age, texture and pitch as the words of a description say; empty where none does."""
    words = re.findall(r"[a-z0-9]+(?:-[a-z]+)*", description.lower())
    found = {kind: _first_named(words, groups) for kind, groups in _WORDS.items()}
    return found | {"age": _age_named(words)}


def _first_named(words: Sequence[str], groups: Mapping[str, str]) -> str:
    """The group that is named first: "a man who lost his wife" is a man."""
    for word in words:
        for name, known in groups.items():
            if word in known.split():
                return name
    return ""


_GROWN = frozenset(["woman", "lady", "mother", "wife", "queen", "actress", "aunt", "grandmother", "witch", "nurse", "man", "gentleman", "father", "husband", "king", "actor", "uncle", "grandfather", "sailor", "monk", "guard", "captain"])  # fmt: skip


def _age_named(words: Sequence[str]) -> str:
    """The age that is named first; behind somebody who is grown, a child is somebody else."""
    is_grown = False
    for before, word, behind in zip(["", *words], words, [*words[1:], ""], strict=False):
        years = re.fullmatch(r"(\d{1,3})(-year-old)?", word)
        # "man 19", "aged 70", "7 years"; not "mother of 3".
        is_after = before in ("aged", "male", "female", "man", "woman", "boy", "girl")
        if years and (years[2] or len(words) == 1 or is_after or behind in ("year", "years")):
            age = int(years[1])
            return "child" if age < 13 else "young" if age < 25 else "adult" if age < 60 else "old"
        name = _first_named([word], _WORDS["age"])
        if name and not (is_grown and name == "child"):
            return name
        is_grown = is_grown or word in _GROWN
    return ""


@public
def cast_scene(scene: Scene, engine: str | Path = "espeak", seed: Seed = 0) -> Cast:
    """The engine of a scene: a voice for every speaker by his description.

    `engine` is espeak, hibari, piper, tone (no voice at all, for tests), or mixed: the two neural
    voices for whom they fit best and espeak for everybody else. Any other is a neural
    engine of your own: a run of `burnish train speech`, or a folder that `save_speech_folder` wrote.
    """
    name = str(engine)
    if engine_folder(engine) is not None:
        return _cast_folder(scene, name, seed)
    if name == "tone":
        voices = {one.id: Voice("tone", "", "", "", 200.0) for one in scene.overall.speakers}
        return Cast({"tone": open_engine("tone")}, voices)
    for place, sentence in enumerate(scene.sentences):
        letters = [one for one in spoken_text(sentence.text) if one.isalpha()]
        latin = sum("LATIN" in unicodedata.name(one, "") for one in letters)
        if 2 * latin < len(letters):
            raise UserError(
                f"sentences[{place}]: {shown(sentence.text)} is not in Latin letters, and the voices "
                "speak English; write it in Latin letters, or give render_scene an engine of its language"
            )
    names = ("espeak", "hibari", "piper") if name == "mixed" else (name,)
    choices = _choices(scene, [one for one in VOICES if one.engine in names], name, seed)
    engines = {one: open_engine(one) for one in {one.engine for one in choices.values()}}
    return Cast(engines, choices, notes=_unheard_voices(scene, choices))


def _cast_folder(scene: Scene, folder: str, seed: int) -> Cast:
    """Voices of a folder: by name, or by what the table says of a voice of the same name."""
    from burnish.speech.engines import LatentEngine

    engine = LatentEngine(folder)
    for place, sentence in enumerate(scene.sentences):
        engine.spelled(spoken_text(sentence.text), place)
    table = {one.name: one for one in VOICES}
    nobody = Voice("", "", "", "", 0.0)
    offered = [
        table.get(name, nobody)._replace(engine=folder, name=name)
        for name in engine.voices or ("",)
    ]
    choices = _choices(scene, offered, folder, seed)
    notes = []
    for one in scene.overall.speakers:
        chosen, described = choices[one.id], _described(one)
        is_chosen = chosen.gender and any(_wishes(described).values())
        is_named = one.voice.strip() == chosen.name
        if engine.voices and described.strip() and not is_named and not is_chosen:
            notes.append(
                f"engine '{folder}': the description chose no voice for {one.id}; name one of "
                f"{', '.join(engine.voices)} as the voice"
            )
    return Cast({folder: engine}, choices, notes=notes)


def _choices(scene: Scene, offered: Sequence[Voice], engine: str, seed: int) -> dict[str, Voice]:
    """A voice for every speaker; those asked for by name are given first."""
    named = _named_voices(scene, offered, engine)
    choices: dict[str, Voice] = {}
    for speaker in scene.overall.speakers:
        wished = _described(speaker)
        if not _wishes(wished)["gender"]:
            # A first name says it where nothing else does.
            words = re.findall(r"[a-z0-9]+", speaker.id.lower())
            wished = f"{wished} {_first_named(words, _FIRST_NAMES)}"
        taken = tuple({**named, **choices}.values())
        voice = named.get(speaker.id) or _nearest(wished, offered, taken, seed)
        choices[speaker.id] = voice
    return choices


def _described(speaker: Speaker) -> str:
    """What is written of a speaker."""
    age = f"{speaker.age}-year-old" if speaker.age.strip().isdigit() else speaker.age
    return " ".join((speaker.gender, age, speaker.persona, speaker.voice))


def _unheard_voices(scene: Scene, choices: Mapping[str, Voice]) -> list[str]:
    """A note on every `voice` that is no voice's name and describes none."""
    notes = []
    for speaker in scene.overall.speakers:
        name, chosen = speaker.voice.strip(), choices[speaker.id]
        if name and name != chosen.name and not any(_wishes(name).values()):
            near = [one.name for one in VOICES if one.engine == chosen.engine]
            hint = did_you_mean(name, near)
            notes.append(
                f"speaker '{speaker.id}': {shown(name)} names no voice and describes none; "
                f"{chosen.engine} {chosen.name} speaks.{hint}"
            )
    return notes


def _named_voices(scene: Scene, offered: Sequence[Voice], engine: str) -> dict[str, Voice]:
    """Voices that the script asks for by their own names."""
    table = {one.name: one for one in (*VOICES, *offered) if one.name}
    found: dict[str, Voice] = {}
    for speaker in scene.overall.speakers:
        voice = table.get(speaker.voice.strip())
        if voice is None:
            continue
        if voice not in offered or voice in found.values():
            why = f"is one of engine '{voice.engine}', not of '{engine}'; choose --engine mixed"
            if voice in offered:
                why = "is already that of another speaker; choose another, or describe it"
            raise UserError(f"speaker '{speaker.id}': voice '{voice.name}' {why}")
        found[speaker.id] = voice
    # Voices of your own are called as their speakers are.
    own = {one.name.casefold(): one for one in offered if one.name and one.engine not in ENGINES}
    for speaker in scene.overall.speakers:
        voice = own.get(speaker.id.casefold())
        if voice is not None and not speaker.voice.strip() and voice not in found.values():
            found[speaker.id] = voice
    return found


def engine_folder(engine: str | Path) -> Path | None:
    """The folder that an engine is opened from, None for a name of `ENGINES`; one line for neither."""
    if isinstance(engine, str) and engine in ENGINES:
        return None
    expected = f"{', '.join(ENGINES)}, or a folder of voices: a run of burnish train speech"
    path = as_path("engine", engine, expected).expanduser()
    # A bare word is a misspelt name unless a folder of that name lies here.
    is_word = isinstance(engine, str) and not {"/", os.sep} & set(engine)
    if is_word and not path.is_dir():
        as_word("engine", engine, (*ENGINES, "or a folder of voices"))
    from burnish.speech.engines import checked_folder

    return checked_folder(path)


def open_engine(name: str | Path) -> SpeechEngine:
    """An engine by its name or folder; one clear line if it cannot be opened."""
    from burnish.speech import engines

    if engine_folder(name) is not None:
        return engines.LatentEngine(name)
    if name == "tone":
        return ToneEngine(SAMPLE_RATE, second_a_letter=0.06)
    kinds: dict[str, Callable[[], SpeechEngine]] = {
        "espeak": engines.EspeakEngine,
        "hibari": engines.HibariEngine,
        "piper": engines.PiperEngine,
    }
    if str(name) not in kinds:
        raise UserError(f"engine: got '{name}', which is several; expected one. Use cast_scene")
    return kinds[str(name)]()


class Cast:
    """Several engines as one: each speaker's own voice, one sample rate, one level."""

    def __init__(
        self,
        engines: Mapping[str, SpeechEngine],
        choices: Mapping[str, Voice],
        notes: Sequence[str] = (),
    ) -> None:
        self.engines, self.choices, self.sample_rate = engines, choices, SAMPLE_RATE
        self.name = "+".join(sorted(self.engines))
        can = [getattr(one, "capabilities", Capabilities()) for one in self.engines.values()]
        kinds = Capabilities._fields
        self.capabilities = Capabilities(*(all(getattr(c, kind) for c in can) for kind in kinds))
        # Engines of one voice are chosen for one speaker each, unless there is no other.
        voices, speakers = len(set(self.choices.values())), len(self.choices)
        has_voices = voices > 1 or voices == speakers or "tone" in self.engines
        self.capabilities = self.capabilities._replace(voices=has_voices)
        self.notes = list(notes)
        """What the scene asks for and the choice of voices leaves out."""
        if 1 < voices < speakers:
            self.notes.append(
                f"engine '{self.name}' has {voices} voices: some of {speakers} speakers sound the same"
            )
        versions = [str(getattr(one, "version", "")) for one in self.engines.values()]
        self.version = " ".join(versions) if all(versions) else ""
        """Changes where an engine would say a line otherwise than before; empty: nobody can tell."""

    def speak(self, line: Line) -> Spoken:
        """The line in its speaker's voice, at the scene's sample rate and level."""
        voice, engine = self.choices[line.speaker.id], self._engine_of(line.speaker)
        said = engine.speak(line._replace(voice=voice.name))
        said = said if isinstance(said, Spoken) else Spoken(said)
        samples: Tensor = as_finite(said.samples, f"sentences[{line.place}]")
        if len(samples) and engine.sample_rate != self.sample_rate:
            samples = torch.from_numpy(resample(samples, engine.sample_rate, self.sample_rate))
        level = level_db(samples, self.sample_rate)
        if level is not None:
            samples = samples * 10 ** ((LEVEL_DB - level) / 20)
        return said._replace(samples=samples)

    def capabilities_of(self, speaker: Speaker) -> Capabilities:
        """What the engine of a speaker can do."""
        can: Capabilities = getattr(self._engine_of(speaker), "capabilities", Capabilities())
        return can

    def pitch_reach(self, speaker: Speaker) -> tuple[float, float]:
        """The semitones from his voice's own pitch that a speaker's engine can speak at."""
        reach = getattr(self._engine_of(speaker), "voice_reach", None)
        if reach is None:
            return -math.inf, math.inf
        low, high = reach(self.choices[speaker.id].name)
        return low, high

    def _engine_of(self, speaker: Speaker) -> SpeechEngine:
        return self.engines[self.choices[speaker.id].engine]
