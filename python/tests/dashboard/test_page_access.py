"""The pages from the keyboard and for a screen reader."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import page_checks
import pytest
from browsing import expect
from made_up_run import OLDER, RUN
from made_up_server import MadeUpServer

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.slow
# What has no name, or another's id; how headings follow each other.
NAMELESS = """() => [...document.querySelectorAll(":is(button, a[href], input, select, summary), [tabindex='0']")]
  .filter((node) => node.checkVisibility())
  .filter((node) => !(node.getAttribute("aria-label") || node.textContent.trim() || node.labels?.length || node.title))
  .map((node) => node.outerHTML.slice(0, 120))"""
TWICE = """() => [...document.querySelectorAll("[id]")].map((node) => node.id)
  .filter((id, i, all) => all.indexOf(id) !== i)"""
LEVELS = """() => [...document.querySelectorAll("main :is(h1, h2, h3)")].filter((node) => node.checkVisibility())
  .map((node) => Number(node.tagName[1]))"""
FOCUS = """() => { const node = document.activeElement; const style = getComputedStyle(node); return {
  name: node.getAttribute("aria-label") || node.textContent.trim() || node.tagName,
  outlined: style.outlineStyle !== "none" && parseFloat(style.outlineWidth) >= 2,
  top: node.getBoundingClientRect().top + scrollY, inside: Boolean(node.closest("dialog")) }; }"""
UNNAMED_FIGURES = """() => [...document.querySelectorAll("figure")]
  .filter((node) => !node.getAttribute("aria-label") || !node.querySelector("[role=img][aria-label]")).length"""


@pytest.mark.parametrize("where", ["", f"#/run/{RUN}", f"#/run/{RUN}/trial/t5", f"#/compare?run={RUN}&run={OLDER}"])
def test_everything_has_a_name_and_a_place(page: Page, server: MadeUpServer, where: str) -> None:
    page.goto(server.url + where)
    page.locator("main tbody tr").first.wait_for()
    expect(page.get_by_role("banner")).to_be_visible()
    expect(page.get_by_role("main")).to_be_visible()
    expect(page.get_by_role("navigation", name="Where you are")).to_be_visible()
    assert page.evaluate(NAMELESS) == []
    assert page.evaluate(TWICE) == []
    levels = page.evaluate(LEVELS)
    assert levels[0] == 1
    assert levels.count(1) == 1
    assert all(after - before <= 1 for before, after in pairwise(levels))
    assert page.evaluate(UNNAMED_FIGURES) == 0
    expect(page.locator("html")).to_have_attribute("lang", "en")


def test_the_focus_can_be_seen_and_goes_down_the_page(page: Page, server: MadeUpServer) -> None:
    page_checks.open_run(page, server.url, RUN)
    stops = []
    for _ in range(34):
        page.keyboard.press("Tab")
        stops.append(page.evaluate(FOCUS))
    assert stops[0]["name"] == "Skip to the content"
    assert [stop["name"] for stop in stops if not stop["outlined"]] == []
    order = ["Skip to the content", "Cerebro", "Runs", "Colours: as the system", "Pause…", "Curves", "Linear"]
    names = [stop["name"] for stop in stops]
    assert [names.index(name) for name in order] == sorted(names.index(name) for name in order)


def test_a_table_is_sorted_from_the_keyboard(page: Page, server: MadeUpServer) -> None:
    page_checks.open_run(page, server.url, RUN)
    page.get_by_role("button", name="dropout", exact=True).focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("columnheader", name="dropout")).to_have_attribute("aria-sort", "ascending")
    page.keyboard.press("Space")
    expect(page.get_by_role("columnheader", name="dropout")).to_have_attribute("aria-sort", "descending")


def test_a_menu_and_its_dialog_from_the_keyboard(page: Page, server: MadeUpServer) -> None:
    page_checks.open_run(page, server.url, RUN)
    opener = page.get_by_role("button", name="Commands for t8", exact=True)
    opener.focus()
    page.keyboard.press("Enter")
    expect(page.get_by_role("menuitem", name="Stop…")).to_be_focused()
    page.keyboard.press("ArrowDown")
    expect(page.get_by_role("menuitem", name="Clone…")).to_be_focused()
    page.keyboard.press("Escape")
    expect(opener).to_be_focused()
    page.keyboard.press("Enter")
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog", name="Stop t8?")
    expect(dialog).to_be_visible()
    expect(page.locator("dialog:modal")).to_have_count(1)
    # What something is lost by is not what Enter does at once.
    expect(dialog.get_by_role("button", name="Cancel")).to_be_focused()
    page.keyboard.press("Tab")
    assert page.evaluate(FOCUS)["inside"]
    page.keyboard.press("Escape")
    expect(dialog).to_be_hidden()
    expect(opener).to_be_focused()
    assert server.posted == []


def test_links_to_parts_move_the_focus_there(page: Page, server: MadeUpServer) -> None:
    page_checks.open_run(page, server.url, RUN)
    page.get_by_role("navigation", name="Parts of this page").get_by_role("link", name="Cluster").click()
    expect(page.locator("#part-cluster")).to_be_focused()
    page.keyboard.press("Tab")
    expect(page.locator("#part-cluster").get_by_role("button", name="Add workers…")).to_be_focused()
    page.get_by_role("link", name="t8", exact=True).first.click()
    expect(page.get_by_role("heading", name="t8", level=1)).to_be_visible()
    expect(page.get_by_role("main")).to_be_focused()
