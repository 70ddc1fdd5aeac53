"""One model of the zoo and the rows it is trained on. Nothing here loads a framework."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from typing import Any

import numpy as np

from cerebro_spark.trainer import Columns, ColumnSpec, Feed

BATCH = 4
CLASSES = 4
VOCABULARY = 40
LENGTH = 12


@dataclass(frozen=True)
class Specimen:
    """A model that somebody else wrote.

    `make(params)` is its `model_fn`. `data` names its rows, with the side of an image or the length of a signal behind
    a dash. `refused` are words that its refusal must hold: empty where it must hop exactly. `quick` ones are in every
    run of the suite, the rest in `make test-zoo`.
    """

    make: Callable[[Any], Any]
    data: str
    quick: bool = False
    refused: tuple[str, ...] = ()


@cache
def arrays(data: str, partition: int) -> dict[str, Any]:
    """The rows of a partition, the same in every process, made once in each."""
    kind, _, size = data.partition("-")
    rng = np.random.default_rng([partition, 7])
    rows = rows_of(data)
    label = rng.integers(0, CLASSES, rows)
    side = int(size or 0)
    tokens = rng.integers(3, VOCABULARY, (rows, LENGTH))
    made: dict[str, Callable[[], dict[str, Any]]] = {
        "image": lambda: {"image": rng.normal(size=(rows, 3, side, side)).astype("float32"), "label": label},
        "pixels": lambda: {"pixels": rng.uniform(0, 255, (rows, side, side, 3)).astype("float32"), "label": label},
        "tokens": lambda: {"tokens": tokens, "label": label},
        "labelled": lambda: {"input_ids": tokens, "labels": label, "label": label},
        "pair": lambda: {"input_ids": tokens, "decoder_input_ids": tokens[:, ::-1].copy(), "label": label},
        "signal": lambda: {"signal": rng.normal(size=(rows, side)).astype("float32"), "label": label},
    }
    return made[kind]()


def columns(data: str) -> Columns:
    """The label is the column of that name; all others are inputs."""
    specs = {name: ColumnSpec(str(array.dtype), array.shape[1:]) for name, array in arrays(data, 0).items()}
    return Columns({n: spec for n, spec in specs.items() if n != "label"}, {"label": specs["label"]})


def rows_of(data: str) -> int:
    """Two batches; of images, on which steps are dear, one."""
    return BATCH if data.startswith(("image", "pixels")) else 2 * BATCH


def feed(data: str, partition: int, epoch: int, batches: int = 2) -> Feed:
    """The rows in the order of that epoch, or only the first few batches of them."""
    order = np.random.default_rng([partition, epoch, 99]).permutation(rows_of(data))[: batches * BATCH]
    return Feed(arrays(data, partition), order, batch_size=BATCH)
