"""From captions to numbers: how each sentence of a scene is said.

A caption is read by a lexicon with degrees ("a little", "very") and negations; numbers in it win
("-3 dB", "120 wpm", "+2 st", "1.2x", "20 % faster"). The emotional arc adds to that: a sentence's arousal,
from waypoints joined by straight lines, raises pitch, rate and loudness together. The paper (arXiv
2603.19798) leaves this step to its network; ours can be read, and says what it did not understand.
"""

from __future__ import annotations

import math
import re
from itertools import pairwise
from typing import Literal, NamedTuple, get_args

from burnish.boundary import public
from burnish.models.long_speech.engine import LIMITS, Manner
from burnish.models.long_speech.scene import Scene
from burnish.models.long_speech.timeline import arc_values

OWN_WPM = 170.0
"""Words a minute at rate 1, for captions that name a number."""
AROUSAL = Manner(pitch_st=6.0, rate=0.35, gain_db=9.0, range=0.8)
"""What a whole step of arousal, from 0 to 1, adds; half of it is the voice's own."""
Caption = Literal["tone", "intonation", "pace", "volume", "intent"]
CAPTIONS = get_args(Caption)
"""Captions of a sentence that say how it is spoken; `background` says what is heard beside it."""

_GROUPS = """
pitch_st -1.5 rate -0.08 gain_db -2 range -0.2: calm relaxed gentle peaceful serene soothing warm tender tired weary sleepy patient composed
pitch_st -2 rate -0.15 gain_db -3 range -0.4: sad sorrowful grieving mournful gloomy hopeless depressed melancholy broken defeated resigned
pitch_st 2.5 rate 0.12 gain_db 4 range 0.4: angry furious enraged outraged ecstatic thrilled panicked frantic hysterical exultant fierce
pitch_st 1.5 rate 0.06 gain_db 1.5 range 0.3: happy cheerful glad joyful amused playful friendly bright delighted excited proud eager laughing
pitch_st 1 rate 0.12 gain_db -1: tense nervous anxious worried afraid scared fearful urgent impatient annoyed irritated suspicious
gain_db -5 pitch_st -0.5: soft softly softer quiet quietly quieter low-voiced subdued hushed muted
gain_db -9 breathiness 0.8 range -0.4 rate -0.05: whisper whispers whispered whispering breathy murmur murmured murmuring
gain_db 4 pitch_st 1: loud loudly louder strong firm forceful raised insistent commanding
gain_db 6 pitch_st 2.5 range 0.3: shout shouts shouted shouting yell yelling yelled scream screaming screamed bellowing roaring
rate 0.25: fast faster quick quickly quicker rapid rapidly hurried rushed brisk hasty
rate -0.22: slow slowly slower dragging unhurried deliberate measured halting drawn-out hesitant
pitch_st 3: high higher high-pitched shrill rising
pitch_st -3: low lower deep deeply deeper low-pitched falling grave
range 0.6: lively animated expressive melodic sing-song surprised astonished questioning
range -0.7: flat monotone monotonous dull deadpan robotic even
-: neutral normal plain steady medium moderate ordinary matter-of-fact conversational level question statement exclamation ask asks asking inform state answer greet order request doubt agree refuse explain warn thank curious serious
"""
"""What words of a caption add, a line an effect."""
LEXICON: dict[str, dict[str, float]] = {}
for _line in _GROUPS.strip().splitlines():
    _effect, _, _words = _line.partition(": ")
    _parts = _effect.split()
    _adds = {name: float(size) for name, size in zip(_parts[::2], _parts[1::2], strict=False)}
    LEXICON |= dict.fromkeys(_words.split(), _adds)
