"""On a GPU: models and data stay there, mixed precision works, and a hop carries everything. Skipped without one."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

if not Path("/dev/nvidia0").exists():
    pytest.skip("needs an NVIDIA GPU, and this machine has none", allow_module_level=True)

import torch

from cerebro_spark.errors import CerebroError
from cerebro_spark.trainer import Columns, ColumnSpec, Feed, Hooks, Resources, TorchModel
from cerebro_spark.trainer.torch.trainer import TorchTrainer
from cerebro_spark.types import Unit

ROWS = 4096
COLUMNS = Columns({"x": ColumnSpec("float32", (256,))}, {"y": ColumnSpec("float32")})


def model_fn(params: Mapping[str, float]) -> TorchModel:
    module = torch.nn.Sequential(
        torch.nn.Linear(256, 64), torch.nn.ReLU(), torch.nn.Dropout(0.2), torch.nn.Linear(64, 1), torch.nn.Flatten(0)
    )
    return TorchModel(module, torch.optim.Adam(module.parameters(), lr=params["lr"]), torch.nn.MSELoss())


def feed(key: str = "p0") -> Feed:
    rng = np.random.default_rng(0)
    arrays = {"x": rng.normal(size=(ROWS, 256)).astype("float32"), "y": rng.normal(size=ROWS).astype("float32")}
    return Feed(arrays, rng.permutation(ROWS), batch_size=256, key=key)


def trainer(**resources: object) -> TorchTrainer:
    return TorchTrainer(Hooks(model_fn), COLUMNS, seed=3, resources=Resources(**resources))  # type: ignore[arg-type]


def weights(made: TorchTrainer) -> list[np.ndarray[Any, Any]]:
    return [p.detach().float().cpu().numpy() for p in made.model().module.parameters()]


def test_the_model_lives_on_the_gpu() -> None:
    made = trainer()
    made.build("t0", {"lr": 0.01})
    assert all(p.is_cuda for p in made.model().module.parameters())


def test_data_is_uploaded_once_and_can_be_forgotten() -> None:
    made = trainer()
    made.build("t0", {"lr": 0.01})
    given = feed()
    made.train(Unit("t0", 1, "p0"), given)
    kept = torch.cuda.memory_allocated()
    made.train(Unit("t0", 2, "p0"), given)
    assert torch.cuda.memory_allocated() == pytest.approx(kept, abs=1 << 20)
    made.forget("p0")
    assert torch.cuda.memory_allocated() <= kept - given.nbytes * 0.9


def test_data_that_does_not_fit_is_not_kept() -> None:
    made = trainer(data_memory=1000)
    made.build("t0", {"lr": 0.01})
    before = torch.cuda.memory_allocated()
    made.train(Unit("t0", 1, "p0"), feed())
    assert torch.cuda.memory_allocated() - before < feed().nbytes / 2


@pytest.mark.parametrize("precision", [None, "bfloat16", "float16"])
def test_a_hop_carries_everything(tmp_path: Path, precision: str | None) -> None:
    straight, first, second = trainer(precision=precision), trainer(precision=precision), trainer(precision=precision)
    straight.build("t0", {"lr": 0.01})
    first.build("t0", {"lr": 0.01})
    for epoch in (1, 2):
        whole = straight.train(Unit("t0", epoch, "p0"), feed())
    first.train(Unit("t0", 1, "p0"), feed())
    saved = first.save(tmp_path / "one")
    second.load("t0", {"lr": 0.01}, tmp_path / "one", digest=saved.digest)
    assert all((a == b).all() for a, b in zip(weights(first), weights(second), strict=True))
    hopped = second.train(Unit("t0", 2, "p0"), feed())
    assert hopped.values()["loss"] == pytest.approx(whole.values()["loss"], rel=1e-3)
    for a, b in zip(weights(straight), weights(second), strict=True):
        np.testing.assert_allclose(a, b, rtol=2e-3, atol=2e-4)


def test_mixed_precision_learns() -> None:
    made = trainer(precision="float16")
    made.build("t0", {"lr": 0.003})
    losses = [made.train(Unit("t0", epoch, "p0"), feed()).values()["loss"] for epoch in range(1, 9)]
    assert losses[-1] < 0.7 * losses[0]


class Confusion:
    """A metric object that knows nothing of devices."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.counts, self.seen = torch.zeros(2), []  # type: ignore[var-annotated]

    def update(self, output: torch.Tensor, label: torch.Tensor) -> None:
        right = (output.argmax(1) == label).float()
        self.counts = self.counts + torch.stack([right.sum(), (1 - right).sum()])
        self.seen = [*self.seen, right.mean().reshape(1)]

    def compute(self) -> torch.Tensor:
        return self.counts[0] / self.counts.sum() + 0 * torch.cat(self.seen).sum()


def weighted_fn(params: Mapping[str, float]) -> TorchModel:
    module = torch.nn.Linear(256, 2)
    loss = torch.nn.CrossEntropyLoss(weight=torch.tensor([1.0, 3.0]))
    metrics = {"right": Confusion(), "same": lambda output, label: output.argmax(1) == label}
    return TorchModel(module, torch.optim.Adagrad(module.parameters(), lr=params["lr"]), loss, metrics)


