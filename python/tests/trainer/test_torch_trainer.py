"""What a PyTorch trainer refuses, measures and repairs by itself, on small models in this process."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from trainer_cases_torch import Centered, Counting, Largest, Precision, accumulating, accuracy, mlp
from trainer_data import arrays, columns, feed

from cerebro_spark.codec import from_plain, to_plain
from cerebro_spark.errors import CheckpointError, ConfigurationError, TrialFailed
from cerebro_spark.trainer import Feed, Hooks, Resources, TorchModel
from cerebro_spark.trainer.torch.trainer import TorchTrainer
from cerebro_spark.types import Metrics, Unit

UNIT, EVAL = Unit("t", 1, "0"), Unit("t", 1, "v", "eval")


def model(
    module: nn.Module | None = None, optimizer: Any = torch.optim.SGD, loss: Any = None, **options: Any
) -> TorchModel:
    module = module or nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 1))
    return TorchModel(module, optimizer(module.parameters(), lr=0.1), loss or nn.BCEWithLogitsLoss(), **options)


def trainer_of(make: Callable[..., Any], kind: str = "tabular", **hooks: Any) -> TorchTrainer:
    made = TorchTrainer(Hooks(lambda params: make(), **hooks), columns(kind), resources=Resources(device="cpu"))
    made.build("t", {})
    return made


def saved(trainer: TorchTrainer) -> bytes:
    file = io.BytesIO()
    trainer.save(file)
    return file.getvalue()


# Metrics on their way


class Odd:
    """Keeps all that a state may be made of."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.seen: Any = {}

    def update(self, output: torch.Tensor, label: torch.Tensor) -> None:
        count = self.seen.get(3, [0])[0] + len(label)
        self.seen = {3: [count], "$": (count, None, True, float("inf")), "t": [output[:2].bfloat16(), torch.ones(2, 0)]}

    def compute(self) -> float:
        return float(self.seen[3][0])


@pytest.mark.slow
def test_metrics_of_every_kind_survive_the_event_log() -> None:
    metrics = {"accuracy": accuracy, "precision": Precision(), "largest": Largest(), "odd": Odd()}
    trainer = trainer_of(lambda: model(metrics=metrics))
    one = trainer.evaluate(EVAL, feed("tabular", 0))
    copy = from_plain(Metrics, to_plain(one, "metrics"))
    assert copy == one
    assert trainer.finish(copy) == trainer.finish(one)
    two = trainer.evaluate(EVAL, feed("tabular", 1), copy)
    assert trainer.finish(two)["odd"] == 180


def test_a_state_that_cannot_travel_is_named() -> None:
    class Closed(Odd):
        def update(self, output: torch.Tensor, label: torch.Tensor) -> None:
            self.seen = object()

    with pytest.raises(ConfigurationError, match="metric 'm' keeps `seen` as a object"):
        trainer_of(lambda: model(metrics={"m": Closed()})).evaluate(EVAL, feed("tabular", 0))


def test_a_metric_of_many_values_is_named() -> None:
    class Vector(Odd):
        def compute(self) -> Any:
            return torch.ones(3)

    trainer = trainer_of(lambda: model(metrics={"vector": Vector()}))
    with pytest.raises(ConfigurationError, match="'vector'"):
        trainer.finish(trainer.evaluate(EVAL, feed("tabular", 0)))


# Losses over partitions


def ignoring(rows: dict[str, Any]) -> dict[str, Any]:
    return {**rows, "label": np.where(np.arange(len(rows["label"])) % 3 == 0, -100, rows["label"])}


LOSSES = {
    "mean": (nn.CrossEntropyLoss(), False),
    "sum": (nn.CrossEntropyLoss(reduction="sum"), False),
    "none": (nn.CrossEntropyLoss(reduction="none"), False),
    "class weights": (nn.CrossEntropyLoss(weight=torch.tensor([1.0, 5.0, 20.0])), False),
    "ignored": (nn.CrossEntropyLoss(), True),
    "all": (nn.CrossEntropyLoss(weight=torch.tensor([1.0, 5.0, 20.0]), label_smoothing=0.1), True),
}


