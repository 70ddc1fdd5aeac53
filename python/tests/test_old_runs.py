"""Stores, logs and recipes that an earlier version wrote are read, gone on with and repeated."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest
from kept_workers import KeptWorkers
from plain_loop import logged

import cerebro_spark as cs
from cerebro_spark import recipe as recipes
from cerebro_spark.events import UnitFinished
from cerebro_spark.search import Done, Wait
from cerebro_spark.store import references
from cerebro_spark.store.local import LocalStore
from cerebro_spark.types import Report, Work

ARCHIVE = Path(__file__).parent / "old_runs" / "store.tar.gz"


@pytest.fixture
def old(tmp_path: Path) -> Path:
    """The folder with the old store and recipes, somewhere else than they were written."""
    with tarfile.open(ARCHIVE) as archive:
        archive.extractall(tmp_path, filter="data")
    return tmp_path


def checkpoint_digests(store: LocalStore, run: str) -> list[str]:
    units = [event for event in logged(store, run) if isinstance(event, UnitFinished)]
    return [unit.checkpoint.digest for unit in units if unit.checkpoint is not None]


@pytest.mark.parametrize("name", ["asha", "grid", "hyperband", "pbt", "random", "tpe"])
def test_the_recipe_of_every_search_is_read(name: str, old: Path) -> None:
    home = LocalStore(old / "store")
    recipe = recipes.unpack((old / "recipes" / f"{name}.pickle").read_bytes(), references.resolver_from(home))
    assert recipe.dataset.store.url == home.url
    first = recipe.search.ask()
    assert isinstance(first, Work)
    assert first.params["lr"] in (0.01, 0.1)
    recipe.search.tell(Report(first.trial, first.until_epoch, {"val_loss": 0.5}))
    assert isinstance(recipe.search.ask(), Work | Wait | Done)


def test_a_finished_run_is_opened_with_its_model(old: Path) -> None:
    result = cs.Result(LocalStore(old / "store"), "finished")
    assert list(result.trials.trial) == ["t1", "t0"]
    assert result.best_trial.params == {"lr": 0.1}
    assert result.best_trial.metrics["val_loss"] == pytest.approx(0.323901, abs=1e-6)
    assert len(result.units) == 16
    assert set(result.units.worker) == {"w0"}
    assert result.traffic.exchanged == 0 < result.traffic.written


@pytest.mark.slow
def test_its_model_and_its_repetition_are_bit_for_bit_the_same(old: Path, kept_backend: KeptWorkers) -> None:
    store = LocalStore(old / "store")
    assert len(list(cs.Result(store, "finished").model().parameters())) == 4
    again = cs.replay(store, "finished", backend=kept_backend(1))
    digests = [checkpoint_digests(store, run) for run in ("finished", again.run_id)]
    assert sorted(digests[0]) == sorted(digests[1])
    assert len(digests[0]) == 8


@pytest.mark.slow
def test_a_stopped_run_is_gone_on_with(old: Path, kept_backend: KeptWorkers) -> None:
    store = LocalStore(old / "store")
    before = logged(store, "stopped")
    result = cs.resume(store, "stopped", backend=kept_backend(1))
    assert logged(store, "stopped")[: len(before)] == before
    assert not any(":" in digest for digest in checkpoint_digests(store, "stopped")), "all SHA-256, as it began"
    assert len(result.trials) == 4
    assert result.best_trial.epoch == 4
