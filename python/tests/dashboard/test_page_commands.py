"""Every command from the page: what its dialog says, what is sent, and the answer when it comes."""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import made_up_answers as answers
import page_checks
import pytest
from browsing import PATIENCE_MS, expect, shoot
from made_up_run import RUN, MadeUpRun
from made_up_server import MadeUpServer, Serve

from cerebro_spark.commands import Command
from cerebro_spark.forecast.values import label_of

if TYPE_CHECKING:
    from playwright.sync_api import Locator, Page, Route

pytestmark = pytest.mark.slow
# The button that opens it, words of its dialog, the button that sends it, what is sent.
OF_THE_RUN: list[tuple[str, str, str, dict[str, Any]]] = [
    ("Pause…", "no new one begins", "Pause", {"verb": "pause"}),
    ("End…", "Units that run now come to their end", "End the run", {"verb": "end"}),
    ("Kill…", "The run stops at once", "Kill the run", {"verb": "kill"}),
    ("Add workers…", "Each loads its partitions", "Add workers", {"verb": "add_workers", "workers": 1}),
]

# Lets a test say when the page has waited long enough for an answer to what it sent last.
PATIENCE_AT_WILL = """
const ask = window.fetch;
window.fetch = (path, options) => {
  if (options?.method !== "POST") return ask(path, options);
  const controller = new AbortController();
  window.losePatience = () => controller.abort(new DOMException("It took too long.", "TimeoutError"));
  return ask(path, { ...options, signal: controller.signal }); };
"""


def answer_last(server: MadeUpServer, run: MadeUpRun, done: bool = True, reason: str = "") -> None:
    """Let the driver answer the command that was sent last."""
    server.step(run, 1, lambda: run.answer(list(run.commands)[-1], done, reason))


def sent_fields(server: MadeUpServer) -> list[dict[str, Any]]:
    """What was sent, without the ids: each dialog makes one."""
    assert all(re.fullmatch("[0-9a-f]{32}", body["id"]) for body in server.posted)
    return [{name: value for name, value in body.items() if name != "id"} for body in server.posted]


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
    assert sent_fields(server) == [sent]
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
    assert sent_fields(server) == [{"verb": "stop_trial", "trial": "t0"}]
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
    (known,) = made["what_if"].values()
    run.forecast_made = {**made, "what_if": {label_of(Command("stop_trial", trial="t1")): known}}
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
    assert sent_fields(server) == [{"verb": "resume_trial", "trial": "t3", "epochs": 3}]
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
    assert sent_fields(server) == [{"verb": "clone", "trial": "t0", "params": params, "warm_start": False}]
    answer_last(server, run, reason="t16 begins")
    dialog.get_by_text("t16 begins").wait_for()


Meet = Callable[["Route"], None]


def meet_posts(page: Page, *meets: Meet) -> None:
    """Let the first commands that the page sends meet something else than the server, one after the other."""
    left = list(meets)
    page.route(
        "**/commands", lambda route: left.pop(0)(route) if left and route.request.method == "POST" else route.fallback()
    )


def wait_until(page: Page, holds: Callable[[], bool]) -> None:
    """Let the browser go on until something holds."""
    end = time.monotonic() + PATIENCE_MS / 1000
    while not holds():
        assert time.monotonic() < end, "it does not hold yet"
        page.wait_for_timeout(20)


def refusing(status: int, error: str) -> Meet:
    """The server refuses the command, with a sentence."""
    return lambda route: route.fulfill(status=status, json={"error": error})


def lose_answer(route: Route) -> None:
    """The server took the command, but its answer does not arrive."""
    route.fetch()
    route.abort()


def answer_too_late(route: Route) -> None:
    """As behind a proxy that waits no longer for a server that is still at work."""
    route.fetch()
    route.fulfill(status=504, body="<html>Gateway Time-out</html>")


def cut_answer(route: Route) -> None:
    """The server took the command; of its answer only the beginning arrives."""
    route.fulfill(status=route.fetch().status, body='{"comm', content_type="application/json")


def open_clone(page: Page, server: MadeUpServer) -> Locator:
    """Open the dialog of a clone with another learning rate."""
    page_checks.open_run(page, server.url, RUN)
    menu(page, "t0", "Clone…")
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("lr").fill("2e-3")
    return dialog


