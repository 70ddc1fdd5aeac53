"""The law of the zoo: what a unit changes hops exactly, or its trial is refused by name and nobody else is touched.

Run as a script with the name of a module of cases, it checks all of them and prints what became of each.
"""

from __future__ import annotations

import importlib
import io
import json
import os
import re
import sys
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from cerebro_spark.errors import CerebroError
from cerebro_spark.trainer import Columns, ColumnSpec, Feed, Hooks, Resources
from cerebro_spark.trainer.base import Trainer
from cerebro_spark.trainer.spec import choose_trainer
from cerebro_spark.types import Unit

Rows = Callable[[int], dict[str, Any]]
Outcome = list[tuple[str, dict[str, float]]]
"""Of each unit the digest of its checkpoint, and its metrics."""

WHOLE = os.environ.get("CEREBRO_ZOO") == "all"


def tabular(partition: int) -> dict[str, Any]:
    """16 rows of 8 features, with a label of 0 or 1."""
    rng = np.random.default_rng(partition)
    features = rng.normal(size=(16, 8)).astype("float32")
    return {"features": features, "label": (features[:, 0] > 0).astype("float32")}


@dataclass(frozen=True)
class Case:
    """A model, two trials of it that may share what is built, and what is expected of them.

    `refused` is a pattern for the message; where it is empty the model must hop. `late` says that the rehearsal's one
    batch cannot show it. Those that are not `quick` are variants of others, for `make test-zoo` alone.
    """

    model_fn: Callable[[Any], Any]
    rows: Rows = tabular
    inputs: tuple[str, ...] = ("features",)
    input_fn: Callable[..., Any] | None = None
    train_fn: Callable[..., Any] | None = None
    eval_fn: Callable[..., Any] | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    other: Mapping[str, Any] = field(default_factory=dict)
    refused: str = ""
    late: bool = False
    quick: bool = True
    batch_size: int = 8
    framework: str = "torch"


Trained = tuple[bytes, str, dict[str, float]]
"""Of a unit the checkpoint, its digest, and the metrics."""

UNITS = [Unit("t1", 1, "0"), Unit("t1", 1, "1"), Unit("t1", 2, "0")]


def trainer_of(case: Case) -> Trainer:
    rows = case.rows(0)
    specs = {name: ColumnSpec(str(array.dtype), array.shape[1:]) for name, array in rows.items()}
    labels = {name: spec for name, spec in specs.items() if name not in case.inputs}
    columns = Columns({name: specs[name] for name in case.inputs}, labels)
    hooks = Hooks(case.model_fn, case.input_fn, case.train_fn, case.eval_fn)
    return choose_trainer(case.model_fn, case.framework)(
        hooks, columns, seed=3, resources=Resources(device="cpu", threads=1)
    )


def feed_of(case: Case, partition: str, epoch: int = 1) -> Feed:
    arrays = case.rows(int(partition))
    order = np.random.default_rng([int(partition), epoch]).permutation(len(next(iter(arrays.values()))))
    return Feed(arrays, order, batch_size=case.batch_size, key=partition)


def train(trainer: Trainer, case: Case, unit: Unit) -> Trained:
    metrics = trainer.finish(trainer.train(unit, feed_of(case, unit.partition, unit.epoch)))
    file = io.BytesIO()
    digest = trainer.save(file).digest
    return file.getvalue(), digest, metrics


def evaluate(trainer: Trainer, case: Case, trial: str) -> dict[str, float]:
    return trainer.finish(trainer.evaluate(Unit(trial, 1, "2", "eval"), feed_of(case, "2")))


def rehearse(trainer: Trainer, case: Case, params: Mapping[str, Any]) -> None:
    """What a worker does before a run begins: one batch."""
    arrays = {name: array[: case.batch_size] for name, array in case.rows(0).items()}
    trainer.build("rehearsal", params)
    trainer.train(Unit("rehearsal", 1, "0"), Feed(arrays, batch_size=case.batch_size))
    trainer.save(io.BytesIO())
    trainer.evaluate(Unit("rehearsal", 1, "0", "eval"), Feed(arrays, batch_size=case.batch_size))


def alone(case: Case, params: Mapping[str, Any]) -> Outcome:
    """All units of a trial in a trainer of its own, one after the other."""
    trainer = trainer_of(case)
    trainer.build("t1", params)
    return [train(trainer, case, unit)[1:] for unit in UNITS]


