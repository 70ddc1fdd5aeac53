"""A page that is open follows its run, without being built anew, and finds back after a gap."""

from __future__ import annotations

from typing import TYPE_CHECKING

import made_up_answers as answers
import page_checks
import pytest
from browsing import expect
from made_up_run import RUN, MadeUpRun
from made_up_server import MadeUpServer

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.slow


def open_live(page: Page, server: MadeUpServer) -> None:
    """Open the page of the run and wait until it hears of news."""
    page_checks.open_run(page, server.url, RUN)
    expect(page.locator("#link")).to_have_text("Live")


def units(page: Page, run: MadeUpRun) -> None:
    """Wait until the page says how many units are done."""
    page.get_by_text(f"{run.done} of {len(run.units)} units").wait_for()


def test_news_change_what_is_there(page: Page, server: MadeUpServer, run: MadeUpRun) -> None:
    open_live(page, server)
    page.evaluate("document.querySelectorAll('#part-trials tbody tr, .card').forEach((node) => { node.kept = true; })")
    page.get_by_label("Filter trials").focus()
    asked = len(server.asked)
    server.step(run, 60)
    units(page, run)
    most = max(epoch for _, _, epoch, _ in run.points)
    expect(page.locator("#part-curves .chart-text")).to_contain_text(f"up to epoch {most}")
    kept = "[...document.querySelectorAll('#part-trials tbody tr, .card')].every((node) => node.kept)"
    assert page.evaluate(kept)
    assert page.evaluate("document.activeElement.type") == "search"
    assert [path for path in server.asked[asked:] if path.startswith("api/") and "gantt" not in path] == []


def test_a_run_ends_before_the_eyes(page: Page, server: MadeUpServer, run: MadeUpRun) -> None:
    open_live(page, server)
    server.step(run, len(run.units))
    expect(page.locator(".head .pill")).to_have_text("finished")
    expect(page.locator("#link")).to_have_text("Not running")
    page.get_by_text("The run is over", exact=True).wait_for()
    expect(page.get_by_role("button", name="Pause…")).to_be_hidden()


def test_a_run_that_was_not_there_at_first_is_shown_when_it_comes(page: Page, server: MadeUpServer) -> None:
    missing = {"status": 404, "json": {"error": "there is no such run yet"}}
    page.route(f"**/api/runs/{RUN}", lambda route: route.fulfill(**missing), times=1)
    page.goto(f"{server.url}#/run/{RUN}")
    page.locator("#part-trials tbody tr").first.wait_for()
    expect(page.locator("#link")).to_have_text("Live")


def test_what_the_stream_left_out_is_asked_for(page: Page, server: MadeUpServer, run: MadeUpRun) -> None:
    open_live(page, server)
    run.advance(40)
    server.step(run, 5)
    units(page, run)
    for trial in range(16):
        row = page.locator("#part-trials tr", has=page.get_by_role("link", name=f"t{trial}", exact=True))
        expect(row).to_contain_text(f"{max(run.own_epochs[trial])} / 8")


def test_another_log_under_the_same_name_is_loaded_anew(page: Page, server: MadeUpServer, run: MadeUpRun) -> None:
    open_live(page, server)
    other = MadeUpRun(RUN, trials=4, failing=None, seed=11, share=0.3)
    other.generation = "g2"
    server.runs[RUN] = other
    server.step(other, 1)
    page.locator("#part-trials").get_by_text("4 trials").wait_for()
    units(page, other)


def test_a_lost_connection_is_said_and_found_again(page: Page, server: MadeUpServer, run: MadeUpRun) -> None:
    open_live(page, server)
    server.refusing = True
    server.drop_listeners()
    expect(page.locator("#link")).to_have_text("Connection lost, trying again")
    run.advance(30)
    server.refusing = False
    expect(page.locator("#link")).to_have_text("Live")
    units(page, run)


def test_a_trial_follows_too(page: Page, server: MadeUpServer, run: MadeUpRun) -> None:
    page_checks.open_trial(page, server.url, RUN, "t8")
    expect(page.locator("#link")).to_have_text("Live")
    server.step(run, len(run.units))
    expect(page.locator(".head .pill")).to_have_text("finished")
    page.get_by_text("Epoch 8 of 8").wait_for()
    page.get_by_text("40 units, ").wait_for()


def test_a_new_best_is_read_out(page: Page, server: MadeUpServer, run: MadeUpRun) -> None:
    open_live(page, server)
    before = run.best
    while run.best == before:
        server.step(run, 10)
    assert run.best is not None
    expect(page.get_by_role("status").filter(has_text=f"New best: t{run.best[1]}")).to_be_attached()


def test_a_new_forecast_is_shown(page: Page, server: MadeUpServer, run: MadeUpRun) -> None:
    open_live(page, server)
    page.get_by_text("No forecast yet", exact=True).wait_for()
    run.forecast_made = answers.made_forecast(run)
    server.step(run, 1)
    page.locator("#part-forecast").get_by_role("row", name="stop t0").wait_for()
    page.locator("#part-forecast").get_by_text("between").wait_for()


def test_a_log_that_cannot_be_read_further_is_said(page: Page, server: MadeUpServer, run: MadeUpRun) -> None:
    open_live(page, server)
    server.tell(RUN, "gone", {"reason": "The log of this run was deleted."})
    expect(page.get_by_role("alert")).to_have_text("The log of this run was deleted.")
