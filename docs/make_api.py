"""Writes docs/api.md from the docstrings of everything public.

python docs/make_api.py
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "src"))

import burnish

PAGE = Path(__file__).with_name("api.md")
FUNCTIONS = (
    *("train", "train_async", "score", "judge", "generate", "evaluate", "compare"),
    *("align", "optimise_prompt", "load_run", "load_runs"),
)
OBJECTS = (
    *("Config", "Run", "Explained", "Judgement", "Generated", "Evaluated", "Compared"),
    "Aligned",
)
ROOMS = (
    "media",
    "policy",
    "rewards",
    "rewards.judges",
    "rewards.judges.evpv",
    "rewards.judges.atp_bench",
    "models.masked_diffusion",
    "models.long_speech",
    "speech",
    "lm",
    "tasks",
    "rollouts",
    "tools",
    "tools.search",
    "tools.spreadsheet",
    "models.siamesenorm",
    "models.visual",
    "models.visual_latent",
    "models.audio_tokenizer",
    "store",
    "bench",
    "training",
    "agents.march",
    "agents.ssp",
    "agents.trace2skill",
    "agents.policyalign",
    "agents.prompt",
    "engines",
    "config",
    "view",
)
HEAD = """# Python reference

Written by `python docs/make_api.py` from the docstrings; every example in it is run by the tests. \
How these are used together: [python.md](python.md).
"""


def page() -> str:
    """The whole page."""
    shown = set(FUNCTIONS) | set(OBJECTS)
    nouns = [name for name in burnish.__all__ if name not in shown]
    parts = [HEAD, "## Functions\n"]
    parts += [block(name, getattr(burnish, name)) for name in FUNCTIONS]
    parts.append("## Objects\n")
    parts += [block(name, getattr(burnish, name), members=True) for name in OBJECTS]
    parts.append("## Nouns\n\nThe records that everything shares; they need no torch.\n")
    parts += [block(name, getattr(burnish, name)) for name in nouns]
    parts.append("## Rooms\n\nThe parts, for your own loops and rewards.\n")
    parts += [room(name) for name in ROOMS]
    return "\n".join(parts).rstrip("\n") + "\n"


def block(name: str, value: Any, *, members: bool = False) -> str:
    """One name: how it is called, what it says of itself, its example, and its members."""
    lines = [f"### `burnish.{name}`\n"]
    if inspect.isroutine(value):
        lines.append(f"```python\n{signature(name, value)}\n```\n")
    lines.append(prose(value))
    if members:
        lines += [f"- `{n}`: {first_line(member)}" for n, member in own_members(value)]
        lines.append("")
    return "\n".join(lines)


def signature(name: str, value: Any) -> str:
    """A function's signature, one argument a line where it is long."""
    found = inspect.signature(value)
    text = plain(f"{name}{found}")
    if len(text) <= 90:
        return text
    inner = "".join(f"    {part},\n" for part in parameters(found))
    return f"{name}(\n{inner}) -> {found.return_annotation}"


def parameters(found: inspect.Signature) -> Iterator[str]:
    has_star = False
    for one in found.parameters.values():
        has_star = has_star or one.kind is one.VAR_POSITIONAL
        if one.kind is one.KEYWORD_ONLY and not has_star:
            has_star = True
            yield "*"
        yield plain(str(one))


def plain(text: str) -> str:
    """Annotations without their quotes."""
    return re.sub(r"(: |-> )'([^']*)'", r"\1\2", text)


def prose(value: Any) -> str:
    """A docstring with its examples as code."""
    lines: list[str] = []
    is_code = False
    for line in documented(value).splitlines():
        begins = line.lstrip().startswith(">>>")
        if begins and not is_code:
            lines.append("```python")
            is_code = True
        elif is_code and not line.strip():
            lines.append("```")
            is_code = False
        lines.append(line)
    return "\n".join([*lines, *(["```"] if is_code else []), ""])


def own_members(value: type) -> Iterator[tuple[str, Any]]:
    """Public methods and properties that have a docstring."""
    for base in reversed(value.__mro__):
        if base.__module__.startswith("burnish"):
            for name, member in vars(base).items():
                target = getattr(member, "__func__", member)
                is_shown = isinstance(target, property) or inspect.isfunction(target)
                if not name.startswith("_") and is_shown and inspect.getdoc(target):
                    yield name, target


def room(name: str) -> str:
    """The public names of a package, one line each."""
    package: ModuleType = importlib.import_module(f"burnish.{name}")
    lines = [f"### `burnish.{name}`\n", f"{first_line(package)}\n", "| name | |", "|---|---|"]
    for own in exported(package):
        value = getattr(package, own)
        said = first_line(value) if callable(value) else type(value).__name__
        lines.append(f"| `{own}` | {said.replace('|', chr(92) + '|')} |")
    return "\n".join([*lines, ""])


def exported(package: ModuleType) -> list[str]:
    """What a package exports: what it loads when it is asked for, and what its own files define."""
    lazy = {name for name in dir(package) if name not in vars(package)}
    own = {
        name
        for name, value in vars(package).items()
        if getattr(value, "__module__", "").startswith(package.__name__)
    }
    names = getattr(package, "__all__", None) or (lazy | own)
    return sorted(name for name in names if not name.startswith("_"))


def first_line(value: Any) -> str:
    text = documented(value).partition(">>>")[0]
    return text.split("\n\n")[0].replace("\n", " ").strip()


def documented(value: Any) -> str:
    """What an object says of itself; a record without words of its own shows its fields."""
    if not inspect.isclass(value):
        return inspect.getdoc(value) or ""
    own = vars(value).get("__doc__") or ""
    if own and not own.startswith(f"{value.__name__}("):
        return inspect.cleandoc(own)
    names = getattr(value, "__struct_fields__", None) or getattr(value, "_fields", None)
    names = names or [*getattr(value, "__dataclass_fields__", ())]
    names = names or [*getattr(value, "__members__", ())]
    return ", ".join(f"`{name}`" for name in names)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
