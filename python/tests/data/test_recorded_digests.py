"""What was recorded before stays true: the same rows and seed give the same partitions, manifests and batches.

The digests are of values, not of Parquet's bytes, which change with the version of Arrow.
"""

from __future__ import annotations

import hashlib
import io
import json
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cerebro_spark.data.dataset import Dataset
from cerebro_spark.data.formats.unischema import UNISCHEMA_KEY
from cerebro_spark.data.input import local
from cerebro_spark.data.loading.arrays import load_arrays
from cerebro_spark.data.prepare import prepare
from cerebro_spark.data.shuffling import row_order
from cerebro_spark.store.local import LocalStore
from cerebro_spark.store.paths import manifest
from cerebro_spark.trainer import Feed

ROWS = 700
PREPARED = {
    "none": "f3b104b2787adcd572c75f4fbf4f7c8b",
    "fraction": "167b56415804ab4927bd984367f72629",
    "column": "aff2edc14bf8f4a7fa0f50bee743df90",
    "frame": "65de6d028c3db65931fba0b6896d0bf5",
}
FED = {
    (32, 1): "c0665d13dd7b5a894368ff66037ee060",
    (33, 2): "6344fd801ca912592ba2234c683928aa",
    (1000, 2): "b919ed19755b8f544f59ee36fe1b20fe",
}


def saved(number: int) -> bytes:
    file = io.BytesIO()
    np.save(file, np.arange(number, number + 6, dtype=np.int16).reshape(2, 3))
    return file.getvalue()


def table(rows: int = ROWS) -> dict[str, Any]:
    """Whole numbers, floats, arrays, encoded cells and rows that are equal to each other."""
    number = np.arange(rows)
    return {
        "a": number.astype(np.float64) / 8,
        "b": number % 5,
        "grid": (number[:, None, None] + np.arange(4).reshape(2, 2)).astype(np.int32),
        "cell": pa.array([saved(int(n) % 50) for n in number], pa.binary()),
        "y": number % 3,
        "w": 1 + number % 2 / 2,
        "test": number % 7 == 0,
    }


VALIDATIONS: dict[str, Any] = {"none": None, "fraction": 0.2, "column": "test", "frame": table(90)}


def digest(parts: list[bytes]) -> str:
    return hashlib.blake2b(b"\x1f".join(parts), digest_size=16).hexdigest()


def described(dataset: Dataset) -> bytes:
    """The manifest without what is another one each time, or in each version."""
    found = json.loads(dataset.store.read(manifest(dataset.id)))
    token = found["made"].pop("token")
    del found["made"]["version"]
    for entry in found["partitions"]:
        assert entry.pop("file_bytes") > 0
    return json.dumps(found).replace(token, "TOKEN").encode()


def schemas(dataset: Dataset) -> list[bytes]:
    """The schema in each of the files, and the one that Petastorm reads."""
    parts = []
    for partition in dataset.partitions:
        path = dataset.store.local_path(partition.files[0])
        assert path is not None
        parts.append(str(pq.read_schema(path)).encode())
        footer = pq.read_metadata(path.parent / "_common_metadata").metadata
        parts.append(footer[UNISCHEMA_KEY])
    return parts


@pytest.mark.parametrize("validation", list(VALIDATIONS))
def test_the_same_rows_and_seed_give_the_same_partitions(
    store: LocalStore, validation: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(local, "_SPLIT_ROWS", 300)
    monkeypatch.setattr(local, "_BATCH_ROWS", 64)
    features = {"x": ["a", "b"], "grid": "grid", "cell": "cell"}
    dataset = prepare(
        table(),
        store=store,
        features=features,
        label="y",
        weight="w",
        validation=VALIDATIONS[validation],
        partitions=3,
        seed=11,
        name="kept",
    )
    arrays = [load_arrays(dataset, partition, reader="arrow") for partition in dataset.partitions]
    values = [part[name].tobytes() for part in arrays for name in sorted(part)]
    assert digest([described(dataset), *schemas(dataset), *values]) == PREPARED[validation]


@pytest.mark.parametrize(("size", "smallest"), [(32, 1), (33, 2), (1000, 2)])
def test_the_same_unit_gets_the_same_batches(size: int, smallest: int) -> None:
    arrays = {"x": np.arange(ROWS * 3, dtype=np.float32).reshape(ROWS, 3), "y": np.arange(ROWS)}
    parts = []
    for epoch in (1, 2):
        order = row_order(ROWS, 11, "t7", epoch, "train-00002")
        for batch in Feed(arrays, order, batch_size=size, smallest=smallest):
            parts += [str(len(batch["y"])).encode(), batch["x"].tobytes(), batch["y"].tobytes()]
    assert digest(parts) == FED[size, smallest]


def test_rows_as_they_are_stored_come_in_the_same_batches() -> None:
    arrays = {"x": np.arange(70, dtype=np.float32), "y": np.arange(70)}
    batches = list(Feed(arrays, batch_size=32))
    assert [batch["y"].tolist() for batch in batches] == [
        list(range(32)),
        list(range(32, 64)),
        list(range(64, 70)),
    ]
