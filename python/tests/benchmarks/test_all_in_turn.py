"""`python -m benchmarks`: each is called as it understands, its numbers are kept, and a failure is the whole's."""

from __future__ import annotations

import doctest
import importlib
import json
import subprocess
import sys
from pathlib import Path

import pytest

from benchmarks import __main__ as everything

ROOT = Path(__file__).resolve().parents[3]


@pytest.mark.parametrize(
    "name",
    ["__main__", "circumstances", "click_to_stop", "dashboard_page", "exact", "forecast", "remote_bytes", "scaling"],
)
def test_examples(name: str) -> None:
    tried = doctest.testmod(importlib.import_module(f"benchmarks.{name}"))
    assert tried.attempted
    assert tried.failed == 0


@pytest.mark.parametrize("name", everything.NAMES)
def test_each_takes_the_options_it_is_called_with(name: str, tmp_path: Path) -> None:
    module = ROOT / "benchmarks" / name / "__main__.py"
    text = (module if module.exists() else ROOT / "benchmarks" / f"{name}.py").read_text()
    said = everything.command(name, tmp_path)
    assert said[1:3] == ["-m", f"benchmarks.{name}"]
    for option in (word for word in said if word.startswith("--")):
        assert f'"{option}"' in text, f"benchmarks.{name} does not know {option}"


@pytest.mark.parametrize(("java", "store"), [("/usr/bin/java", "hdfs"), (None, "local")])
def test_clicks_are_measured_on_hdfs_where_there_is_java(
    java: str | None, store: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr("benchmarks.__main__.shutil.which", {"java": java}.get)
    assert everything.command("click_to_stop", tmp_path)[-2:] == ["--store", store]
    assert "--store" not in everything.command("dashboard", tmp_path)


@pytest.mark.slow
def test_one_of_them_leaves_its_numbers_and_its_picture(tmp_path: Path) -> None:
    said = [sys.executable, "-m", "benchmarks", "--only", "remote_bytes", "--out", str(tmp_path / "new")]
    done = subprocess.run(said, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)
    assert done.returncode == 0, done.stderr
    assert set(json.loads((tmp_path / "new" / "remote_bytes.json").read_text())) == {"figure_10", "figure_11", "check"}
    assert (tmp_path / "new" / "remote-bytes.svg").exists()
    assert "(remote_bytes took" in done.stdout


def test_a_failure_is_named_and_the_others_still_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    def as_asked(name: str, out: Path) -> list[str]:
        return [sys.executable, "-c", f"open({str(out / name)!r}, 'w'); raise SystemExit({int(name == 'data')})"]

    monkeypatch.setattr(everything, "command", as_asked)
    monkeypatch.setattr(sys, "argv", ["benchmarks", "--only", "data", "unit", "--out", str(tmp_path)])
    assert everything.main() == 1
    assert {file.name for file in tmp_path.iterdir()} == {"data", "unit"}
