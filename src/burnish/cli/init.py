"""`burnish init`: files to start from, one set for each kind of training in `starters/`."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from burnish.cli.console import emit_json, say
from burnish.cli.shared_options import AsJson
from burnish.config.recipes import read_card
from burnish.errors import UserError, did_you_mean

STARTERS = Path(__file__).resolve().parent / "starters"
RECIPE = "my.toml"


def starters() -> dict[str, Path]:
    """Folder of each set of files by its kind; a new kind is a new folder with a `my.toml`."""
    return {place.parent.name: place.parent for place in sorted(STARTERS.glob(f"*/{RECIPE}"))}


def init(
    kind: Annotated[
        str,
        Argument(
            metavar="[KIND]",
            help="policy, tools, sft, dpo, reward_model, distil or pretrain; --list says what each is.",
            show_default=False,
            autocompletion=lambda: list(starters()),
        ),
    ] = "policy",
    to: Annotated[
        Path, Option(metavar="FOLDER", help="Where to write; made where missing.")
    ] = Path(),
    list_: Annotated[bool, Option("--list", help="List the kinds and their files.")] = False,
    as_json: AsJson = False,
) -> int:
    """Write a commented recipe, task and reward file to start from.

    What is written runs at once; nothing is ever overwritten.

    \b
      burnish init --list
      burnish init                        policy optimisation, in this folder
      burnish init dpo --to preferences
    """
    known = starters()
    if list_:
        _list(known, as_json)
        return 0
    if kind not in known:
        raise UserError(
            f"there are no files for '{kind}'; expected {', '.join(known)}.{did_you_mean(kind, known)}"
        )
    written = _write(known[kind], to)
    if as_json:
        emit_json({"kind": kind, "files": [str(path) for path in written]})
        return 0
    for path in written:
        say(f"wrote {path}")
    recipe = to / RECIPE
    say(f"try it (seconds): burnish train {recipe} model.path=tiny steps=3")
    say(f"then train:       burnish train {recipe}")
    return 0


def _write(source: Path, folder: Path) -> list[Path]:
    """Copy all files of a set, or none where one of them is there already."""
    files = [place for place in sorted(source.iterdir()) if place.is_file()]
    there = [str(folder / file.name) for file in files if (folder / file.name).exists()]
    if there:
        raise UserError(
            f"{', '.join(there)} exist{'s' * (len(there) == 1)} already and nothing was written; "
            "give another folder with --to FOLDER"
        )
    folder.mkdir(parents=True, exist_ok=True)
    for file in files:
        # Opened for new files only: one that another process made in between stays.
        with file.open("rb") as old, (folder / file.name).open("xb") as new:
            shutil.copyfileobj(old, new)
    return [folder / file.name for file in files]


def _list(known: dict[str, Path], as_json: bool) -> None:
    for kind, folder in known.items():
        files = sorted(place.name for place in folder.iterdir() if place.is_file())
        about = read_card(folder / RECIPE).description.partition(" burnish try ")[0]
        about = about.partition(" burnish train ")[0]
        if as_json:
            emit_json({"kind": kind, "about": about, "files": files})
            continue
        say(kind, style="bold")
        say(f"  {about}")
        say(f"  {', '.join(files)}", style="bright_black")
