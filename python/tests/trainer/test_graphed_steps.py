"""Steps as CUDA graphs leave the bits of eager steps with the same optimizer. Skipped without a GPU."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

if not Path("/dev/nvidia0").exists():
    pytest.skip("needs an NVIDIA GPU, and this machine has none", allow_module_level=True)

import torch
from torch import nn

from cerebro_spark.trainer import Columns, ColumnSpec, Feed, Hooks, Resources, TorchModel
from cerebro_spark.trainer.torch import auto_steps
from cerebro_spark.trainer.torch.graphs import GraphedSteps
from cerebro_spark.trainer.torch.trainer import TorchTrainer
from cerebro_spark.types import Unit

ROWS, FEATURES, BATCH = 64 * 20 + 7, 64, 64
COLUMNS = Columns({"x": ColumnSpec("float32", (FEATURES,))}, {"y": ColumnSpec("float32")})
OPTIM = torch.optim


class EveryTenth(OPTIM.Adam):
    """Does something more in every tenth step, which it counts on the host."""

    def step(self, closure: Any = None) -> Any:
        super().step(closure)
        group = self.param_groups[0]
        group["taken"] = group.get("taken", 0) + 1
        if group["taken"] % 10 == 0:
            with torch.no_grad():
                for parameter in group["params"]:
                    parameter.mul_(0.99)


OPTIMIZERS: dict[str, Callable[..., Any]] = {
    "Adam": OPTIM.Adam,
    "AdamW": OPTIM.AdamW,
    "amsgrad": lambda p, lr: OPTIM.Adam(p, lr=lr, amsgrad=True),
    "SGD": lambda p, lr: OPTIM.SGD(p, lr=lr, momentum=0.9, nesterov=True),
    "plain SGD": OPTIM.SGD,
    "foreach Adam": lambda p, lr: OPTIM.Adam(p, lr=lr, foreach=True),
    "foreach SGD": lambda p, lr: OPTIM.SGD(p, lr=lr, foreach=True, momentum=0.5),
    "single Adam": lambda p, lr: OPTIM.Adam(p, lr=lr, foreach=False),
    "fused AdamW": lambda p, lr: OPTIM.AdamW(p, lr=lr, fused=True),
    "capturable AdamW": lambda p, lr: OPTIM.AdamW(p, lr=lr, capturable=True),
    "own Adam": lambda p, lr: EveryTenth(p, lr=lr),
    "groups": lambda p, lr: OPTIM.Adam([{"params": [q], "lr": lr * (i + 1)} for i, q in enumerate(p)], lr=lr),
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
    compile: Any = True,
    **options: Any,
) -> TorchTrainer:
    def model_fn(params: Mapping[str, Any]) -> TorchModel:
        made = module()
        own = OPTIMIZERS[optimizer](made.parameters(), lr=params["lr"])
        scheduler, when = SCHEDULES[schedule] if schedule else (lambda o: None, "epoch")
        loss = nn.MSELoss()
        return TorchModel(made, own, loss, lr_scheduler=scheduler(own), scheduler_step=when, **options)  # type: ignore[arg-type]

    return TorchTrainer(Hooks(model_fn), COLUMNS, seed=3, resources=Resources(precision=precision, compile=compile))


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
    *(
        {"optimizer": name, "schedule": schedule}
        for name in ("Adam", "SGD", "RMSprop", "foreach SGD")
        for schedule in SCHEDULES
    ),
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
    made = trainer(**case)
    graphed = run(made, ["a", "b"], 2, tmp_path / "graphs")
    assert made.steps == "graph"
    monkeypatch.setattr(GraphedSteps, "take", GraphedSteps.take_eagerly)
    assert graphed == run(trainer(**case), ["a", "b"], 2, tmp_path)


def test_a_graph_is_recorded_once_for_trials_that_differ_in_the_learning_rate(tmp_path: Path) -> None:
    made = trainer()
    run(made, ["a", "b", "c"], 3, tmp_path)
    steps = made._require_current().model.steps
    assert (made.steps, steps.graphed.captures) == ("graph", 1)


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


class Middle(nn.Module):
    """A small network whose `forward` does something between its layers."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(FEATURES, 32), nn.Linear(32, 1)
        self.drop = nn.Dropout(0.2)

    def between(self, x: torch.Tensor) -> torch.Tensor:
        return x

    def forward(self, x: torch.Tensor) -> Any:
        return self.last(self.drop(self.between(torch.relu(self.first(x))))).squeeze(1)


