"""Credentials of S3 itself: in no byte that is kept, and replaced by those of now when a run is resumed."""

from __future__ import annotations

import socket
import uuid
from typing import Any

import pytest
from small_driver import Stop, small_recipe, stopping_after
from small_search import small_rows
from test_recipe_stores import Watched

from cerebro_spark import runs
from cerebro_spark.data.prepare import prepare
from cerebro_spark.result import Result
from cerebro_spark.store.fsspec import FsspecStore

# Put together here: the source of this module travels with its functions, and must not have them.
KEY, SECRET, TOKEN = "AKIA" + "PLANTEDKEY", "planted" + "-secret-5e8c1f", "planted" + "-session-token-77"


@pytest.mark.slow
def test_a_run_on_s3_keeps_no_credentials_and_resumes_with_new_ones(s3_options: dict[str, Any]) -> None:
    url = f"s3://contract/{uuid.uuid4().hex}"
    planted = {**s3_options, "key": KEY, "secret": SECRET, "token": TOKEN}
    store = FsspecStore(f"{url}/store", **planted)
    dataset = prepare(small_rows(40), store=store, features="x", label="y", partitions=2, name="d")
    with pytest.raises(Stop):
        runs.execute(small_recipe(dataset, 2), store, Watched(), "r1", [stopping_after(3, Stop())])
    saved = FsspecStore(f"{url}/saved", **planted)
    Result(store, "r1").save(saved, trials=[])
    for each in (store, saved):
        assert each.list()
        for name in each.list():
            content = name.encode() + each.read(name)
            assert not [word for word in (KEY, SECRET, TOKEN) if word.encode() in content], name
    backend = Watched()
    now = FsspecStore(f"{url}/store", **{**s3_options, "key": "fresh"})
    runs.resume(now, "r1", backend)
    assert backend.data.store.read(backend.data.train[0].files[0])
    used = backend.data.store.store  # type: ignore[attr-defined]
    assert used._options["key"] == "fresh"


@pytest.mark.slow
def test_a_bucket_of_another_name_is_resumed(s3_options: dict[str, Any]) -> None:
    """The old one does not even answer any more."""
    import s3fs

    name = uuid.uuid4().hex
    store = FsspecStore(f"s3://contract/{name}", **s3_options)
    dataset = prepare(small_rows(40), store=store, features="x", label="y", partitions=2)
    with socket.create_server(("127.0.0.1", 0)) as silent:
        dead = {"endpoint_url": f"http://127.0.0.1:{silent.getsockname()[1]}"}
    with pytest.raises(Stop):
        runs.execute(small_recipe(dataset, 2), store, Watched(), "r1", [stopping_after(3, Stop())])
    s3fs.S3FileSystem(**s3_options).mkdir(f"moved-{name}")
    moved = FsspecStore(f"s3://moved-{name}/x", **s3_options)
    for blob in store.list():
        moved.write(blob, store.read(blob))
    store._options = {**s3_options, "client_kwargs": {**s3_options["client_kwargs"], **dead}}
    store.delete = None  # type: ignore[assignment,method-assign]
    backend = Watched()
    runs.resume(moved, "r1", backend)
    assert backend.data.store.url == moved.url
    assert backend.data.store.read(backend.data.train[0].files[0])
