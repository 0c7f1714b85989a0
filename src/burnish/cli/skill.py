"""`burnish skill validate` and `burnish skill show`: packages that say how to judge."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import msgspec
from typer import Argument, Option

from burnish.arguments import as_word
from burnish.cli.console import complain, emit_json, one_line, say
from burnish.cli.drawing import print_rows
from burnish.cli.shared_options import AsJson

if TYPE_CHECKING:
    from burnish.rewards.judges.skill_rm.verifiers import Mode


Place = Annotated[
    str,
    Argument(
        metavar="FOLDER|ZIP|NAME", help="A skill folder, a .zip, or the name of a shipped skill."
    ),
]


def validate(place: Place, as_json: AsJson = False) -> int:
    """List everything that is wrong with a judge's skill, one line each.

    \b
      burnish skill validate my_skill/
      burnish skill validate my_skill.zip --json
    """
    from burnish.rewards.judges.skill_rm.package import check_skill, skill_place
    from burnish.rewards.judges.skill_rm.verifiers import Mode

    package, problems = check_skill(skill_place(place))
    if as_json:
        told = {"skill": package and package.name, "hash": package and package.hash}
        emit_json({"place": place, "is_valid": package is not None, **told, "problems": problems})
        return 2 if problems else 0
    if package is None:
        complain("\n".join(f"{place}: {one_line(line)}" for line in problems))
        if len(problems) > 1:
            complain(f"{len(problems)} problems in '{place}'.")
        return 2
    fair = len(package.seen_in(Mode.FAIR).resources)
    say(f"{package.name}: valid, {len(package.resources)} resources ({fair} in fair mode)")
    say(f"sha-256 {package.hash}")
    return 0


def show(
    place: Annotated[
        str, Argument(metavar="[FOLDER|ZIP|NAME]", help="A skill; all shipped ones when left out.")
    ] = "",
    mode: Annotated[
        str, Option(help="What a judge sees: baseline, fair or operational.")
    ] = "operational",
    as_json: AsJson = False,
) -> int:
    """Show a skill as a judge would see it: procedure, resources, who may see what, hash.

    \b
      burnish skill show
      burnish skill show code
      burnish skill show my_skill.zip --mode fair
    """
    from burnish.rewards.judges.skill_rm.verifiers import Mode

    as_word("--mode", mode, [str(one) for one in Mode])
    if not place:
        from burnish.rewards.judges.skill_rm.package import load_skill, shipped_skills

        for name in shipped_skills():
            skill = load_skill(name)
            if as_json:
                row = {"name": name, "description": skill.description, "hash": skill.hash}
                emit_json(row | {"resources": [entry.id for entry in skill.resources]})
                continue
            say(name, "bold")
            say(f"  {' '.join(skill.description.split())}")
            say(f"  {', '.join(entry.id for entry in skill.resources)}", "bright_black")
        if not as_json:
            say()
            say(
                "See one whole: burnish skill show NAME. Judge with it: burnish judge FILE --with skill_rm --model MODEL."
            )
    else:
        _show_skill(place, Mode(mode), as_json=as_json)
    return 0


def _show_skill(place: str, mode: Mode, *, as_json: bool) -> None:
    from burnish.rewards.judges.skill_rm.package import load_skill

    whole = load_skill(place)
    seen = whole.seen_in(mode)
    if as_json:
        fields = {"name": seen.name, "description": seen.description, "hash": seen.hash}
        rows = msgspec.to_builtins(seen.resources)
        emit_json({**fields, "mode": mode, "procedure": seen.procedure, "resources": rows})
        return
    say(f"{seen.name}: {' '.join(seen.description.split())}", "bold")
    say(f"sha-256 {seen.hash}", "bright_black")
    say()
    if mode == "baseline":
        say("baseline: the judge sees neither procedure nor resources.")
        return
    say(seen.procedure)
    say()
    rows = (
        (
            entry.id,
            entry.type,
            entry.leakage_level,
            entry.allowed_setting.removeprefix("skill_"),
            f"{entry.decision_impact}, {entry.hard_or_soft}",
            entry.cost,
            entry.description,
        )
        for entry in seen.resources
    )
    titles = ("resource", "type", "gives away", "from mode", "impact", "cost", "what")
    print_rows(titles, rows, None)
    hidden = len(whole.resources) - len(seen.resources)
    if hidden:
        say(f"{hidden} resource(s) are not visible in {mode} mode.", "yellow")
