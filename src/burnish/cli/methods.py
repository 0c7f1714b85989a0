"""`burnish methods`: the shipped recipes, one line each; with a name, the page that teaches it.

The page that explains a recipe is its card, `docs/methods/<recipe>.md`. Between the card's lines
`<!-- figures -->` and `<!-- /figures -->` a line that begins with `Effect:` says in one sentence
what the method did to a model.
"""

from __future__ import annotations

import inspect
import re
import textwrap
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, ClassVar, NamedTuple

import msgspec
from msgspec import NODEFAULT, Struct
from rich.text import Text
from typer import Argument

from burnish.cli.console import emit_json, one_line, out, say
from burnish.cli.shared_options import AsJson
from burnish.config.recipes import PACKAGE, QUICK_START, RecipeCard, all_recipes, read_card
from burnish.errors import UserError, did_you_mean
from burnish.texts import read_text, shown_path

if TYPE_CHECKING:
    from burnish.policy.recipe import Recipe


BASELINE = "grpo"
COLUMNS = 80
"""Characters of a line of the list."""
LINES = 2
"""Lines that a method takes, about."""
FIGURES, END_OF_FIGURES = "<!-- figures -->", "<!-- /figures -->"
EFFECT = "Effect:"


class MethodCard(NamedTuple):
    """Where a method is explained."""

    path: Path
    effect: str
    """One sentence; empty where nothing has been measured yet."""


def methods(
    name: Annotated[str, Argument(metavar="[NAME]", help="The page of one method.")] = "",
    as_json: AsJson = False,
) -> int:
    """List the shipped methods, one line each; with a name, the page that teaches it.

    \b
      burnish methods
      burnish methods gd2po
    """
    known = _ordered(all_recipes())
    folder = card_folder()
    paths = sorted(folder.glob("*.md")) if folder else []
    others = {path.stem: path for path in paths if path.stem not in known}
    if name and name not in known and name not in others:
        hint = did_you_mean(name, [*known, *others])
        raise UserError(
            f"no method '{name}'; expected one of {', '.join([*known, *others])}.{hint}"
        )
    if name in others:
        _print_card(name, others[name], as_json=as_json)
        return 0
    base = recipe_of(read_card(known[BASELINE]).policy if BASELINE in known else {}, BASELINE)
    cards = [read_card(known[one]) for one in ([name] if name else known)]
    if as_json:
        for card in cards:
            method = find_card(card.name)
            pieces, differs = recipe_of(card.policy, card.name), differences(card, base)
            explained = {"card": method and method.path, "effect": method.effect if method else ""}
            emit_json(card._asdict() | explained | {"differs": differs, "policy": pieces})
        return 0
    if name:
        _print_page(cards[0], base)
        return 0
    width = max(len(card.name) for card in cards)
    for card in cards:
        room = COLUMNS - width - 2
        # The description less a title that repeats the name: `Dr.GRPO: no division ...`.
        title, mark, rest = card.description.partition(": ")
        is_name = re.sub(r"\W|_", "", title).lower() == card.name.replace("_", "")
        text = one_line(shortened(rest if mark and is_name else card.description, LINES * room))
        first, *more = textwrap.wrap(text, room) or [""]
        out.print(Text.assemble((card.name.ljust(width), "bold"), "  ", first), soft_wrap=True)
        for line in more:
            out.print(Text(" " * (width + 2) + line), soft_wrap=True)
    if others:
        say()
        say("Without a recipe, by a command or a setting of their own:")
    width = max((len(one) for one in others), default=0)
    for one, path in others.items():
        text = one_line(shortened(_title(path), COLUMNS - width - 2))
        out.print(Text.assemble((one.ljust(width), "bold"), "  ", text), soft_wrap=True)
    say()
    say("What one is and when to use it: burnish methods NAME")
    say("See what it does before training: burnish try NAME")
    say("Train it: burnish train NAME")
    return 0


def _title(path: Path) -> str:
    """The first line of a card without its mark and its name: `# DIR: a term ...`."""
    title = path.read_text(encoding="utf-8").partition("\n")[0].lstrip("# ").strip()
    return title.partition(": ")[2] or title


def _print_card(name: str, path: Path, *, as_json: bool) -> None:
    text = path.read_text(encoding="utf-8")
    if as_json:
        emit_json(
            {"name": name, "description": _title(path), "card": path, "effect": _effect(text)}
        )
        return
    _print_markdown(text)
    say(f"  card: {shown_path(path)}")


def _print_markdown(text: str) -> None:
    """A card for the terminal: commands on one line; what is too wide for its column is folded."""
    from rich.markdown import CodeBlock, Markdown, TableElement
    from rich.table import Table

    class Command(CodeBlock):
        def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
            code = str(self.text).rstrip()
            yield Text(textwrap.indent(code, "  "), no_wrap=True, overflow="ignore", style="green")

    class Folded(TableElement):
        def __rich_console__(self, console: Any, options: Any) -> Iterator[Any]:
            for part in super().__rich_console__(console, options):
                for column in part.columns if isinstance(part, Table) else ():
                    column.overflow = "fold"
                yield part

    class Card(Markdown):
        elements: ClassVar = {
            **Markdown.elements,
            **{"table_open": Folded, "fence": Command, "code_block": Command},
        }

    # A command that is longer than the line goes on behind its end: so it can be copied.
    out.print(Card(text), crop=False)


