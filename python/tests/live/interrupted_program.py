"""A program that waits for a search on real workers, to be interrupted: `python interrupted_program.py FOLDER`."""

from __future__ import annotations

import sys

from small_search import small_rows, torch_model_fn

import cerebro_spark as cs
from cerebro_spark import hp

if __name__ == "__main__":
    search = cs.GridSearch(
        torch_model_fn,
        space={"lr": hp.choice([0.01, 0.03]), "batch_size": 16},
        store=sys.argv[1],
        features="x",
        label="y",
        validation=0.25,
        metric="val_loss",
        epochs=5000,
        backend=cs.LocalBackend(2, threads=1),
    )
    search.start(small_rows(), run_id="mine").wait()
