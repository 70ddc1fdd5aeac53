"""Sequences with an LSTM in Keras: which of two waves made it? On this machine, without Spark.

python examples/sequences.py [--trials 3] [--epochs 3]
"""

from __future__ import annotations

import argparse
import tempfile
from typing import Any

import numpy as np

import cerebro_spark as cs
from cerebro_spark import hp

STEPS = 24


def model_fn(params: dict[str, Any]) -> Any:
    import keras

    model = keras.Sequential(
        [
            keras.layers.Input((STEPS, 1)),
            keras.layers.LSTM(params["units"], dropout=params["dropout"]),
            keras.layers.Dense(1, activation="sigmoid"),
        ]
    )
    model.compile(
        optimizer=keras.optimizers.Adam(params["lr"], clipnorm=1.0), loss="binary_crossentropy", metrics=["accuracy"]
    )
    return model


def waves(rows: int, seed: int) -> dict[str, Any]:
    """Noisy sines of two frequencies, from a random place on."""
    rng = np.random.default_rng(seed)
    fast = rng.integers(0, 2, rows)
    phase = rng.uniform(0, 2 * np.pi, (rows, 1))
    time = np.arange(STEPS)[None, :]
    series = np.sin(time * np.where(fast, 0.9, 0.6)[:, None] + phase) + rng.normal(0, 0.4, (rows, STEPS))
    return {"series": series[:, :, None].astype("float32"), "fast": fast.astype("float32")}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--trials", type=int, default=3)
    parser.add_argument("--epochs", type=int, default=3)
    options = parser.parse_args()
    search = cs.RandomSearch(
        model_fn,
        space={
            "lr": hp.loguniform(3e-3, 3e-2),
            "units": hp.choice([8, 16]),
            "dropout": hp.uniform(0, 0.2),
            "batch_size": 64,
        },
        num_trials=options.trials,
        epochs=options.epochs,
        backend=cs.LocalBackend(num_workers=2),
        store=tempfile.mkdtemp(prefix="sequences-"),
        features="series",
        label="fast",
        validation=0.2,
        metric="val_accuracy",
        patience=2,
        seed=1,
    )
    result = search.fit(waves(3000, seed=0))
    print(result)
    print(f"accuracy on waves it never saw: {result.evaluate(waves(500, seed=1))['accuracy']:.3f}")


if __name__ == "__main__":
    main()
