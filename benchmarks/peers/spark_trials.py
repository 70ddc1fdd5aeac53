"""Hyperopt's SparkTrials, as its users write it: the objective loads the data and trains its trial to the end."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from benchmarks.peers import task_parallel
from benchmarks.peers.contender import asked
from benchmarks.peers.sessions import in_use, two_cores
from benchmarks.peers.works import WORKS, Work


def in_turn(new_ids: list[int], domain: Any, trials: Any, seed: int) -> list[Any]:
    """The trials of the grid one after another, where Hyperopt's own algorithms would draw some of them twice."""
    found = []
    for tid in new_ids:
        misc = {"tid": tid, "cmd": domain.cmd, "workdir": domain.workdir, "idxs": {"n": [tid]}, "vals": {"n": [tid]}}
        found.extend(trials.new_trial_docs([tid], [None], [domain.new_result()], [misc]))
    return found


def objective_of(work: Work, folder: Path) -> Any:
    def objective(params: dict[str, Any]) -> dict[str, Any]:
        *_, last = task_parallel.epochs(work, params, folder)
        return {**last, "status": "ok"}

    return objective


def main() -> None:
    from hyperopt import SparkTrials, fmin, hp

    given = asked()
    work = WORKS[given.work]
    began = time.perf_counter()
    spark = in_use(two_cores())
    start = time.perf_counter() - began
    began = time.perf_counter()
    trials = SparkTrials(parallelism=2, spark_session=spark)
    fmin(
        objective_of(work, given.folder),
        hp.choice("n", work.trials),
        algo=in_turn,
        max_evals=len(work.trials),
        # It runs one trial a core whatever is queued; so many keep it from waiting for the next.
        max_queue_len=2,
        trials=trials,
        show_progressbar=False,
    )
    wall = time.perf_counter() - began
    report = task_parallel.report([each["result"] for each in trials.trials], wall, start)
    spark.stop()
    print(report.line())


if __name__ == "__main__":
    main()
