"""Files of latents: z (T, D) in float16 with the rates and the bottleneck they belong to.

    write_latents(Path("talk.npz"), latents)        # or .safetensors
    read_latents("talk.npz").z

What is no such file, or says of itself what its latents are not, is refused in one line.
"""

from __future__ import annotations

import math
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from burnish.arguments import shown
from burnish.errors import UserError, first_line
from burnish.store.durable import store_errors, whole_file

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

KINDS = (".npz", ".safetensors")
MOST_SAMPLES, MOST_RATE = 1 << 50, 10_000_000
EXPECTED = "expected what burnish audio encode writes"


class Latents(NamedTuple):
    """Latents of one sound as a file keeps them."""

    z: NDArray[np.float16]
    """(T, D)."""
    sr: int
    frame_rate: float
    bottleneck: str
    samples: int
    """Of the sound at `sr`; the last latent may reach beyond it."""
    tokenizer: str = ""
    """Fingerprint of the one that made them; empty: not known."""

    @property
    def seconds(self) -> float:
        return self.samples / self.sr


def read_latents(source: str | Path) -> Latents:
    """Read and check a file that `burnish audio encode` wrote."""
    import numpy as np

    file = Path(source).expanduser()
    if file.suffix.lower() not in KINDS:
        raise UserError(f"{file}: expected a file of latents that ends in {' or '.join(KINDS)}")
    if not file.is_file():
        raise UserError(f"{file}: no such file")
    try:
        found = _npz(file) if file.suffix.lower() == ".npz" else _safetensors(file)
    except Exception as error:  # boundary: numpy, zip and safetensors meet whatever the file holds
        # numpy's own words are "sr is not a file in the archive".
        said = first_line(error).strip("'\"")
        what = f"it has no {said.split()[0]}" if isinstance(error, KeyError) else first_line(error)
        raise UserError(f"{file}: is no file of latents ({what}); {EXPECTED}") from None
    z = found.z
    if not np.issubdtype(z.dtype, np.floating) or z.ndim != 2 or not z.size:
        raise UserError(
            f"{file}: z is {z.dtype} of shape {z.shape}; expected floats (T, D), at least one frame"
        )
    with np.errstate(over="ignore"):
        is_finite = bool(np.isfinite(z.astype(np.float32)).all())
    if not is_finite:
        raise UserError(f"{file}: z holds NaN or infinity; expected finite latents")
    from burnish.models.audio_tokenizer.modeling_audio_tokenizer import LARGEST_INPUT

    if (largest := float(np.abs(z).max())) > LARGEST_INPUT:
        raise UserError(
            f"{file}: z holds {largest:g}, expected latents up to {LARGEST_INPUT:g}. Encode the sound again"
        )
    is_possible = (
        0 < found.samples <= MOST_SAMPLES and 0 < found.frame_rate <= found.sr <= MOST_RATE
    )
    if not is_possible:
        raise UserError(
            f"{file}: says {shown(found.samples)} samples at {shown(found.sr)} Hz and {found.frame_rate} "
            "frames a second; expected numbers above 0, and at most a frame a sample"
        )
    frames = math.ceil(round(found.samples * found.frame_rate / found.sr, 6))
    if frames != len(z):
        raise UserError(
            f"{file}: has {len(z):,} latents, and says {found.samples:,} samples, which are "
            f"{frames:,}; {EXPECTED}"
        )
    return found


def write_latents(target: Path, found: Latents) -> None:
    """Write a file whole or not at all."""
    import numpy as np

    about = {key: value for key, value in found._asdict().items() if key != "z"}
    with store_errors(f"write {target}", target):
        target.parent.mkdir(parents=True, exist_ok=True)
    with whole_file(target) as draft:
        if target.suffix.lower() == ".npz":
            with draft.open("wb") as file:
                np.savez(file, z=found.z, **about)
        else:
            from safetensors.numpy import save_file

            save_file({"z": found.z}, draft, {key: str(value) for key, value in about.items()})


def _npz(file: Path) -> Latents:
    import numpy as np

    with zipfile.ZipFile(file), np.load(file, allow_pickle=False) as content:
        return _latents(np.asarray(content["z"]), content)


def _safetensors(file: Path) -> Latents:
    from safetensors import SafetensorError, safe_open

    try:
        with safe_open(str(file), framework="np") as content:
            about, z = content.metadata() or {}, content.get_tensor("z")
    except SafetensorError as error:
        raise ValueError(str(error)) from None
    return _latents(z, about)


def _latents(z: Any, about: Any) -> Latents:
    rate, frame_rate = int(about["sr"]), float(about["frame_rate"])
    made_by = str(about["tokenizer"]) if "tokenizer" in about else ""
    return Latents(z, rate, frame_rate, str(about["bottleneck"]), int(about["samples"]), made_by)