def test_state_of_losses_metrics_and_optimizers_is_on_the_gpu(tmp_path: Path) -> None:
    columns = Columns({"x": ColumnSpec("float32", (256,))}, {"y": ColumnSpec("int64")})
    rng = np.random.default_rng(0)
    rows = {"x": rng.normal(size=(512, 256)).astype("float32"), "y": rng.integers(0, 2, 512)}
    made = [TorchTrainer(Hooks(weighted_fn), columns, seed=3) for _ in range(2)]
    made[0].build("t0", {"lr": 0.01})
    made[0].train(Unit("t0", 1, "p0"), Feed(rows, batch_size=100))
    saved = made[0].save(tmp_path / "one")
    made[1].load("t0", {"lr": 0.01}, tmp_path / "one", digest=saved.digest)
    assert made[1].save(tmp_path / "two").digest == saved.digest
    first = made[0].evaluate(Unit("t0", 1, "v0", "eval"), Feed(rows, batch_size=100))
    second = made[1].evaluate(Unit("t0", 1, "v0", "eval"), Feed(rows, batch_size=100), first)
    values = made[1].finish(second)
    assert values["right"] == pytest.approx(values["same"])
    assert made[0].finish(first)["loss"] == pytest.approx(values["loss"])


@pytest.mark.parametrize("room", [True, False])
@pytest.mark.parametrize("changed", ["nothing", "a weight", "a moment"])
def test_what_an_evaluation_changes_is_found_before_training_goes_on(
    monkeypatch: pytest.MonkeyPatch, changed: str, room: bool
) -> None:
    def eval_fn(model: TorchModel, batches: Any, params: Any) -> dict[str, float]:
        with torch.no_grad():
            if changed == "a weight":
                next(model.module.parameters())[0, 0] += 1
            if changed == "a moment":
                next(iter(model.optimizer.state.values()))["exp_avg"][0, 0] += 1
        return {"loss": 1.0, "rows": 1}

    monkeypatch.setattr("cerebro_spark.trainer.torch.trainer.has_room_for_copies", lambda model: room)
    made = TorchTrainer(Hooks(model_fn, eval_fn=eval_fn), COLUMNS, seed=3, resources=Resources())
    made.build("t0", {"lr": 0.01})
    made.train(Unit("t0", 1, "p0"), feed())
    with open("/dev/null", "wb", buffering=0) as nowhere:
        saved = made.save(nowhere)
    for _ in range(2):
        made.evaluate(Unit("t0", 1, "p0", "eval"), feed())
    assert made.holds("t0", saved.digest) == (changed == "nothing")
    if changed == "nothing":
        made.train(Unit("t0", 2, "p0"), feed())
    else:
        with pytest.raises(CerebroError, match="evaluating or predicting has changed the state of trial t0"):
            made.train(Unit("t0", 2, "p0"), feed())


@pytest.mark.parametrize("room", [True, False])
def test_graphs_are_chosen_alike_wherever_states_are_compared(monkeypatch: pytest.MonkeyPatch, room: bool) -> None:
    monkeypatch.setattr("cerebro_spark.trainer.torch.pilot.has_room_for_copies", lambda model: room)
    made, plain = trainer(compile=True), trainer(compile=True)
    for each in (made, plain):
        each.build("t0", {"lr": 0.01})
        each.train(Unit("t0", 1, "p0"), Feed(feed().arrays, batch_size=64, key="p0"))
        monkeypatch.undo()
    assert (made.steps, plain.steps) == ("graph", "graph")
    assert all(np.array_equal(*pair) for pair in zip(weights(made), weights(plain), strict=True))


class Banked(torch.nn.Module):
    """Keeps a large tensor that is no buffer, and turns or writes it by `.data`."""

    def __init__(self, change: str) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(256, 1)
        self.bank = torch.arange(100_000.0, device="cuda")
        self.change = change

    def forward(self, x: torch.Tensor) -> Any:
        if self.change == "write":
            self.bank.data[70_000] += 1
        if self.change == "turn":
            self.bank.data.copy_(self.bank.roll(1))
        return self.layer(x)[:, 0] + self.bank[0]


@pytest.mark.parametrize("change", ["write", "turn", "nothing"])
def test_a_large_tensor_that_is_written_unseen_is_found(change: str) -> None:
    def banked_fn(params: Any) -> TorchModel:
        module = Banked(change)
        return TorchModel(module, torch.optim.SGD(module.parameters(), lr=1e-9), torch.nn.MSELoss())

    made = TorchTrainer(Hooks(banked_fn), COLUMNS, seed=3, resources=Resources(compile=False))
    made.build("t0", {})
    if change == "nothing":
        for epoch in (1, 2):
            made.train(Unit("t0", epoch, "p0"), feed())
        return
    with pytest.raises(CerebroError, match=r"`Banked.bank` changed from tensor of float32 \[100000\] with digest"):
        made.train(Unit("t0", 1, "p0"), feed())
