"""A viewer as a real process over real runs, and a browser that must never hear an error."""

from typing import TYPE_CHECKING

import pytest
from browser_page import FLAGS, WAIT_MS, Watched, find_chromium, serve
from browser_runs import make_results, make_runs

if TYPE_CHECKING:
    pass


@pytest.fixture(scope="session")
def chromium():
    pytest.importorskip("playwright", reason="browser tests need playwright: burnish[dev]")
    found = find_chromium()
    if found is None:
        pytest.skip("no Chromium here; install one or name it in BURNISH_CHROMIUM")
    return found


@pytest.fixture(scope="session")
def served(chromium, tmp_path_factory):
    """`burnish view` over trained, judged and hostile runs, on a free port."""
    folder = tmp_path_factory.mktemp("browsed")
    with serve(folder, make_runs(folder), make_results(folder / "results")) as found:
        yield found


# Not for the whole session: while playwright lives, its event loop counts as running in this
# thread, and tests of other folders could not start one of their own.
@pytest.fixture(scope="module")
def browser(chromium, served):
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=chromium, args=FLAGS, timeout=WAIT_MS)
        yield opened
        opened.close()


@pytest.fixture(scope="session")
def kept_cookies():
    """Empty until the first browser has opened the whole address; they serve every other too."""
    return []


@pytest.fixture(scope="module")
def cookies(browser, served, kept_cookies):
    """What a browser keeps once the whole address was opened."""
    if not kept_cookies:
        context = browser.new_context()
        context.set_default_timeout(WAIT_MS)
        context.new_page().goto(served.address)
        kept_cookies.append(context.storage_state())
        context.close()
    return kept_cookies[0]


@pytest.fixture(params=[1440])
def view(request, browser, served, cookies):
    """An empty page that has the token; nothing may be complained of, nothing asked for outside."""
    height = 900 if request.param > 600 else 844
    context = browser.new_context(
        viewport={"width": request.param, "height": height},
        color_scheme="light",
        storage_state=cookies,
    )
    watched = Watched(context.new_page(), served.base)
    yield watched
    context.close()
    assert watched.heard == []
