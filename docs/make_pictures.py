"""Pictures of the viewer's real pages for these docs, made from runs that are really trained.

    python docs/make_pictures.py                    train two small runs, then take the pictures
    python docs/make_pictures.py --runs FOLDER      take them from the runs of an earlier time

Two runs of the embedded model on small sums (some minutes each on two cores), a tiny
reward model that learns from pairs, and one toy run with a planted length reward for the audit. Needs playwright, Pillow and a Chromium (BURNISH_CHROMIUM).
"""

from __future__ import annotations

import argparse
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

ROOT = Path(__file__).resolve().parents[1]
PICTURES = ROOT / "docs" / "pictures"
MOST_BYTES = 150_000
COLOURS = 64
FLAGS = ["--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--no-first-run"]
READY = "#page:not([aria-busy]) h1"
RUNS = {"sums-seed-1": "2e-5", "sums-seed-2": "1e-5"}
"""Names and learning rates."""
FLAWED = "paid-by-length"
PAIRED = "reward-model"

RECIPE = """
steps = 12

[model]
path = "smollm2"

[task]
kind = "arithmetic"
level = 1
held_out_size = 24

[[rewards]]
kind = "numeric"
name = "correct"

[[rewards]]
kind = "length"
name = "brief"
unit = "characters"
max = 4
edge = 30
weight = 0.25

[rollout]
prompts = 4
samples = 6
max_tokens = 12

[optimiser]
warmup_steps = 2

[evaluation]
prompts = 24
every = 6
part = "correct"

[checkpoint]
keep = 1
"""

if TYPE_CHECKING:
    from playwright.sync_api import Browser


class Shot(NamedTuple):
    """One picture: its file, its page, and how the page is looked at."""

    name: str
    path: str
    width: int = 1440
    height: int = 860
    theme: str = "light"
    press: str = ""
    """Keys to press before the picture is taken."""


SHOTS = (
    Shot("runs", "/", height=420),
    Shot("overview", "/run/sums-seed-1", height=740),
    Shot("step", "/run/sums-seed-1/step?n=6", height=640),
    Shot("group", "/run/sums-seed-1/group?step=6&key=6.0", height=760),
    Shot("answer", "/run/sums-seed-1/sample?id=6/train/4", height=760, press="2"),
    Shot("samples", "/run/sums-seed-1/samples?sort=reward&split=train", height=640),
    Shot("pairs", f"/run/{PAIRED}/pairs", height=640),
    Shot("audit", f"/run/{FLAWED}/audit", height=1100),
    Shot("compare", "/compare?a=sums-seed-1&b=sums-seed-2", height=1100),
    Shot("dark", "/run/sums-seed-1", height=480, theme="dark"),
    Shot("phone", "/run/sums-seed-1/step?n=6", width=390, height=844),
)


def main(words: Sequence[str] | None = None) -> int:
    """Make the runs where there are none, and take every picture."""
    parser = argparse.ArgumentParser(prog="make_pictures.py", description=__doc__)
    parser.add_argument("--runs", type=Path)
    asked = parser.parse_args(words)
    with tempfile.TemporaryDirectory() as scratch:
        runs = (asked.runs or Path(scratch) / "runs").resolve()
        make_runs(runs)
        PICTURES.mkdir(exist_ok=True)
        with serving(runs, Path(scratch)) as address:
            take(address, report_of(runs, Path(scratch)))
    return 0


def make_runs(folder: Path) -> None:
    """Train what is not there yet."""
    folder.mkdir(parents=True, exist_ok=True)
    recipe = folder / "brief.toml"
    recipe.write_text(RECIPE, encoding="utf-8")
    for seed, (name, rate) in enumerate(RUNS.items(), 1):
        if not (folder / name).is_dir():
            words = [f"run.name={name}", f"run.seed={seed}", f"optimiser.learning_rate={rate}"]
            burnish("train", recipe.name, *words, "--quiet", "--runs", ".", folder=folder)
    if not (folder / PAIRED).is_dir():
        words = [f"run.name={PAIRED}", "model.path=tiny", "steps=40", "train.batch=16"]
        words += ["optimiser.learning_rate=3e-3", "evaluation.prompts=64"]
        burnish("train", "reward_model", *words, "--quiet", "--runs", ".", folder=folder)
    if not (folder / FLAWED).is_dir():
        sys.path.insert(0, str(ROOT))
        from lab.audit.hacks import train

        train(folder / FLAWED, "length", 0).close()


def burnish(*words: str, folder: Path) -> None:
    """Run one command of this package in a folder."""
    subprocess.run([sys.executable, "-m", "burnish", *words], check=True, cwd=folder)


def report_of(runs: Path, scratch: Path) -> str:
    """The address of a report file of the first run."""
    path = scratch / "report.html"
    burnish("report", "sums-seed-1", "--runs", ".", "--out", str(path), folder=runs)
    return path.as_uri()


@contextmanager
def serving(runs: Path, scratch: Path) -> Iterator[str]:
    """A viewer over the runs; its address with the token."""
    words = ["view", "--runs", ".", "--results", str(scratch / "none"), "--no-browser"]
    with subprocess.Popen(
        [sys.executable, "-m", "burnish", *words],
        cwd=runs,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        env={**os.environ, "BURNISH_CACHE": str(scratch / "cache")},
    ) as server:
        try:
            lines = iter(server.stdout.readline, "") if server.stdout else iter(())
            yield next(line.strip() for line in lines if line.startswith("http"))
        finally:
            server.send_signal(signal.SIGINT)


def take(address: str, report: str) -> None:
    """Every picture of the viewer, and the one of the report."""
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=chromium(), args=FLAGS)
        for shot in SHOTS:
            _take(browser, shot, address)
        page = browser.new_page(viewport={"width": 1440, "height": 1100})
        page.goto(report)
        _save(page.screenshot(), PICTURES / "report.png")
        browser.close()


def chromium() -> str | None:
    """The browser to use; None is the one that playwright brought."""
    names = ("chromium", "chromium-browser", "google-chrome")
    found = next((path for name in names if (path := shutil.which(name))), None)
    return os.environ.get("BURNISH_CHROMIUM") or found


def _take(browser: Browser, shot: Shot, address: str) -> None:
    origin = address.partition("/?")[0]
    page = browser.new_page(
        viewport={"width": shot.width, "height": shot.height},
        color_scheme="dark" if shot.theme == "dark" else "light",
    )
    page.goto(address)
    page.goto(origin + shot.path)
    page.wait_for_selector(READY, timeout=120_000)
    for key in shot.press:
        page.keyboard.press(key)
    page.wait_for_timeout(700)  # charts are drawn once their size is known
    _save(page.screenshot(), PICTURES / f"{shot.name}.png")
    page.close()


def _save(png: bytes, path: Path) -> None:
    """With few colours: pages are flat, and a repository keeps every byte for ever."""
    import io

    from PIL import Image

    picture = Image.open(io.BytesIO(png)).convert("RGB")
    picture.quantize(COLOURS, dither=Image.Dither.NONE).save(path, optimize=True)
    size = path.stat().st_size
    if size > MOST_BYTES:
        raise ValueError(f"{path.name} has {size} bytes; expected at most {MOST_BYTES}")


if __name__ == "__main__":
    sys.exit(main())
