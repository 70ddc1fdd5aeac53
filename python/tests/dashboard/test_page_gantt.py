"""The chart of workers: what it counts, how time passes in it, and how it is moved."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import page_checks
import pytest
from browsing import expect, wait_for_frames
from made_up_run import RUN, MadeUpRun
from made_up_server import MadeUpServer, Serve

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page, Route

pytestmark = pytest.mark.slow
REQUESTS = re.compile(r"/gantt\?")
# Until which second of the run the chart goes, by its words.
END = r"""() => {
  const [minutes, seconds] = / to (\d+):(\d+):/.exec(document.querySelector("#gantt-words").textContent).slice(1);
  return 60 * Number(minutes) + Number(seconds); }"""


def show_chart(page: Page, server: MadeUpServer, run: MadeUpRun) -> Locator:
    """Open the page of a run, and wait until its chart is drawn; returns the chart's words."""
    page_checks.open_run(page, server.url, run.name)
    page.locator("#part-gantt").scroll_into_view_if_needed()
    words = page.locator("#gantt-words")
    expect(words).to_contain_text(f": {run.done} units")
    return words


def press(page: Page, chart: Locator, button: str = "left") -> tuple[float, float]:
    """Press a button of the mouse in the middle of the chart; returns where."""
    chart.scroll_into_view_if_needed()
    box = chart.bounding_box()
    assert box is not None
    x, y = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    page.mouse.move(x, y)
    page.mouse.down(button="right" if button == "right" else "left")
    return x, y


def test_figures_are_those_of_the_span_that_is_shown(page: Page, serve: Serve) -> None:
    run = MadeUpRun("over", share=1.0, failing=None)
    words = show_chart(page, serve(run), run)
    expect(words).to_contain_text("2 failures")
    page.locator("#part-gantt summary").click()
    # No answer comes any more: what is there for the whole run is counted for the last minute.
    page.route(REQUESTS, lambda route: None)
    page.get_by_role("button", name="1 min").click()
    begin = run.now - 60
    shown = [unit for unit in run.units if unit.end >= begin]
    expect(words).to_contain_text(f": {len(shown)} units.")
    own = [unit for unit in shown if unit.worker == 0]
    busy = min(1.0, sum(unit.end - max(unit.start, begin) for unit in own) / 60)
    cells = page.locator("#part-gantt").get_by_role("row", name="w0").locator("th, td")
    expect(cells).to_have_text(["w0", str(len(own)), f"{int(100 * busy + 0.5)} %", "0"])


def test_what_runs_long_grows_and_does_not_jump_back(page: Page, server: MadeUpServer, run: MadeUpRun) -> None:
    page.clock.install()
    show_chart(page, server, run)
    expect(page.locator("#link")).to_have_text("Live")
    page.clock.fast_forward(60_000)
    page.wait_for_function(f"(end) => ({END})() >= end", arg=int(run.now) + 60)
    server.step(run, 0, lambda: run.happen("news without a unit"))
    page.locator("#part-events").get_by_text("news without a unit", exact=True).wait_for()
    wait_for_frames(page)
    assert page.evaluate(END) >= int(run.now) + 60


def test_the_main_button_alone_moves_the_chart(page: Page, server: MadeUpServer, run: MadeUpRun) -> None:
    words = show_chart(page, server, run)
    chart = page.locator("#part-gantt .gantt-frame canvas")
    chart.focus()
    chart.press("+")
    expect(words).not_to_contain_text("from 0:00 to")
    before = words.inner_text()
    x, y = press(page, chart, "right")
    page.mouse.move(x + 120, y)
    wait_for_frames(page)
    assert words.inner_text() == before
    page.mouse.up(button="right")
    # As when a finger becomes a scroll of the page.
    x, y = press(page, chart)
    chart.dispatch_event("pointercancel")
    page.mouse.move(x + 120, y)
    wait_for_frames(page)
    assert words.inner_text() == before
    page.mouse.up()
    x, y = press(page, chart)
    page.mouse.move(x + 120, y)
    page.mouse.up()
    expect(words).not_to_have_text(before)


def test_another_span_is_asked_for_while_one_is_on_its_way(page: Page, server: MadeUpServer) -> None:
    held: list[Route] = []
    page.route(REQUESTS, lambda route: held.append(route), times=1)
    with page.expect_request(REQUESTS):
        page_checks.open_run(page, server.url, RUN)
        page.locator("#part-gantt").scroll_into_view_if_needed()
    page.get_by_role("button", name="1 min").click()
    with page.expect_request(re.compile(r"/gantt\?.*from=")):
        held[0].continue_()
    expect(page.locator("#gantt-words")).not_to_contain_text("from 0:00 to")
