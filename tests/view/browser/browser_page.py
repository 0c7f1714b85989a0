"""A page of the viewer in a real browser, and everything that must never happen while it is open."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import quote

if TYPE_CHECKING:
    from playwright.sync_api import Page

NAMES = ("chromium", "chromium-browser", "google-chrome")
FLAGS = [
    "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run",
    "--disable-background-networking", "--disable-component-update", "--disable-sync",
]  # fmt: skip
READY = "#page:not([aria-busy]) h1"
WAIT_MS = 300_000


def find_chromium() -> str | None:
    """The browser named by BURNISH_CHROMIUM, or the first one that this machine has."""
    given = os.environ.get("BURNISH_CHROMIUM")
    if given:
        return given if Path(given).is_file() else None
    return next((found for name in NAMES if (found := shutil.which(name))), None)


def at(run: str, page: str = "") -> str:
    """The address of a page of a run."""
    return f"/run/{quote(run, safe='')}{page}"


class Served(NamedTuple):
    """A viewer that is running."""

    address: str
    """With the token."""
    base: str
    runs: Path


class Watched:
    """A page, its address, and the complaints that were heard from it."""

    def __init__(self, page: Page, base: str) -> None:
        self.page = page
        self.base = base
        self.refusals_expected = False
        """True where a test asks for what is not there: the browser logs each 4xx itself."""
        self.heard: list[str] = []
        page.set_default_timeout(WAIT_MS)
        page.on("console", self._said)
        page.on("pageerror", lambda error: self.heard.append(f"page error: {error}"))
        page.on("dialog", self._dialog)
        page.on("request", self._request)

    def open(self, path: str) -> Page:
        """Go to a page and wait until it is drawn."""
        self.page.goto(self.base + path)
        return self.ready()

    def visit(self, path: str) -> Page:
        """Go to a page within the viewer, as a link does: faster than loading everything anew."""
        if not self.page.url.startswith(self.base):
            return self.open(path)
        script = "to => { history.pushState(null, '', to); dispatchEvent(new PopStateEvent('popstate')); }"
        self.page.evaluate(script, path)
        return self.ready()

    def ready(self) -> Page:
        """Wait until the page at the present address is drawn."""
        self.page.wait_for_selector(READY)
        return self.page

    def follow(self, selector: str) -> Page:
        """Click a link inside the viewer and wait for the page behind it."""
        before = self.page.url
        self.page.click(selector)
        self.page.wait_for_url(lambda url: url != before)
        return self.ready()

    def press(self, key: str, *, moves: bool = False) -> Page:
        """Press a key; `moves` says that another page comes."""
        before = self.page.url
        self.page.keyboard.press(key)
        if moves:
            self.page.wait_for_url(lambda url: url != before)
            self.ready()
        return self.page

    def until(self, script: str, expected: object = True) -> None:
        """Wait until a script gives this; the page's own rules allow no script that waits in it."""
        end = time.monotonic() + WAIT_MS / 1000
        while (found := self.page.evaluate(script)) != expected:
            assert time.monotonic() < end, f"{script}: {found!r}, expected {expected!r}"
            self.page.wait_for_timeout(50)

    def counted(self, text: str) -> None:
        """Wait until the page says how many answers there are."""
        self.until("(document.querySelector('#page [role=status]') || {}).textContent", text)

    @property
    def path(self) -> str:
        """The address without the origin."""
        return self.page.url.removeprefix(self.base)

    def texts(self, selector: str) -> list[str]:
        return self.page.locator(selector).all_inner_texts()

    def _said(self, message: Any) -> None:
        if message.type not in ("error", "warning"):
            return
        if self.refusals_expected and "Failed to load resource" in message.text:
            return
        self.heard.append(f"console {message.type}: {message.text}")

    def _dialog(self, dialog: Any) -> None:
        self.heard.append(f"dialog: {dialog.message}")
        dialog.dismiss()

    def _request(self, request: Any) -> None:
        if not request.url.startswith((self.base + "/", "data:")):
            self.heard.append(f"request outside: {request.url}")


@contextmanager
def serve(folder: Path, runs: Path, results: Path) -> Iterator[Served]:
    """`burnish view` in a process of its own, on a free port; its log must hold no traceback."""
    words = [sys.executable, "-m", "burnish", "view", "--runs", str(runs)]
    environment = {**os.environ, "BURNISH_CACHE": str(folder / "cache")}
    log = (folder / "view.log").open("w")
    with (
        log,
        subprocess.Popen(
            [*words, "--results", str(results), "--no-browser"],
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
            env=environment,
        ) as server,
    ):
        try:
            assert server.stdout is not None
            lines = iter(server.stdout.readline, "")
            address = next((line.strip() for line in lines if line.startswith("http")), "")
            base = re.match(r"http://127\.0\.0\.1:\d+", address)
            assert base is not None, (folder / "view.log").read_text()
            yield Served(address, base[0], runs)
        finally:
            server.send_signal(signal.SIGINT)
            try:
                server.wait(timeout=120)
            except subprocess.TimeoutExpired:
                server.kill()
    assert "Traceback" not in (folder / "view.log").read_text()