def shortened(text: str, limit: int) -> str:
    """A description up to the end of one of its parts: the last that fits in a line, or the first."""
    plain = text.rstrip(".")
    if len(plain) <= limit:
        return plain
    ends = [found.start() for found in re.finditer(r"[,;.]( |$)|:( |$)", plain)]
    fitting = [end for end in ends if limit // 2 < end <= limit]
    longer = [end for end in ends if end > limit]
    return plain[: fitting[-1]] if fitting else plain[: longer[0]] if longer else plain


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
    first = [name for name in (QUICK_START, BASELINE) if name in recipes]
    return {name: recipes[name] for name in (*first, *recipes)}


def _short(value: Any) -> str:
    """`static high=0.28` for a piece: its kind and what is not default; else the value."""
    if isinstance(value, Struct):
        fields = msgspec.structs.fields(value)
        given = {f.name: getattr(value, f.name) for f in fields}
        head = given.pop("mode", None) or value.__struct_config__.tag
        usual = {
            f.name: (f.default if f.default_factory is NODEFAULT else f.default_factory())
            for f in fields
        }
        rest = [f"{k}={_short(v)}" for k, v in given.items() if v != usual[k]]
        return " ".join([str(head), *rest])
    if isinstance(value, dict):
        return "{" + ", ".join(f"{key}={_short(item)}" for key, item in value.items()) + "}"
    if isinstance(value, list | tuple):
        glue = " + " if any(isinstance(item, Struct) for item in value) else ","
        return glue.join(_short(item) for item in value) or "none"
    return str(value)


def _print_page(card: RecipeCard, base: Recipe) -> None:
    method = find_card(card.name)
    if method is not None:
        _print_markdown(method.path.read_text(encoding="utf-8"))
    else:
        out.print(Text(one_line(f"{card.name}: {card.description}"), style="bold"))
        if card.paper:
            say(f"Paper: {card.paper}")
        _print_components(card, base)
        _heading("Measured effect")
        say("None is written down: it has no card with figures of a real model.")
    if card.kind == "policy":
        _heading("Components that differ from GRPO's")
        differs = differences(card, base)
        for slot, text in differs.items():
            say(f"  {slot}: {text}")
        if not differs:
            say("  none")
    _heading("Run it now")
    width = len(f"burnish train {card.name} --print-config")
    for command, meaning in (
        (f"burnish try {card.name}", "what the model would see and earn"),
        *([(card.trial, "a trial on a random model")] if card.trial else []),
        (card.command, "the method"),
        (f"burnish train {card.name} --print-config", "every setting and its origin"),
    ):
        out.print(Text.assemble("  ", (command.ljust(width), "green"), f"  {meaning}"))
    say(f"  recipe: {shown_path(card.path)}")
    if method is not None:
        say(f"  card: {shown_path(method.path)}")


def _print_components(card: RecipeCard, base: Recipe) -> None:
    import sys

    from burnish.config.reference import field_texts

    own = recipe_of(card.policy, card.name)
    for slot in differences(card, base):
        value = getattr(own, slot)
        for one in value if isinstance(value, tuple) else (value,):
            if not isinstance(one, Struct):
                say(f"policy.{slot} is {one}.")
                continue
            _heading(f"policy.{slot}: {_short(one)}")
            if not isinstance(one, type(getattr(base, slot))):  # GRPO's own with other settings
                kind = type(one)
                for text in (sys.modules[kind.__module__].__doc__, vars(kind).get("__doc__")):
                    if text:
                        say(inspect.cleandoc(text))
                        say()
            texts = field_texts(type(one))
            for key, text in texts.items():
                say(f"  {key} = {_short(getattr(one, key))}: {text}")


def _heading(text: str) -> None:
    say()
    say(text, style="bold")


def card_folder() -> Path | None:
    """`burnish/_methods` of an installed package, or `docs/methods/` of a checkout."""
    folders = (PACKAGE / "_methods", PACKAGE.parents[1] / "docs" / "methods")
    return next((folder for folder in folders if folder.is_dir()), None)


def find_card(recipe: str) -> MethodCard | None:
    """The card of a recipe: of its name, or one whose first commands train it as it is."""
    folder = card_folder()
    own = folder / f"{recipe}.md" if folder else None
    if own is not None and own.is_file():
        return MethodCard(own, _effect(read_text(own)))
    for path in sorted(folder.glob("*.md")) if folder else ():
        text = read_text(path)
        commands = text.partition("```")[2].partition("```")[0].splitlines()
        plain = [line.split()[:3] for line in commands if "policy." not in line]
        if ["burnish", "train", recipe] in plain:
            return MethodCard(path, _effect(text))
    return None


def _effect(text: str) -> str:
    _, _, behind = text.partition(FIGURES)
    figures, closed, _ = behind.partition(END_OF_FIGURES)
    lines = figures.splitlines() if closed else []
    found = (line for line in lines if line.startswith(EFFECT))
    return next(found, EFFECT).removeprefix(EFFECT).strip()
