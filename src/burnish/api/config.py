"""`burnish.Config`: a run's settings as one typed object, the Python spelling of a recipe file."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, Self

from burnish.api.settings import as_settings
from burnish.arguments import as_path, as_text
from burnish.config import render, rooted, schema
from burnish.config.given import PYTHON
from burnish.config.loading import from_value
from burnish.config.paths import with_files
from burnish.config.recipes import IN_PYTHON, Asked, change, resolve
from burnish.config.resolve import to_plain
from burnish.memory import ROWS, kept_files, kept_paths

A_RECIPE = "the name of a recipe or a .toml file"


class Config(schema.Config, frozen=True, dict=True):
    """Everything a run depends on: a typed object that can be built, changed, printed and trained.

    >>> config = Config.load("tiny", "steps=5")
    >>> config = config.replace(optimiser={"learning_rate": 1e-4})
    >>> config.steps, config.optimiser.learning_rate
    (5, 0.0001)
    >>> "learning_rate = 0.0001  # Python" in str(config)
    True

    `burnish.train(config)` trains it; `config.save("mine.toml")` writes the recipe file that says the
    same.
    """

    @classmethod
    def load(cls, recipe: str | Path = "", *words: str, **settings: Any) -> Self:
        """The config of a recipe (a shipped name or a file), with words and settings over it.

        Words are `key=value` as on the command line; settings are what `burnish.train` takes:
        `model`, `data`, `rewards` and Python values by their keys, with dicts for tables.

        >>> Config.load("grpo", "steps=5", rollout={"samples": 4}).rollout.samples
        4
        """
        named = [str(as_path("recipe", recipe, A_RECIPE))] if recipe != "" else []
        words = tuple(as_text("words", word) for word in words)
        return cls.from_asked(resolve([*named, *words], as_settings(settings), PYTHON))

    @classmethod
    def from_asked(cls, asked: Asked) -> Self:
        """The config of a recipe; it remembers the file and where each value came from."""
        value = asked.resolved.value
        config = cls(**{name: getattr(value, name) for name in value.__struct_fields__})
        config.__dict__["asked"] = asked
        return config

    @property
    def asked(self) -> Asked:
        """The recipe behind it, with the origin of each value."""
        known = self.__dict__.get("asked")
        if known is not None:
            return known  # type: ignore[no-any-return]
        # Built in Python: no file, and relative paths start at the working folder.
        own = {name: getattr(self, name) for name in self.__struct_fields__}
        return Asked(Path(IN_PYTHON), from_value(schema.Config(**own)))

    def replace(self, **settings: Any) -> Self:
        """The same config with some settings changed; a dict changes the keys that it holds.

        >>> Config.load("sft").replace(train={"batch": 4}).train.batch
        4
        """
        return type(self).from_asked(change(self.asked, as_settings(settings)))

    def toml(self) -> str:
        """The config as TOML, with the origin of each value beside it.

        >>> Config.load("tiny").toml().splitlines()[0].startswith("steps = 20  # ")
        True
        """
        return render(self.asked.resolved)

    def save(self, path: str | Path) -> Path:
        """Write it as a recipe file for `burnish train`, with its paths made absolute.

        Rows in memory are written to `data/` beside it; functions in memory keep their names, which
        only this process knows.
        """
        asked, file = self.asked, as_path("path", path)
        rows = [one for one in kept_paths(to_plain(asked.resolved.value)) if one.endswith(ROWS)]
        for place, content in kept_files(rows, file.parent.absolute()):
            place.parent.mkdir(parents=True, exist_ok=True)
            place.write_bytes(content)
        value = with_files(rooted(asked.resolved.value, asked.root), file.parent.absolute())
        text = render(dataclasses.replace(asked.resolved, value=value))
        file.write_text(f"# burnish train {file}\n{text}", encoding="utf-8")
        return file

    def __str__(self) -> str:
        return self.toml()

    def __repr__(self) -> str:
        kind = self.train.__struct_config__.tag
        return f"<burnish config {self.asked.recipe.stem}: {kind}, {self.steps} steps>"