@pytest.mark.parametrize("trouble", [lose_answer, answer_too_late, cut_answer])
def test_what_may_have_been_sent_is_sent_again_as_the_same_command(
    page: Page, server: MadeUpServer, run: MadeUpRun, trouble: Meet
) -> None:
    meet_posts(page, trouble)
    dialog = open_clone(page, server)
    dialog.get_by_role("button", name="Start the clone").click()
    dialog.get_by_text("It may have been sent").wait_for()
    dialog.get_by_text("sends the same command, which is obeyed once").wait_for()
    for field in dialog.locator("input").all():
        expect(field).to_be_disabled()
    expect(dialog.get_by_label("lr")).to_have_value("2e-3")
    dialog.get_by_role("button", name="Start the clone").click()
    dialog.get_by_text("Sent. The run's answer comes").wait_for()
    first, second = server.posted
    assert first == second
    assert sent_fields(server)[0]["params"] == {"lr": 0.002}
    assert len(run.commands) == 1


def test_a_server_that_is_silent_gets_the_same_command_again(page: Page, server: MadeUpServer) -> None:
    page.add_init_script(PATIENCE_AT_WILL)
    held: list[Route] = []
    meet_posts(page, held.append)
    dialog = open_clone(page, server)
    dialog.get_by_role("button", name="Start the clone").click()
    wait_until(page, lambda: bool(held))
    page.evaluate("window.losePatience()")
    dialog.get_by_text("It may have been sent").wait_for()
    dialog.get_by_role("button", name="Start the clone").click()
    dialog.get_by_text("Sent. The run's answer comes").wait_for()
    (silent,) = held
    assert server.posted == [silent.request.post_data_json]


def test_the_runs_answer_to_what_may_have_been_sent_is_told(page: Page, server: MadeUpServer, run: MadeUpRun) -> None:
    meet_posts(page, lose_answer)
    dialog = open_clone(page, server)
    expect(page.locator("#link")).to_have_text("Live")
    dialog.get_by_role("button", name="Start the clone").click()
    dialog.get_by_text("It may have been sent").wait_for()
    answer_last(server, run, reason="t16 begins")
    dialog.get_by_text("t16 begins").wait_for()
    expect(dialog.get_by_role("button", name="Start the clone")).to_be_hidden()
    assert len(server.posted) == 1


def test_what_is_being_sent_cannot_be_changed_meanwhile(page: Page, server: MadeUpServer) -> None:
    """Else the second try would be another command under the id of the first."""
    held: list[Route] = []
    meet_posts(page, held.append)
    dialog = open_clone(page, server)
    lr = dialog.get_by_label("lr")
    lr.press("Enter")
    wait_until(page, lambda: bool(held))
    expect(lr).to_be_disabled()
    refusing(429, "too many commands at once")(held[0])
    dialog.get_by_text("too many commands at once").wait_for()
    expect(lr).to_be_enabled()
    expect(lr).to_be_focused()


def test_what_was_refused_can_be_changed_before_it_is_sent_again(page: Page, server: MadeUpServer) -> None:
    meet_posts(page, refusing(429, "too many commands at once"))
    dialog = open_clone(page, server)
    dialog.get_by_role("button", name="Start the clone").click()
    dialog.get_by_text("too many commands at once").wait_for()
    dialog.get_by_label("lr").fill("3e-3")
    dialog.get_by_role("button", name="Start the clone").click()
    dialog.get_by_text("Sent. The run's answer comes").wait_for()
    assert [sent["params"] for sent in sent_fields(server)] == [{"lr": 0.003}]


def test_what_may_have_been_sent_stays_as_it_is_after_a_refusal(page: Page, server: MadeUpServer) -> None:
    """Only the first try can have come through, and it had this content."""
    meet_posts(page, lose_answer, refusing(409, "the run is over: it takes no commands"))
    dialog = open_clone(page, server)
    dialog.get_by_role("button", name="Start the clone").click()
    dialog.get_by_text("It may have been sent").wait_for()
    dialog.get_by_role("button", name="Start the clone").click()
    dialog.get_by_text("the run is over: it takes no commands").wait_for()
    expect(dialog.get_by_label("lr")).to_be_disabled()