@pytest.mark.parametrize(("loss", "ignores"), LOSSES.values(), ids=LOSSES)
def test_a_loss_does_not_depend_on_the_split(loss: Any, ignores: bool) -> None:
    rows = arrays("classes", 0)
    rows = ignoring(rows) if ignores else rows
    trainer = trainer_of(lambda: model(nn.Linear(8, 3), loss=loss), "classes")
    output, label = trainer.model().module(torch.from_numpy(rows["features"])), torch.from_numpy(rows["label"])
    expected = loss(output, label).sum().item() / (90 if loss.reduction in ("sum", "none") else 1)

    for cuts in ([], [20, 50], [1, 2, 3]):
        bounds = zip([0, *cuts], [*cuts, 90], strict=True)
        feeds = [Feed({k: v[a:b] for k, v in rows.items()}, batch_size=7) for a, b in bounds]
        merged = Metrics.merge([trainer.evaluate(EVAL, part) for part in feeds])
        assert merged.values()["loss"] == pytest.approx(expected, rel=1e-6)


def test_an_empty_partition_changes_nothing() -> None:
    trainer = trainer_of(lambda: model(nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4), nn.Linear(4, 1))))
    before = {k: v.clone() for k, v in trainer.model().module.state_dict().items()}
    empty = {name: array[:0] for name, array in arrays("tabular", 0).items()}
    for nothing in (Feed(empty), [empty]):
        metrics = trainer.train(UNIT, nothing)
        assert (metrics.sums, metrics.weights) == ({"loss": 0.0}, {"loss": 0.0})
    assert all(torch.equal(value, before[name]) for name, value in trainer.model().module.state_dict().items())
    whole = trainer.evaluate(EVAL, feed("tabular", 0))
    assert Metrics.merge([metrics, whole]).values() == whole.values()
    assert trainer.predict(Feed(empty)) == {}


@pytest.mark.parametrize("size", [1e31, float("inf"), float("nan")])
def test_an_exploded_loss_fails_the_trial(size: float) -> None:
    trainer = trainer_of(lambda: model(loss=lambda output, label: output.sum() * 0 + size))
    with pytest.raises(TrialFailed, match="loss is"):
        trainer.train(UNIT, feed("tabular", 0))


# The user's functions


def test_an_input_fn_may_flip() -> None:
    flipped = trainer_of(model, input_fn=lambda batch, params: {**batch, "features": batch["features"][:, ::-1]})
    copied = trainer_of(model, input_fn=lambda batch, params: {**batch, "features": batch["features"][:, ::-1].copy()})
    for trainer in (flipped, copied):
        trainer.train(UNIT, feed("tabular", 0))
    assert saved(flipped) == saved(copied)


def test_eval_fn_measures_instead_of_the_model() -> None:
    def eval_fn(made: TorchModel, batches: Any, params: Any) -> dict[str, float]:
        rows = [len(batch["label"]) for batch in batches]
        with torch.no_grad():
            made.module(torch.rand(1, 8))
        return {"cost": 2.0 * sum(rows), "batches": float(len(rows)), "rows": sum(rows)}

    trainer = trainer_of(model, eval_fn=eval_fn)
    before = saved(trainer)
    assert trainer.evaluate(EVAL, feed("tabular", 0)).values() == {"cost": 2.0, "batches": 6 / 90}
    assert saved(trainer) == before, "a generator that eval_fn draws from is put back"
    assert set(trainer.train(UNIT, feed("tabular", 0)).values()) == {"loss"}


def other_optimizer() -> TorchModel:
    made = model()
    made.optimizer = torch.optim.SGD(nn.Linear(8, 1).parameters(), lr=0.1)
    return made


def with_part(**parts: Any) -> Callable[[], TorchModel]:
    def make() -> TorchModel:
        made = model()
        for name, value in parts.items():
            setattr(made, name, value)
        return made

    return make


def foreign_schedule() -> TorchModel:
    return with_part(lr_scheduler=torch.optim.lr_scheduler.StepLR(model().optimizer, 1))()


BAD = {
    "loss None": (with_part(loss=None), "loss is None.*\n.*optimizer ="),
    "loss class": (with_part(loss=nn.MSELoss), "loss is the class MSELoss.*\n.*optimizer ="),
    "optimizer None": (with_part(optimizer=None), "optimizer is None.*\n.*optimizer ="),
    "optimizer class": (with_part(optimizer=torch.optim.Adam), "optimizer is the class Adam"),
    "other parameters": (other_optimizer, "parameters of another module.*\n.*optimizer ="),
    "schedule class": (with_part(lr_scheduler=torch.optim.lr_scheduler.StepLR), "the class StepLR.*StepLR\\(optimizer"),
    "other schedule": (foreign_schedule, "steers another optimizer"),
    "metrics list": (with_part(metrics=["accuracy"]), "metrics is \\['accuracy'\\].*metrics={"),
    "metrics None": (with_part(metrics=None), "metrics is None.*metrics={"),
    "metric text": (with_part(metrics={"a": "accuracy"}), "'a' is 'accuracy'"),
    "metric class": (with_part(metrics={"a": Largest}), "the class Largest"),
    "metric loss": (with_part(metrics={"loss": accuracy}), "named 'loss'"),
    "clip text": (with_part(clip_norm="1"), "clip_norm is '1'"),
}


