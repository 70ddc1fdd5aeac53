"""Every command from the page: what its dialog says, what is sent, and the answer when it comes."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import made_up_answers as answers
import page_checks
import pytest
from browsing import expect, shoot
from made_up_run import RUN, MadeUpRun
from made_up_server import MadeUpServer, Serve

if TYPE_CHECKING:
    from playwright.sync_api import Page

pytestmark = pytest.mark.slow
# The button that opens it, words of its dialog, the button that sends it, what is sent.
OF_THE_RUN: list[tuple[str, str, str, dict[str, Any]]] = [
    ("Pause…", "no new one begins", "Pause", {"verb": "pause"}),
    ("End…", "Units that run now come to their end", "End the run", {"verb": "end"}),
    ("Kill…", "The run stops at once", "Kill the run", {"verb": "kill"}),
    ("Add workers…", "Each loads its partitions", "Add workers", {"verb": "add_workers", "workers": 1}),
]


def answer_last(server: MadeUpServer, run: MadeUpRun, done: bool = True, reason: str = "") -> None:
    """Let the driver answer the command that was sent last."""
    server.step(run, 1, lambda: run.answer(list(run.commands)[-1], done, reason))


def menu(page: Page, trial: str, item: str) -> None:
    """Open the dialog of a command from the table of trials."""
    page.get_by_role("button", name=f"Commands for {trial}", exact=True).click()
    page.get_by_role("menuitem", name=item).click()


@pytest.mark.parametrize(("opener", "words", "button", "sent"), OF_THE_RUN)
def test_commands_for_the_run(
    page: Page, server: MadeUpServer, run: MadeUpRun, opener: str, words: str, button: str, sent: dict[str, Any]
) -> None:
    page_checks.open_run(page, server.url, RUN)
    page.locator(".head").get_by_role("button", name=opener).click()
    dialog = page.get_by_role("dialog", name=RUN)
    dialog.get_by_text(words).wait_for()
    dialog.get_by_role("button", name=button, exact=True).click()
    dialog.get_by_text("Sent. The run's answer comes").wait_for()
    assert server.posted == [sent]
    answer_last(server, run)
    dialog.get_by_text("Done.").wait_for()
    dialog.get_by_role("button", name="Close").click()
    page.locator("#part-commands").get_by_text("done").wait_for()


def test_a_paused_run_can_be_unpaused(page: Page, server: MadeUpServer, run: MadeUpRun) -> None:
    run.state = "paused"
    page_checks.open_run(page, server.url, RUN)
    expect(page.get_by_role("button", name="Pause…", exact=True)).to_be_hidden()
    page.get_by_role("button", name="Unpause…").click()
    page.get_by_role("dialog").get_by_role("button", name="Unpause").click()
    page.get_by_text("Sent. The run's answer comes").wait_for()
    answer_last(server, run)
    page.get_by_text("Done.").wait_for()
    page.get_by_role("button", name="Close").click()
    page.get_by_role("button", name="Pause…", exact=True).wait_for()


def test_a_trial_is_stopped_and_the_forecast_says_what_follows(
    page: Page, server: MadeUpServer, run: MadeUpRun
) -> None:
    run.forecast_made = answers.made_forecast(run)
    page_checks.open_run(page, server.url, RUN)
    expect(page.locator("#link")).to_have_text("Live")  # by then all is loaded, the forecast too
    menu(page, "t0", "Stop…")
    dialog = page.get_by_role("dialog")
    dialog.get_by_text("units that wait at a worker are withdrawn").wait_for()
    dialog.get_by_text("5 min 00 s earlier").wait_for()
    shoot(page, "dialog-stop")
    dialog.get_by_role("button", name="Stop t0").click()
    dialog.get_by_text("Sent. The run's answer comes").wait_for()
    assert server.posted == [{"verb": "stop_trial", "trial": "t0"}]
    answer_last(server, run)
    dialog.get_by_text("Done.").wait_for()
    page.keyboard.press("Escape")
    row = page.locator("#part-trials tr", has=page.get_by_role("link", name="t0", exact=True))
    row.get_by_text("stopped").wait_for()


def test_what_the_forecast_does_not_say_yet_is_asked(page: Page, server: MadeUpServer, run: MadeUpRun) -> None:
    made = run.forecast_made = answers.made_forecast(run)
    page_checks.open_run(page, server.url, RUN)
    expect(page.locator("#link")).to_have_text("Live")
    with page.expect_response("**/questions"):
        menu(page, "t1", "Stop…")
    assert server.questions == [{"verb": "stop_trial", "trial": "t1"}]
    run.forecast_made = {**made, "what_if": {"stop_trial t1": made["what_if"]["stop_trial t0"]}}
    server.step(run, 1)
    page.get_by_role("dialog").get_by_text("5 min 00 s earlier").wait_for()
    assert server.posted == []


def test_a_stopped_trial_is_resumed(page: Page, server: MadeUpServer, run: MadeUpRun) -> None:
    run.stopped.add(3)
    page_checks.open_trial(page, server.url, RUN, "t3")
    page.get_by_role("button", name="Resume…").click()
    page.get_by_label("Further epochs").fill("0")
    page.get_by_role("button", name="Resume t3").click()
    page.get_by_text("Epochs must be a whole number").wait_for()
    page.get_by_label("Further epochs").fill("3")
    page.get_by_role("button", name="Resume t3").click()
    page.get_by_text("Sent. The run's answer comes").wait_for()
    assert server.posted == [{"verb": "resume_trial", "trial": "t3", "epochs": 3}]
    page.get_by_role("button", name="Close").click()
    answer_last(server, run, done=False, reason="t3 has no checkpoint any more")
    note = page.get_by_role("log").get_by_text("t3 has no checkpoint any more")
    note.wait_for()


def test_a_clone_sends_only_what_differs(page: Page, server: MadeUpServer, run: MadeUpRun) -> None:
    run.params[0] = {**run.params[0], "layers": [64, 32], "bias": True}
    page_checks.open_run(page, server.url, RUN)
    menu(page, "t0", "Clone…")
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("lr").fill("fast")
    dialog.get_by_role("button", name="Start the clone").click()
    dialog.get_by_text("lr must be a number").wait_for()
    dialog.get_by_label("lr").fill("2e-3")
    dialog.get_by_label("layers").fill("[64, 64]")
    dialog.get_by_label("optimizer").fill("lion")
    dialog.get_by_label("Begin with the weights of t0").uncheck()
    dialog.get_by_role("button", name="Start the clone").click()
    dialog.get_by_text("Sent. The run's answer comes").wait_for()
    params = {"lr": 0.002, "layers": [64, 64], "optimizer": "lion"}
    assert server.posted == [{"verb": "clone", "trial": "t0", "params": params, "warm_start": False}]
    answer_last(server, run, reason="t16 begins")
    dialog.get_by_text("t16 begins").wait_for()


def test_a_worker_is_removed(page: Page, server: MadeUpServer) -> None:
    page_checks.open_run(page, server.url, RUN)
    page.get_by_role("button", name="Remove w2").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove w2").click()
    page.get_by_text("Sent. The run's answer comes").wait_for()
    assert server.posted == [{"verb": "remove_worker", "worker": "w2"}]


def test_read_only_has_no_commands_at_all(page: Page, serve: Serve, run: MadeUpRun) -> None:
    server = serve(run, read_only=True)
    page_checks.check_run(page, server.url, RUN)
    page.get_by_text("Read only").wait_for()
    expect(page.get_by_role("button", name="…")).to_have_count(0)
    expect(page.get_by_role("button", name="Commands for")).to_have_count(0)
    page_checks.open_trial(page, server.url, RUN, "t3")
    expect(page.get_by_role("button", name="…")).to_have_count(0)
    assert server.posted == []


def test_a_run_that_is_over_takes_no_commands(page: Page, serve: Serve) -> None:
    server = serve(MadeUpRun("over", share=1.0))
    page_checks.open_run(page, server.url, "over")
    expect(page.locator(".head").get_by_role("button").filter(visible=True)).to_have_count(0)
    expect(page.get_by_role("button", name="Remove w0")).to_be_hidden()
    expect(page.get_by_role("button", name="Commands for")).to_have_count(0)


def test_a_menu_closes_when_the_run_ends(page: Page, server: MadeUpServer, run: MadeUpRun) -> None:
    page_checks.open_run(page, server.url, RUN)
    expect(page.locator("#link")).to_have_text("Live")
    page.get_by_role("button", name="Commands for t8", exact=True).click()
    page.get_by_role("menuitem", name="Clone…").wait_for()
    server.step(run, len(run.units))
    expect(page.get_by_role("menu")).to_have_count(0)
    expect(page.get_by_role("button", name="Commands for")).to_have_count(0)


def test_a_dialog_ends_with_its_page(page: Page, server: MadeUpServer) -> None:
    page_checks.open_runs(page, server.url)
    page.get_by_role("link", name=RUN).click()
    page.locator(".head").get_by_role("button", name="Kill…").click()
    expect(page.get_by_role("dialog", name=f"Kill {RUN}?")).to_be_visible()
    page.go_back()
    page.locator(".runs tbody tr").first.wait_for()
    expect(page.locator("dialog")).to_have_count(0)
    assert server.posted == []
