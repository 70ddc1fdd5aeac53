"""A search whose models take much memory: `cerebro-spark plan` plans it, and spark-submit runs it on Spark."""

from __future__ import annotations

import os
import resource
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

import cerebro_spark as cs
from cerebro_spark import hp

ROWS = 4000


def note_memory(folder: Path) -> None:
    """Keep in a file of this process the most memory that it has had, in bytes, until it ends."""
    place = folder / str(os.getpid())
    while True:
        # Linux counts in kilobytes.
        place.with_suffix(".new").write_text(str(1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss))
        place.with_suffix(".new").replace(place)
        time.sleep(0.1)


def model_fn(params: dict[str, Any]) -> Any:
    """A table of 64 million numbers, and Adam's two moments of each: 768 MB."""
    import torch
    from torch import nn

    if "PEAKS" in os.environ and "note_memory" not in {thread.name for thread in threading.enumerate()}:
        folder = Path(os.environ["PEAKS"])
        threading.Thread(target=note_memory, args=(folder,), name="note_memory", daemon=True).start()

    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(1_000_000, 64)
            self.out = nn.Linear(64, 1)

        def forward(self, x: Any) -> Any:
            return self.out(self.table((x[:, 0].abs() * 1e5).long().clamp(max=999_999)))[:, 0]

    net = Table()
    return cs.TorchModel(net, optimizer=torch.optim.Adam(net.parameters(), lr=params["lr"]), loss=nn.MSELoss())


def data() -> dict[str, Any]:
    """What the laptop has: as many rows as there will be."""
    x = np.random.default_rng(0).normal(size=(ROWS, 4)).astype("float32")
    return {"x": x, "y": x.sum(axis=1)}


def search(store: str = "unused", backend: Any = None) -> cs.RandomSearch:
    """The search."""
    return cs.RandomSearch(
        model_fn,
        space={"lr": hp.loguniform(1e-4, 1e-2), "batch_size": 256},
        num_trials=2,
        epochs=1,
        metric="val_loss",
        store=store,
        backend=backend or cs.LocalBackend(1),
        features="x",
        label="y",
        validation=0.25,
        progress=False,
        framework="torch",
        max_kills=1,
    )


def main(store: str) -> None:
    """Run it on Spark's executors."""
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.appName("planned").getOrCreate()
    made = data()
    frame = spark.createDataFrame(
        [(row.tolist(), float(label)) for row, label in zip(made["x"], made["y"], strict=True)],
        "x array<float>, y float",
    )
    result = search(store, cs.SparkBackend(spark)).fit(frame)
    print("trials", len(result.trials))
    spark.stop()


if __name__ == "__main__":
    main(sys.argv[1])
