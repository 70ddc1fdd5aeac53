"""The limit: two processes that train half of the trials each in plain loops. It does nothing else."""

from __future__ import annotations

import time
from typing import Any

from benchmarks.peers import pair
from benchmarks.peers.contender import Report
from benchmarks.peers.loops import keras_trial, torch_arrays, torch_trial
from benchmarks.peers.works import WORKS, label, nbytes, read_files


def half(given: Any, rank: int) -> dict[str, Any]:
    work = WORKS[given.work]
    trials = work.trials[rank::2]
    if given.framework == "torch":
        began = time.perf_counter()
        tensors = torch_arrays(given.folder)
        loaded = time.perf_counter()
        losses = {label(params): list(torch_trial(work, params, tensors))[-1] for params in trials}
        spent = {"loading_s": loaded - began, "training_s": time.perf_counter() - loaded}
        return {"losses": losses, "bytes": nbytes([tensor.numpy() for tensor in tensors]), "more": spent}
    import tensorflow as tf

    tf.config.threading.set_intra_op_parallelism_threads(1)
    tf.config.threading.set_inter_op_parallelism_threads(1)
    arrays = read_files(given.folder)
    return {"losses": {label(each): keras_trial(work, each, arrays) for each in trials}, "bytes": nbytes(arrays)}


def report(wall: float, halves: list[dict[str, Any]]) -> Report:
    return Report(
        wall_s=wall,
        losses={**halves[0]["losses"], **halves[1]["losses"]},
        hops=0,
        data_bytes=max(each["bytes"] for each in halves),
        bytes_read=sum(each["bytes"] for each in halves),
        bytes_moved=0,
        counted={"bytes_read": "counted", "bytes_moved": "nothing moves"},
        more={name: sum(each["more"][name] for each in halves) for name in halves[0].get("more", {})},
    )


if __name__ == "__main__":
    pair.main("benchmarks.peers.limit", half, report)