@pytest.mark.parametrize(("make", "message"), BAD.values(), ids=BAD)
def test_a_bad_return_is_refused_as_it_is_built(make: Callable[[], Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=f"(?s){message}"):
        trainer_of(make)


# Checkpoints that do not fit


def grouped() -> TorchModel:
    module = nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 1))
    groups = [{"params": part.parameters()} for part in module]
    return TorchModel(module, torch.optim.SGD(groups, lr=0.1), nn.BCEWithLogitsLoss())


def scheduled() -> TorchModel:
    made = model()
    made.lr_scheduler = torch.optim.lr_scheduler.StepLR(made.optimizer, 1)
    return made


MISFITS = {
    "larger": (
        lambda: model(nn.Sequential(*model().module, nn.Linear(1, 1))),
        "'2.bias', '2.weight'.*in the file only",
    ),
    "smaller": (lambda: model(nn.Sequential(nn.Linear(8, 1))), "in the model only|\\[1, 8\\]"),
    "wider": (lambda: model(nn.Sequential(nn.Linear(8, 5), nn.Linear(5, 1))), r"\[5, 8\].*\[4, 8\]"),
    "double": (lambda: model(nn.Sequential(nn.Linear(8, 4), nn.Linear(4, 1)).double()), "F64.*F32"),
    "optimizer": (lambda: model(optimizer=torch.optim.Adam), "adam.Adam.*sgd.SGD"),
    "groups": (grouped, r"\[2, 2\].*\[4\]"),
    "schedule": (scheduled, "StepLR.*None"),
}


@pytest.mark.parametrize(("make", "message"), MISFITS.values(), ids=MISFITS)
def test_a_checkpoint_that_does_not_fit_is_named(make: Callable[[], Any], message: str, tmp_path: Path) -> None:
    path = tmp_path / "other.safetensors"
    trainer_of(make).save(path)
    trainer = trainer_of(model)
    resident = trainer.model().module.state_dict()
    before = {name: value.clone() for name, value in resident.items()}
    with pytest.raises(CheckpointError, match=f"(?s)(?=.*other.safetensors).*({message})"):
        trainer.load("t", {}, path)
    assert all(torch.equal(value, before[name]) for name, value in resident.items())
    with pytest.raises(Exception, match="no trial is current"):
        trainer.save(io.BytesIO())


def test_the_digest_counts_rates_and_counters(tmp_path: Path) -> None:
    trainer = trainer_of(model)
    first = trainer.save(tmp_path / "one")
    trainer.model().optimizer.param_groups[0]["lr"] = 0.2
    second = trainer.save(tmp_path / "two")
    assert first.digest != second.digest
    with pytest.raises(CheckpointError, match="two has digest"):
        trainer.load("t", {}, tmp_path / "two", digest=first.digest)
    trainer.load("t", {}, tmp_path / "two", digest=second.digest)
    trainer.train(UNIT, [])
    assert trainer.save(tmp_path / "three").digest != second.digest, "a unit more was counted"


def test_loading_the_checkpoint_that_is_held_takes_the_new_params() -> None:
    def asked(model: Any, batches: Any, params: Any) -> dict[str, float]:
        return {"asked": params["shift"], "rows": 1}

    trainer = trainer_of(model, eval_fn=asked)
    trainer.train(UNIT, feed("tabular", 0))
    file = io.BytesIO()
    digest = trainer.save(file).digest
    builds = trainer.builds
    for shift in (1.0, 2.0, 2.0):
        trainer.load("t", {"shift": shift}, file.getvalue(), digest=digest)
        assert trainer.evaluate(EVAL, feed("tabular", 0)).values() == {"asked": shift}
    assert trainer.holds("t", digest)
    assert trainer.builds == builds + 2, "params not seen before are built once"
    trainer.load("t", {"shift": 2.0}, b"no checkpoint", digest=digest)
    assert trainer.save(io.BytesIO()).digest == digest


