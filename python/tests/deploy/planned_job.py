"""Searches whose models take much memory: `cerebro-spark plan` plans them, and spark-submit runs them on Spark."""

from __future__ import annotations

import os
import resource
import sys
import threading
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

import cerebro_spark as cs
from cerebro_spark import hp

ROWS = 4000
WORDS = 1_000_000
BATCH, WIDTH, LAYERS = 256, 1 << 16, 48


def note_memory(folder: Path) -> None:
    """Keep in a file of this process the most memory that it has had, in bytes, until it ends."""
    place = folder / str(os.getpid())
    while True:
        # Linux counts in kilobytes.
        place.with_suffix(".new").write_text(str(1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss))
        place.with_suffix(".new").replace(place)
        time.sleep(0.1)


def watch_memory() -> None:
    """Have a thread note the memory of this process, if somebody wants to know."""
    if "PEAKS" in os.environ and "note_memory" not in {thread.name for thread in threading.enumerate()}:
        folder = Path(os.environ["PEAKS"])
        threading.Thread(target=note_memory, args=(folder,), name="note_memory", daemon=True).start()


def torch_table() -> Any:
    """A table of 64 million numbers."""
    from torch import nn

    class Table(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Embedding(WORDS, 64)
            self.out = nn.Linear(64, 1)

        def forward(self, x: Any) -> Any:
            return self.out(self.table((x[:, 0].abs() * 1e5).long().clamp(max=WORDS - 1)))[:, 0]

    return Table()


def torch_dense() -> Any:
    """Two layers with 49 million weights."""
    from torch import nn

    return nn.Sequential(
        nn.Linear(4, 7000), nn.ReLU(), nn.Linear(7000, 7000), nn.ReLU(), nn.Linear(7000, 1), nn.Flatten(0)
    )


def torch_wide() -> Any:
    """Few weights, and 3 GB that a batch leaves for the way back."""
    from torch import nn

    layers = [nn.Tanh() for _ in range(LAYERS)]
    return nn.Sequential(nn.Linear(4, WIDTH), *layers, nn.Linear(WIDTH, 1), nn.Flatten(0))


def keras_table() -> Any:
    """The same in Keras."""
    import keras

    number = keras.layers.Lambda(lambda x: keras.ops.cast(keras.ops.minimum(abs(x[:, :1]) * 1e5, WORDS - 1), "int32"))
    layers = [number, keras.layers.Embedding(WORDS, 64), keras.layers.Flatten(), keras.layers.Dense(1)]
    return keras.Sequential([keras.layers.Input((4,)), *layers])


def keras_dense() -> Any:
    """The same in Keras."""
    import keras

    layers = [keras.layers.Dense(7000, "relu"), keras.layers.Dense(7000, "relu"), keras.layers.Dense(1)]
    return keras.Sequential([keras.layers.Input((4,)), *layers])


def keras_wide() -> Any:
    """The same in Keras."""
    import keras

    layers = [keras.layers.Activation("tanh") for _ in range(LAYERS)]
    return keras.Sequential([keras.layers.Input((4,)), keras.layers.Dense(WIDTH), *layers, keras.layers.Dense(1)])


def torch_model(make: Callable[[], Any], params: dict[str, Any]) -> Any:
    import torch
    from torch import nn

    watch_memory()
    net = make()
    return cs.TorchModel(net, optimizer=torch.optim.Adam(net.parameters(), lr=params["lr"]), loss=nn.MSELoss())


def keras_model(make: Callable[[], Any], params: dict[str, Any]) -> Any:
    import keras

    watch_memory()
    net = make()
    net.compile(keras.optimizers.Adam(params["lr"]), "mse")
    return net


def data() -> dict[str, Any]:
    """What the laptop has: as many rows as there will be."""
    x = np.random.default_rng(0).normal(size=(ROWS, 4)).astype("float32")
    return {"x": x, "y": x.sum(axis=1)}


def search(framework: Any, model_fn: Callable[..., Any], store: str = "unused", backend: Any = None) -> cs.RandomSearch:
    """A search of two such models."""
    return cs.RandomSearch(
        model_fn,
        space={"lr": hp.loguniform(1e-4, 1e-2), "batch_size": BATCH},
        num_trials=2,
        epochs=1,
        metric="val_loss",
        store=store,
        backend=backend or cs.LocalBackend(1),
        features="x",
        label="y",
        validation=0.25,
        progress=False,
        framework=framework,
        max_kills=1,
    )


torch_table_search = partial(search, "torch", partial(torch_model, torch_table))
torch_dense_search = partial(search, "torch", partial(torch_model, torch_dense))
torch_wide_search = partial(search, "torch", partial(torch_model, torch_wide))
keras_table_search = partial(search, "keras", partial(keras_model, keras_table))
keras_dense_search = partial(search, "keras", partial(keras_model, keras_dense))
keras_wide_search = partial(search, "keras", partial(keras_model, keras_wide))


def main(name: str, store: str) -> None:
    """Run one of them on Spark's executors."""
    from pyspark.sql import SparkSession

    spark = SparkSession.builder.appName("planned").getOrCreate()
    made = data()
    frame = spark.createDataFrame(
        [(row.tolist(), float(label)) for row, label in zip(made["x"], made["y"], strict=True)],
        "x array<float>, y float",
    )
    result = globals()[name](store=store, backend=cs.SparkBackend(spark)).fit(frame)
    print("finished", int((result.trials.status == "finished").sum()))
    spark.stop()


if __name__ == "__main__":
    main(*sys.argv[1:])
