"""`burnish methods`: the shipped recipes, how each differs from GRPO, and where it is explained.

The page that explains a recipe is its card, `docs/methods/<recipe>.md`. Between the card's lines
`<!-- figures -->` and `<!-- /figures -->` a line that begins with `Effect:` says in one sentence
what the method did to a model.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec
import typer
from msgspec import NODEFAULT, Struct
from msgspec.structs import FieldInfo
from rich.table import Table
from rich.text import Text

from burnish.cli.console import emit_json, one_line, out, say
from burnish.cli.shared_options import AsJson
from burnish.config.recipes import PACKAGE, QUICK_START, RecipeCard, all_recipes, read_card
from burnish.errors import UserError, did_you_mean
from burnish.texts import shown_path

if TYPE_CHECKING:
    from burnish.policy.recipe import Recipe


BASELINE = "grpo"
NARROWEST = 11
"""Characters of the column of names, at least."""
FIGURES, END_OF_FIGURES = "<!-- figures -->", "<!-- /figures -->"
EFFECT = "Effect:"


class MethodCard(NamedTuple):
    """Where a method is explained."""

    path: Path
    effect: str
    """One sentence; empty where nothing has been measured yet."""


def methods(
    name: Annotated[
        str, typer.Argument(metavar="[NAME]", help="One method alone.", show_default=False)
    ] = "",
    as_json: AsJson = False,
) -> int:
    """List the shipped methods: what each is, how it differs from GRPO, and its paper.

    \b
      burnish methods
      burnish methods gd2po
    """
    known = _ordered(all_recipes())
    if name and name not in known:
        raise UserError(
            f"no method '{name}'; expected one of {', '.join(known)}.{did_you_mean(name, known)}"
        )
    base = recipe_of(read_card(known[BASELINE]).policy if BASELINE in known else {}, BASELINE)
    cards = [read_card(known[one]) for one in ([name] if name else known)]
    rows = [(card, differences(card, base), find_card(card.name)) for card in cards]
    if as_json:
        for card, differs, method in rows:
            pieces = recipe_of(card.policy, card.name)
            explained = {"card": method and method.path, "effect": method.effect if method else ""}
            emit_json(card._asdict() | explained | {"differs": differs, "policy": pieces})
        return 0
    width = max(NARROWEST, *(len(card.name) for card in cards))
    for card, differs, method in rows:
        _print_card(card, differs, method, width)
    say()
    one = name or "NAME"
    say(f"See what {name or 'one'} does before training: burnish try {one}.")
    say(f"Every setting: burnish train {one} --print-config.")
    return 0


def recipe_of(policy: dict[str, Any], name: str) -> Recipe:
    """A `[policy]` table with its defaults filled in."""
    from burnish.policy.recipe import Recipe

    try:
        return msgspec.convert(policy, Recipe)
    except (msgspec.ValidationError, ValueError) as error:
        raise UserError(f"recipe '{name}': policy: {error}") from error


def differences(card: RecipeCard, base: Recipe) -> dict[str, str]:
    """The components whose choice is not GRPO's, each as short text."""
    own = recipe_of(card.policy, card.name)
    chosen = {piece: getattr(own, piece) for piece in own.__struct_fields__}
    return {k: _short(value) for k, value in chosen.items() if value != getattr(base, k)}


def _ordered(recipes: dict[str, Path]) -> dict[str, Path]:
    """The quick start, what the others are compared with, and then the others."""
    first = [name for name in (QUICK_START, BASELINE) if name in recipes]
    return {name: recipes[name] for name in (*first, *recipes)}


def _short(value: Any) -> str:
    """`static high=0.28` for a piece: its kind and what is not default; else the value."""
    if isinstance(value, Struct):
        fields = msgspec.structs.fields(value)
        given = {f.name: getattr(value, f.name) for f in fields}
        head = given.pop("mode", None) or value.__struct_config__.tag
        usual = {f.name: _default(f) for f in fields}
        rest = [f"{k}={_short(v)}" for k, v in given.items() if v != usual[k]]
        return " ".join([str(head), *rest])
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}={_short(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        glue = " + " if any(isinstance(item, Struct) for item in value) else ","
        return glue.join(_short(item) for item in value) or "none"
    return str(value)


def _default(field: FieldInfo) -> Any:
    """The field's default; where there is none, something that equals no value."""
    return field.default if field.default_factory is NODEFAULT else field.default_factory()


def _print_card(
    card: RecipeCard, differs: dict[str, str], method: MethodCard | None, width: int
) -> None:
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 1))
    table.add_column(width=width, style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row(Text(one_line(card.name)), Text(one_line(card.description)))
    if differs:
        changed = "; ".join(f"{piece}: {text}" for piece, text in differs.items())
        table.add_row("", Text(changed, style="cyan"))
    elif card.name not in (BASELINE, QUICK_START):
        table.add_row("", Text("the components of GRPO", style="cyan"))
    if card.paper:
        table.add_row("", Text(card.paper, style="bright_black"))
    if method and method.effect:
        table.add_row("", Text(one_line(f"effect: {method.effect}")))
    if method:
        table.add_row("", Text(f"card: {shown_path(method.path)}", style="bright_black"))
    table.add_row("", Text(card.command, style="green"))
    out.print(table)


def card_folder() -> Path | None:
    """`burnish/_methods` of an installed package, or `docs/methods/` of a checkout."""
    folders = (PACKAGE / "_methods", PACKAGE.parents[1] / "docs" / "methods")
    return next((folder for folder in folders if folder.is_dir()), None)


def find_card(recipe: str) -> MethodCard | None:
    """The card of a recipe, where it has one."""
    folder = card_folder()
    path = folder / f"{recipe}.md" if folder else None
    if path is None or not path.is_file():
        return None
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"{path}: cannot read the method's card: {error}") from error
    return MethodCard(path, _effect(text))


def _effect(text: str) -> str:
    _, _, behind = text.partition(FIGURES)
    figures, closed, _ = behind.partition(END_OF_FIGURES)
    lines = figures.splitlines() if closed else []
    found = (line for line in lines if line.startswith(EFFECT))
    return next(found, EFFECT).removeprefix(EFFECT).strip()