def test_state_that_an_optimizer_makes_at_once_hops() -> None:
    trainer = trainer_of(lambda: model(optimizer=torch.optim.Adagrad))
    trainer.train(UNIT, feed("tabular", 0))
    state = saved(trainer)
    trainer.build("other", {})
    trainer.load("t", {}, state)
    assert saved(trainer) == state


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"precision": "fp8"}, "precision is 'fp8'.*bfloat16"),
        ({"threads": 0}, "threads is 0.*at least 1"),
        ({"threads": True}, "threads is True"),
        ({"device": "gpu"}, "device is 'gpu'.*cuda:0"),
        ({"device": None}, "device is None"),
        ({"model_memory": -1}, "model_memory is -1"),
    ],
)
def test_resources_that_cannot_be_are_refused(asked: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        Resources(**asked)


# What one unit leaves for the next


@pytest.mark.parametrize(
    ("make", "hooks"),
    [
        pytest.param(lambda: model(mlp(nn.Dropout(0.5))), {"train_fn": accumulating}, id="gradients and mode"),
        pytest.param(lambda: model(mlp(), loss=Centered()), {}, id="buffers of the loss"),
        pytest.param(lambda: model(mlp(Counting())), {}, id="extra state"),
    ],
)
def test_a_trial_is_the_same_whoever_was_here_before(make: Callable[[], Any], hooks: dict[str, Any]) -> None:
    digests = []
    for before in (False, True):
        trainer = trainer_of(make, **hooks)
        if before:
            trainer.train(UNIT, feed("tabular", 0))
            trainer.evaluate(EVAL, feed("tabular", 2))
        trainer.build("u", {})
        trainer.train(Unit("u", 1, "1"), feed("tabular", 1))
        digests.append(trainer.save(io.BytesIO()).digest)
    assert digests[0] == digests[1]


def test_users_functions_find_the_model_in_the_mode_of_their_unit() -> None:
    seen = []

    def noted(made: TorchModel, batches: Any, params: Any) -> dict[str, float]:
        seen.append(made.module.training)
        made.module.train(not made.module.training)
        return {"loss": 1.0, "rows": 1.0}

    trainer = trainer_of(model, train_fn=noted, eval_fn=noted)
    for _ in range(2):
        trainer.train(UNIT, feed("tabular", 0))
        trainer.evaluate(EVAL, feed("tabular", 1))
    assert seen == [True, False, True, False]


def test_a_warm_start_takes_the_numbers_of_its_schedule_from_its_params() -> None:
    schedules = torch.optim.lr_scheduler

    def model_fn(params: Any) -> TorchModel:
        made = model()
        parts = [
            schedules.ExponentialLR(made.optimizer, params["gamma"]),
            schedules.MultiStepLR(made.optimizer, [params["step"]]),
        ]
        made.lr_scheduler = schedules.SequentialLR(made.optimizer, parts, milestones=[params["step"]])
        return made

    trainer = TorchTrainer(Hooks(model_fn), columns("tabular"), resources=Resources(device="cpu"))
    trainer.build("t", {"gamma": 0.9, "step": 20})
    trainer.train(UNIT, feed("tabular", 0))
    trainer.train(Unit("t", 2, "0"), feed("tabular", 0))
    left = saved(trainer)
    for warm, (gamma, step) in ((True, (0.5, 30)), (False, (0.9, 20))):
        trainer.load("u", {"gamma": 0.5, "step": 30}, left, warm_start=warm)
        scheduler = trainer.model().lr_scheduler
        first, second = scheduler._schedulers
        assert (first.gamma, list(second.milestones.elements()), scheduler._milestones) == (gamma, [step], [step])
        assert scheduler.last_epoch == 1


def test_a_warm_start_takes_the_numbers_of_its_loss_from_its_params() -> None:
    class Scaled(nn.Module):
        def __init__(self, alpha: float) -> None:
            super().__init__()
            self.register_buffer("alpha", torch.tensor(alpha))

        def forward(self, output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
            return self.get_buffer("alpha") * ((output.squeeze(-1) - label) ** 2).mean()

    hooks = Hooks(lambda params: model(loss=Scaled(params["alpha"])))
    trainer = TorchTrainer(hooks, columns("tabular"), resources=Resources(device="cpu"))
    trainer.build("t", {"alpha": 0.5})
    trainer.train(UNIT, feed("tabular", 0))
    left = saved(trainer)
    trainer.load("u", {"alpha": 0.25}, left, warm_start=True)
    assert float(trainer.model().loss.alpha) == 0.25