def staying(case: Case) -> Outcome:
    """The units with checkpoints in between, in one trainer: after the first its trial is measured, and another trial
    has its turn after a rehearsal and after the second.
    """
    trainer = trainer_of(case)
    rehearse(trainer, case, case.params)
    meddle(trainer, case)
    trainer.build("t1", case.params)
    first = train(trainer, case, UNITS[0])
    measure_twice(trainer, case, first)
    second = train_from(first, trainer, case, UNITS[1])
    meddle(trainer, case)
    third = train_from(second, trainer, case, UNITS[2])
    return [first[1:], second[1:], third[1:]]


def hopping(case: Case) -> Outcome:
    """The units from trainer to trainer, measured before each hop; all but the last, unless the whole zoo is asked for.

    What the last begins with is what the second one's digest tells.
    """
    trainer = trainer_of(case)
    trainer.build("t1", case.params)
    trained = [train(trainer, case, UNITS[0])]
    for unit in UNITS[1:] if WHOLE else UNITS[1:-1]:
        measure_twice(trainer, case, trained[-1])
        trainer = trainer_of(case)
        trained.append(train_from(trained[-1], trainer, case, unit))
    return [one[1:] for one in trained]


def measure_twice(trainer: Trainer, case: Case, trained: Trained) -> None:
    """The second evaluation begins where the first began."""
    first = evaluate(trainer, case, "t1")
    trainer.load("t1", case.params, trained[0], digest=trained[1])
    assert evaluate(trainer, case, "t1") == first


def train_from(before: Trained, trainer: Trainer, case: Case, unit: Unit) -> Trained:
    trainer.load("t1", case.params, before[0], digest=before[1])
    return train(trainer, case, unit)


def meddle(trainer: Trainer, case: Case) -> None:
    """Another trial of the same structure trains and is measured."""
    trainer.build("t2", case.other)
    trainer.train(Unit("t2", 1, "1"), feed_of(case, "1"))
    evaluate(trainer, case, "t2")


def check_case(case: Case) -> str:
    """Raise AssertionError unless the law holds for this case and it ends as expected; the message if it is refused."""
    message, expected = attempt(lambda: alone(case, case.params))
    if message:
        check_message(case, message)
        check_refusal(case)
        return message
    for way in (staying, hopping):
        message, outcome = attempt(partial(way, case))
        if message:
            check_message(case, message)
            return message
        assert outcome == expected[: len(outcome)], f"{way.__name__}: {outcome} is not {expected}"
    assert not case.refused, "should be refused, but was not"
    return ""


def attempt(work: Callable[[], Any]) -> tuple[str, Any]:
    """The message with which a trial was refused, or what came of it."""
    try:
        return "", work()
    except CerebroError as error:
        return str(error), None


def check_message(case: Case, message: str) -> None:
    assert case.refused, f"was refused, but should hop: {message}"
    assert re.search(case.refused, message), message


def check_refusal(case: Case) -> None:
    """A refused trial is refused before the run, and no other in the same trainer notices it."""
    if not case.late:
        message, _ = attempt(lambda: rehearse(trainer_of(case), case, case.params))
        assert message, "the rehearsal did not show it"
        check_message(case, message)
    if case.other == case.params:
        return
    undisturbed = alone(case, case.other)
    trainer = trainer_of(case)
    trainer.build("t1", case.other)
    state, digest, _ = train(trainer, case, UNITS[0])
    for _ in range(2):
        message, _ = attempt(lambda: refuse(trainer, case))
        check_message(case, message)
    trainer.load("t1", case.other, state, digest=digest)
    assert train(trainer, case, UNITS[1])[1] == undisturbed[1][0], "the refused trial has left a trace"


def refuse(trainer: Trainer, case: Case) -> None:
    trainer.build("t2", case.params)
    trainer.train(Unit("t2", 1, "1"), feed_of(case, "1"))
    evaluate(trainer, case, "t2")


def check_module(name: str, *outcomes: str) -> dict[str, str]:
    """What went wrong with each case of a module, by its name; "" for those that hold the law.

    Args:
        name: The module's.
        outcomes: Which of its cases: "hops" for those that must hop, "refused" for those that must be refused.
    """
    wrong_with = {}
    for key, case in importlib.import_module(name).CASES.items():
        outcome = "refused" if case.refused else "hops"
        if outcome not in outcomes or not (WHOLE or case.quick):
            continue
        try:
            check_case(case)
            wrong_with[key] = ""
        except Exception as error:
            wrong_with[key] = f"{type(error).__name__}: {error}"
    return wrong_with


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).parent))
    warnings.simplefilter("error")
    warnings.filterwarnings("ignore", "__array__ implementation doesn't accept a copy", DeprecationWarning, r"keras\b")
    sys.modules["law"] = sys.modules["__main__"]
    print(json.dumps(check_module(*sys.argv[1:])))