_UP, _DOWN = "high higher rising raised", "low lower deep deeper falling"
BY_DIMENSION = {
    "volume": dict.fromkeys(_UP.split(), LEXICON["loud"])
    | dict.fromkeys(_DOWN.split(), LEXICON["soft"]),
    "pace": dict.fromkeys(_UP.split(), LEXICON["fast"])
    | dict.fromkeys(_DOWN.split(), LEXICON["slow"]),
}
"""Words that mean something else there: a low volume is no low voice."""
DEGREES = {
    word: float(share)
    for share, words in (
        (-0.5, "not never no without less neither"),
        (-0.4, "hardly"),
        (0.4, "barely"),
        (0.5, "slightly little bit"),
        (0.6, "somewhat"),
        (0.8, "almost rather"),
        (1.1, "quite"),
        (1.2, "increasingly"),
        (1.3, "too overly"),
        (1.4, "very highly really"),
        (1.8, "extremely utterly"),
    )
    for word in words.split()
}
"""How much of the next word's effect is left after one of these; negations turn half of it around. Words
that are known to nobody end it, adverbs do not: "not particularly loud", but "no hurry, speaks loudly"."""
_ENDS = frozenset((",", ";", ".", ":", "!", "and", "but", "then", "yet"))
"""Where a degree ends."""
_PLACES = frozenset(("in", "with", "to", "by", "through"))
"""The same, except right behind a degree: "not in a loud voice"."""
_FILLER = frozenset(
    ("a", "an", "the", "of", "as", "if", "at", "is", "are", "be", "all", "any", "longer", "more", "most", "his", "her", "their", "its", "voice", "tone", "pace", "volume")
)  # fmt: skip
_WAYS = {
    word: (name, sign)
    for name, sign, words in (
        ("rate", 1, "faster|quicker|as fast|as quick"),
        ("rate", -1, "slower|as slow"),
        ("gain_db", 1, "louder|as loud"),
        ("gain_db", -1, "softer|quieter|as soft|as quiet"),
        ("pitch_st", 1, "higher|as high"),
        ("pitch_st", -1, "lower|deeper|as low|as deep"),
        ("", 1, "up"),
        ("", -1, "down"),
    )
    for word in words.split("|")
}
"""Words after a number: the attribute that a factor changes, and in which direction."""
_FACTORS = {"pace": "rate", "volume": "gain_db", "intonation": "range"}
"""The attribute that a factor changes where its words leave that open, by dimension."""
_NUMBER = re.compile(
    r"(?<![\d.])([-+]?)(\d{1,4}(?:\.\d{1,4})?)\s*(db|decibels?|wpm|words a minute|st|semitones?|x|times|%)(?![a-z])"
    rf"(?:\s+({'|'.join(_WAYS)})\b)?"
)
"""Sign, number, unit, and in which direction."""
_SPELLINGS = (
    (r"[\u2010\u2011]", "-"),
    (r"[\u2012-\u2015\u2212\ufe58\ufe63\uff0d](?=\s*\d)|\bminus\s+(?=\d)", "-"),
    (r"\uff0b(?=\s*\d)|\bplus\s+(?=\d)", "+"),
    (r"(^|[,;:(])\s*([-+])\s+(?=\d)", r"\1 \2"),
    (r"\bnot (?:only|just|merely)\b", " "),
    (r"\b[a-z]+n['’]t\b|\bcannot\b|\bfar from\b", " not "),
    (r"\bhalf as\b", "0.5 times as"),
    (r"\btwice as\b", "2 times as"),
    (r"(?<=\d),(?=\d{3}(?!\d))", ""),
    (r"(?<=\d),(?=\d{1,2}(?!\d))", "."),
)
"""One spelling of signs and decimals: dashes of all kinds, "minus", "- 3" at a start, "1,000", "1,5"."""
_WORD = re.compile(r"[a-z]+(?:-[a-z]+)*|[,;.:!]")


class Reading(NamedTuple):
    """What a caption asks for: additions to a manner, fixed values, and words nobody knows.

    A caption without any known word or number is unknown as a whole, even one of "the" and "very".
    """

    add: dict[str, float]
    fixed: dict[str, float]
    unknown: tuple[str, ...]


class Manners(NamedTuple):
    """How each sentence is said, and which captions had no effect."""

    manners: list[Manner]
    warnings: list[str]


