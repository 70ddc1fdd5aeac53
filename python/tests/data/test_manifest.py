"""A manifest from elsewhere: whatever it says, nothing is read or written outside of the store and the cache."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from numbered_rows import numbered

from cerebro_spark.data.dataset import Dataset
from cerebro_spark.data.foreign import open_dataset
from cerebro_spark.data.loading.cache import Cache
from cerebro_spark.data.prepare import prepare
from cerebro_spark.errors import CerebroError, ConfigurationError, DataError
from cerebro_spark.store import paths
from cerebro_spark.store.local import LocalStore

OUTSIDE = ["../../x", "/tmp/x", "a/b", "..", ".", "", "a\0b", "a\nb", "x" * 300, " ", "\ud800", None, 7, ["a"]]
Change = Callable[[dict[str, Any]], Any]


def set_name(manifest: dict[str, Any], value: Any) -> None:
    manifest["columns"][0]["name"] = value


def set_id(manifest: dict[str, Any], value: Any) -> None:
    manifest["partitions"][0]["id"] = value


def set_dataset(manifest: dict[str, Any], value: Any) -> None:
    manifest["id"] = value


@pytest.fixture
def dataset(store: LocalStore) -> Dataset:
    return prepare(numbered(8), store=store, features="x", label="y", partitions=2, name="d")


def rewrite(store: LocalStore, change: Change) -> None:
    path = store.root / "datasets" / "d" / "manifest.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))


@pytest.mark.parametrize("value", OUTSIDE, ids=ascii)
@pytest.mark.parametrize("setter", [set_name, set_id, set_dataset])
def test_a_name_that_leads_elsewhere_is_refused_with_its_value(
    store: LocalStore, dataset: Dataset, setter: Callable[[dict[str, Any], Any], None], value: Any
) -> None:
    rewrite(store, lambda manifest: setter(manifest, value))
    openers: list[Callable[[], Dataset]] = [
        lambda: Dataset.open(store, "d"),
        lambda: open_dataset(f"{store.url}/datasets/d"),
    ]
    for opened in openers:
        with pytest.raises(DataError) as error:
            opened()
        assert repr(value) in str(error.value)
        assert "manifest.json" in str(error.value)


@pytest.mark.parametrize(
    "value", ["../../../secret", "/etc/passwd", "a//b", "..", "a\0b", ".", "../../../.staging/x", 7]
)
def test_a_file_that_lies_elsewhere_is_refused(store: LocalStore, dataset: Dataset, value: Any) -> None:
    rewrite(store, lambda manifest: manifest["partitions"][0].update(files=[value]))
    with pytest.raises(DataError, match=r"manifest\.json"):
        Dataset.open(store, "d")


WRONG: dict[str, Change] = {
    "role": lambda m: m["columns"][0].update(role="boss"),
    "type": lambda m: m["columns"][0].update(dtype="object"),
    "no type": lambda m: m["columns"][0].update(dtype="../x"),
    "shape": lambda m: m["columns"][0].update(shape=[-1]),
    "shape of text": lambda m: m["columns"][0].update(shape=["3"]),
    "sources": lambda m: m["columns"][0].update(sources=[]),
    "codec": lambda m: m["columns"][0].update(codec="pickle"),
    "split": lambda m: m["partitions"][0].update(split="../x"),
    "rows": lambda m: m["partitions"][0].update(rows=-1),
    "rows as text": lambda m: m["partitions"][0].update(rows="8"),
    "no files": lambda m: m["partitions"][0].update(files=[]),
    "array twice": lambda m: m["columns"][1].update(name=m["columns"][0]["name"]),
    "partition twice": lambda m: m["partitions"][1].update(id=m["partitions"][0]["id"]),
    "no id": lambda m: m.pop("id"),
    "no seed": lambda m: m.pop("seed"),
    "list": lambda m: m.update(columns=["x"]),
    "made": lambda m: m.update(made=7),
}


@pytest.mark.parametrize("harm", WRONG)
def test_what_cannot_be_true_is_refused(store: LocalStore, dataset: Dataset, harm: str) -> None:
    rewrite(store, WRONG[harm])
    with pytest.raises(DataError, match=r"manifest\.json"):
        Dataset.open(store, "d")


@pytest.mark.parametrize("budget", [0, 1 << 30])
@pytest.mark.parametrize("value", ["../../x", "/tmp/x", "..", "a/b", "a\0b"])
def test_the_cache_makes_no_path_of_it_either(
    store: LocalStore, dataset: Dataset, tmp_path: Path, value: str, budget: int
) -> None:
    """A Dataset that did not come from a manifest: unpickled, or made by hand."""
    before = sorted(tmp_path.rglob("*"))
    column = dataclasses.replace(dataset.columns[0], name=value)
    partition = dataclasses.replace(dataset.train[0], id=value)
    bad_columns = dataclasses.replace(dataset, columns=(column, *dataset.columns[1:]))
    bad_partition = dataclasses.replace(dataset, train=(partition,))
    with Cache(tmp_path / "disk", memory_folder=tmp_path / "memory", memory_budget=budget) as cache:
        for each in (bad_columns, bad_partition):
            with pytest.raises(CerebroError, match=r"name|partition id"):
                cache.load(each, each.train[0])
    assert sorted(tmp_path.rglob("*")) == before


@pytest.mark.parametrize("value", ["../x", "a/b", "", ".", "..", "a\0", "x" * 201, "-x", "ä", None])
def test_ids_stay_in_their_folder(value: Any) -> None:
    for path in (paths.run_folder, paths.dataset_folder, paths.functions, paths.log_folder):
        with pytest.raises(ConfigurationError):
            path(value)
    with pytest.raises(ConfigurationError):
        paths.checkpoint_folder("r", "" if value is None else value)


class Hostile(LocalStore):
    """Lists a key that object stores can have, and that is a way out of a folder."""

    def list(self, folder: str = "") -> list[str]:
        return [f"{folder}/../../../planted/x"]


def test_a_folder_is_not_fetched_beyond_its_target(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match=r"'a/\.\./\.\./\.\./planted/x' cannot name a blob"):
        Hostile(tmp_path / "store").fetch("a", tmp_path / "b" / "c" / "target")
    assert not list(tmp_path.rglob("planted"))


def test_a_name_for_an_array_that_is_too_long_is_refused_when_it_is_given(store: LocalStore) -> None:
    with pytest.raises(ConfigurationError, match="at most 200 bytes"):
        prepare(numbered(8), store=store, features={"x" * 201: "x"}, label="y", partitions=1)
