"""What if: a question is asked, its answer is waited for, and the question is withdrawn."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from cerebro_spark.commands import Command
from cerebro_spark.errors import NoAnswerYet
from cerebro_spark.forecast.files import ForecastFolder
from cerebro_spark.forecast.questions import wait_for_answer
from cerebro_spark.forecast.values import Forecast
from cerebro_spark.store import paths
from cerebro_spark.store.local import LocalStore

STOP = Command("stop_trial", trial="t7")
SOON, LATER = (Forecast(1.0, 1, at, at, at) for at in (100.0, 200.0))


class Story:
    """Time passes when somebody sleeps, and then the next thing happens."""

    def __init__(self, *acts: Callable[[], None]) -> None:
        self.now = 0.0
        self._acts = list(acts)

    def sleep(self, seconds: float) -> None:
        self.now += seconds
        if self._acts:
            self._acts.pop(0)()


@pytest.fixture
def folder(tmp_path: Path) -> ForecastFolder:
    return ForecastFolder(LocalStore(tmp_path), "r1")


def asked(folder: ForecastFolder, story: Story, command: Command = STOP) -> Forecast:
    return wait_for_answer(folder._store, "r1", command, 10.0, lambda: story.now, story.sleep)


def test_the_answer_is_that_of_a_forecast_which_was_made_since(folder: ForecastFolder) -> None:
    folder.write(Forecast(1.0, 1, 300.0, 300.0, 300.0, what_if={"stop_trial t7": LATER}))
    seen: list[list[Command]] = []
    story = Story(
        lambda: seen.append(folder.questions()),
        lambda: folder.write(Forecast(2.0, 2, 300.0, 300.0, 300.0, what_if={"end": LATER})),
        lambda: folder.write(Forecast(3.0, 3, 300.0, 300.0, 300.0, what_if={"stop_trial t7": SOON})),
    )
    assert asked(folder, story) == SOON
    assert seen == [[STOP]]
    assert folder._store.list(paths.questions("r1")) == [], "nobody asks any more"


def test_questions_about_the_same_trial_are_told_apart(folder: ForecastFolder) -> None:
    answers = {"resume_trial t7": SOON, "resume_trial t7, 2 epochs": LATER}
    story = Story(lambda: folder.write(Forecast(2.0, 2, 300.0, 300.0, 300.0, what_if=answers)))
    assert asked(folder, story, Command("resume_trial", trial="t7", epochs=2)) == LATER


def test_what_will_never_be_known_is_not_waited_for(folder: ForecastFolder) -> None:
    story = Story(lambda: folder.write(Forecast(1.0, 0, reason="another library leads this run")))
    for seconds in (0.5, 0.0):  # once it is found out while somebody waits, and then it is known before
        began = story.now
        with pytest.raises(NoAnswerYet, match="'stop_trial t7' has no forecast: another library leads this run"):
            asked(folder, story)
        assert story.now - began == seconds
    assert folder._store.list(paths.questions("r1")) == []


def test_who_knows_why_no_answer_will_come_says_so(folder: ForecastFolder) -> None:
    why: list[str] = [""]
    story = Story(lambda: None, lambda: why.append("the run is paused"))
    with pytest.raises(NoAnswerYet, match="'end' has no forecast: the run is paused"):
        wait_for_answer(folder._store, "r1", Command("end"), 10.0, lambda: story.now, story.sleep, lambda: why[-1])
    assert story.now == 1.0
    assert folder._store.list(paths.questions("r1")) == []


@pytest.mark.parametrize(
    ("before", "why"),
    [
        (None, "the run has no forecast at all"),
        (Forecast(1.0, 1, reason="the run is paused"), "the run is paused"),
        (SOON, "no forecast was made since"),
    ],
)
def test_without_an_answer_it_says_why(folder: ForecastFolder, before: Forecast | None, why: str) -> None:
    if before is not None:
        folder.write(before)
    with pytest.raises(NoAnswerYet, match=f"'stop_trial t7' has no forecast after 10 s: {why}"):
        asked(folder, Story())
    assert folder._store.list(paths.questions("r1")) == []
