"""Every page, in a browser, at both widths and in both themes; pictures of them are kept in build/screenshots."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import made_up_answers as answers
import page_checks
import pytest
from browsing import expect, opened_page, shoot, wait_for_charts
from made_up_run import OLDER, RUN, TRACEBACK, MadeUpRun
from made_up_server import MadeUpServer, Serve

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page, Route

pytestmark = pytest.mark.slow
LOOKS = [(1280, "light"), (1280, "dark"), (390, "light"), (390, "dark")]
# Of each event, where its time ends and where its words begin. A text may be longer than its box.
TIMES_AND_WORDS = """() => [...document.querySelectorAll("#part-events li")].map((row) => {
  const time = document.createRange();
  time.selectNodeContents(row.querySelector("time"));
  return [time.getBoundingClientRect().right, row.querySelector("p").getBoundingClientRect().left]; })"""


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


def test_the_oldest_of_a_line_of_clones_is_on_top(page: Page, server: MadeUpServer) -> None:
    page_checks.open_trial(page, server.url, RUN, "t4")
    expect(page.get_by_role("region", name="Lineage").get_by_role("link")).to_have_text(["t1", "t2"])


@pytest.mark.parametrize("width", [1280, 390])
def test_times_of_another_day_do_not_cover_words(
    browser: Browser, server: MadeUpServer, run: MadeUpRun, width: int
) -> None:
    for event in run.events[::2]:
        event["clock"] -= 400 * 86_400
    with opened_page(browser, width) as page:
        page_checks.open_run(page, server.url, RUN)
        expect(page.locator("#part-events li")).to_have_count(len(run.events))
        found = page.evaluate(TIMES_AND_WORDS)
        assert all(time <= words for time, words in found)
        assert len({words for _, words in found}) == 1


def test_an_epoch_without_a_number_is_a_gap_in_its_curve(page: Page, serve: Serve) -> None:
    run = MadeUpRun("over", share=1.0)
    server = serve(run, charts=True)
    assert run.best is not None
    best = f"t{run.best[1]}"

    def leave_out(route: Route) -> None:
        answer = route.fetch().json()
        names = [answer["trial"][place] for place in answer["index"]]
        points = zip(names, answer["epoch"], answer["value"], strict=True)
        answer["value"] = [None if (name, epoch) == (best, 4) else value for name, epoch, value in points]
        route.fulfill(json=answer)

    page.route(re.compile(r"/curves\?"), leave_out)
    page_checks.open_run(page, server.url, "over")
    # The best one is drawn last, over all others.
    lines = page.locator("#part-curves .scatterlayer .trace").last.locator(".js-line")
    expect(lines).to_have_count(2)


def test_a_filter_means_nothing_that_every_object_has(page: Page, server: MadeUpServer) -> None:
    page_checks.open_run(page, server.url, RUN)
    page.get_by_label("Filter trials").fill("constructor=1")
    page.get_by_text("No trial matches").wait_for()


def test_large_whole_numbers_have_all_digits(page: Page, serve: Serve) -> None:
    server = serve(MadeUpRun("seeds", params={"seed": 12_345_678}))
    page_checks.open_run(page, server.url, "seeds")
    expect(page.get_by_role("cell", name="12,345,678")).to_have_count(16)


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
    page.route("**/api/stream", lambda route: route.abort())  # which would find the store again by itself
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


def test_colours_of_trials_follow_the_theme(page: Page, serve: Serve) -> None:
    server = serve(MadeUpRun("over", share=1.0), MadeUpRun("other", share=1.0, seed=3))
    light, dark = "rgb(77, 124, 15)", "rgb(163, 209, 92)"
    page_checks.open_run(page, server.url, "over")
    page.get_by_label("Select t8", exact=True).check()
    row = page.locator("#part-trials tr", has=page.get_by_role("link", name="t8", exact=True))
    chips = page.get_by_role("group", name="Selected trials")
    swatches = [one.locator(".swatch") for one in (row, chips, page.locator("#part-curves .legend-list"))]
    for swatch in swatches:
        expect(swatch).to_have_css("background-color", light)
    button = page.get_by_role("button", name="Colours:")
    button.click()
    button.click()
    for swatch in swatches:
        expect(swatch).to_have_css("background-color", dark)
    page_checks.open_comparison(page, server.url, ["over", "other"])
    first = page.get_by_role("list", name="Colours of the runs").locator(".swatch").first
    expect(first).to_have_css("background-color", "rgb(134, 168, 255)")
    button.click()
    expect(first).to_have_css("background-color", "rgb(47, 88, 214)")


def test_more_runs_than_can_be_compared_are_said(page: Page, serve: Serve) -> None:
    names = [f"r{number}" for number in range(25)]
    server = serve(*(MadeUpRun(name, trials=2, epochs=1, failing=None) for name in names))
    page_checks.open_comparison(page, server.url, names)
    page.get_by_text("These are the first 20 of 25 runs").wait_for()
    expect(page.get_by_role("columnheader")).to_have_count(20)


def test_a_run_that_is_deleted_meanwhile_is_left_out(page: Page, server: MadeUpServer) -> None:
    server.runs["third"] = MadeUpRun("third", seed=5)
    page_checks.open_comparison(page, server.url, [RUN, OLDER, "third"])
    expect(page.locator("#link")).to_have_text("Live")
    del server.runs["third"]
    server.list_runs()
    page.get_by_text("third was deleted, and left out.").wait_for()
    expect(page.get_by_role("columnheader")).to_have_text([RUN, OLDER])
    server.refusing = True
    server.list_runs()
    page.get_by_text("What is shown may be old: The store cannot be read").wait_for()
    server.refusing = False
    server.list_runs()
    expect(page.get_by_text("What is shown may be old")).to_be_hidden()
