"""Make a virtual environment of the oldest or newest versions that `pyproject.toml` allows, or bare.

    python tests/environments/make_environment.py oldest .environments/oldest
    python tests/environments/make_environment.py bare .environments/bare

`oldest` pins every dependency of the extras in `EXTRAS` to its lower bound, `newest` pins nothing,
`bare` installs the package without extras. Torch is not chosen by pip: the one of `--torch`, a
site-packages folder (that of `.venv` by default), is linked into the environment and pinned, because
another one would be gigabytes, and maybe for another device.
"""

from __future__ import annotations

import argparse
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EXTRAS = ("torch", "embedded", "lora", "data", "plot", "query", "view", "serve")
"""What the suite's part for environments uses; reasoning-gym and the trackers are left out."""
TEST_TOOLS = ("pytest>=8", "hypothesis>=6.100")
TORCH = ("torch", "torchgen", "functorch", "torch-*.dist-info")
_BOUND = re.compile(r"(?P<name>[\w.-]+)(?P<extras>\[[^]]*\])?>=(?P<least>[\w.]+)")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=("oldest", "newest", "bare"))
    parser.add_argument("place", type=Path)
    default = next((ROOT / ".venv" / "lib").glob("python3*/site-packages"), None)
    parser.add_argument("--torch", type=Path, default=default, help="site-packages with torch")
    given = parser.parse_args()
    make(given.kind, given.place, given.torch)


def make(kind: str, place: Path, torch: Path | None) -> None:
    """Make the environment and write its versions to `versions.txt` in it."""
    subprocess.run([sys.executable, "-m", "venv", str(place)], check=True)
    python = place / "bin" / "python"
    wanted = f"{ROOT}[{','.join(EXTRAS)}]" if kind != "bare" else str(ROOT)
    pins = list(oldest()) if kind == "oldest" else []
    if kind != "bare":
        pins += link_torch(torch, next((place / "lib").glob("python3*/site-packages")))
    constraints = place / "constraints.txt"
    constraints.write_text("\n".join(pins) + "\n", encoding="utf-8")
    pip = [str(python), "-m", "pip", "--disable-pip-version-check"]
    subprocess.run(
        [*pip, "install", "--quiet", "-c", str(constraints), "-e", wanted, *TEST_TOOLS], check=True
    )
    found = subprocess.run([*pip, "freeze"], check=True, capture_output=True, text=True).stdout
    (place / "versions.txt").write_text(found, encoding="utf-8")


def oldest() -> Iterator[str]:
    """Each dependency pinned to its lower bound."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    lines = [*project["dependencies"], *(line for name in EXTRAS for line in extras[name])]
    for line in dict.fromkeys(lines):
        found = _BOUND.match(line)
        if found is not None and found["name"] != "torch":
            yield f"{found['name']}=={found['least']}"


def link_torch(source: Path | None, target: Path) -> list[str]:
    """Link torch into an environment; the pin that keeps pip from replacing it."""
    found = [one for name in TORCH for one in source.glob(name)] if source else []
    if not any(one.name == "torch" for one in found):
        raise SystemExit(
            f"no torch in {source}; give --torch SITE_PACKAGES of an environment with it"
        )
    for one in found:
        place = target / one.name
        if not place.exists():
            place.symlink_to(one.resolve())
    version = next(one.name for one in found if one.name.endswith(".dist-info"))
    return [f"torch=={version.removeprefix('torch-').removesuffix('.dist-info')}"]


if __name__ == "__main__":
    main()