@public
def read_caption(caption: str, dimension: Caption | Literal[""] = "") -> Reading:
    """What a caption asks for; several effects on one attribute add up.

    `dimension`, one of `CAPTIONS`, says what a bare factor changes, "50 %" is half the loudness in
    `volume`, half the range of the melody in `intonation` and half the speed elsewhere; and what "low" is.

    >>> read_caption("very slow, -3 dB")
    Reading(add={'rate': -0.308}, fixed={'gain_db': -3.0}, unknown=())
    """
    text = caption.lower()
    for pattern, plain in _SPELLINGS:
        text = re.sub(pattern, plain, text)
    fixed = dict(_number(*found, dimension=dimension) for found in _NUMBER.findall(text))
    known = LEXICON | BY_DIMENSION.get(dimension, {})
    words = [_root(one) for one in _WORD.findall(_NUMBER.sub(" ", text))]
    if not fixed and not any(word in known for word in words):
        named = tuple(word for word in words if word[0].isalpha())
        return Reading({}, {}, named or ((text,) if text.strip() else ()))
    add: dict[str, float] = {}
    unknown, degree, last = [], 1.0, 1.0
    for before, word in pairwise(("", *words)):
        if word in _ENDS or (word in _PLACES and before not in DEGREES):
            degree = 1.0
        elif word in ("or", "nor"):
            degree = last  # "not angry or loud" is neither
        elif word in DEGREES:
            degree *= DEGREES[word]
        elif word in known:
            for name, value in known[word].items():
                add[name] = round(add.get(name, 0.0) + degree * value, 6)
            degree, last = 1.0, degree
        elif word not in _FILLER | _PLACES:
            unknown.append(word)
            degree = degree if word.endswith("ly") else 1.0
    return Reading(add, fixed, tuple(unknown))


def _root(word: str) -> str:
    """The adjective of the lexicon that an adverb comes from, angry of angrily; else the word."""
    if not word.endswith("ly") or word in LEXICON or word in DEGREES:
        return word
    stem = word.removesuffix("ly")
    return next((one for one in (stem, f"{stem[:-1]}y", f"{stem}le") if one in LEXICON), word)


def _number(sign: str, digits: str, unit: str, way: str, *, dimension: str) -> tuple[str, float]:
    """The attribute that a number sets, and its value: "3 dB softer" is -3 dB."""
    size = float(digits)
    attribute, direction = _WAYS.get(way, ("", 0))
    step = size * (direction or (-1 if sign == "-" else 1))
    if unit[0] in "ds":
        return "gain_db" if unit[0] == "d" else "pitch_st", step
    if unit.startswith("w"):
        return "rate", (OWN_WPM + step if direction else size) / OWN_WPM
    if attribute in ("", "pitch_st") and dimension in ("pace", "volume"):
        attribute = ""  # a lower volume is no lower voice
    attribute = attribute or _FACTORS.get(dimension, "rate")
    # How many times as much: "20 % more" is 1.2, "2 times less" 0.5; never 0.
    if unit == "%":
        is_change = bool(sign or way) and not way.startswith("as ")
        factor = max(1 + step / 100 if is_change else size / 100, 0.01)
    else:
        factor = max(size, 0.01) if step >= 0 else 1 / max(size, 0.01)
    if attribute == "gain_db":
        return attribute, round(20 * math.log10(factor), 6)
    return attribute, round(12 * math.log2(factor), 6) if attribute == "pitch_st" else factor


@public
def resolve_manners(scene: Scene) -> Manners:
    """How each sentence is said: the arc at its place, then its captions, within the limits.

    >>> from burnish.models.long_speech import read_scene
    >>> scene = read_scene({"global": {"speakers": [{"id": "A"}]}, "sentences": [
    ...     {"speaker": "A", "text": "Yes.", "pace": "slow", "volume": "-6 dB"}]})
    >>> resolve_manners(scene).manners[0]
    Manner(pitch_st=0.0, rate=0.78, gain_db=-6.0, range=1.0, breathiness=0.0)
    """
    arousal = arousal_of(scene)
    manners, warnings = [], []
    for place, sentence in enumerate(scene.sentences):
        values = Manner()._asdict()
        if arousal is not None:
            for name, step in AROUSAL._asdict().items():
                values[name] += step * (arousal[place] - 0.5)
        for dimension in CAPTIONS:
            caption = getattr(sentence, dimension)
            reading = read_caption.plain(caption, dimension)
            for name, value in reading.add.items():
                values[name] += value
            values.update(reading.fixed)
            if reading.unknown and not reading.add and not reading.fixed:
                warnings.append(
                    f"sentences[{place}].{dimension}: '{caption}' has no word that is known to change "
                    "the voice"
                )
        limited = (
            min(max(value, LIMITS[name][0]), LIMITS[name][1]) for name, value in values.items()
        )
        manners.append(Manner(*(round(value, 6) for value in limited)))
    return Manners(manners, warnings)


def arousal_of(scene: Scene) -> list[float] | None:
    """The arc's arousal at each sentence; None if no waypoint has one."""
    points = [(one.at, one.arousal) for one in scene.overall.emotion.arc if one.arousal is not None]
    if not points:
        return None
    values: list[float] = arc_values.plain(points, len(scene.sentences)).tolist()
    return values
