"""Without the extra `dashboard` nothing of it is imported, and whoever asks for a dashboard is told what to install."""

from __future__ import annotations

import subprocess
import sys
from configparser import ConfigParser
from pathlib import Path

import pytest
from dashboard_runs import small_turns, write

import cerebro_spark as cs
from cerebro_spark.cli import main
from cerebro_spark.dashboard.files import charts_library
from cerebro_spark.dashboard.notebook import open_dashboard
from cerebro_spark.errors import MissingDependency
from cerebro_spark.store.local import LocalStore

ROOT = Path(__file__).resolve().parents[3]
EXTRA = ("plotly", "starlette", "uvicorn")
TO_INSTALL = r"pip install 'cerebro-spark\[dashboard\]'"
WITHOUT = f"import sys; sys.modules.update(dict.fromkeys({EXTRA}));"
"""What lets a process be one in which the extra is not installed: an import of it fails."""


@pytest.fixture
def store(tmp_path: Path) -> LocalStore:
    store = LocalStore(tmp_path / "store")
    write(store, small_turns()[:7])
    return store


@pytest.fixture(params=EXTRA)
def missing(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """A package of the extra that is not installed."""
    monkeypatch.setitem(sys.modules, request.param, None)
    return str(request.param)


def run_without(code: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run code in a process in which nothing of the extra is installed."""
    command = [sys.executable, "-c", f"{WITHOUT} {code}", *arguments]
    return subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=ROOT, check=False)


def test_these_are_the_packages_of_the_extra() -> None:
    config = ConfigParser()
    config.read(ROOT / "setup.cfg")
    lines = config["options.extras_require"]["dashboard"].split()
    assert tuple(line.partition(">=")[0] for line in lines) == EXTRA


def test_a_dashboard_that_cannot_be_opened_says_what_is_missing(store: LocalStore, missing: str) -> None:
    with pytest.raises(MissingDependency, match=rf"{TO_INSTALL} \({missing} is missing\)"):
        open_dashboard(store, show=False)
    with pytest.raises(MissingDependency, match=rf"{TO_INSTALL} \({missing} is missing\)"):
        cs.attach(store, "r1").dashboard()


def test_the_command_line_says_what_is_missing(
    store: LocalStore, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "uvicorn", None)
    assert main(["dashboard", store.url, "--port", "0"]) == 2
    said = capsys.readouterr()
    assert "pip install 'cerebro-spark[dashboard]'" in said.err
    assert "Traceback" not in said.err
    assert said.out == ""


def test_charts_without_their_library_say_what_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "plotly", None)
    with pytest.raises(MissingDependency, match=TO_INSTALL):
        charts_library.__wrapped__()


def test_the_command_line_works_where_nothing_of_it_is_installed(store: LocalStore) -> None:
    code = "from cerebro_spark.cli import main; sys.exit(main(sys.argv[1:]))"
    listed = run_without(code, "runs", store.url)
    assert (listed.returncode, "r1" in listed.stdout) == (0, True), listed.stderr
    refused = run_without(code, "dashboard", store.url, "--port", "0")
    assert refused.returncode == 2
    assert "pip install 'cerebro-spark[dashboard]'" in refused.stderr
    assert "Traceback" not in refused.stderr


def test_a_run_can_be_attached_where_nothing_of_it_is_installed(store: LocalStore) -> None:
    code = (
        "import cerebro_spark as cs; from cerebro_spark.errors import MissingDependency\n"
        "run = cs.attach(sys.argv[1], 'r1'); print(run.status)\n"
        "try: run.dashboard()\n"
        "except MissingDependency as error: print(error)"
    )
    done = run_without(code, store.url)
    assert done.returncode == 0, done.stderr
    status, said = done.stdout.splitlines()
    assert (status, "cerebro-spark[dashboard]" in said) == ("stopped", True)
