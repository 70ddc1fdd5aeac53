"""What one of the user's functions does to its params reaches nobody: not the unit, nor another function or trial."""

from __future__ import annotations

import io
import os
from pathlib import Path
from typing import Any

import pytest
import torch
from bundle_runs import describe, make_member, make_trainer, train_alone
from kept_workers import KeptWorkers
from small_search import FEATURES, small_rows
from torch import nn
from trainer_data import columns, feed

import cerebro_spark as cs
from cerebro_spark import hp
from cerebro_spark.trainer import Hooks, Resources, TorchModel
from cerebro_spark.trainer.torch.trainer import TorchTrainer
from cerebro_spark.types import Unit

PARAMS = {"lr": 0.1, "batch_size": 16, "layers": [4]}


def popping_model_fn(params: Any) -> TorchModel:
    params.pop("batch_size", None)
    width = params["layers"].pop() if "layers" in params else 4
    module = nn.Sequential(nn.Linear(8, width), nn.ReLU(), nn.Linear(width, 1), nn.Flatten(0))
    return TorchModel(module, torch.optim.SGD(module.parameters(), lr=params.pop("lr")), nn.BCEWithLogitsLoss())


def test_every_function_gets_the_params_that_were_asked_for() -> None:
    seen: dict[str, list[Any]] = {"input_fn": [], "train_fn": [], "eval_fn": []}

    def spoil(name: str, params: Any) -> None:
        seen[name].append({"lr": params.get("lr"), "layers": list(params["layers"])})
        params.pop("lr", None)
        params["layers"].append(0)

    def input_fn(batch: Any, params: Any) -> Any:
        if not seen["input_fn"] or "lr" in params:
            spoil("input_fn", params)
        return batch

    def loop(name: str) -> Any:
        def run(model: Any, batches: Any, params: Any) -> dict[str, float]:
            spoil(name, params)
            return {"loss": 1.0, "rows": float(len(list(batches)))}

        return run

    given = {**PARAMS, "layers": [4]}
    hooks = Hooks(popping_model_fn, input_fn, loop("train_fn"), loop("eval_fn"))
    trainer = TorchTrainer(hooks, columns("tabular"), resources=Resources(device="cpu", threads=1))
    trainer.build("t", given)
    for _ in range(2):
        trainer.train(Unit("t", 1, "0"), feed("tabular", 0))
        trainer.evaluate(Unit("t", 1, "0", "eval"), feed("tabular", 0))
    trainer.predict(feed("tabular", 0))

    asked = {"lr": 0.1, "layers": [4]}
    assert seen == {"input_fn": [asked] * 5, "train_fn": [asked] * 2, "eval_fn": [asked] * 2}
    assert given == PARAMS


def test_a_model_is_built_once_although_its_function_empties_the_params() -> None:
    trainer = TorchTrainer(Hooks(popping_model_fn), columns("tabular"), resources=Resources(device="cpu", threads=1))
    trainer.build("t", {**PARAMS, "layers": [4]})
    for epoch in (1, 2, 3):
        trainer.train(Unit("t", epoch, "0"), feed("tabular", 0))
        file = io.BytesIO()
        digest = trainer.save(file).digest
        # A warm start reads the checkpoint, whatever the trainer holds.
        trainer.load("t", {**PARAMS, "layers": [4]}, file.getvalue(), digest=digest, warm_start=True)
    assert trainer.builds == 1


def test_trials_trained_together_and_alone_are_alike() -> None:
    bundled, single = make_trainer(popping_model_fn, "tabular"), make_trainer(popping_model_fn, "tabular")
    together: list[Any] = [None] * 3
    alone: list[Any] = [None] * 3
    for epoch in (1, 2):
        given = [{"lr": 0.01 * (1 + n), "batch_size": 16} for n in range(3)]
        together = list(
            bundled.train_together(
                [make_member("tabular", n, epoch, 0, together[n], params=given[n]) for n in range(3)]
            )
        )
        alone = train_alone(single, [make_member("tabular", n, epoch, 0, alone[n], params=given[n]) for n in range(3)])
        assert [describe(each) for each in together] == [describe(each) for each in alone]
        assert [each["lr"] for each in given] == [0.01, 0.02, 0.03]
    assert bundled.builds <= 3
    assert single.builds <= 3


@pytest.mark.slow
@pytest.mark.parametrize("fuse", [False, 2])
def test_workers_take_as_many_steps_as_asked(fuse: Any, kept_backend: KeptWorkers, tmp_path: Path) -> None:
    builds = tmp_path / "builds"

    def model_fn(params: Any) -> TorchModel:
        with builds.open("ab", buffering=0) as file:
            file.write(f"{os.getpid()}\n".encode())
        size, rate = params.pop("batch_size"), params.pop("lr")
        assert size in (10, 50)
        module = nn.Sequential(nn.Linear(FEATURES, 1), nn.Flatten(0))

        def steps(output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
            return torch.full_like(output, 1 / len(output))  # summed over all rows: the number of batches

        optimizer = torch.optim.SGD(module.parameters(), lr=rate)
        return TorchModel(module, optimizer, nn.BCEWithLogitsLoss(), metrics={"steps": steps})

    store = str(tmp_path / "store")
    dataset = cs.prepare(small_rows(200), store=store, features="x", label="y", partitions=2)
    search = cs.GridSearch(
        model_fn,
        space={"lr": hp.choice([0.1, 0.01]), "batch_size": hp.choice([10, 50])},
        backend=kept_backend(1),
        store=store,
        metric="loss",
        epochs=3,
        framework="torch",
        fuse=fuse,
    )
    result = search.fit(dataset)

    trials = result.trials
    assert len(trials) == 4
    assert [round(1 / share) for share in trials["steps"]] == list(trials["param_batch_size"])
    # Two for the rehearsal's trial, one for each trial, and one for each params that a load meets first.
    assert len(builds.read_text().splitlines()) <= 2 + 4 + 4
