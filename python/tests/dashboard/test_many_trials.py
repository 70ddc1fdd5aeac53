"""The page of a run with a thousand trials holds no more than it shows, and works while the run goes on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import page_checks
import pytest
from browsing import expect, shoot, wait_for_charts
from made_up_run import MadeUpRun
from made_up_server import Serve

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.slow


def test_a_thousand_trials(page: Page, serve: Serve) -> None:
    run = MadeUpRun("large", trials=1000, epochs=20, workers=8, share=0.5, failing=None)
    server = serve(run, charts=True)
    page_checks.open_run(page, server.url, "large")
    wait_for_charts(page)
    rows = page.locator("#part-trials tbody tr")
    expect(rows).to_have_count(50)
    expect(page.locator("#part-trials")).to_contain_text("Page 1 of 20")
    expect(page.locator("#part-curves .scatterlayer .trace")).to_have_count(9)
    assert page.evaluate("document.querySelectorAll('*').length") < 6000
    page.locator("#part-gantt").scroll_into_view_if_needed()
    expect(page.locator("#gantt-words")).to_contain_text("Zoom in for single units.")
    page.get_by_role("button", name="1 min").click()
    expect(page.locator("#gantt-words")).not_to_contain_text("Zoom in")
    for _ in range(3):
        server.step(run, 500)
    page.get_by_text(f"{run.done:,} of 160,000 units").wait_for()
    page.locator("#part-trials").get_by_role("button", name="Next").click()
    expect(page.locator("#part-trials")).to_contain_text("Page 2 of 20")
    page.get_by_label("Filter trials").fill("lr>0.05 optimizer=adam")
    kept = sum(params["lr"] > 0.05 and params["optimizer"] == "adam" for params in run.params)
    page.get_by_text(f"{kept} of 1,000 trials").wait_for()
    page.get_by_label("Select all trials that are listed").check()
    page.get_by_text(f"{kept} selected").first.wait_for()
    shoot(page, "run-large")
