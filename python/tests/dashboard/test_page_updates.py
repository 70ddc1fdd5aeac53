"""A page that is open follows its run, without being built anew, and finds back after a gap."""

from __future__ import annotations

from typing import TYPE_CHECKING

import made_up_answers as answers
import page_checks
import pytest
from browsing import PATIENCE_MS, expect, set_hidden, wait_for_frames
from made_up_run import RUN, MadeUpRun
from made_up_server import MadeUpServer

if TYPE_CHECKING:
    from playwright.sync_api import APIResponse, Browser, Page, Response, Route

pytestmark = pytest.mark.slow


def open_live(page: Page, server: MadeUpServer) -> None:
    """Open the page of the run, and wait until it hears of news and has asked once more how the run is."""
    answered: list[Response] = []

    def is_second(response: Response) -> bool:
        if response.url.endswith(f"/api/runs/{RUN}"):
            answered.append(response)
        return len(answered) == 2

    with page.expect_response(is_second):
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
    page.locator("#part-gantt").scroll_into_view_if_needed()
    chart = page.locator("#gantt-words")
    expect(chart).to_contain_text(f": {run.done} units")
    server.refusing = True
    server.drop_listeners()
    expect(page.locator("#link")).to_have_text("Connection lost, trying again")
    run.advance(30)
    server.refusing = False
    expect(page.locator("#link")).to_have_text("Live")
    units(page, run)
    expect(chart).to_contain_text(f": {run.done} units")
    run.advance(len(run.units))
    server.drop_listeners()
    expect(page.locator(".head .pill")).to_have_text("finished")
    expect(page.locator("#link")).to_have_text("Not running")
    units(page, run)
    expect(chart).to_contain_text(f": {len(run.units)} units")


def test_a_driver_that_fell_silent_meanwhile_is_said(page: Page, server: MadeUpServer, run: MadeUpRun) -> None:
    open_live(page, server)
    run.state = run.driver = "silent"  # which is no event, so the version stays
    server.drop_listeners()
    expect(page.locator(".head .pill")).to_have_text("silent")
    expect(page.get_by_role("alert")).to_contain_text("no sign of life")


def test_hidden_tabs_leave_connections_for_others(page: Page, server: MadeUpServer, run: MadeUpRun) -> None:
    """A browser has six connections for all pages of a server, and a page that listens holds one."""
    others = [page.context.new_page() for _ in range(6)]
    for tab in (page, *others[:-1]):
        open_live(tab, server)
        set_hidden(tab, True)
    seventh = others[-1]
    open_live(seventh, server)
    server.step(run, 60)
    units(seventh, run)
    expect(page.get_by_text(f"{run.done} of {len(run.units)} units")).to_have_count(0)
    set_hidden(page, False)
    units(page, run)
    server.step(run, 10)
    units(page, run)


def test_events_have_no_hole_after_a_gap(page: Page, server: MadeUpServer, run: MadeUpRun) -> None:
    open_live(page, server)
    card = page.locator("#part-events")
    expect(card).to_contain_text(f"{len(run.events)} shown")
    for number in range(300):
        run.happen(f"event {number}")
    server.drop_listeners()
    expect(card).to_contain_text("200 shown")
    card.get_by_role("button", name="Earlier events").click()
    expect(card.locator("li")).to_have_count(len(run.events))
    expect(card.get_by_text("event 0", exact=True)).to_be_attached()


def test_earlier_events_stay_when_another_comes(page: Page, server: MadeUpServer, run: MadeUpRun) -> None:
    for number in range(1300):
        run.happen(f"event {number}")
    open_live(page, server)
    card = page.locator("#part-events")
    for shown in ("200", "400", "600", "800", "1,000"):
        expect(card).to_contain_text(f"{shown} shown")
        card.get_by_role("button", name="Earlier events").click()
    expect(card).to_contain_text("1,200 shown")
    server.step(run, 0, lambda: run.happen("the newest"))
    expect(card).to_contain_text("1,201 shown")


def test_a_part_that_fails_keeps_no_other_from_the_news(browser: Browser, server: MadeUpServer, run: MadeUpRun) -> None:
    context = browser.new_context()  # of its own: in all others no script may fail
    context.set_default_timeout(PATIENCE_MS)
    page = context.new_page()
    errors: list[str] = []
    page.on("pageerror", lambda error: errors.append(str(error)))
    open_live(page, server)
    before = run.version
    run.happen("the newest")
    news = answers.update(run, before, run.done, set())
    server.tell(RUN, "update", {**news, "run": {**news["run"], "counts": None}})
    page.locator("#part-events").get_by_text("the newest", exact=True).wait_for()
    context.close()
    assert errors
    assert [error for error in errors if "all_units" not in error] == []


def test_a_param_that_a_search_changes_later_can_be_chosen(page: Page, server: MadeUpServer, run: MadeUpRun) -> None:
    open_live(page, server)
    names = page.locator("#part-params .menu-list label")
    expect(names.filter(has_text="dropout")).to_have_count(1)
    expect(names.filter(has_text="batch_size")).to_have_count(0)
    run.params[0] = {**run.params[0], "batch_size": 64}
    server.step(run, 0, lambda: run.stopped.add(0))
    expect(names.filter(has_text="batch_size")).to_have_count(1)


