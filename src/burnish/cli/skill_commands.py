"""`burnish skill ...`: the commands and their help; what they do is imported when they are called."""

from __future__ import annotations

from typing import Annotated

import typer

from burnish.cli.run_options import AsJson

skill_app = typer.Typer(
    no_args_is_help=True,
    rich_markup_mode="rich",
    help="Judging skills: folders or zips that say how a family of tasks is judged.",
)

Place = Annotated[
    str,
    typer.Argument(
        metavar="FOLDER|ZIP|NAME",
        help="A skill folder, a .zip, or the name of a shipped skill.",
        show_default=False,
    ),
]


@skill_app.command()
def validate(place: Place, as_json: AsJson = False) -> int:
    """List everything that is wrong with a skill, one line each.

    \b
      burnish skill validate my_skill/
      burnish skill validate my_skill.zip --json
    """
    from burnish.cli.skill import validate_skill

    return validate_skill(place, as_json=as_json)


@skill_app.command()
def show(
    place: Annotated[
        str,
        typer.Argument(
            metavar="[FOLDER|ZIP|NAME]",
            help="A skill; all shipped ones when left out.",
            show_default=False,
        ),
    ] = "",
    mode: Annotated[
        str, typer.Option("--mode", help="What a judge sees: baseline, fair or operational.")
    ] = "operational",
    as_json: AsJson = False,
) -> int:
    """Show a skill as a judge would see it: procedure, resources, who may see what, hash.

    \b
      burnish skill show
      burnish skill show code
      burnish skill show my_skill.zip --mode fair
    """
    from burnish.cli.skill import show_skill

    return show_skill(place, mode, as_json=as_json)
