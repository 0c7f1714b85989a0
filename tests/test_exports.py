"""Every name that a package says it exports can be imported."""

import importlib
import pkgutil
import re
from pathlib import Path

import pytest

import burnish
from burnish.api import launch

PACKAGES = [
    "burnish",
    *(m.name for m in pkgutil.walk_packages(burnish.__path__, "burnish.") if m.ispkg),
]


@pytest.mark.parametrize("name", [name for name in PACKAGES if not name.endswith(".inside")])
def test_every_export_is_there(name: str) -> None:
    package = importlib.import_module(name)
    missing = [one for one in getattr(package, "__all__", ()) if not hasattr(package, one)]
    assert missing == []
    with pytest.raises(AttributeError, match="no_such_name"):
        package.no_such_name  # noqa: B018


def test_no_room_reaches_for_the_command_line() -> None:
    root = Path(burnish.__file__).parent
    imports = re.compile(r"(from|import) burnish\.cli|import_module\(.*burnish\.cli")
    found = [
        str(file.relative_to(root))
        for file in root.rglob("*.py")
        if "cli" not in file.relative_to(root).parts and imports.search(file.read_text())
    ]
    # The package's surface hands the calls the progress that they show; `python -m` begins it.
    assert sorted(found) == ["__init__.py", "__main__.py"]


def test_training_shows_progress_with_what_the_surface_gives() -> None:
    assert burnish.train is not None
    assert launch.progress is not None
