"""Steps as CUDA graphs leave the bits of eager steps with the same optimizer. Skipped without a GPU."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

if not Path("/dev/nvidia0").exists():
    pytest.skip("needs an NVIDIA GPU, and this machine has none", allow_module_level=True)

import torch
from torch import nn

from cerebro_spark.trainer import Columns, ColumnSpec, Feed, Hooks, Resources, TorchModel
from cerebro_spark.trainer.torch.graphs import GraphedSteps
from cerebro_spark.trainer.torch.trainer import TorchTrainer
from cerebro_spark.types import Unit

ROWS, FEATURES, BATCH = 64 * 20 + 7, 64, 64
COLUMNS = Columns({"x": ColumnSpec("float32", (FEATURES,))}, {"y": ColumnSpec("float32")})
OPTIM = torch.optim
OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "Adam": OPTIM.Adam,
    "AdamW": OPTIM.AdamW,
    "amsgrad": lambda p, lr: OPTIM.Adam(p, lr=lr, amsgrad=True),
    "SGD": lambda p, lr: OPTIM.SGD(p, lr=lr, momentum=0.9, nesterov=True),
    "RMSprop": lambda p, lr: OPTIM.RMSprop(p, lr=lr, momentum=0.5),
    "NAdam": OPTIM.NAdam,
    "RAdam": OPTIM.RAdam,
    "Adadelta": OPTIM.Adadelta,
    "Adamax": OPTIM.Adamax,
    "Adagrad": lambda p, lr: OPTIM.Adagrad(p, lr=lr, lr_decay=0.01),
    "ASGD": OPTIM.ASGD,
    "Rprop": OPTIM.Rprop,
}
SCHEDULES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "every batch": (lambda o: OPTIM.lr_scheduler.ExponentialLR(o, 0.99), "batch"),
    "one cycle": (lambda o: OPTIM.lr_scheduler.OneCycleLR(o, 0.01, total_steps=200), "batch"),
    "every epoch": (lambda o: OPTIM.lr_scheduler.StepLR(o, 1, 0.5), "epoch"),
}


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(FEATURES, 128), nn.ReLU(), nn.Dropout(0.3), nn.Linear(128, 32), nn.BatchNorm1d(32), nn.ReLU(),
        nn.Linear(32, 1), nn.Flatten(0),
    )  # fmt: skip


def cnn() -> nn.Module:
    return nn.Sequential(
        nn.Unflatten(1, (1, 8, 8)), nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
        nn.MaxPool2d(2), nn.Conv2d(16, 32, 3, padding=1), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 1),
        nn.Flatten(0),
    )  # fmt: skip


def transformer() -> nn.Module:
    layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.1, batch_first=True)
    return nn.Sequential(nn.Unflatten(1, (4, 16)), layer, nn.Flatten(1), nn.Linear(64, 1), nn.Flatten(0))


@pytest.fixture(autouse=True)
def deterministic() -> Iterator[None]:
    before = torch.backends.cudnn.deterministic
    torch.backends.cudnn.deterministic = True
    yield
    torch.backends.cudnn.deterministic = before


def feed() -> Feed:
    rng = np.random.default_rng(0)
    arrays = {
        "x": rng.normal(size=(ROWS, FEATURES)).astype("float32"),
        "y": rng.normal(size=ROWS).astype("float32"),
    }
    return Feed(arrays, rng.permutation(ROWS), batch_size=BATCH, key="p0")


def trainer(
    module: Callable[[], nn.Module] = mlp,
    optimizer: str = "Adam",
    schedule: str | None = None,
    precision: Any = None,
    **options: Any,
) -> TorchTrainer:
    def model_fn(params: dict[str, float]) -> TorchModel:
        made = module()
        own = OPTIMIZERS[optimizer](made.parameters(), lr=params["lr"])
        scheduler, when = SCHEDULES[schedule] if schedule else (lambda o: None, "epoch")
        loss = nn.MSELoss()
        return TorchModel(made, own, loss, lr_scheduler=scheduler(own), scheduler_step=when, **options)  # type: ignore[arg-type]

    return TorchTrainer(Hooks(model_fn), COLUMNS, seed=3, resources=Resources(precision=precision, compile=True))


def run(made: TorchTrainer, trials: list[str], epochs: int, folder: Path) -> list[Any]:
    """Let trials take turns in one trainer, through checkpoints; return all digests and metrics."""
    found: list[Any] = []
    saved: dict[str, Any] = {}
    for epoch, (number, trial) in itertools.product(range(1, epochs + 1), enumerate(trials)):
        params = {"lr": 0.001 * (number + 1)}
        if trial in saved:
            made.load(trial, params, folder / trial, digest=saved[trial])
        else:
            made.build(trial, params)
        metrics = made.train(Unit(trial, epoch, "p0"), feed())
        saved[trial] = made.save(folder / trial).digest
        found += [saved[trial], metrics.values()]
    return found


CASES = [
    *({"optimizer": name} for name in OPTIMIZERS),
    *({"module": module} for module in (cnn, transformer)),
    *({"optimizer": name, "schedule": schedule} for name in ("Adam", "SGD") for schedule in SCHEDULES),
    *({"optimizer": name, **clip} for name in ("Adam", "SGD") for clip in ({"clip_norm": 0.1}, {"clip_value": 0.01})),
    *({"optimizer": name, "precision": half} for name in ("Adam", "SGD") for half in ("bfloat16", "float16")),
    {"precision": "float16", "clip_norm": 0.1},
    {"metrics": {"off": lambda output, label: (output - label).abs()}},
]


@pytest.mark.parametrize("case", CASES, ids=lambda case: " ".join(map(str, case.values())))
def test_the_bits_are_those_of_eager_steps(
    case: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "graphs").mkdir()
    graphed = run(trainer(**case), ["a", "b"], 2, tmp_path / "graphs")
    monkeypatch.setattr(GraphedSteps, "take", GraphedSteps.take_eagerly)
    assert graphed == run(trainer(**case), ["a", "b"], 2, tmp_path)


def test_a_graph_is_recorded_once_for_trials_that_differ_in_the_learning_rate(tmp_path: Path) -> None:
    made = trainer()
    run(made, ["a", "b", "c"], 3, tmp_path)
    steps = made._require_current().model.steps
    assert steps.captures == 3, "one for each trial that begins, whose optimizer has no state yet"


def test_a_hop_carries_everything(tmp_path: Path) -> None:
    straight, first, second = trainer(), trainer(), trainer()
    for made in (straight, first):
        made.build("a", {"lr": 0.01})
        made.train(Unit("a", 1, "p0"), feed())
    saved = first.save(tmp_path / "a")
    second.load("a", {"lr": 0.01}, tmp_path / "a", digest=saved.digest)
    for made in (straight, second):
        made.train(Unit("a", 2, "p0"), feed())
    assert straight.save(tmp_path / "straight").digest == second.save(tmp_path / "second").digest
