"""Every page and every button with a real browser, a real server and a real search: what is clicked is done by the run.

The runs never end by themselves. Most tests share one, and each has a trial or a worker of its own in it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import page_checks
import pytest
from browsing import expect, opened_page, plotly_file, shoot, wait_for_charts
from paced_training import SECONDS, PacedRun, start_run

from cerebro_spark import mailbox
from cerebro_spark.errors import RunKilled
from cerebro_spark.eventlog import EventLog
from cerebro_spark.events import CommandAnswered, CommandReceived
from cerebro_spark.store.local import LocalStore

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Locator, Page

    from cerebro_spark.dashboard.serving import Served

pytestmark = pytest.mark.slow
RUN = "live"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The store of all runs. Their drivers look into their mailboxes more often than others do, and foresee nothing."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mailbox, "EVERY", 0.1)
        patch.setenv("CEREBRO_SPARK_FORECASTS", "off")
        yield tmp_path_factory.mktemp("pages") / "store"


@pytest.fixture(scope="module")
def served(store: Path) -> Iterator[Served]:
    """The server of that store."""
    plotly_file()
    from dashboard_clients import serving

    store.mkdir()
    with serving(LocalStore(str(store))) as started:
        yield started


@pytest.fixture(scope="module")
def begin(
    browser: Browser, served: Served, store: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Callable[..., PacedRun]]:
    """Begins a run; all of them are over at the end of the module. Without a browser none is begun."""
    begun: list[PacedRun] = []

    def start(run_id: str, **options: int) -> PacedRun:
        begun.append(start_run(store, tmp_path_factory.mktemp(run_id), run_id, **options))
        return begun[-1]

    yield start
    for run in begun:
        run.close()


@pytest.fixture(scope="module")
def live(begin: Callable[..., PacedRun]) -> PacedRun:
    """The run that most tests share: four trials on two workers."""
    return begin(RUN)


@pytest.fixture
def url(served: Served, page: Page, live: PacedRun) -> str:
    """The address of the pages; the browser has opened the link with the token, and lists the run."""
    return enter(page, served)


def enter(page: Page, served: Served) -> str:
    page.goto(served.link())
    page.locator(".runs tbody tr").first.wait_for()
    return f"http://127.0.0.1:{served.port}/"


def answered(page: Page, opener: Locator, says: str, button: str) -> Locator:
    """Open a dialog, read what it says, send its command, and wait for the answer of the run; returns the answer."""
    opener.click()
    dialog = page.get_by_role("dialog")
    expect(dialog.locator(".says")).to_contain_text(says)
    return confirmed(dialog, button)


def confirmed(dialog: Locator, button: str) -> Locator:
    dialog.get_by_role("button", name=button, exact=True).click()
    dialog.locator('.answer[data-state="done"], .answer[data-state="refused"]').wait_for()
    return dialog.get_by_role("status")


def of_run(page: Page, name: str) -> Locator:
    """A button at the head of the page."""
    return page.locator(".head").get_by_role("button", name=name, exact=True)


def row(page: Page, trial: str) -> Locator:
    return page.locator("#part-trials tr", has=page.get_by_role("link", name=trial, exact=True))


def item_of(page: Page, trial: str, item: str) -> Locator:
    """A command in the menu of a trial, which is opened."""
    page.get_by_role("button", name=f"Commands for {trial}", exact=True).click()
    return page.get_by_role("menuitem", name=item)


def logged(store: Path, run: str, verb: str) -> tuple[CommandReceived, CommandAnswered]:
    """The last command of a kind in the log of a run, and its answer."""
    events = list(EventLog(LocalStore(str(store)), run).read())
    asked = [event for event in events if isinstance(event, CommandReceived) and event.command.verb == verb][-1]
    (answer,) = [e for e in events if isinstance(e, CommandAnswered) and e.command == asked.command.id]
    return asked, answer


def test_a_run_is_paused_and_unpaused(page: Page, url: str, live: PacedRun, store: Path) -> None:
    page_checks.open_run(page, url, RUN)
    answer = answered(page, of_run(page, "Pause…"), "no new one begins", "Pause")
    expect(answer).to_have_text("running units end, and nothing new begins")
    live.wait_until(lambda: live.run.status == "paused")
    live.wait_until(lambda: set(live.run.workers.query("up").doing) == {"idle"})
    asked, said = logged(store, RUN, "pause")
    assert asked.command.by.endswith(", dashboard")
    assert said.done
    units = live.run.progress.units
    page.get_by_role("button", name="Close").click()
    expect(of_run(page, "Pause…")).to_be_hidden()
    expect(page.locator(".head-title")).to_contain_text("paused")
    shoot(page, "live-run-paused")
    assert live.run.progress.units == units, "nothing begins while it is paused"
    answer = answered(page, of_run(page, "Unpause…"), "Units begin again", "Unpause")
    expect(answer).to_have_text("the run goes on")
    live.wait_for_epochs("t3", 1)
    live.wait_until(lambda: live.run.status == "running")
    page.get_by_role("button", name="Close").click()
    expect(of_run(page, "Pause…")).to_be_visible()
    commands = page.locator("#part-commands")
    expect(commands).to_contain_text("unpause")


def test_a_trial_is_stopped_and_resumed(page: Page, url: str, live: PacedRun, store: Path) -> None:
    page_checks.open_run(page, url, RUN)
    answer = answered(page, item_of(page, "t0", "Stop…"), "t0 trains no further", "Stop t0")
    expect(answer).to_contain_text("trial t0 ")
    live.wait_until(lambda: live.status("t0") == "stopped")
    _, said = logged(store, RUN, "stop_trial")
    assert said.done
    live.wait_until(lambda: not live.is_out("t0"))
    begun, done = live.began("t0"), live.epochs("t0")
    live.wait_for_epochs("t3", 3)
    assert live.began("t0") == begun, "no unit of it begins any more"
    page.get_by_role("button", name="Close").click()
    expect(row(page, "t0")).to_contain_text("stopped")

    page_checks.open_trial(page, url, RUN, "t0")
    opener = page.get_by_role("button", name="Resume…")
    opener.click()
    dialog = page.get_by_role("dialog")
    expect(dialog.locator(".says")).to_contain_text("t0 goes on from its last checkpoint")
    dialog.get_by_label("Further epochs").fill("2")
    answer = confirmed(dialog, "Resume t0")
    expect(answer).to_contain_text("trial t0 goes on until epoch ")
    goal = int(answer.inner_text().rpartition(" ")[2])
    assert goal >= done + 2
    live.wait_until(lambda: live.status("t0") == "finished" and live.run.snapshot().trials["t0"].last == goal)
    page.get_by_role("button", name="Close").click()
    expect(page.get_by_role("region", name="Events and commands", exact=True)).to_contain_text(
        "let t0 go on for 2 more epochs"
    )


def test_a_clone_with_another_param_trains(page: Page, url: str, live: PacedRun) -> None:
    page_checks.open_run(page, url, RUN)
    item_of(page, "t1", "Clone…").click()
    dialog = page.get_by_role("dialog")
    expect(dialog.locator(".says")).to_contain_text("with the params of t1 except for those that you change")
    dialog.get_by_label("lr").fill("0.5")
    dialog.get_by_label("Epochs").fill("2")
    shoot(page, "live-dialog-clone")
    expect(confirmed(dialog, "Start the clone")).to_contain_text("trial t1-c1 trains 2 epochs, from epoch")
    live.wait_until(lambda: live.epochs("t1-c1") == 2)
    view = live.run.snapshot()
    assert dict(view.trials["t1-c1"].params) == {**view.trials["t1"].params, "lr": 0.5}
    assert live.began("t1-c1") == 2 * 2
    page.get_by_role("button", name="Close").click()
    row(page, "t1-c1").get_by_role("link").click()
    expect(page.get_by_role("region", name="Lineage")).to_contain_text("weights of epoch")
    expect(page.get_by_role("region", name="Params")).to_contain_text("0.5")
    page.get_by_role("button", name="Clone…").click()
    dialog.get_by_label("Begin with the weights of t1-c1").uncheck()
    expect(confirmed(dialog, "Start the clone")).to_contain_text("trial t1-c2 trains 2 epochs, from the beginning")
    page_checks.open_trial(page, url, RUN, "t1-c2")
    expect(page.get_by_role("region", name="Lineage")).to_contain_text("t1-c1cloned, with fresh weights")


def up(live: PacedRun) -> set[str]:
    return set(live.run.workers.query("up").worker)


def test_a_worker_is_added_and_removed(page: Page, url: str, live: PacedRun) -> None:
    page_checks.open_run(page, url, RUN)
    lanes = page.locator("#part-cluster tbody tr")
    expect(lanes.filter(has_text="w0")).to_be_visible()
    answer = answered(page, of_run(page, "Add workers…"), "there are 2 now", "Add workers")
    expect(answer).to_contain_text("w2")
    live.wait_until(lambda: up(live) == {"w0", "w1", "w2"})
    page.get_by_role("button", name="Close").click()
    expect(lanes.filter(has_text="w2")).to_be_visible()
    opener = page.get_by_role("button", name="Remove w2")
    answered(page, opener, "w2 on ", "Remove w2")
    live.wait_until(lambda: up(live) == {"w0", "w1"})
    page.get_by_role("button", name="Close").click()
    expect(lanes.filter(has_text="w2")).to_contain_text("gone")
    expect(opener).to_be_hidden()


def test_a_refused_command_says_why(page: Page, url: str, live: PacedRun) -> None:
    page_checks.open_run(page, url, RUN)
    item_of(page, "t2", "Stop…").click()
    live.run.stop_trial("t2")  # somebody else was faster
    answer = confirmed(page.get_by_role("dialog"), "Stop t2")
    expect(answer).to_have_text("Refused: trial t2 is stopped already: resume_trial lets it go on")
    assert live.status("t2") == "stopped"
    page.get_by_role("button", name="Close").click()
    expect(page.locator("#part-commands")).to_contain_text("is stopped already")


def test_a_read_only_server_has_no_buttons(page: Page, live: PacedRun, store: Path) -> None:
    from dashboard_clients import serving

    with serving(LocalStore(str(store)), read_only=True) as watching:
        url = enter(page, watching)
        page_checks.check_run(page, url, RUN)
        page.get_by_text("Read only").wait_for()
        expect(page.get_by_role("button", name="…")).to_have_count(0)
        expect(page.get_by_role("button", name="Commands for")).to_have_count(0)
        page_checks.open_trial(page, url, RUN, "t3")
        expect(page.get_by_role("button", name="…")).to_have_count(0)


def test_the_end_gives_a_result_and_runs_are_compared(
    page: Page, url: str, live: PacedRun, begin: Callable[..., PacedRun]
) -> None:
    ended = begin("ended", trials=2, workers=1)
    page_checks.open_run(page, url, "ended")
    answer = answered(page, of_run(page, "End…"), "Units that run now come to their end", "End the run")
    expect(answer).to_have_text("running units end, then the run is over")
    result = ended.run.wait(SECONDS)
    assert ended.run.status == "done"
    assert result.finished
    # One of the two, whichever got further until then.
    assert result.best_trial.metrics["val_loss"] == result.history["val_loss"].min()
    page.get_by_role("button", name="Close").click()
    expect(page.locator(".head-title")).to_contain_text("finished")
    expect(page.locator(".head").get_by_role("button").filter(visible=True)).to_have_count(0)
    page_checks.check_comparison(page, url, [RUN, "ended"])
    wait_for_charts(page)
    shoot(page, "live-compare-1280")
    page.set_viewport_size({"width": 390, "height": 900})
    fits = "() => document.documentElement.scrollWidth <= document.documentElement.clientWidth"
    page.wait_for_function(fits)  # charts follow the window a moment later
    shoot(page, "live-compare-390")


def test_a_run_is_killed(page: Page, url: str, begin: Callable[..., PacedRun], store: Path) -> None:
    killed = begin("killed", trials=2, workers=1)
    page_checks.open_run(page, url, "killed")
    answer = answered(page, of_run(page, "Kill…"), "The run stops at once", "Kill the run")
    expect(answer).to_have_text("the driver stops at once: the run can be resumed")
    with pytest.raises(RunKilled, match="dashboard"):
        killed.run.wait(SECONDS)
    assert killed.run.status == "stopped"
    assert logged(store, "killed", "kill")[1].done
    page.get_by_role("button", name="Close").click()
    expect(page.get_by_role("alert")).to_contain_text("interrupted")


@pytest.mark.parametrize("width", [1280, 390])
def test_every_page_of_the_run(browser: Browser, served: Served, live: PacedRun, width: int) -> None:
    with opened_page(browser, width) as page:
        url = enter(page, served)
        page_checks.check_runs(page, url, [RUN])
        shoot(page, f"live-runs-{width}")
        page_checks.check_run(page, url, RUN)
        wait_for_charts(page)
        shoot(page, f"live-run-{width}")
        page.emulate_media(color_scheme="dark")
        shoot(page, f"live-run-{width}-dark")
        page.emulate_media(color_scheme="light")
        page_checks.check_trial(page, url, RUN, "t3")
        wait_for_charts(page)
        shoot(page, f"live-trial-{width}")