def test_a_trial_follows_too(page: Page, server: MadeUpServer, run: MadeUpRun) -> None:
    page_checks.open_trial(page, server.url, RUN, "t8")
    expect(page.locator("#link")).to_have_text("Live")
    server.step(run, len(run.units))
    expect(page.locator(".head .pill")).to_have_text("finished")
    page.get_by_text("Epoch 8 of 8").wait_for()
    page.get_by_text("40 units, ").wait_for()


def test_a_trial_that_was_not_read_yet_is_shown_when_it_comes(page: Page, server: MadeUpServer) -> None:
    missing = {"status": 404, "json": {"error": "the run has no trial 't3'"}}
    page.route(f"**/api/runs/{RUN}/trials/t3", lambda route: route.fulfill(**missing), times=1)
    page_checks.open_trial(page, server.url, RUN, "t3")


def test_a_late_refusal_is_shown_on_the_page_of_the_trial(page: Page, server: MadeUpServer, run: MadeUpRun) -> None:
    page_checks.open_trial(page, server.url, RUN, "t3")
    expect(page.locator("#link")).to_have_text("Live")
    command = run.take({"verb": "resume_trial", "trial": "t3"})
    server.step(run)
    told = page.get_by_role("region", name="Events and commands", exact=True)
    expect(told).to_contain_text("resume trial t3")
    server.step(run, 0, lambda: run.answer(command["id"], False, "t3 has no checkpoint any more"))
    expect(told).to_contain_text("t3 has no checkpoint any more")


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


def test_a_forecast_that_is_void_is_not_shown_any_more(page: Page, server: MadeUpServer, run: MadeUpRun) -> None:
    """The next driver deletes what the one before foresaw."""
    run.forecast_made = answers.made_forecast(run)
    open_live(page, server)
    card, figures = page.locator("#part-forecast"), page.locator(".figures")
    card.get_by_text("between").wait_for()
    run.forecast_made = None
    server.step(run, 1)
    card.get_by_text("No forecast yet", exact=True).wait_for()
    expect(card.get_by_text("between")).to_be_hidden()
    expect(figures).to_contain_text("no forecast yet")
    expect(figures).not_to_contain_text("between")


def test_a_forecast_stays_while_the_server_cannot_say_another(page: Page, server: MadeUpServer, run: MadeUpRun) -> None:
    run.forecast_made = answers.made_forecast(run)
    open_live(page, server)
    card = page.locator("#part-forecast")
    card.get_by_text("between").wait_for()
    page.route("**/forecast", lambda route: route.abort())
    run.advance(5)
    with page.expect_event("requestfailed", lambda request: request.url.endswith("/forecast")):
        server.drop_listeners()
    units(page, run)
    wait_for_frames(page)
    expect(card.get_by_text("between")).to_be_visible()


def test_a_run_that_nobody_drives_is_not_said_to_be_over(page: Page, server: MadeUpServer, run: MadeUpRun) -> None:
    open_live(page, server)
    run.driver = "gone"
    run.state = "interrupted"
    server.step(run, 0)
    card = page.locator("#part-forecast")
    card.get_by_text("Nobody drives this run", exact=True).wait_for()
    expect(page.get_by_text("The run is over")).to_have_count(0)


def test_a_log_that_cannot_be_read_further_is_said(page: Page, server: MadeUpServer, run: MadeUpRun) -> None:
    open_live(page, server)
    del server.runs[RUN]
    server.tell(RUN, "gone", {"reason": "The log of this run was deleted."})
    expect(page.get_by_role("alert")).to_have_text("The log of this run was deleted.")
    # The server begins to read anew, and finds nothing.
    server.tell(RUN, "hello", {"generation": "g2", "version": 0})
    server.tell(RUN, "gone", {"reason": "It is still not there."})
    expect(page.get_by_role("alert")).to_have_text("It is still not there.")
    expect(page.locator("#part-trials tbody tr")).to_have_count(16)
    other = MadeUpRun(RUN, trials=4, failing=None, seed=11, share=0.3)
    other.generation = "g3"
    server.runs[RUN] = other
    server.step(other, 1)
    page.locator("#part-trials").get_by_text("4 trials").wait_for()
    expect(page.get_by_role("alert")).to_be_hidden()


def test_an_answer_that_the_stream_overtook_changes_nothing(page: Page, server: MadeUpServer, run: MadeUpRun) -> None:
    open_live(page, server)
    held: list[tuple[Route, APIResponse]] = []
    page.route(f"**/api/runs/{RUN}", lambda route: held.append((route, route.fetch())))
    run.advance(30)
    server.drop_listeners()
    while not held:  # the page asks as soon as it hears that it missed something
        page.wait_for_timeout(20)
    server.step(run, len(run.units))
    expect(page.locator(".head .pill")).to_have_text("finished")
    for route, before in held:
        with page.expect_response(f"**/api/runs/{RUN}"):
            route.fulfill(response=before)
    wait_for_frames(page)
    expect(page.locator(".head .pill")).to_have_text("finished")
    expect(page.get_by_role("button", name="Pause…")).to_be_hidden()
