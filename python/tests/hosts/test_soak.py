"""A soak of three minutes: faults of all kinds while real runs go on. `make soak` goes on for as long as it is told."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from hadoop import jars

from hosts.network import why_not
from hosts.soak import soak

REASON = why_not()
SECONDS, SEED = 180.0, 20
pytestmark = [
    pytest.mark.jvm,
    pytest.mark.hadoop,
    pytest.mark.slow,
    pytest.mark.timeout(1500),
    pytest.mark.skipif(bool(REASON), reason=REASON or "possible here"),
]


def test_runs_survive_whatever_happens_to_their_hosts(
    tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    reason = jars.missing()
    if reason is not None:
        if os.environ.get("CI") == "true":
            pytest.fail(f"{reason}; in CI these tests must run", pytrace=False)
        pytest.skip(reason)
    # It raises what a run does not survive. Runs are short, so that there are some of each kind on a busy machine, too.
    report = soak(tmp_path, SECONDS, kills=1000, seed=SEED, faults_a_run=(1, 2), least_runs=3)
    print(report)
    record_property("report", str(report))
    assert len(report.struck) >= 3
    assert len(report.audited) == report.runs >= 3, "one by one, in bundles and by groups"
