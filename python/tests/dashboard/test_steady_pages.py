"""Nothing on a page moves by itself once it is there: a row that moves away from under the pointer loses its click."""

from __future__ import annotations

from typing import TYPE_CHECKING

import page_checks
import pytest
from browsing import opened_page, wait_for_frames
from made_up_run import RUN, MadeUpRun
from made_up_server import MadeUpServer, Serve

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.slow
WIDTHS = (1280, 420)
PARTS = ("curves", "params", "trials", "gantt", "cluster", "events", "forecast", "commands")
# Keeps what the browser itself counts as moved without a reason, if it went up or down. Who stands out changes.
WATCH = """
window.moved = [];
new PerformanceObserver((found) => {
  for (const { sources } of found.getEntries())
    for (const { node, previousRect: before, currentRect: after } of sources)
      if (Math.abs(before.top - after.top) > 1 && !node?.closest?.(".legend-list"))
        window.moved.push(`${node?.id || node?.className || node?.nodeName}: ${before.top} to ${after.top}`);
}).observe({ type: "layout-shift", buffered: true });
"""


def look_at_all(page: Page) -> None:
    """Bring each part of the page of a run into view, until what is drawn only then is drawn."""
    for part in PARTS:
        page.locator(f"#part-{part}").scroll_into_view_if_needed()
        page_checks.wait_until_drawn(page)
        wait_for_frames(page)


@pytest.mark.parametrize("width", WIDTHS)
def test_the_page_of_a_run(browser: Browser, charts: MadeUpServer, run: MadeUpRun, width: int) -> None:
    with opened_page(browser, width) as page:
        page.add_init_script(WATCH)
        page_checks.open_run(page, charts.url, RUN)
        page.evaluate("window.moved.length = 0")
        look_at_all(page)
        page.evaluate("scrollTo(0, 0)")
        for _ in range(4):
            charts.step(run, 3)
            wait_for_frames(page)
        assert page.evaluate("window.moved") == []


@pytest.mark.parametrize("width", WIDTHS)
def test_a_run_whose_first_epochs_come(browser: Browser, serve: Serve, width: int) -> None:
    run = MadeUpRun("new", share=0.0, failing=None)
    server = serve(run, charts=True)
    with opened_page(browser, width) as page:
        page.add_init_script(WATCH)
        page_checks.open_run(page, server.url, run.name)
        page.evaluate("window.moved.length = 0")
        while run.done < len(run.units) // 2:
            server.step(run, 10)
            wait_for_frames(page)
        page_checks.wait_until_drawn(page)
        assert page.evaluate("window.moved") == []
