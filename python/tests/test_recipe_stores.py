"""A recipe in a store has no credentials in it, and is found to be about the stores that there are now."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import cloudpickle
import pandas as pd
import pytest
from small_driver import Stop, small_recipe, stopping_after
from small_search import small_dataset, small_rows, torch_model_fn

from cerebro_spark import recipe as recipes
from cerebro_spark import runs
from cerebro_spark.backend.job import Job
from cerebro_spark.backend.simulated import SimulatedBackend, SimulatedWorker, World
from cerebro_spark.backend.worker.session import pack_job, unpack_job
from cerebro_spark.data.dataset import Dataset
from cerebro_spark.data.foreign import open_dataset
from cerebro_spark.data.prepare import prepare
from cerebro_spark.errors import NotFoundInStore
from cerebro_spark.result import Result
from cerebro_spark.store import references
from cerebro_spark.store.base import Store
from cerebro_spark.store.fsspec import FsspecStore
from cerebro_spark.store.hdfs import HdfsStore
from cerebro_spark.store.local import LocalStore
from cerebro_spark.store.references import Reference, resolver_from
from cerebro_spark.store.retrying import RetryingStore
from cerebro_spark.trainer.base import Hooks
from cerebro_spark.trainer.spec import TrainerSpec

# Put together here: the source of this module travels with its functions, and must not have them.
OPTION, WORD = "-".join(["planted", "in", "an", "option"]), "-".join(["planted", "in", "the", "address"])


class Watched(SimulatedBackend):
    """Keeps the job that it was given: what workers would get."""

    def __init__(self) -> None:
        super().__init__([SimulatedWorker(f"w{i}") for i in range(2)], World(cost=lambda params: 1.0))
        self.job: Job | None = None

    def bind(self, job: Job) -> None:
        self.job = job
        super().bind(job)

    @property
    def data(self) -> Dataset:
        assert self.job is not None
        return self.job.dataset


def begun(recipe: recipes.Recipe, store: Store, run: str = "r1") -> None:
    """Leave a run that its driver could not end."""
    with pytest.raises(Stop):
        runs.execute(recipe, store, Watched(), run, [stopping_after(3, Stop())])


def secret_store(path: Path) -> FsspecStore:
    return FsspecStore(f"memory://me:{WORD}@host{path}", token=OPTION, client_kwargs={"password": OPTION})


def all_bytes(store: Store) -> Iterator[bytes]:
    for name in store.list():
        yield name.encode() + store.read(name)


def check_no_secrets(store: Store) -> None:
    assert store.list()
    for found in all_bytes(store):
        assert OPTION.encode() not in found
        assert WORD.encode() not in found


def test_no_byte_of_a_store_has_its_credentials(tmp_path: Path) -> None:
    """Neither of data, run and saved result, also where a function of the user has hold of the store or the data."""
    store = secret_store(tmp_path)
    dataset = prepare(small_rows(40), store=store, features="x", label="y", validation=0.25, partitions=2)

    def model_fn(params: Mapping[str, Any]) -> Any:
        return torch_model_fn({**params, "lr": len(store.list()) + dataset.rows})

    recipe = dataclasses.replace(small_recipe(dataset, 2), trainer=TrainerSpec(Hooks(model_fn)))
    begun(recipe, store)
    check_no_secrets(store)
    runs.resume(store, "r1", Watched())
    runs.replay(store, "r1", Watched(), "r2")
    Result(store, "r1").save(LocalStore(tmp_path / "saved"), trials=[])
    for each in (store, LocalStore(tmp_path / "saved")):
        check_no_secrets(each)


def test_workers_get_the_credentials_and_so_do_functions_of_the_user(tmp_path: Path) -> None:
    store = secret_store(tmp_path)
    dataset = prepare(small_rows(40), store=store, features="x", label="y", partitions=2)

    def model_fn(params: Mapping[str, Any]) -> Any:
        return store

    backend = Watched()
    runs.execute(dataclasses.replace(small_recipe(dataset, 1), trainer=TrainerSpec(Hooks(model_fn))), store, backend)
    assert backend.job is not None
    job = unpack_job(pack_job(backend.job, "w0"))
    for each in (job.store, job.dataset.store, job.trainer.hooks.model_fn({})):
        plain = each.store if isinstance(each, RetryingStore) else each
        assert isinstance(plain, FsspecStore)
        assert (plain._options["token"], plain._address) == (OPTION, store._address)
    assert job.dataset.store.read(job.dataset.train[0].files[0])


def test_a_secret_in_an_address_is_shown_nowhere(tmp_path: Path) -> None:
    store = secret_store(tmp_path)
    dataset = prepare(small_rows(40), store=store, features="x", label="y", partitions=2)
    with pytest.raises(NotFoundInStore) as error:
        runs.resume(store, "r9", Watched())
    for shown in (store.url, repr(store), dataset.url, repr(RetryingStore(store)), repr(dataset), str(error.value)):
        assert WORD not in shown
        assert "me@host" in shown


@pytest.mark.parametrize("inside", ["the store", "a folder of it"])
def test_a_store_that_moved_is_resumed_and_replayed(tmp_path: Path, inside: str) -> None:
    dataset = small_dataset(tmp_path / "a b%", rows=40)
    if inside == "a folder of it":
        dataset = open_dataset(f"{dataset.store.url}/{dataset.folder}")
    old = LocalStore(tmp_path / "a b%" / "store")
    begun(small_recipe(dataset, 2), old)
    new = LocalStore(shutil.move(old.root, tmp_path / "elsewhere"))
    for act in (runs.resume, runs.replay):
        backend = Watched()
        act(new, "r1", backend)
        assert backend.data.store.url.startswith(new.url)
        assert backend.data.store.read(backend.data.train[0].files[0])
    assert not old.root.exists()


def test_data_in_another_store_is_found_where_it_was(tmp_path: Path) -> None:
    dataset = small_dataset(tmp_path / "data", rows=40)
    begun(small_recipe(dataset, 2), LocalStore(tmp_path / "runs"))
    moved = LocalStore(shutil.move(tmp_path / "runs", tmp_path / "moved"))
    backend = Watched()
    runs.resume(moved, "r1", backend)
    assert backend.data.store.url == dataset.store.url


def test_data_that_moved_is_asked_for_and_taken_from_where_one_says(tmp_path: Path) -> None:
    dataset = small_dataset(tmp_path / "data", rows=40)
    store = LocalStore(tmp_path / "runs")
    begun(small_recipe(dataset, 2), store)
    moved = LocalStore(shutil.move(tmp_path / "data" / "store", tmp_path / "moved"))
    other = small_dataset(tmp_path / "other", rows=40).store
    for data_store, place in ((None, dataset.store.url), (other, other.url)):
        with pytest.raises(NotFoundInStore, match=r"the data of run r1.*data_store=cs\.open_store") as error:
            runs.resume(store, "r1", Watched(), data_store=data_store)
        assert place in str(error.value)
    backend = Watched()
    runs.resume(store, "r1", backend, data_store=str(moved.root))
    assert backend.data.store.url == moved.url
    runs.resume(store, "r1", Watched())  # it is over, and needs no data


def test_another_data_set_under_the_same_name_is_not_taken_for_it(tmp_path: Path) -> None:
    store = LocalStore(tmp_path / "store")
    options: dict[str, Any] = {"features": "x", "label": "y", "partitions": 2, "name": "d"}
    begun(small_recipe(prepare(small_rows(40), store=store, **options), 2), store)
    store.delete("datasets/d")
    prepare(small_rows(80), store=store, **options)
    with pytest.raises(NotFoundInStore, match="the data of run r1"):
        runs.resume(store, "r1", Watched())


def made_elsewhere(folder: Path, shift: float = 0.0) -> Dataset:
    """Two files that another program wrote, of as many rows each time."""
    folder.mkdir(parents=True, exist_ok=True)
    for number in range(2):
        rows = pd.DataFrame({"a": [number + shift, 2.5, 3.5, 4.5], "y": [0, 1, 0, 1]})
        rows.to_parquet(folder / f"part-{number}.parquet")
    return open_dataset(str(folder), features=["a"], label="y")


def test_files_of_another_program_that_were_written_again_are_not_taken_for_those_of_the_run(tmp_path: Path) -> None:
    store, lake = LocalStore(tmp_path / "store"), tmp_path / "lake"
    begun(small_recipe(made_elsewhere(lake), 2), store)
    made_elsewhere(lake, shift=0.5)
    for act in (runs.resume, runs.replay):
        with pytest.raises(NotFoundInStore, match=r"the data of run r1.*'part-0.parquet' in .*lake was written again"):
            act(store, "r1", Watched())
    made_elsewhere(lake)
    runs.resume(store, "r1", Watched())


def test_files_of_another_program_may_move(tmp_path: Path) -> None:
    store, lake = LocalStore(tmp_path / "store"), tmp_path / "lake"
    begun(small_recipe(made_elsewhere(lake), 2), store)
    moved = shutil.copytree(lake, tmp_path / "sea")
    shutil.rmtree(lake)
    backend = Watched()
    runs.resume(store, "r1", backend, data_store=str(moved))
    assert backend.data.store.url == LocalStore(moved).url


def test_a_resume_uses_the_store_as_it_is_opened_now(tmp_path: Path) -> None:
    """The credentials of then are worth nothing any more."""
    then = secret_store(tmp_path)
    dataset = prepare(small_rows(40), store=then, features="x", label="y", partitions=2)
    begun(small_recipe(dataset, 2), then)
    now = FsspecStore(then._address, token="new")
    backend = Watched()
    runs.resume(now, "r1", backend)
    data = backend.data.store
    assert isinstance(data, RetryingStore)
    assert isinstance(data.store, FsspecStore)
    assert data.store._options == {"token": "new"}


def test_recipes_of_before_are_read_and_their_credentials_are_not(tmp_path: Path) -> None:
    then = secret_store(tmp_path)
    dataset = prepare(small_rows(40), store=then, features="x", label="y", partitions=2)
    data = cloudpickle.dumps(small_recipe(dataset, 2))
    assert OPTION.encode() in data, "as it was kept before"
    now = FsspecStore(then._address, token="new")
    assert recipes.unpack(data, resolver_from(now)).dataset.store is now
    elsewhere = recipes.unpack(data, resolver_from(LocalStore(tmp_path))).dataset.store
    assert isinstance(elsewhere, FsspecStore)
    assert (elsewhere._options, elsewhere._address) == ({}, then.url)
    local = small_dataset(tmp_path, rows=40)
    again = recipes.unpack(cloudpickle.dumps(small_recipe(local)), resolver_from(now)).dataset
    assert (again.url, again.train) == (local.url, local.train)


def test_what_is_on_the_same_server_is_opened_with_the_same_credentials() -> None:
    home = FsspecStore("s3://bucket/runs", key="k", secret="s")
    beside = resolver_from(home)(Reference(0, "s3://bucket/data"))
    assert isinstance(beside, FsspecStore)
    assert (beside.url, beside._options) == ("s3://bucket/data", {"key": "k", "secret": "s"})
    other = resolver_from(home)(Reference(0, "s3://foreign/data"))
    assert isinstance(other, FsspecStore)
    assert other._options == {}, "credentials go nowhere else"
    cluster = HdfsStore("hdfs://nn:8020/runs", options={"dfs.client.x": "y"})
    beneath = resolver_from(cluster)(Reference(0, "hdfs://old:8020/runs/datasets/d", "datasets/d"))
    assert isinstance(beneath, HdfsStore)
    assert (beneath.url, beneath._options) == ("hdfs://nn:8020/runs/datasets/d", {"dfs.client.x": "y"})


def test_stores_are_the_same_objects_in_a_copy_of_this_process(tmp_path: Path) -> None:
    one, two = LocalStore(tmp_path / "one"), LocalStore(tmp_path / "two")
    data, stores = references.dumps([one, {"two": two}, one], one)
    assert stores == [one, two]
    copy = references.loads(data, lambda reference: stores[reference.number])
    assert copy[0] is one
    assert copy[1]["two"] is two
    seen: list[Reference] = []
    references.loads(data, lambda reference: seen.append(reference) or one)  # type: ignore[func-returns-value]
    assert [reference.below for reference in seen] == ["", None]
