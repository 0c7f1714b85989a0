"""hibari: one neural voice of English, 24 kHz, with a rate; no pitch, no times.

    engine = HibariEngine()                 # needs pip install hibari-tts

Its noise is drawn by the line's seed, so the same line gives the same samples.
"""

from __future__ import annotations

from burnish.errors import UserError
from burnish.models.long_speech.engine import Capabilities, Line, Spoken


class HibariEngine:
    """The voice that ships in the package; others would be downloaded, which we never do."""

    name, version = "hibari", "1"
    capabilities = Capabilities(rate=True)
    sample_rate = 24_000
    voices = ("heart",)

    def __init__(self) -> None:
        try:
            from hibari import Hibari
        except ImportError as error:
            raise UserError(
                f"engine 'hibari' needs {error.name}: pip install hibari-tts onnxruntime"
            ) from None
        self._tts = Hibari()

    def speak(self, line: Line) -> Spoken:
        """The samples of a line."""
        return Spoken(self._tts(line.text, speed=line.manner.rate, seed=line.seed % 2**32))
