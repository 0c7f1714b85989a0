"""`burnish methods`: the shipped recipes, and how each differs from GRPO."""

from __future__ import annotations

from typing import Any

import msgspec
from rich.table import Table
from rich.text import Text

from burnish.cli.console import emit_json, out, say
from burnish.cli.recipes import QUICK_START, RecipeCard, all_recipes, read_card
from burnish.errors import UserError
from burnish.policy.recipe import Recipe

PIECES = tuple(field.name for field in msgspec.structs.fields(Recipe))


def list_methods(*, as_json: bool) -> int:
    """Print the table of shipped recipes."""
    cards = [read_card(path) for path in all_recipes().values()]
    base = pieces_of(next((card.policy for card in cards if card.name == "grpo"), {}), "grpo")
    rows = [(card, differences(card, base)) for card in cards]
    if as_json:
        for card, differs in rows:
            emit_json(card._asdict() | {"differs": differs, "policy": pieces_of_card(card)})
        return 0
    for card, differs in rows:
        _print_card(card, differs)
    say()
    say("See what one does before training: burnish try NAME. Every setting: --print-config.")
    return 0


def pieces_of_card(card: RecipeCard) -> dict[str, Any]:
    """All nine pieces of a recipe, defaults included."""
    return pieces_of(card.policy, card.name)


def pieces_of(policy: dict[str, Any], name: str) -> dict[str, Any]:
    """A `[policy]` table with its defaults filled in."""
    try:
        recipe = msgspec.convert(policy, Recipe)
    except (msgspec.ValidationError, ValueError) as error:
        raise UserError(f"recipe '{name}': policy: {error}") from error
    pieces: dict[str, Any] = msgspec.to_builtins(recipe)
    return pieces


def differences(card: RecipeCard, base: dict[str, Any]) -> dict[str, str]:
    """The pieces whose choice is not GRPO's, each as short text."""
    own = pieces_of_card(card)
    return {piece: _short(own[piece]) for piece in PIECES if own[piece] != base[piece]}


def _short(value: Any) -> str:
    """`static low=0.2 high=0.28` for a piece; its value for a plain setting."""
    if isinstance(value, dict):
        head = [str(value[key]) for key in ("kind", "mode") if key in value]
        rest = [f"{k}={_short(v)}" for k, v in value.items() if k not in ("kind", "mode") and v]
        return " ".join([*head, *rest])
    if isinstance(value, list | tuple):
        return " + ".join(_short(item) for item in value) or "none"
    return str(value)


def _print_card(card: RecipeCard, differs: dict[str, str]) -> None:
    table = Table(box=None, pad_edge=False, show_header=False, padding=(0, 1))
    table.add_column(width=11, style="bold", no_wrap=True)
    table.add_column(overflow="fold")
    table.add_row(card.name, Text(card.description))
    if differs:
        changed = "; ".join(f"{piece}: {text}" for piece, text in differs.items())
        table.add_row("", Text(changed, style="cyan"))
    elif card.name not in ("grpo", QUICK_START):
        table.add_row("", Text("the pieces of GRPO", style="cyan"))
    if card.paper:
        table.add_row("", Text(card.paper, style="bright_black"))
    table.add_row("", Text(card.command, style="green"))
    out.print(table)
