"""Write `docs/config.md`: every config key with its type, default and meaning.

python docs/make_config.py
"""

from __future__ import annotations

from pathlib import Path

from burnish.config.reference import Key, Section, sections

PAGE = Path(__file__).with_name("config.md")
HEAD = """# Every config key

```
burnish config                           # the tables
burnish config optimiser.learning_rate   # one key
burnish train grpo --print-config        # every value of a recipe, and where it comes from
```

A key is written the same way everywhere: `optimiser.learning_rate=2e-6` on the command line,
`[optimiser]` and `learning_rate = 2e-6` in a recipe file, `optimiser={"learning_rate": 2e-6}` in
Python. `N` is the position of a table in its list, from 0. "none" stands for an absent value.

Where a table has kinds, a bare word names one: `policy.advantage=raw` is short for
`policy.advantage.kind=raw`, `policy.auxiliary=kl` for a list of that one, `rewards=mine.py:brief`
for a function of your own. Keys that only some kinds have say which. This page is written by
`python docs/make_config.py` from the schema; a test compares the two.
"""


def page() -> str:
    """The whole page."""
    return "\n".join([HEAD, *map(block, sections())]).rstrip("\n") + "\n"


def block(section: Section) -> str:
    """One table of the config."""
    lines = [f"## `{section.path}`\n" if section.path else "## Top level\n", section.meaning, ""]
    if section.kinds:
        names = {kind: [] for kind in section.kinds}
        for name, kind in section.aliases.items():
            names[kind].append(f"`{name}`")
        lines += [f"| `{section.tag}` | what it is |", "|---|---|"]
        for kind, text in section.kinds.items():
            also = f" (also {', '.join(names[kind])})" if names[kind] else ""
            lines.append(f"| `{kind}`{also} | {cell(text)} |")
        lines.append("")
    if section.keys:
        lines += ["| key | type | default | meaning |", "|---|---|---|---|"]
        lines += [row(section, key) for key in section.keys]
    return "\n".join([*lines, ""])


def row(section: Section, key: Key) -> str:
    """One key."""
    name = key.key.removeprefix(f"{section.path}.") if section.path else key.key
    kinds = f" Of {', '.join(f'`{kind}`' for kind in key.kinds)}." if key.kinds else ""
    link = f" See [`{key.elsewhere}`](#{anchor(key.elsewhere)})." if key.elsewhere else ""
    default = f"`{key.default}`" if key.default else "must be given"
    return f"| `{name}` | {cell(key.type)} | {cell(default)} | {cell(key.meaning)}{kinds}{link} |"


def anchor(path: str) -> str:
    """The link that a heading gets."""
    return path.replace(".", "").lower()


def cell(text: str) -> str:
    return text.replace("|", "\\|")


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
