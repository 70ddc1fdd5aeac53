"""A user's program on Spark with a store that needs credentials. Beside its run it keeps what others could see of it.

It reads the address of the store, its options and a folder from its standard input: arguments can be seen by all users.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import numpy as np
import pandas as pd
from cryptography.hazmat.primitives.serialization import load_pem_private_key
from pyspark.sql import SparkSession

import cerebro_spark as cs
from cerebro_spark import hp
from cerebro_spark.backend.driver.switchboard import Switchboard

PAGES = ("environment/", "jobs/", "stages/", "executors/", "SQL/")


def model_fn(params: dict[str, Any]) -> cs.TorchModel:
    import torch
    from torch import nn

    net = nn.Sequential(nn.Linear(2, 1), nn.Flatten(0))
    return cs.TorchModel(net, torch.optim.SGD(net.parameters(), lr=params["lr"]), nn.MSELoss())


def family() -> Iterator[Path]:
    """Yield this process and all below it, as they are in /proc."""
    parents = {}
    for place in Path("/proc").iterdir():
        if place.name.isdecimal():
            try:
                parents[int(place.name)] = int((place / "stat").read_text().rpartition(")")[2].split()[1])
            except (FileNotFoundError, ProcessLookupError):
                continue  # it has ended meanwhile
    for child in parents:
        above: int | None = child
        while above is not None and above != os.getpid():
            above = parents.get(above)
        if above is not None:
            yield Path("/proc", str(child))


def arguments() -> bytes:
    """Return the arguments of all these processes."""
    return b"\n".join((place / "cmdline").read_bytes() for place in family() if place.exists())


def pages(spark: SparkSession) -> bytes:
    """Return what Spark's own pages show."""
    context = spark.sparkContext
    rest = f"api/v1/applications/{context.applicationId}/"
    names = [*PAGES, f"{rest}environment", f"{rest}jobs", f"{rest}stages", f"{rest}executors"]
    return b"\n".join(urlopen(f"{context.uiWebUrl}/{name}", timeout=30).read() for name in names)


def key_parts(key: str) -> list[bytes]:
    """A private key's number, and a line of its text."""
    number = load_pem_private_key(key.encode(), None).private_numbers().private_value  # type: ignore[union-attr]
    return [number.to_bytes(32, "big"), max(key.encode().splitlines(), key=len)]


def main() -> None:
    given = json.load(sys.stdin)
    folder = Path(given["folder"])
    (folder / "spark-events").mkdir()
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.ui.port", "0")
        .config("spark.eventLog.enabled", "true")
        .config("spark.eventLog.dir", (folder / "spark-events").as_uri())
        .config("spark.local.dir", str(folder / "spark-local"))
        .getOrCreate()
    )
    x = np.random.default_rng(0).normal(size=(200, 2)).astype("float32")
    frame = spark.createDataFrame(pd.DataFrame({"a": x[:, 0], "b": x[:, 1], "y": x.sum(axis=1)}))
    store = cs.open_store(given["url"], **given["options"])
    search = cs.GridSearch(
        model_fn,
        space={"lr": hp.choice([0.1, 0.01]), "batch_size": 10},
        backend=cs.SparkBackend(spark, num_workers=2),
        store=store,
        features=["a", "b"],
        label="y",
        validation=0.2,
        metric="val_loss",
        epochs=200,
        framework="torch",
        progress=False,
    )
    run = search.start(frame)
    dashboard = run.dashboard()
    until = time.monotonic() + 120
    while not run.progress.units:
        if time.monotonic() > until:
            raise SystemExit("no unit was done in two minutes")
        time.sleep(0.1)
    (folder / "arguments").write_bytes(arguments())
    (folder / "pages").write_bytes(pages(spark))
    boards = [board for board in gc.get_objects() if isinstance(board, Switchboard)]
    secrets = [part.hex() for board in boards for part in key_parts(board.credentials.key)]
    (folder / "secrets").write_text(json.dumps({"wire": secrets, "link": dashboard.link}))
    run.end()
    run.wait(120)
    dashboard.close()
    spark.stop()


if __name__ == "__main__":
    main()
