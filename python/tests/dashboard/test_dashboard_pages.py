"""Every page, in a browser, at both widths and in both themes; pictures of them are kept in build/screenshots."""

from __future__ import annotations

from typing import TYPE_CHECKING

import made_up_answers as answers
import page_checks
import pytest
from browsing import expect, opened_page, shoot, wait_for_charts
from made_up_run import OLDER, RUN, TRACEBACK, MadeUpRun
from made_up_server import MadeUpServer, Serve

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

pytestmark = pytest.mark.slow
LOOKS = [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")]


@pytest.mark.parametrize(("width", "theme"), LOOKS)
def test_all_pages_fit_and_work(browser: Browser, charts: MadeUpServer, run: MadeUpRun, width: int, theme: str) -> None:
    run.forecast_made = answers.made_forecast(run)
    with opened_page(browser, width, theme) as page:
        page_checks.check_runs(page, charts.url, [RUN, OLDER])
        shoot(page, f"runs-{width}-{theme}")
        page_checks.check_run(page, charts.url, RUN)
        wait_for_charts(page)
        shoot(page, f"run-{width}-{theme}")
        page_checks.check_trial(page, charts.url, RUN, "t2")
        wait_for_charts(page)
        shoot(page, f"trial-{width}-{theme}")
        page_checks.check_comparison(page, charts.url, [RUN, OLDER])
        wait_for_charts(page)
        shoot(page, f"compare-{width}-{theme}")


def test_a_failed_trial_shows_its_traceback(page: Page, server: MadeUpServer) -> None:
    page_checks.open_trial(page, server.url, RUN, "t5")
    assert page.get_by_role("region", name="The error, with its traceback").inner_text() == TRACEBACK
    page.get_by_text("failed at w1, through the worker").click()
    page.get_by_text("disk is full").wait_for()


def test_a_clone_shows_where_it_came_from(page: Page, server: MadeUpServer) -> None:
    page_checks.open_trial(page, server.url, RUN, "t2")
    page.get_by_role("region", name="Lineage").get_by_role("link", name="t1").click()
    page.get_by_role("heading", name="t1", level=1).wait_for()
    page.get_by_role("region", name="Lineage").get_by_role("link", name="t2").wait_for()


def test_trials_are_sorted_filtered_and_selected(page: Page, server: MadeUpServer, run: MadeUpRun) -> None:
    page_checks.open_run(page, server.url, RUN)
    rows = page.locator("#part-trials tbody tr")
    page.get_by_role("button", name="lr", exact=True).click()
    expect(rows).to_have_count(16)
    lowest = min(range(16), key=lambda trial: run.params[trial]["lr"])
    rows.first.get_by_role("link", name=f"t{lowest}", exact=True).wait_for()
    expect(page.get_by_role("columnheader", name="lr")).to_have_attribute("aria-sort", "ascending")
    page.get_by_label("Filter trials").fill("lr<0.001 status!=failed")
    kept = sum(params["lr"] < 0.001 and number != 5 for number, params in enumerate(run.params))
    page.get_by_text(f"{kept} of 16 trials").wait_for()
    page.get_by_label("Select all trials that are listed").check()
    page.get_by_text(f"{kept} selected").first.wait_for()
    page.get_by_label("Filter trials").fill("no such words")
    page.get_by_role("button", name="Clear the filter").click()
    page.get_by_text(f"16 trials, {kept} selected").wait_for()
    page.get_by_role("button", name="Clear", exact=True).click()
    expect(page.get_by_role("group", name="Selected trials")).to_be_hidden()


def test_what_is_selected_stands_out_in_every_chart(page: Page, charts: MadeUpServer) -> None:
    page_checks.open_run(page, charts.url, RUN)
    page.get_by_label("Select t8", exact=True).check()
    page.locator("#part-curves .legend-list").get_by_role("button", name="t8", pressed=True).wait_for()
    # One pale line for all others, and one for the trial.
    expect(page.locator("#part-curves .scatterlayer .trace")).to_have_count(2)
    expect(page.locator("#part-params .scatterlayer .trace")).to_have_count(2)
    page.get_by_role("button", name="Scatter").click()
    expect(page.locator("#part-params .chart-text")).to_contain_text("of 16 trials against")


def test_a_chart_can_be_read_as_a_table(page: Page, server: MadeUpServer, run: MadeUpRun) -> None:
    page_checks.open_run(page, server.url, RUN)
    for part, words in (("curves", "Epoch 1"), ("params", "dropout"), ("gantt", "Failures")):
        page.locator(f"#part-{part} summary").click()
        page.locator(f"#part-{part} table").get_by_role("columnheader", name=words, exact=True).wait_for()
    best = page.locator("#part-curves tbody tr").first
    assert run.best is not None
    expect(best.locator("th")).to_have_text(f"t{run.best[1]}")


def test_the_chart_of_workers_can_be_zoomed_from_the_keyboard(page: Page, server: MadeUpServer) -> None:
    page_checks.open_run(page, server.url, RUN)
    chart = page.locator("#part-gantt .gantt-frame canvas")
    page.locator("#part-gantt").scroll_into_view_if_needed()
    words = page.locator("#gantt-words")
    expect(words).to_contain_text("from 0:00 to")
    chart.focus()
    chart.press("+")
    expect(words).not_to_contain_text("from 0:00 to")
    chart.press("0")
    expect(words).to_contain_text("from 0:00 to")


def test_nothing_there_is_said_in_words(page: Page, serve: Serve) -> None:
    empty = serve()
    page.goto(empty.url)
    page.get_by_text("No runs in this store yet").wait_for()
    shoot(page, "runs-empty")
    page.goto(f"{empty.url}#/run/r1")
    page.get_by_text("There is no such run").wait_for()
    page.goto(f"{empty.url}#/somewhere/else")
    page.get_by_text("There is no such page").wait_for()


def test_a_run_that_has_just_begun_has_no_broken_part(page: Page, serve: Serve) -> None:
    young = serve(MadeUpRun("young", share=0.0, failing=None))
    page_checks.open_run(page, young.url, "young")
    page.get_by_text("No epoch has ended yet").wait_for()
    page.get_by_text("No forecast yet", exact=True).wait_for()
    shoot(page, "run-young")


def test_a_store_that_fails_can_be_asked_again(page: Page, server: MadeUpServer) -> None:
    server.refusing = True
    page.goto(server.url)
    page.get_by_text("The store cannot be read: the name node does not answer.").wait_for()
    server.refusing = False
    page.get_by_role("button", name="Try again").click()
    page.get_by_role("link", name=RUN).wait_for()


def test_runs_are_chosen_for_comparison(page: Page, server: MadeUpServer) -> None:
    page_checks.open_runs(page, server.url)
    page.get_by_label(f"Compare {RUN}").check()
    page.get_by_label(f"Compare {OLDER}").check()
    page.get_by_role("link", name="Compare 2 runs").click()
    page.get_by_role("row", name="Best value").wait_for()
    page.get_by_text("best of all").wait_for(state="attached")
    page.get_by_role("button", name="Epochs trained").click()


def test_the_theme_can_be_chosen_and_is_kept(page: Page, server: MadeUpServer) -> None:
    page_checks.open_runs(page, server.url)
    ground = "getComputedStyle(document.body).backgroundColor"
    light = page.evaluate(ground)
    button = page.get_by_role("button", name="Colours:")
    button.click()
    assert page.evaluate(ground) == light
    button.click()
    expect(button).to_have_attribute("aria-label", "Colours: dark")
    assert page.evaluate(ground) != light
    page.reload()
    page.locator(".runs tbody tr").first.wait_for()
    assert page.evaluate(ground) != light