class PythonNoise(Middle):
    def between(self, x: torch.Tensor) -> torch.Tensor:
        return x * random.choice([0.5, 1.0])


class NumpyNoise(Middle):
    def between(self, x: torch.Tensor) -> torch.Tensor:
        return x * float(np.random.rand())


class HostTensorNoise(Middle):
    def between(self, x: torch.Tensor) -> torch.Tensor:
        return x * torch.rand(1).to(x.device, non_blocking=True)


class Branch(Middle):
    def between(self, x: torch.Tensor) -> torch.Tensor:
        return x * 0.5 if x.mean() > 0.3 else x


class Masked(Middle):
    def between(self, x: torch.Tensor) -> torch.Tensor:
        return x - x[x > 0].mean()


class Count(Middle):
    """Counts its steps on the host, in a state that hops, and uses the count."""

    def __init__(self) -> None:
        super().__init__()
        self.steps = 0

    def get_extra_state(self) -> Any:
        return {"steps": self.steps}

    def set_extra_state(self, state: Any) -> None:
        self.steps = state["steps"]

    def between(self, x: torch.Tensor) -> torch.Tensor:
        self.steps += self.training
        return x / (1 + self.steps)


class Annealed(Count):
    """Has a number of its trial in its extra state, which no step changes."""

    def between(self, x: torch.Tensor) -> torch.Tensor:
        return x / (1 + self.steps)


