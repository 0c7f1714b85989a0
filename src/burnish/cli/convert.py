"""`burnish convert`: a causal model made into the start of a masked diffusion model."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from burnish.cli.console import emit_json, say
from burnish.cli.shared_options import AsJson, ModelName


def convert(
    model: ModelName,
    folder: Annotated[
        Path, typer.Argument(metavar="FOLDER", help="A new folder.", show_default=False)
    ],
    mask_token: Annotated[
        str,
        typer.Option(
            "--mask-token", metavar="TEXT", help="A token for the mask; chosen or added else."
        ),
    ] = "",
    prompt_sees: Annotated[
        Literal["all", "prompt"],
        typer.Option(
            "--prompt-sees",
            help="prompt: prompts do not read answers, so that decoding computes them once.",
        ),
    ] = "all",
    as_json: AsJson = False,
) -> int:
    """Make a causal model the start of a masked diffusion model.

    The weights stay; attention looks both ways and one token is the mask.
    The model writes nonsense until it is trained: train.kind=diffusion.

    \b
      burnish convert smollm2 models/smollm2-diffusion
      burnish convert runs/NAME models/mine --prompt-sees prompt
    """
    from burnish.api.needs import require_torch
    from burnish.store.manifest import is_ours, newest_weights

    require_torch("models in this process")
    from burnish.lm.diffusion.convert import convert as write
    from burnish.lm.folder import find_folder

    run = Path(model).expanduser()
    source = newest_weights(run) if is_ours(run) else find_folder(model)
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
