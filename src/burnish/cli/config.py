"""`burnish config`: what each key of a config means, from the schema."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

from typer import Argument

from burnish.cli.completion import complete_keys
from burnish.cli.console import emit_json, say
from burnish.cli.drawing import print_rows
from burnish.cli.shared_options import AsJson

if TYPE_CHECKING:
    from burnish.config.reference import Key, Section


def config(
    key: Annotated[
        str,
        Argument(
            metavar="[KEY]",
            help="A key (optimiser.learning_rate) or a table (policy.).",
            autocompletion=complete_keys,
        ),
    ] = "",
    as_json: AsJson = False,
) -> int:
    """Say what a config key means: its type, default and bounds, and what it goes with.

    \b
      burnish config                            the tables
      burnish config policy.                    the keys of one
      burnish config policy.advantage           a slot and its kinds
      burnish config optimiser.learning_rate    one key
    """
    from burnish.config.reference import find, find_sections, refuse

    name = key.partition("=")[0].strip()
    keys = [] if name.endswith(".") else find(name)
    tables = find_sections(name)
    if not keys and not tables:
        raise refuse(name)
    if as_json:
        found = [*keys, *(one for section in tables for one in section.keys)]
        for one in found:
            emit_json(one._asdict())
        return 0
    for one in keys:
        say(one.key, style="bold")
        say(f"  {one.meaning}")
        say(f"  type     {one.type}")
        say(f"  default  {one.default or 'none: it must be given'}")
        if one.kinds:
            table = one.key.rpartition(".")[0]
            say(f"  with     {table}.{one.tag} = {' or '.join(one.kinds)}")
    for section in tables:
        if len(tables) > 1:
            say()
            say(section.meaning, style="bold")
        _print_section(section)
    if not name:
        say(
            "One table: burnish config policy.    One key: burnish config steps    All: docs/config.md"
        )
    return 0


def _print_section(section: Section) -> None:
    if section.kinds:
        say()
        say(f"kinds ({section.path}.{section.tag}=...)")
        rows = []
        for kind, text in section.kinds.items():
            also = [name for name, own in section.aliases.items() if own == kind]
            rows.append((", ".join([kind, *also]), text))
        print_rows(("", ""), rows)
    if section.keys:
        say()
        say(f"keys of {section.path or 'a config'}")
        head = f"{section.path}." if section.path else ""
        print_rows(("", ""), ((x.key.removeprefix(head), _described(x)) for x in section.keys))


def _described(key: Key) -> str:
    default = f" Default {key.default}." if key.default else " Must be given."
    kinds = f" Of {', '.join(key.kinds)}." if key.kinds else ""
    return f"{key.meaning}{'' if key.elsewhere else default}{kinds}"
