"""The chart of workers: what it counts, how time passes in it, and how it is moved."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from typing import TYPE_CHECKING

import page_checks
import pytest
from browsing import expect, wait_for_frames
from made_up_run import RUN, MadeUpRun
from made_up_server import MadeUpServer, Serve
from made_up_units import MadeUnit

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page, Route

pytestmark = pytest.mark.slow
REQUESTS = re.compile(r"/gantt\?")
# Until which second of the run the chart goes, by its words.
END = r"""() => {
  const [minutes, seconds] = / to (\d+):(\d+):/.exec(document.querySelector("#gantt-words").textContent).slice(1);
  return 60 * Number(minutes) + Number(seconds); }"""

# Keeps what is drawn on the chart of workers, from one clearing of it to the next, as the page gives it to the canvas.
WATCH = """
window.drawn = { bars: [], hops: [] };
const { clearRect, fillRect, bezierCurveTo } = CanvasRenderingContext2D.prototype;
const isChart = (context) => context.canvas.closest(".gantt-frame");
CanvasRenderingContext2D.prototype.clearRect = function (...box) {
  if (isChart(this)) window.drawn = { bars: [], hops: [] };
  return clearRect.apply(this, box); };
CanvasRenderingContext2D.prototype.fillRect = function (x, y, width, height) {
  if (isChart(this)) window.drawn.bars.push({ colour: this.fillStyle, alpha: this.globalAlpha, x, y, width, height });
  return fillRect.call(this, x, y, width, height); };
CanvasRenderingContext2D.prototype.bezierCurveTo = function (...curve) {
  if (isChart(this)) window.drawn.hops.push(this.strokeStyle);
  return bezierCurveTo.apply(this, curve); };
"""


def hops_of(units: list[MadeUnit]) -> list[int]:
    """The trial of each hop: from one unit of training to the next one, at another worker."""
    found: list[int] = []
    for trial in sorted({unit.trial for unit in units}):
        own = sorted((unit for unit in units if unit.trial == trial and unit.train), key=lambda unit: unit.start)
        found += [trial for before, after in pairwise(own) if before.worker != after.worker]
    return found


def drawn_hops(page: Page) -> Counter[str]:
    """How many hops are drawn, by colour."""
    wait_for_frames(page)
    return Counter(page.evaluate("window.drawn.hops"))


def colours_of(page: Page, trials: range) -> list[str]:
    """The colours of trials, as the chart has them."""
    found: list[str] = page.evaluate(
        """async (trials) => {
          const { trialColour } = await import(new URL("static/js/colours.js", document.baseURI).href);
          const context = document.createElement("canvas").getContext("2d");
          return trials.map((trial) => { context.fillStyle = trialColour(trial); return context.fillStyle; }); }""",
        list(trials),
    )
    return found


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
    expect(words).to_contain_text(f": {len(shown)} units, {len(hops_of(shown))} hops")
    own = [unit for unit in shown if unit.worker == 0]
    busy = min(1.0, sum(unit.end - max(unit.start, begin) for unit in own) / 60)
    cells = page.locator("#part-gantt").get_by_role("row", name="w0").locator("th, td")
    expect(cells).to_have_text(["w0", str(len(own)), f"{int(100 * busy + 0.5)} %", "0"])


@pytest.mark.parametrize("workers", [1, 3, 20])
def test_what_is_below_does_not_move_when_the_chart_comes(page: Page, serve: Serve, workers: int) -> None:
    run = MadeUpRun("small", trials=4, epochs=2, workers=workers, share=1.0, failing=None)
    held: list[Route] = []
    page.route(REQUESTS, lambda route: held.append(route))
    with page.expect_request(REQUESTS):
        page_checks.open_run(page, serve(run).url, run.name)
        page.locator("#part-gantt").scroll_into_view_if_needed()
    height = "document.querySelector('#part-gantt').getBoundingClientRect().height"
    before = page.evaluate(height)
    expect(page.locator("#gantt-words")).to_have_text("Loading")
    for route in held:
        route.continue_()
    expect(page.locator("#gantt-words")).to_contain_text(f": {run.done} units")
    wait_for_frames(page)
    assert page.evaluate(height) == before


def test_hops_of_all_trials_are_drawn_while_few_units_are_shown(page: Page, serve: Serve) -> None:
    run = MadeUpRun("small", trials=4, epochs=2, workers=3, share=1.0, failing=None)
    hops = hops_of(run.units)
    assert len(hops) > 10
    page.add_init_script(WATCH)
    words = show_chart(page, serve(run), run)
    expect(words).to_contain_text(f" units, {len(hops)} hops, ")
    colours = colours_of(page, range(4))
    assert drawn_hops(page) == Counter(colours[trial] for trial in hops)
    chart = page.get_by_label("Workers over time. Arrow keys move")
    expect(chart).to_have_accessible_description(re.compile(rf"\b{len(hops)} hops\b"))
    page.get_by_role("group", name="Hops").get_by_role("button", name="None").click()
    expect(words).to_contain_text(f"{len(hops)} hops (none drawn)")
    assert drawn_hops(page) == Counter()


def test_hops_of_many_units_are_drawn_when_they_are_asked_for(page: Page, serve: Serve) -> None:
    run = MadeUpRun("many", share=1.0, failing=None)
    hops = hops_of(run.units)
    page.add_init_script(WATCH)
    words = show_chart(page, serve(run), run)
    expect(words).to_contain_text(f" units, {len(hops)} hops (none drawn)")
    assert drawn_hops(page) == Counter()
    page.get_by_role("group", name="Hops").get_by_role("button", name="All").click()
    expect(words).to_contain_text(f" units, {len(hops)} hops, ")
    assert drawn_hops(page).total() == len(hops)


def test_a_trial_that_is_selected_is_marked_in_the_chart(page: Page, serve: Serve) -> None:
    run = MadeUpRun("small", trials=4, epochs=2, workers=3, share=1.0, failing=None)
    page.add_init_script(WATCH)
    words = show_chart(page, serve(run), run)
    colours = colours_of(page, range(4))

    def marked() -> dict[str, set[float]]:
        """By colour of a trial, how strongly its units are drawn."""
        wait_for_frames(page)
        bars = [bar for bar in page.evaluate("window.drawn.bars") if bar["colour"] in colours]
        return {colour: {bar["alpha"] for bar in bars if bar["colour"] == colour} for colour in colours}

    before = marked()
    assert {max(alphas) for alphas in before.values()} == {1.0}
    bar = next(bar for bar in page.evaluate("window.drawn.bars") if bar["colour"] == colours[1] and bar["width"] > 20)

    def pick() -> None:
        canvas = page.locator("#part-gantt .gantt-frame canvas")
        canvas.click(position={"x": bar["x"] + bar["width"] / 2, "y": bar["y"] + bar["height"] / 2})

    pick()
    own = hops_of(run.units).count(1)
    expect(words).to_contain_text(f" hops ({own} drawn)")
    after = marked()
    assert after[colours[1]] == before[colours[1]]
    assert all(max(after[colour]) < 0.25 for colour in colours if colour != colours[1])
    assert drawn_hops(page) == {colours[1]: own}
    expect(page.get_by_label("Select t1", exact=True)).to_be_checked()
    pick()
    expect(words).not_to_contain_text("drawn")
    assert marked() == before


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
