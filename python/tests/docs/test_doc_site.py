"""The site: it builds without a warning, loads nothing from elsewhere, and its reference names everything public."""

from __future__ import annotations

import importlib
import inspect
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from doc_blocks import DOCS, ROOT

import cerebro_spark
from cerebro_spark import errors, hp, result, store

SHOWN = set(re.findall(r"^::: (\S+)$", "\n".join(page.read_text() for page in DOCS.glob("api/*.md")), re.MULTILINE))
# What users meet in packages that name no public parts themselves.
OF_BACKEND = {"base.Backend", "simulated.SimulatedWorker", "simulated.World"}
OF_TUNE = {
    "estimator.ModelSearch",
    "spaces.space.Space",
    "hyperopt.CerebroTrials",
    "optuna.optimize",
    "trackers.Tracker",
}


def public() -> set[str]:
    """Every public name, by the address that users know it by."""
    top = set(cerebro_spark.__all__) - {"__version__", "hp"}
    in_store, in_result = set(store.__all__) - top, set(result.__all__) - top
    raised = {name for name, value in vars(errors).items() if isinstance(value, type)}
    return {
        *(f"cerebro_spark.{name}" for name in top),
        *(f"cerebro_spark.hp.{name}" for name in hp.__all__),
        *(f"cerebro_spark.store.{name}" for name in in_store),
        *(f"cerebro_spark.result.{name}" for name in in_result),
        *(f"cerebro_spark.errors.{name}" for name in raised),
        *(f"cerebro_spark.backend.{name}" for name in OF_BACKEND),
        *(f"cerebro_spark.tune.{name}" for name in OF_TUNE),
    }


def test_the_reference_names_everything_public() -> None:
    assert public() - SHOWN == set()


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(SHOWN))
def test_what_the_reference_names_is_there_and_says_what_it_is(name: str) -> None:
    place, _, own = name.rpartition(".")
    thing = getattr(importlib.import_module(place.replace("cerebro_spark.hp", "cerebro_spark.tune.hp")), own)
    assert thing.__doc__


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1"},
        capture_output=True,
        text=True,
        timeout=600,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "WARNING" not in done.stderr
    return folder


@pytest.mark.slow
def test_every_page_is_built(site: Path) -> None:
    sources = {page.relative_to(DOCS).with_suffix(".html") for page in DOCS.rglob("*.md")}
    built = {page.relative_to(site) for page in site.rglob("*.html")}
    assert built == {*sources, Path("404.html")}


@pytest.mark.slow
def test_everything_public_has_its_place_in_the_site(site: Path) -> None:
    text = "".join(page.read_text() for page in (site / "api").glob("*.html"))
    assert {name for name in SHOWN if f'id="{name}"' not in text} == set()


@pytest.mark.slow
def test_examples_are_shown_as_code(site: Path) -> None:
    """Markdown would take `>>>` for three quotations in one another."""
    for page in (site / "api").glob("*.html"):
        assert "<blockquote>" not in page.read_text(), page.name


@pytest.mark.slow
def test_parameters_are_shown_as_tables(site: Path) -> None:
    _, _, after = (site / "api" / "data.html").read_text().partition('id="cerebro_spark.prepare"')
    shown = re.findall(r"<tr[^>]*>\s*<td>\s*<code>(\w+)</code>", after.partition('id="cerebro_spark.open_dataset"')[0])
    assert shown == list(inspect.signature(cerebro_spark.prepare).parameters)


@pytest.mark.slow
def test_the_site_loads_nothing_from_elsewhere(site: Path) -> None:
    loading = re.compile(r"<(?:script|img|link|iframe)\b[^>]*(?:src|href)=\"?(?:https?:)?//[^>]*>", re.IGNORECASE)
    for page in site.rglob("*.html"):
        assert loading.findall(page.read_text()) == [], page.name
    for sheet in site.rglob("*.css"):
        assert not re.search(r"@import|url\(\s*[\"']?(?:https?:)?//", sheet.read_text()), sheet.name