class Own(Middle):
    """Draws its own numbers, from a generator on the host that no kernel knows."""

    def between(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.normal(0.0, 1.0, (1,)).item()


STAY_EAGER = {
    PythonNoise: "draws random numbers on the host",
    NumpyNoise: "draws random numbers on the host",
    HostTensorNoise: "draws random numbers on the host",
    Branch: "cannot be recorded",
    Masked: "cannot be recorded",
    Count: "Count keeps extra state",
    Annealed: "Annealed keeps extra state",
    Own: "draws random numbers on the host",
}


@pytest.mark.parametrize("module", STAY_EAGER, ids=lambda module: module.__name__)
def test_what_a_graph_would_freeze_stays_eager(
    module: type[Middle], tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tried").mkdir()
    made = trainer(module)
    with caplog.at_level("INFO"):
        found = run(made, ["a", "b"], 2, tmp_path / "tried")
    assert made.steps == "eager"
    said = [record.getMessage() for record in caplog.records if "trains by" in record.getMessage()]
    assert len(said) == 1
    assert said[0].startswith(f"{module.__name__} trains by eager steps: ")
    assert STAY_EAGER[module] in said[0]
    # Nothing that was tried has left a trace: the bits are those of a process that never tries.
    monkeypatch.setattr(auto_steps.AutoSteps, "_decide", lambda steps: steps._settle(False, "not tried"))
    assert found == run(trainer(module), ["a", "b"], 2, tmp_path)


def test_a_recording_that_breaks_off_does_not_touch_other_graphs(tmp_path: Path) -> None:
    def model_fn(params: Mapping[str, Any]) -> TorchModel:
        made = Branch() if params["branches"] else mlp()
        return TorchModel(made, torch.optim.Adam(made.parameters(), lr=0.01), nn.MSELoss())

    def train(breaks: bool) -> list[str]:
        made = TorchTrainer(Hooks(model_fn), COLUMNS, seed=3, resources=Resources(compile=True))
        found: list[str] = []
        for epoch in (1, 2, 3):
            if epoch == 1:
                made.build("a", {"branches": False})
            else:
                made.load("a", {"branches": False}, tmp_path / "a", digest=found[-1])
            made.train(Unit("a", epoch, "p0"), feed())
            found.append(made.save(tmp_path / "a").digest)
            assert made.steps == "graph"
            if breaks:
                made.build("b", {"branches": True})
                made.train(Unit("b", 1, "p0"), feed())
        return found

    assert train(breaks=True) == train(breaks=False)


def test_the_pilot_leaves_no_trace(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "tried").mkdir()
    tried = run(trainer(cnn, "SGD", "every batch"), ["a", "b"], 2, tmp_path / "tried")
    monkeypatch.setattr(auto_steps.AutoSteps, "_decide", lambda steps: steps._settle(False, "not tried"))
    assert tried == run(trainer(cnn, "SGD", "every batch"), ["a", "b"], 2, tmp_path)


def is_channels_last(made: TorchTrainer) -> bool:
    made.build("z", {"lr": 0.01})
    weights = [p for p in made.model().module.parameters() if p.ndim == 4]
    return all(weight.is_contiguous(memory_format=torch.channels_last) for weight in weights)


def with_view() -> nn.Module:
    class Viewed(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.last = nn.Conv2d(4, 16, 3, padding=1), nn.Linear(256, 1)

        def forward(self, x: torch.Tensor) -> Any:
            return self.last(torch.relu(self.first(x.view(-1, 4, 4, 4))).view(len(x), -1)).squeeze(1)

    return Viewed()


def grouped() -> nn.Module:
    flat = nn.Sequential(nn.Flatten(), nn.Linear(256, 1), nn.Flatten(0))
    return nn.Sequential(nn.Unflatten(1, (4, 4, 4)), nn.Conv2d(4, 16, 3, padding=1, groups=2), flat)


def test_convolutions_have_their_channels_last_where_the_model_can_compute_so(tmp_path: Path) -> None:
    assert is_channels_last(trainer(cnn))
    assert not is_channels_last(trainer(cnn, compile=False))
    assert not is_channels_last(trainer(grouped))
    viewed = trainer(with_view)
    assert not is_channels_last(viewed)
    assert len(run(viewed, ["a"], 2, tmp_path)) == 4


@pytest.mark.parametrize("optimizer", ["Adam", "SGD", "RMSprop", "foreach Adam"])
def test_channels_that_are_last_hop_into_a_new_process_too(optimizer: str, tmp_path: Path) -> None:
    first, second = trainer(cnn, optimizer), trainer(cnn, optimizer)
    first.build("a", {"lr": 0.01})
    first.train(Unit("a", 1, "p0"), feed())
    saved = first.save(tmp_path / "a")
    second.load("a", {"lr": 0.01}, tmp_path / "a", digest=saved.digest)
    for made in (first, second):
        made.train(Unit("a", 2, "p0"), feed())
    assert first.save(tmp_path / "first").digest == second.save(tmp_path / "second").digest


class Kept:
    """A metric that keeps what it is given until the end of the unit."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.outputs: list[torch.Tensor] = []
        self.labels: list[torch.Tensor] = []

    def update(self, output: torch.Tensor, label: torch.Tensor) -> None:
        self.outputs, self.labels = [*self.outputs, output], [*self.labels, label]

    def compute(self) -> torch.Tensor:
        return (torch.cat(self.outputs) * torch.cat(self.labels)).sum()


def test_what_a_metric_keeps_is_not_written_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def kept_by(made: TorchTrainer) -> Any:
        made.build("a", {"lr": 0.01})
        metrics = made.train(Unit("a", 1, "p0"), feed())
        return made.steps, made.finish(metrics)

    graphed = kept_by(trainer(metrics={"kept": Kept()}))
    monkeypatch.setattr(GraphedSteps, "take", GraphedSteps.take_eagerly)
    assert graphed == ("graph", kept_by(trainer(metrics={"kept": Kept()}))[1])


def test_by_itself_it_takes_graphs_where_launching_is_the_limit(
    caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    made = trainer(compile="auto")
    with caplog.at_level("INFO"):
        run(made, ["a"], 2, tmp_path)
    assert made.steps == "graph", caplog.text


def test_without_it_the_steps_are_those_of_the_users_optimizer(tmp_path: Path) -> None:
    made = trainer(compile=False)
    run(made, ["a"], 1, tmp_path)
    assert made.steps == "eager"
    assert made._require_current().model.steps is None
