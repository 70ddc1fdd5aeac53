"""cerebro-dl 1.1.1 on Spark, as its own examples use it: GridSearch over Keras 2 models, on data it prepared itself.

It runs unpatched: its orders are noted as they go out, and that is all. What its age asks for is done from outside:

- TensorFlow 2.15 is the last with Keras 2, which it needs; pyarrow 14 is the last that its Petastorm writes with;
- the optimizer is Keras' legacy Adam, compiled into the model: it calls `get_weights`, which newer optimizers lack, and
  takes no legacy one as an argument;
- there is a metric beside the loss: its evaluation unpacks a list, and Keras returns a bare number for a loss alone;
- the features are one array column with the name of the model's input, by which it finds them.

Its preparation is not timed, its progress lines are switched off, and TensorFlow's threads are not limited: all three
are in its favour. Its driver looks at workers every 2 s, and gives a worker that it finds idle its next unit when it
looks again: that is its own setting, left as it is, unless `--how eager` asks for a look every 50 ms, to see what the
rest of its time is.
"""

from __future__ import annotations

import inspect
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.peers.contender import Report, asked, here_is_a_worker
from benchmarks.peers.sessions import two_cores
from benchmarks.peers.works import BATCH, WORKS, Array, Params, Work, label, read_files

WORKERS = 2


class Ledger:
    """What the driver orders: units, hops, and the bytes of the checkpoints that lie in the store at that moment."""

    def __init__(self, store: Any) -> None:
        self._store = store
        self._last_worker: dict[str, int] = {}
        self.units = self.hops = self.checkpoint_bytes = 0

    def attach(self, backend: Any) -> None:
        """Note every order from now on: the workers come to be in `initialize_workers`."""
        begin = backend.initialize_workers

        def initialize_workers() -> None:
            begin()
            for worker, client in enumerate(backend.task_clients):
                client.execute_sub_epoch = self._noting(worker, client.execute_sub_epoch)

        backend.initialize_workers = initialize_workers

    def _noting(self, worker: int, execute: Any) -> Any:
        def execute_sub_epoch(fn: Any, store_prefix_path: str, train: bool = True, initial_epoch: int = 0) -> None:
            trial = inspect.getclosurevars(fn).nonlocals["run_id"]
            self.units += 1
            self.checkpoint_bytes += self.size_of(trial)
            if train:
                self.hops += self._last_worker.get(trial, worker) != worker
                self._last_worker[trial] = worker
            execute(fn=fn, store_prefix_path=store_prefix_path, train=train, initial_epoch=initial_epoch)

        return execute_sub_epoch

    def size_of(self, trial: str) -> int:
        return Path(self._store.get_localized_path(self._store.get_checkpoint_path(trial))).stat().st_size

    def written(self, trials: list[str], epochs: int) -> int:
        """Every training unit writes what lies there at the end; the driver's first ones are of the weights alone."""
        return sum(self.size_of(trial) for trial in trials) * epochs * WORKERS


def estimator_fn(params: Params) -> Any:
    import tensorflow as tf
    from cerebro.keras import SparkEstimator

    class HereIsAWorker(tf.keras.callbacks.Callback):  # type: ignore[misc]
        def on_train_begin(self, logs: Any = None) -> None:
            here_is_a_worker()

    layers = tf.keras.layers
    model = tf.keras.Sequential(
        [
            layers.Input((64,), name="x"),
            layers.Dense(params["size"], activation="relu"),
            layers.Dense(64, activation="relu"),
            layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.compile(optimizer=tf.keras.optimizers.legacy.Adam(params["lr"]), loss="binary_crossentropy")
    return SparkEstimator(
        model=model, loss="binary_crossentropy", metrics=["acc"], batch_size=BATCH, callbacks=[HereIsAWorker()]
    )


def frame(spark: Any, arrays: list[Array]) -> Any:
    """The rows as a DataFrame of two partitions, with a column that says which are for validation."""
    x, y, vx, vy = arrays
    rows = [
        (features, float(label), held_out)
        for xs, ys, held_out in ((x, y, 0), (vx, vy, 1))
        for features, label in zip(xs.tolist(), ys, strict=True)
    ]
    return spark.createDataFrame(rows, "x array<float>, y float, held_out int").repartition(WORKERS)


def search(work: Work, backend: Any, store: Any) -> Any:
    from cerebro.tune import GridSearch, hp_choice

    return GridSearch(
        backend,
        store,
        estimator_fn,
        {"size": hp_choice(list(work.sizes)), "lr": hp_choice(list(work.rates))},
        work.epochs,
        evaluation_metric="loss",
        validation="held_out",
        label_columns=["y"],
        feature_columns=["x"],
        verbose=0,
    )


def data_bytes_of(folder: Path) -> int:
    return sum(file.stat().st_size for part in ("train_data", "val_data") for file in (folder / part).glob("*.parquet"))


def run(work: Work, backend: Any, store: Any, folder: Path) -> Report:
    """Search on the data that was prepared, and report."""
    ledger = Ledger(store)
    ledger.attach(backend)
    asking = search(work, backend, store)
    began = time.perf_counter()
    result = asking.fit_on_prepared_data()
    wall = time.perf_counter() - began
    models = result.get_all_models()
    trials = zip(asking.estimator_param_maps, models, strict=True)
    written = ledger.written([model.getRunId() for model in models], work.epochs)
    return Report(
        wall_s=wall,
        losses={label(params): float(model.getHistory()["val_loss"][-1]) for params, model in trials},
        hops=ledger.hops,
        bytes_read=work.epochs * len(models) * data_bytes_of(folder),
        bytes_moved=ledger.checkpoint_bytes + written,
        counted={
            "bytes_read": "formula: every trial reads all files, or Petastorm's copy of them on disk, in every epoch",
            "bytes_moved": "counted: checkpoints",
        },
        more={"units": ledger.units},
    )


def main() -> None:
    from cerebro.backend import SparkBackend
    from cerebro.storage import LocalStore

    given = asked()
    work = WORKS[given.work]
    if work.kind != "mlp":
        raise SystemExit(f"--work is {work.name}, but must be one of tables: cerebro-dl is given no other here")
    began = time.perf_counter()
    spark = two_cores()
    start = time.perf_counter() - began
    folder = given.folder / "cerebro-dl"
    store = LocalStore(prefix_path=str(folder))
    backend = SparkBackend(spark_context=spark.sparkContext, num_workers=WORKERS, verbose=0)
    if given.how == "eager":
        backend.settings.polling_period = 0.05
    began = time.perf_counter()
    backend.prepare_data(store, frame(spark, read_files(given.folder)), "held_out")
    prepare = time.perf_counter() - began
    found = run(work, backend, store, folder)
    spark.stop()
    print(replace(found, start_s=start, more={**found.more, "prepare_s": prepare}).line(), flush=True)


if __name__ == "__main__":
    main()
