"""What a contender is told, what it tells, and what becomes of one that tells nothing."""

from __future__ import annotations

import doctest
import importlib.util
import json
import math
import os
from pathlib import Path

import numpy as np
import pytest
from fast_tier import drawn
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.peers import contender, environments, harness, roster, watch, works
from benchmarks.peers.contender import Contender, Report

finite = st.floats(allow_nan=False, allow_infinity=False)
counts = st.none() | st.integers(min_value=0)


@pytest.mark.parametrize("name", ["contender", "works", "table", "watch"])
def test_examples(name: str) -> None:
    assert doctest.testmod(importlib.import_module(f"benchmarks.peers.{name}")).failed == 0


@settings(max_examples=drawn(25))
@given(
    st.builds(
        Report,
        wall_s=finite,
        losses=st.dictionaries(st.text(), finite, min_size=1),
        start_s=finite,
        hops=counts,
        data_bytes=counts,
        bytes_read=counts,
        bytes_moved=counts,
        counted=st.dictionaries(st.text(), st.text()),
        more=st.dictionaries(st.text(), finite),
    ),
    st.text(),
)
def test_a_report_comes_back_whatever_was_said_before_it(report: Report, before: str) -> None:
    assert Report.read(f"{before}\n{report.line()}\n") == report


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ("", "the last line is ''"),
        ("done", "the last line is 'done'"),
        ("[1]", "must be a report"),
        (json.dumps({"losses": {"a": 1.0}}), r"must have \['wall_s'\] too"),
        (json.dumps({"wall_s": 1.0, "losses": {"a": 1.0}, "speed": 2}), r"has \['speed'\].*put them into `more`"),
        (json.dumps({"wall_s": 1.0, "losses": {}}), "`losses` is empty"),
    ],
)
def test_what_is_no_report_is_said(output: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        Report.read(output)


def test_a_contender_reads_what_it_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    told = Contender("x", "X", "some.module", "keras", how="spark").arguments("cnn", "/data")
    assert told[:2] == ["-m", "some.module"]
    monkeypatch.setattr("sys.argv", told[1:])
    found = contender.asked()
    assert (found.work, found.framework, found.folder, found.how) == ("cnn", "keras", Path("/data"), "spark")


def test_a_contender_that_fails_is_told_with_its_last_words(tmp_path: Path) -> None:
    nobody = Contender("nobody", "nobody", "benchmarks.peers.nobody")
    with pytest.raises(harness.ContenderFailed, match=r"nobody ended with 1(.|\n)*No module named"):
        harness.measure(nobody, works.WORKS["reference"], tmp_path)


def test_who_failed_is_named_and_the_others_go_on(tmp_path: Path) -> None:
    nobody = Contender("nobody", "nobody", "benchmarks.peers.nobody")
    homeless = Contender("homeless", "homeless", "benchmarks.peers.nobody", environment="no-such")
    rows, failures = harness.compare(works.WORKS["reference"], [nobody, homeless], tmp_path, rounds=2)
    assert rows == []
    assert [failure.split(" ")[0] for failure in failures] == ["homeless", "nobody"]


def test_a_worker_is_followed_by_its_note(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(contender.NOTES, str(tmp_path))
    contender.here_is_a_worker()
    with watch.Watch(tmp_path) as seen:
        pass
    assert set(seen.peaks) == {os.getpid()}
    assert watch.high_water(2**22 + 1) == 0, "nobody has a number that high"


@pytest.mark.parametrize("work", sorted(roster.ROSTER))
def test_everybody_in_the_roster_can_be_started_and_has_a_limit_beside_them(work: str) -> None:
    here = roster.ROSTER[work]
    names = [each.name for each in here]
    assert len(set(names)) == len(names)
    assert {each.limit for each in here} <= set(names)
    for each in here:
        assert importlib.util.find_spec(each.module) is not None, each.module
        if each.environment is not None:
            wanted = (environments.REQUIREMENTS / f"{each.environment}.txt").read_text().splitlines()
            lines = [line for line in wanted if line and not line.startswith("#")]
            assert lines
            assert [line for line in lines if "==" not in line] == []


def test_the_python_of_a_contender_without_requirements_is_refused() -> None:
    with pytest.raises(FileNotFoundError, match=r"environments are .*ray"):
        environments.python_of("no-such")


@pytest.mark.parametrize("work", list(works.WORKS.values()), ids=lambda work: work.name)
def test_the_halves_of_the_files_are_the_whole(work: works.Work, tmp_path: Path) -> None:
    works.make_files(work, tmp_path, scale=0.002)
    whole = works.read_files(tmp_path)
    rows, aside = sum(map(len, whole[::2])), len(whole[2])
    assert rows == max(20, int(work.rows * 0.002))
    assert [len(array) for array in whole] == [rows - aside, rows - aside, aside, aside]
    assert aside == -(-rows // 5)
    halves = [works.read_files(tmp_path, part, 2) for part in (0, 1)]
    for index, name in enumerate(works.PARTS):
        stored = np.load(tmp_path / f"{name}.npy")
        np.testing.assert_array_equal(whole[index], stored)
        even = len(stored) // 2 * 2
        np.testing.assert_array_equal(np.concatenate([half[index] for half in halves]), stored[:even])
    assert works.nbytes(halves[0]) == works.nbytes(halves[1]) <= works.nbytes(whole) / 2


def test_the_fifth_is_the_same_work() -> None:
    assert works.WORKS["fifth"].trials == works.WORKS["reference"].trials
    assert works.WORKS["fifth"].rows * 5 == works.WORKS["reference"].rows
    assert math.isclose(works.held_out(100).mean(), 0.2)
