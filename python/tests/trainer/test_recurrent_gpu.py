"""On a GPU: RNN, LSTM and GRU layers, whose dropout draws from a state of cuDNN's own. Skipped without one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest

if not Path("/dev/nvidia0").exists():
    pytest.skip("needs an NVIDIA GPU, and this machine has none", allow_module_level=True)

import test_graph_bundles
import test_graph_evaluations
import torch
from test_graphed_steps import COLUMNS, deterministic, feed, run, trainer  # noqa: F401 (a fixture that is used by itself)
from torch import nn

from cerebro_spark.errors import ConfigurationError
from cerebro_spark.trainer import Hooks, Resources, TorchModel
from cerebro_spark.trainer.torch.graphs import GraphedSteps
from cerebro_spark.trainer.torch.trainer import TorchTrainer
from cerebro_spark.types import Unit

PARAMS = {"lr": 0.003}


class Recurrent(nn.Module):
    """Reads 64 numbers as eight steps of eight."""

    def __init__(self, layer: Callable[..., nn.Module] = nn.LSTM, **options: Any) -> None:
        super().__init__()
        self.layer = layer(8, 16, batch_first=True, **options)
        self.head = nn.Linear(16 * (1 + bool(options.get("bidirectional"))), 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden, _ = self.layer(x.unflatten(1, (8, 8)))
        result: torch.Tensor = self.head(hidden[:, -1])
        return result[:, 0]


class Pair(nn.Module):
    """Two layers that drop, one after the other."""

    def __init__(self) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(nn.GRU(8, 8, num_layers=2, dropout=0.3, batch_first=True) for _ in range(2))
        self.head = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = x.unflatten(1, (8, 8))
        for block in self.blocks:
            hidden = block(hidden)[0]
        result: torch.Tensor = self.head(hidden[:, -1])
        return result[:, 0]


class Called(nn.Module):
    """Calls PyTorch's LSTM by itself, so that no layer says that it drops."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.head = nn.LSTM(8, 16, num_layers=2, batch_first=True), nn.Linear(16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.unflatten(1, (8, 8))
        zeros = x.new_zeros(2, len(x), 16)
        weights: Any = self.inner._flat_weights
        hidden = torch._VF.lstm(x, (zeros, zeros), weights, True, 2, 0.3, self.training, False, True)[0]
        result: torch.Tensor = self.head(hidden[:, -1])
        return result[:, 0]


MODULES: dict[str, Callable[[], nn.Module]] = {
    "LSTM": Recurrent,
    "two ways": lambda: Recurrent(nn.LSTM, bidirectional=True),
    "GRU": lambda: Recurrent(nn.GRU),
    "RNN": lambda: Recurrent(nn.RNN),
    "dropping LSTM": lambda: Recurrent(nn.LSTM, num_layers=2, dropout=0.3),
    "dropping GRU": lambda: Recurrent(nn.GRU, num_layers=3, dropout=0.5),
    "dropping pair": Pair,
    "dropping twice": lambda: nn.Sequential(nn.Dropout(0.1), Recurrent(nn.LSTM, num_layers=2, dropout=0.2)),
}
each_module = pytest.mark.parametrize("name", MODULES)


@pytest.mark.parametrize("compile", [False, True])
@each_module
def test_a_hop_carries_everything(name: str, compile: bool, tmp_path: Path) -> None:
    def made() -> TorchTrainer:
        return trainer(MODULES[name], compile=compile)

    straight, first, second = made(), made(), made()
    straight.build("t0", PARAMS)
    first.build("t0", PARAMS)
    for epoch in (1, 2, 3):
        straight.train(Unit("t0", epoch, "p0"), feed())
    first.train(Unit("t0", 1, "p0"), feed())
    saved = first.save(tmp_path / "one")
    # Another trial has drawn from cuDNN's state meanwhile, as on a worker of its own.
    second.build("t1", PARAMS)
    second.train(Unit("t1", 1, "p0"), feed())
    second.load("t0", PARAMS, tmp_path / "one", digest=saved.digest)
    for epoch in (2, 3):
        second.train(Unit("t0", epoch, "p0"), feed())
    assert second.save(tmp_path / "two").digest == straight.save(tmp_path / "three").digest