def test_two_dialogs_send_two_commands(page: Page, server: MadeUpServer, run: MadeUpRun) -> None:
    for _ in range(2):
        dialog = open_clone(page, server)
        dialog.get_by_role("button", name="Start the clone").click()
        dialog.get_by_text("Sent. The run's answer comes").wait_for()
        dialog.get_by_role("button", name="Close").click()
    assert len(run.commands) == 2


def test_a_worker_is_removed(page: Page, server: MadeUpServer) -> None:
    page_checks.open_run(page, server.url, RUN)
    page.get_by_role("button", name="Remove w2").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove w2").click()
    page.get_by_text("Sent. The run's answer comes").wait_for()
    assert sent_fields(server) == [{"verb": "remove_worker", "worker": "w2"}]


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


def test_a_menu_stays_open_when_news_move_its_row_or_make_it_anew(
    page: Page, server: MadeUpServer, run: MadeUpRun
) -> None:
    page_checks.open_run(page, server.url, RUN)
    expect(page.locator("#link")).to_have_text("Live")
    opener = page.get_by_role("button", name="Commands for t8", exact=True)
    opener.click()
    item = page.get_by_role("menuitem", name="Clone…")
    item.hover()
    # Another column, for which every row is made anew.
    expect(page.get_by_role("columnheader", name="momentum")).to_have_count(0)
    run.params[0] = {**run.params[0], "momentum": 0.9}
    server.step(run, 0, lambda: run.stopped.add(0))
    page.get_by_role("columnheader", name="momentum").wait_for()
    expect(page.get_by_role("menuitem", name="Stop…")).to_be_focused()
    expect(opener).to_have_attribute("aria-expanded", "true")
    item.click()
    page.get_by_role("dialog").get_by_label("lr").wait_for()
    page.keyboard.press("Escape")
    expect(opener).to_be_focused()
    expect(opener).to_have_attribute("aria-expanded", "false")


def test_a_button_that_moves_while_it_is_pressed_opens_its_menu(page: Page, server: MadeUpServer) -> None:
    page_checks.open_run(page, server.url, RUN)
    opener = page.get_by_role("button", name="Commands for t8", exact=True)
    opener.hover()
    page.mouse.down()
    opener.evaluate("button => button.closest('table').style.marginTop = '300px'")
    page.mouse.up()
    expect(page.get_by_role("menuitem", name="Stop…")).to_be_focused()


def test_a_menu_is_closed_by_its_button_by_another_and_by_a_click_elsewhere(page: Page, server: MadeUpServer) -> None:
    page_checks.open_run(page, server.url, RUN)
    menus = page.get_by_role("menu")
    for _ in range(2):
        page.get_by_role("button", name="Commands for t8", exact=True).click()
        expect(menus).to_have_count(1)
        page.get_by_role("button", name="Commands for t8", exact=True).click()
        expect(menus).to_have_count(0)
        expect(page.get_by_role("button", name="Commands for t8", exact=True)).to_be_focused()
    page.get_by_role("button", name="Commands for t8", exact=True).click()
    page.get_by_role("button", name="Commands for t1", exact=True).click()
    expect(menus).to_have_count(1)
    expect(menus).to_have_attribute("aria-label", "Commands for t1")
    page.get_by_role("heading", name="Trials", exact=True).click()
    expect(menus).to_have_count(0)


def test_a_row_that_moves_keeps_the_focus(page: Page, server: MadeUpServer, run: MadeUpRun) -> None:
    page_checks.open_run(page, server.url, RUN)
    expect(page.locator("#link")).to_have_text("Live")
    page.locator("#part-trials").get_by_role("button", name="Epochs", exact=True).click()
    # Focused as if by the mouse, which is elsewhere: such a row may move.
    box = page.get_by_role("checkbox", name="Select t8", exact=True)
    rows = page.locator("#part-trials tbody th")
    box.evaluate("box => box.focus({ focusVisible: false })")
    before = rows.all_inner_texts()
    server.step(run, 40)
    expect(rows).not_to_have_text(before)
    expect(box).to_be_focused()


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
