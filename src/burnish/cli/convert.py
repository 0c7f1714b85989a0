"""`burnish convert`: a causal model made into the start of a model of another kind."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from typer import Argument, Option

from burnish.cli.console import emit_json, say
from burnish.cli.shared_options import AsJson, LocalModelName


def convert(
    model: LocalModelName,
    folder: Annotated[Path, Argument(metavar="FOLDER", help="A new folder.")],
    to: Annotated[
        Literal["diffusion", "visual"],
        Option(help="A masked diffusion model, or one that sees images."),
    ] = "diffusion",
    mask_token: Annotated[
        str, Option(metavar="TEXT", help="A token for the mask; chosen or added else.")
    ] = "",
    prompt_sees: Annotated[
        Literal["all", "prompt"],
        Option(help="prompt: prompts do not read answers, so that decoding computes them once."),
    ] = "all",
    encoder: Annotated[
        str,
        Option(
            metavar="NAME|FILE",
            help="With --to visual: efficientnet-lite0, a file of its weights, or tiny (random).",
        ),
    ] = "efficientnet-lite0",
    image_size: Annotated[int, Option(metavar="PIXELS", help="With --to visual: of a side.")] = 224,
    as_json: AsJson = False,
) -> int:
    """Make a causal model the start of a masked diffusion model, or of one that sees images.

    diffusion: the weights stay; attention looks both ways and one token is the mask.
    The model writes nonsense until it is trained: train.kind=diffusion.
    visual: a frozen image encoder and an untrained projector before the model, which
    sees nothing until it is trained: burnish train visual.

    \b
      burnish convert smollm2 models/smollm2-diffusion
      burnish convert runs/NAME models/mine --prompt-sees prompt
      burnish convert runs/NAME models/eyes --to visual --image-size 320
    """
    from burnish.api.needs import require_torch
    from burnish.store.manifest import is_ours, newest_weights

    require_torch("models in this process")
    from burnish.lm.diffusion.convert import convert as write
    from burnish.lm.folder import find_folder

    run = Path(model).expanduser()
    source = newest_weights(run) if is_ours(run) else find_folder(model)
    if to == "visual":
        return _with_eyes(source, folder.expanduser(), encoder, image_size, as_json)
    found = write(source, folder.expanduser(), mask_token=mask_token, prompt_sees=prompt_sees)
    mask = found.mask
    if as_json:
        emit_json(
            {
                "folder": str(found.folder),
                "mask_token": mask.text,
                "mask_token_id": mask.id,
                "is_new_token": mask.is_new,
                "prompt_sees": found.prompt_sees,
            }
        )
        return 0
    kind = "a new token" if mask.is_new else "a token that no text has"
    say(f"{found.folder}: mask token {mask.text} ({mask.id}), {kind}")
    say(f"next: burnish train diffusion model.path={found.folder}")
    return 0


def _with_eyes(source: Path, folder: Path, encoder: str, image_size: int, as_json: bool) -> int:
    from burnish.models.visual import make_visual
    from burnish.models.visual.encoder import ENCODERS, LITE0

    file = None if encoder in ENCODERS else encoder
    name = LITE0 if file else encoder
    make_visual(folder, source, encoder=name, encoder_file=file, image_size=image_size)
    tokens = (image_size // 32) ** 2
    if as_json:
        emit_json({"folder": str(folder), "encoder": name, "image_tokens": tokens})
        return 0
    say(f"{folder}: {name} at {image_size} pixels, {tokens} tokens an image")
    say(f"next: burnish train visual model.path={folder}")
    return 0
