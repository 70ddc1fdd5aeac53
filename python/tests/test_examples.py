"""The examples run as they are, as a user would start them."""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO, Any

import pytest
from sparks import QUICK_JVM

ROOT = Path(__file__).resolve().parents[2]
NOTEBOOK = ROOT / "examples" / "notebook.ipynb"
FLIGHTS = ["flights.py", "--rows", "10000", "--trials", "2", "--epochs", "1", "--out", "flights"]
FMIN = ["hyperopt_fmin.py", "--max-evals", "4", "--epochs", "2"]
EXAMPLES = [
    pytest.param(
        [*FLIGHTS, "--framework", "keras", "--dashboard", "on"],
        "'auc': 0.",
        marks=[pytest.mark.jvm, pytest.mark.rare],
        id="flights-keras",
    ),
    pytest.param(
        ["digits.py", "--trials", "2", "--epochs", "2"], "digits it never saw: 0.", marks=pytest.mark.rare, id="digits"
    ),
    pytest.param(
        ["sequences.py", "--trials", "2", "--epochs", "1"],
        "waves it never saw: ",
        marks=pytest.mark.rare,
        id="sequences",
    ),
    pytest.param(FMIN, "4 trials (4 finished)", id="fmin"),
    pytest.param(
        [*FMIN, "--master", "local[2]"],
        "4 trials (4 finished)",
        marks=[pytest.mark.jvm, pytest.mark.rare],
        id="fmin-spark",
    ),
]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.parametrize(("command", "expected"), EXAMPLES)
def test_an_example_runs(command: list[str], expected: str, tmp_path: Path) -> None:
    run([sys.executable, str(ROOT / "examples" / command[0]), *command[1:]], tmp_path, expected)


def run(command: list[str], folder: Path, expected: str = "") -> None:
    """Run it there to its end, as a user would whose temporary files lie there too."""
    done = subprocess.run(
        command, cwd=folder, env=surroundings(folder), capture_output=True, text=True, timeout=600, check=False
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert expected in done.stdout


def surroundings(folder: Path) -> dict[str, str]:
    """The environment of a program that runs in a folder."""
    return {
        **os.environ,
        "PYTHONPATH": str(ROOT),
        "TMPDIR": str(folder),
        "IPYTHONDIR": str(folder / "ipython"),
        "JDK_JAVA_OPTIONS": QUICK_JVM,
    }


@pytest.mark.slow
@pytest.mark.rare
@pytest.mark.jvm
@pytest.mark.timeout(900)
def test_the_demo_keeps_its_dashboard_open_until_ctrl_c(tmp_path: Path) -> None:
    """As `make demo DASHBOARD=1` does it."""
    flights = [str(ROOT / "examples" / FLIGHTS[0]), *FLIGHTS[1:], "--framework", "torch", "--dashboard", "keep"]
    errors = tmp_path / "errors"
    with kept_open([sys.executable, *flights], tmp_path, errors) as demo:
        assert demo.stdout is not None
        before = read_until("The dashboard stays open: press Ctrl-C", demo.stdout)
        (link,) = [line.removeprefix("Dashboard: ").strip() for line in before if line.startswith("Dashboard: ")]
        assert "token=" in link, errors.read_text()[-3000:]
        assert run_behind(link)["finished"]
        os.killpg(demo.pid, signal.SIGINT)  # a terminal sends it to all that was started there
        after = demo.stdout.read()
        assert demo.wait(300) == 0, errors.read_text()[-3000:]
    assert "What next: cerebro-spark show" in after
    assert "Traceback" not in errors.read_text() + "".join(before) + after


@contextmanager
def kept_open(command: list[str], folder: Path, errors: Path) -> Iterator[subprocess.Popen[str]]:
    """Start a program in a group of its own; nothing of the group is left after the block."""
    with open(errors, "w") as said:
        started = subprocess.Popen(
            command,
            cwd=folder,
            env=surroundings(folder),
            stdout=subprocess.PIPE,
            stderr=said,
            text=True,
            start_new_session=True,
        )
    with started:
        try:
            yield started
        finally:
            with suppress(ProcessLookupError):
                os.killpg(started.pid, signal.SIGKILL)


def read_until(words: str, output: IO[str]) -> list[str]:
    """The lines up to the one with these words, which must come."""
    lines: list[str] = []
    for line in output:
        lines.append(line)
        if words in line:
            return lines
    raise AssertionError(f"it ended without {words!r}: {''.join(lines)[-3000:]}")


def run_behind(link: str) -> dict[str, Any]:
    """What the dashboard says of the run that a link leads to, as it tells a browser that has opened the link."""
    no_proxy, cookies = urllib.request.ProxyHandler({}), urllib.request.HTTPCookieProcessor()
    browser = urllib.request.build_opener(no_proxy, cookies)
    with browser.open(link, timeout=300) as page:
        assert page.status == 200
        (run_id,) = re.findall(r'href="\./#/run/([^"]+)"', page.read().decode())
    with browser.open(urllib.parse.urljoin(link, f"/api/runs/{run_id}"), timeout=300) as answer:
        return dict(json.loads(answer.read()))


def test_hyperopts_script_is_changed_by_two_lines() -> None:
    """Each line that was there before is shown above the statement that took its place."""
    lines = [line.strip() for line in (ROOT / "examples" / "hyperopt_fmin.py").read_text().splitlines()]
    changed = [(line, after) for line, after in itertools.pairwise(lines) if line.startswith("# before: ")]
    assert [after.split("(")[0] for _, after in changed] == ["return cs.TorchModel", "trials = CerebroTrials"]
    assert [line.removeprefix("# before: ").split("(")[0] for line, _ in changed] == [
        "return train_and_score",
        "trials = SparkTrials",
    ]


def cells(notebook: Path) -> list[dict[str, Any]]:
    return [cell for cell in json.loads(notebook.read_text())["cells"] if cell["cell_type"] == "code"]


def test_the_notebook_is_kept_without_outputs() -> None:
    assert len(cells(NOTEBOOK)) > 5
    for cell in cells(NOTEBOOK):
        assert (cell["outputs"], cell["execution_count"]) == ([], None), f"clear the outputs of cell {cell['id']}"


@pytest.mark.jvm
@pytest.mark.slow
@pytest.mark.rare
@pytest.mark.timeout(900)
def test_the_notebook_runs_from_top_to_bottom(tmp_path: Path) -> None:
    jupyter = str(Path(sys.executable).with_name("jupyter"))
    run([jupyter, "execute", f"--output={tmp_path / 'done.ipynb'}", str(NOTEBOOK)], tmp_path)
    done = {cell["id"]: cell["outputs"] for cell in cells(tmp_path / "done.ipynb")}
    bar = "".join("".join(output["text"]) for output in done["search"] if output["output_type"] == "stream")
    assert "8 done" in bar
    assert "Warning" not in bar
    (table,) = done["table"]
    assert "<table" in "".join(table["data"]["text/html"])
    for picture in ("curves", "parallel", "gantt"):
        (shown,) = done[picture]
        assert "image/png" in shown["data"], picture
    (measured,) = done["evaluate"]
    assert "'accuracy': 0." in "".join(measured["text"])
