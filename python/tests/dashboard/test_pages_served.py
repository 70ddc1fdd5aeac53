"""The same pages from the real server, over logs in a store."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import page_checks
import pytest
from browsing import expect, opened_page, plotly_file, wait_for_charts

from cerebro_spark.store.local import LocalStore

if TYPE_CHECKING:
    from playwright.sync_api import Browser

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("width", [1280, 390])
def test_pages_of_the_real_server(browser: Browser, tmp_path: Path, width: int) -> None:
    pytest.importorskip("cerebro_spark.dashboard.serving", reason="the dashboard's server is not there")
    plotly_file()
    from dashboard_clients import serving
    from dashboard_runs import HOSTILE, small_turns, write

    store = LocalStore(str(tmp_path))
    write(store, small_turns(trials=4, epochs=3, run="r1"), "r1")
    write(store, small_turns(trials=6, epochs=5, run="r2")[:-30], "r2")
    with serving(store) as served, opened_page(browser, width) as page:
        page.goto(served.link())
        url = f"http://127.0.0.1:{served.port}/"
        page.locator(".runs tbody tr").first.wait_for()
        page_checks.check_runs(page, url, ["r1", "r2"])
        page_checks.check_run(page, url, "r1")
        wait_for_charts(page)
        page_checks.check_run(page, url, "r2")
        expect(page.get_by_role("alert")).to_contain_text("interrupted")
        page_checks.check_trial(page, url, "r1", "t3")
        expect(page.get_by_role("region", name="The error, with its traceback")).to_contain_text("</script>")
        assert HOSTILE.startswith("</script>")
        page_checks.check_comparison(page, url, ["r1", "r2"])
        wait_for_charts(page)


def test_pages_behind_a_proxy_with_a_prefix(browser: Browser, tmp_path: Path) -> None:
    pytest.importorskip("cerebro_spark.dashboard.serving", reason="the dashboard's server is not there")
    plotly_file()
    from dashboard_clients import TOKEN, proxied, serving
    from dashboard_runs import small_turns, write

    prefix, turns = "/user/ann/proxy/8787", small_turns(trials=4, epochs=3, run="r1")
    store = LocalStore(str(tmp_path))
    log = write(store, turns[:-10], "r1")
    with (
        serving(store, base_path=prefix) as served,
        proxied(served.port, strips=prefix) as port,
        opened_page(browser) as page,
    ):
        url = f"http://127.0.0.1:{port}{prefix}/"
        page.goto(f"{url}?token={TOKEN}")
        page.locator(".runs tbody tr").first.wait_for()
        page_checks.check_run(page, url, "r1")
        wait_for_charts(page)
        log.append(*turns[-10:])
        expect(page.locator(".head .pill")).to_have_text("finished")
