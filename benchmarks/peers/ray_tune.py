"""Ray Tune on two slots of one CPU each: the trainable trains, and reports after each epoch.

By default Ray starts a process a trial, and each loads the rows. With `--how reuse`, its faster way, the next trial
gets the process of the last, and the rows are read once and lie in Ray's object store, once a host.
"""

from __future__ import annotations

import os
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.peers import task_parallel
from benchmarks.peers.contender import asked
from benchmarks.peers.works import WORKS, Array, Work, nbytes, read_files


def trainable_of(work: Work, folder: Path) -> Any:
    def trainable(config: dict[str, Any], arrays: list[Array] | None = None) -> None:
        from ray import tune

        for epoch in task_parallel.epochs(work, config["trial"], arrays if arrays is not None else folder):
            tune.report(epoch)

    return trainable


def main() -> None:
    given = asked()
    work = WORKS[given.work]
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    import ray
    from ray import tune

    began = time.perf_counter()
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    start = time.perf_counter() - began
    with tempfile.TemporaryDirectory() as results:
        began = time.perf_counter()
        trainable = trainable_of(work, given.folder)
        if given.how == "reuse":
            arrays = read_files(given.folder)
            trainable = tune.with_parameters(trainable, arrays=arrays)
        found = tune.Tuner(
            tune.with_resources(trainable, {"cpu": 1}),
            param_space={"trial": tune.grid_search(work.trials)},
            tune_config=tune.TuneConfig(metric="loss", mode="min", reuse_actors=given.how == "reuse"),
            run_config=tune.RunConfig(storage_path=results, verbose=0),
        ).fit()
        wall = time.perf_counter() - began
    if found.errors:
        raise found.errors[0]
    once = nbytes(arrays) if given.how == "reuse" else None
    report = task_parallel.report([each.metrics for each in found], wall, start, bytes_read=once)
    ray.shutdown()
    print(report.line())


if __name__ == "__main__":
    main()
