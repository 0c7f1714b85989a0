"""Every name that a package says it exports can be imported."""

import importlib
import pkgutil

import pytest

import burnish

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
