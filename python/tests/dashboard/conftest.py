"""One browser for all tests of pages, and a made-up server for each."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from browsing import opened_page, plotly_file, started_browser
from made_up_run import OLDER, RUN, MadeUpRun
from made_up_server import MadeUpServer, Serve

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

NO_CHARTS = Path(__file__).with_name("no_charts.js")


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    """A browser for the tests of a module."""
    with started_browser() as started:
        yield started


@pytest.fixture
def page(browser: Browser) -> Iterator[Page]:
    """An empty page, as wide as on a desk."""
    with opened_page(browser) as opened:
        yield opened


@pytest.fixture
def serve() -> Iterator[Serve]:
    """Start a server of made-up runs, with or without charts; it ends with the test."""
    with ExitStack() as ends:

        def start(*runs: MadeUpRun, read_only: bool = False, charts: bool = False) -> MadeUpServer:
            server = MadeUpServer(list(runs), plotly_file() if charts else NO_CHARTS, read_only)
            ends.callback(server.close)
            return server

        yield start


@pytest.fixture
def run() -> MadeUpRun:
    """A run that is on its way, with a failed trial and three that hop together."""
    return MadeUpRun(RUN, fused=3)


@pytest.fixture
def server(serve: Serve, run: MadeUpRun) -> MadeUpServer:
    """A server of that run and of one that is over, without charts."""
    return serve(run, MadeUpRun(OLDER, share=1.0, seed=3))


@pytest.fixture
def charts(serve: Serve, run: MadeUpRun) -> MadeUpServer:
    """The same with charts."""
    return serve(run, MadeUpRun(OLDER, share=1.0, seed=3), charts=True)