@pytest.mark.parametrize("compile", [False, True])
@each_module
def test_trials_that_take_turns_learn_what_each_learns_alone(name: str, compile: bool, tmp_path: Path) -> None:
    (tmp_path / "alone").mkdir()
    by_turns = run(trainer(MODULES[name], compile=compile), ["a", "b"], 3, tmp_path)
    alone = run(trainer(MODULES[name], compile=compile), ["a"], 3, tmp_path / "alone")
    assert [each for pair in zip(by_turns[::4], by_turns[1::4], strict=True) for each in pair] == alone


@each_module
def test_an_evaluation_between_units_changes_nothing(name: str, tmp_path: Path) -> None:
    digests = []
    for evaluates in (False, True):
        made = trainer(MODULES[name])
        made.build("t0", PARAMS)
        for epoch in (1, 2, 3):
            made.train(Unit("t0", epoch, "p0"), feed())
            if evaluates:
                made.evaluate(Unit("t0", epoch, "p0", "eval"), feed())
        digests.append(made.save(tmp_path / str(evaluates)).digest)
    assert digests[0] == digests[1]


@each_module
def test_steps_are_recorded_where_they_leave_the_bits_of_eager_ones(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "graphs").mkdir()
    made = trainer(MODULES[name])
    graphed = run(made, ["a", "b"], 2, tmp_path / "graphs")
    print(name, made.steps)
    assert made.steps == ("eager" if "dropping" in name else "graph")
    monkeypatch.setattr(GraphedSteps, "take", GraphedSteps.take_eagerly)
    assert graphed == run(trainer(MODULES[name]), ["a", "b"], 2, tmp_path)


@each_module
def test_a_bundle_leaves_the_bits_of_single_units(name: str) -> None:
    found = test_graph_bundles.compare([list("abcd"), list("dcab"), list("abcdef")], module=MODULES[name])
    print(name, found.widths)
    assert set(found.widths) == ({1} if "dropping" in name else {4, 6})


@each_module
def test_evaluations_of_a_bundle_find_what_those_alone_find(name: str) -> None:
    found = test_graph_evaluations.compare([list("abcd"), list("dcab")], module=MODULES[name])
    print(name, found.evaluated)


def digest_after_two_epochs(module: Callable[[], nn.Module], strategy: Any, file: Path) -> str:
    def model_fn(params: Mapping[str, Any]) -> TorchModel:
        made = nn.Sequential(module(), nn.Unflatten(0, (-1, 1)), nn.Linear(1, 8), nn.Linear(8, 1), nn.Flatten(0))
        return TorchModel(made, torch.optim.Adam(made.parameters(), lr=params["lr"]), nn.MSELoss())

    made = TorchTrainer(Hooks(model_fn), COLUMNS, seed=3, resources=Resources(compile=False, strategy=strategy))
    made.build("t0", PARAMS)
    for epoch in (1, 2):
        made.train(Unit("t0", epoch, "p0"), feed())
    assert made.strategy == strategy
    return made.save(file).digest


@pytest.mark.parametrize("strategy", ["recompute", "offload"])
@each_module
def test_strategies_leave_the_bits_of_plain_steps(name: str, strategy: str, tmp_path: Path) -> None:
    plain, other = (digest_after_two_epochs(MODULES[name], each, tmp_path / each) for each in ("plain", strategy))
    assert plain == other


def test_a_dropout_that_nobody_sees_is_not_recorded(tmp_path: Path) -> None:
    made = trainer(Called)
    run(made, ["a"], 2, tmp_path)
    assert made.steps == "eager"


def test_a_dropout_that_nobody_sees_is_not_computed_again(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="a state of the device that goes on from batch to batch"):
        digest_after_two_epochs(Called, "recompute", tmp_path / "file")
