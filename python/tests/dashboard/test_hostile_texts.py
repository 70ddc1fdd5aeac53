"""What a user or a trial wrote is shown letter by letter, on every page and in every chart."""

from __future__ import annotations

from typing import TYPE_CHECKING

import page_checks
import pytest
from browsing import expect, wait_for_charts
from made_up_run import TRACEBACK, MadeUpRun
from made_up_server import MadeUpServer, Serve

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.slow
EVIL = (
    '<img src=x onerror="window.pwned=1"><b>bold</b><a href="javascript:window.pwned=1">go</a>'
    "&lt;i&gt; %{y} $x$ </script><script>window.pwned=1</script>"
)
NAME = 'r1 <b>&"#?%'
# Of each text that a user may have written, what is there instead.
RENAMES = {
    "val_auc": f"{EVIL} metric",
    "optimizer": f"{EVIL} param",
    "hidden": "__proto__",
    "adam": f"{EVIL} value",
    "node1": f"{EVIL} host",
    "w3": f"{EVIL} worker",
    "dashboard": f"{EVIL} person",
    "hdfs:///user/ann/churn": f"{EVIL} store",
    "disk is full": f"{EVIL} failure",
    TRACEBACK: f"{EVIL} traceback",
    TRACEBACK.splitlines()[-1]: f"{EVIL} error",
}


@pytest.fixture
def hostile(serve: Serve) -> MadeUpServer:
    run = MadeUpRun(NAME)
    run.events[-1]["text"] = f"{EVIL} event"
    run.answer(run.take({"verb": "stop_trial", "trial": "t3"})["id"], False, f"{EVIL} reason")
    server = serve(run, charts=True)
    server.renames = RENAMES
    return server


def check_harmless(page: Page) -> None:
    """No text has become markup or code, and none of Plotly's own markup is in a chart."""
    assert page.evaluate("window.pwned === undefined")
    expect(page.locator("main :is(img, script, b, iframe), main a[href^='javascript']")).to_have_count(0)
    expect(page.locator(".plot :is(a, image), .plot tspan[style]")).to_have_count(0)


def test_a_hostile_run(page: Page, hostile: MadeUpServer) -> None:
    page_checks.open_run(page, hostile.url, NAME)
    wait_for_charts(page)
    for kind in ("event", "reason", "person", "host", "worker", "value"):
        expect(page.get_by_text(f"{EVIL} {kind}").first).to_be_attached()
    # Labels in charts are cut, and letter by letter what was written.
    expect(page.locator("#part-curves .ytitle")).to_have_text(f"{EVIL[:39]}…")
    expect(page.locator("#part-params .xtick").filter(has_text=EVIL[:10]).first).to_be_attached()
    page.get_by_role("button", name="Scatter").click()
    page.get_by_label("Param", exact=True).select_option(f"{EVIL} param")
    expect(page.locator("#part-params .xtitle")).to_have_text(f"{EVIL[:39]}…")
    page.get_by_role("button", name="Commands for t0", exact=True).click()
    page.get_by_role("menuitem", name="Clone…").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("__proto__").fill("77")
    dialog.get_by_role("button", name="Start the clone").click()
    dialog.get_by_text("Sent. The run's answer comes").wait_for()
    assert hostile.posted[-1]["params"] == {"__proto__": 77}
    check_harmless(page)


def test_a_hostile_trial(page: Page, hostile: MadeUpServer) -> None:
    page_checks.open_trial(page, hostile.url, NAME, "t5")
    wait_for_charts(page)
    assert page.get_by_role("region", name="The error, with its traceback").inner_text() == f"{EVIL} traceback"
    expect(page.get_by_role("heading", name=f"{EVIL} metric")).to_be_visible()
    check_harmless(page)


def test_a_hostile_store(page: Page, hostile: MadeUpServer) -> None:
    page_checks.open_runs(page, hostile.url)
    expect(page.get_by_text(f"{EVIL} store")).to_be_visible()
    page.get_by_role("link", name=NAME).click()
    expect(page.get_by_role("heading", name=NAME, level=1)).to_be_visible()
    check_harmless(page)


def test_hostile_runs_side_by_side(page: Page, hostile: MadeUpServer) -> None:
    other = MadeUpRun("r2", seed=3)
    hostile.runs["r2"] = other
    page_checks.check_comparison(page, hostile.url, [NAME, "r2"])
    wait_for_charts(page)
    expect(page.get_by_text(f"Best trial's {EVIL} param")).to_be_visible()
    check_harmless(page)
