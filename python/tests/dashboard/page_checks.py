"""What each page must show, whoever serves it: of the server they need the address only."""

from __future__ import annotations

from typing import TYPE_CHECKING
from urllib.parse import quote

from browsing import expect, overflow

if TYPE_CHECKING:
    from playwright.sync_api import Page


def quoted(name: str) -> str:
    """A name as it stands in an address."""
    return quote(name, safe="")


def open_runs(page: Page, url: str) -> None:
    """Open the page of all runs and wait until they are listed."""
    page.goto(url)
    expect(page.get_by_role("heading", name="Runs", level=1)).to_be_visible()
    page.locator(".runs tbody tr").first.wait_for()


def wait_until_drawn(page: Page) -> None:
    """Wait until every chart that can be seen has its first picture, if there is anything to draw."""
    expect(page.locator("figure[aria-busy=true]")).to_have_count(0)


def open_run(page: Page, url: str, run: str) -> None:
    """Open the page of a run and wait until its trials are listed, and all that could still move them is there."""
    page.goto(f"{url}#/run/{quoted(run)}")
    expect(page.get_by_role("heading", name=run, level=1)).to_be_visible()
    page.locator("#part-trials tbody tr").first.wait_for()
    # It listens once all is loaded.
    expect(page.locator("#link")).not_to_be_empty()
    wait_until_drawn(page)


def open_trial(page: Page, url: str, run: str, trial: str) -> None:
    """Open the page of a trial and wait until its units are there."""
    page.goto(f"{url}#/run/{quoted(run)}/trial/{quoted(trial)}")
    expect(page.get_by_role("heading", name=trial, level=1)).to_be_visible()
    page.get_by_role("region", name="Units", exact=True).wait_for()
    wait_until_drawn(page)


def open_comparison(page: Page, url: str, runs: list[str]) -> None:
    """Open the comparison of some runs and wait until their figures are there."""
    page.goto(f"{url}#/compare?{'&'.join(f'run={quoted(run)}' for run in runs)}")
    page.get_by_role("row", name="Best value").wait_for()
    wait_until_drawn(page)


def check_runs(page: Page, url: str, runs: list[str]) -> None:
    """All runs are listed, each with a link to its page."""
    open_runs(page, url)
    for run in runs:
        expect(page.get_by_role("link", name=run)).to_have_attribute("href", f"#/run/{quoted(run)}")
    assert overflow(page) == 0


def check_run(page: Page, url: str, run: str) -> None:
    """Every part of the page of a run has something to show."""
    open_run(page, url, run)
    for part in ("curves", "params", "trials", "gantt", "cluster", "events", "forecast", "commands"):
        expect(page.locator(f"#part-{part}")).to_be_visible()
    expect(page.locator("#part-cluster tbody tr").first).to_be_visible()
    expect(page.locator("#part-events li").first).to_be_visible()
    expect(page.locator("#part-curves .chart-text")).to_contain_text("up to epoch")
    assert overflow(page) == 0


def check_trial(page: Page, url: str, run: str, trial: str) -> None:
    """A trial has curves, params, a lineage and units."""
    open_trial(page, url, run, trial)
    for name in ("Learning curves", "Params", "Lineage", "What was asked of it", "Units", "Events and commands"):
        expect(page.get_by_role("heading", name=name, exact=True)).to_be_visible()
    assert overflow(page) == 0


def check_comparison(page: Page, url: str, runs: list[str]) -> None:
    """Runs are side by side, in charts and in a table."""
    open_comparison(page, url, runs)
    for run in runs:
        expect(page.get_by_role("columnheader", name=run)).to_be_visible()
    assert overflow(page) == 0
