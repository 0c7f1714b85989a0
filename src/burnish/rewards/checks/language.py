"""Is the response written in the wanted language? Value 0 or 1, abstaining where unsure.

Detection is langdetect with a fixed seed, in a child process (its seed is a global of the
library, and its profiles take half a second to load).
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import cache
from typing import Annotated, Any

from msgspec import Meta

from burnish.boundary import PositiveShare, Seconds
from burnish.records import Response, Reward, Task
from burnish.rewards.checks.base import CheckConfig, IsolatedCheck
from burnish.rewards.checks.extract import short

DETECT = "burnish.rewards.checks.language:detect"
_CODES = (
    "af ar bg bn ca cs cy da de el en es et fa fi fr gu he hi hr hu id it ja kn ko lt lv mk ml mr "
    "ne nl no pa pl pt ro ru sk sl so sq sv sw ta te th tl tr uk ur vi zh-cn zh-tw"
)
LANGUAGES = frozenset(_CODES.split())
"""Codes that can be told apart. `zh` stands for both Chinese scripts."""
LanguageCode = Annotated[
    str, Meta(pattern=f"^({'|'.join(_CODES.split())}|zh)$", description="a code such as de or en")
]
LEAST_LETTERS = 20
"""Shorter texts are not judged."""
READ = 4000
"""Characters from the start of a text that are looked at."""


class LanguageConfig(CheckConfig, frozen=True, tag="language"):
    """The response is in `language` (an ISO 639-1 code): 1, in another: 0, unsure: no value."""

    language: LanguageCode = "en"
    """ISO 639-1 code, such as `en`."""
    confidence: PositiveShare = 0.7
    """Least probability of the detected language."""
    timeout_s: Seconds = 5.0
    """Seconds of computing for one response."""


class Language(IsolatedCheck[LanguageConfig]):
    """Detects the language in a child process."""

    child = DETECT

    async def score(self, task: Task, responses: Sequence[Response]) -> list[Reward]:
        outcomes = await self.isolated([{"text": r.text[:READ]} for r in responses])
        return [
            self._reward(response, outcome.value)
            if outcome.status == "ok"
            else self.undecided(outcome, "the language could not be detected")
            for response, outcome in zip(responses, outcomes, strict=True)
        ]

    def _reward(self, response: Response, guess: dict[str, Any]) -> Reward:
        config = self.config
        if guess["letters"] < LEAST_LETTERS:
            return self.abstained(
                f"{guess['letters']} letters are too few to tell a language: "
                f"{short(response.text)!r}"
            )
        saw = f"looks like '{guess['language']}' ({guess['probability']:.2f})"
        if guess["probability"] < config.confidence:
            return self.abstained(f"{saw}, below the confidence of {config.confidence:g}")
        value = float(is_language(guess["language"], config.language))
        return self.decided(value, f"{saw}; wanted '{config.language}'")


def is_language(found: str, wanted: str) -> bool:
    """True for equal codes; `zh` takes either script."""
    return found == wanted or (wanted == "zh" and found.startswith("zh"))


def detect(text: str) -> dict[str, Any]:
    """The likeliest language of a text, its probability and the letters seen. Runs in the child."""
    letters = sum(letter.isalpha() for letter in text)
    none = {"language": "", "probability": 0.0, "letters": letters}
    if not letters:
        return none
    from langdetect.lang_detect_exception import LangDetectException

    try:
        best = _detector()(text)[0]
    except LangDetectException:
        return none
    return {"language": best.lang, "probability": float(best.prob), "letters": letters}


def prepare_child() -> None:
    """Load the library and its profiles before the first job."""
    _detector()("A sentence in English, to load every profile once.")


@cache
def _detector() -> Any:
    from langdetect import DetectorFactory, detect_langs

    DetectorFactory.seed = 0
    return detect_langs
