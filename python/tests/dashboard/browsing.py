"""A real browser for tests: Debian's chromium, driven by Playwright, and what every page must keep to."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

SCREENSHOTS = Path(__file__).resolve().parents[3] / "build" / "screenshots"
PATIENCE_MS = 180_000
# Tells the page's tests of everything that the policy refused.
_LISTEN = """
window.refused = [];
addEventListener("securitypolicyviolation", (event) =>
  window.refused.push(`${event.violatedDirective} ${event.blockedURI} ${event.sourceFile}`));
"""


def chromium() -> str | None:
    """Where the browser is, or None."""
    return os.environ.get("CEREBRO_CHROMIUM") or shutil.which("chromium") or shutil.which("chromium-browser")


def plotly_file() -> Path:
    """The library of charts, as the installed package brings it along."""
    plotly = pytest.importorskip("plotly", reason="plotly is not installed: it comes with the extra `dashboard`")
    return Path(plotly.__file__).parent / "package_data" / "plotly.min.js"


def expect(target: Any) -> Any:
    """Playwright's `expect`, which waits. It is looked up late: this file is imported where there is no Playwright."""
    from playwright.sync_api import expect as waiting_expect

    waiting_expect.set_options(timeout=PATIENCE_MS)
    return waiting_expect(target)


@contextmanager
def started_browser() -> Iterator[Browser]:
    """Start the browser; skip the test, with a line that says why, where there is none."""
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed: no browser tests")
    path = chromium()
    if path is None:
        reason = "chromium is not installed, so no page is tried in a browser: apt-get install chromium"
        if os.environ.get("CI") == "true" and os.environ.get("CEREBRO_NO_BROWSER") != "1":
            pytest.fail(f"{reason}; in CI these tests must run", pytrace=False)
        pytest.skip(reason)
    with sync_api.sync_playwright() as playwright:
        # Without a sandbox, which containers do not allow: it opens nothing but the pages of these tests.
        started = playwright.chromium.launch(
            executable_path=path, args=["--no-sandbox", "--disable-dev-shm-usage"], timeout=PATIENCE_MS
        )
        try:
            yield started
        finally:
            started.close()


@contextmanager
def opened_page(browser: Browser, width: int = 1280, theme: str = "light") -> Iterator[Page]:
    """Open an empty page; at its end no script may have failed, and the policy may have refused one known thing."""
    context = browser.new_context(
        viewport={"width": width, "height": 900}, color_scheme="dark" if theme == "dark" else "light"
    )
    context.set_default_timeout(PATIENCE_MS)
    context.add_init_script(_LISTEN)
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    try:
        yield page
        assert errors == []
        assert [line for line in page.evaluate("window.refused ?? []") if not _is_known(line)] == []
    finally:
        context.close()


def _is_known(refused: str) -> bool:
    """Plotly brings a map library along, which wants to add a style sheet of its own; no map is drawn here."""
    return refused.startswith("style-src-elem inline ") and refused.endswith("/plotly.min.js")


def wait_for_charts(page: Page) -> None:
    """Wait until the charts that can be seen are drawn."""
    page.locator(".plot .main-svg").first.wait_for()


def wait_for_frames(page: Page) -> None:
    """Wait until all that was to be drawn is drawn: for checks that something did not change."""
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")


def set_hidden(page: Page, hidden: bool) -> None:
    """Make a page believe that its tab is hidden, or is shown again: a headless browser counts every page as shown."""
    page.evaluate(
        """(hidden) => {
          Object.defineProperty(document, "hidden", { configurable: true, get: () => hidden });
          document.dispatchEvent(new Event("visibilitychange"));
        }""",
        hidden,
    )


def overflow(page: Page) -> int:
    """By how many pixels the page is wider than the window."""
    return int(page.evaluate("document.documentElement.scrollWidth - document.documentElement.clientWidth"))


def shoot(page: Page, name: str) -> None:
    """Keep a picture of the whole page."""
    SCREENSHOTS.mkdir(parents=True, exist_ok=True)
    size = page.viewport_size
    assert size is not None
    height = int(page.evaluate("document.documentElement.scrollHeight"))
    page.set_viewport_size({"width": size["width"], "height": min(height, 6000)})
    page.evaluate("() => new Promise((done) => setTimeout(done, 700))")
    page.screenshot(path=SCREENSHOTS / f"{name}.png")
    page.set_viewport_size(size)
