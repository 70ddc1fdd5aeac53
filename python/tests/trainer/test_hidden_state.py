"""State is seen wherever it lies: in modules that a function imports, beside what an object saves, in odd types."""

from __future__ import annotations

import array
import contextlib
import ctypes
import itertools
import sys
import types
from collections.abc import Iterator
from decimal import Decimal
from fractions import Fraction
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn
from torch.nn.utils import prune
from trainer_data import columns, feed

from cerebro_spark.errors import TrialFailed
from cerebro_spark.trainer import Hooks, Resources, TorchModel
from cerebro_spark.trainer.sharing.snapshot import ObjectSnapshot
from cerebro_spark.trainer.torch.inspection import take_torch_snapshot
from cerebro_spark.trainer.torch.trainer import TorchTrainer
from cerebro_spark.types import Unit

UNIT = Unit("t", 1, "0")


def trainer_of(model_fn: Any, train_fn: Any = None) -> TorchTrainer:
    hooks = Hooks(model_fn, train_fn=train_fn)
    return TorchTrainer(hooks, columns("tabular"), resources=Resources(device="cpu", threads=1))


def model_of(module: nn.Module, **settings: Any) -> TorchModel:
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    return TorchModel(module, optimizer, nn.BCEWithLogitsLoss(), **settings)


def snapshot_of(module: nn.Module) -> ObjectSnapshot:
    return take_torch_snapshot(TorchModel(module, torch.optim.SGD([nn.Parameter(torch.zeros(1))]), nn.MSELoss()))


class Layer(nn.Module):
    """A layer that a test gives more to."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 1)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        output: torch.Tensor = self.layer(features).flatten()
        return output


# -- modules that functions import


@pytest.fixture
def users_modules(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    package = tmp_path / "seen_package"
    package.mkdir()
    (package / "__init__.py").write_text("")
    (package / "state.py").write_text("COUNT = 0\n")
    (package / "steps.py").write_text(
        "def count():\n    from . import state\n    from .state import COUNT\n    state.COUNT += 1\n    return COUNT\n"
    )
    (tmp_path / "seen_helper.py").write_text(
        "TOTAL = 0\nCOUNTS = {'steps': 0}\nWIDTH = 8\n\ndef count():\n    global TOTAL\n    TOTAL += 1\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
    yield
    for name in ("seen_helper", "seen_package", "seen_package.state", "seen_package.steps"):
        sys.modules.pop(name, None)


class ImportsInside(Layer):
    def forward(self, features: torch.Tensor) -> torch.Tensor:
        import seen_helper  # type: ignore[import-not-found]

        seen_helper.count()
        return super().forward(features)


class ImportsName(Layer):
    def forward(self, features: torch.Tensor) -> torch.Tensor:
        from seen_helper import COUNTS as counts

        counts["steps"] += 1
        return super().forward(features)


class ImportsWithDots(Layer):
    def forward(self, features: torch.Tensor) -> torch.Tensor:
        import seen_package.state  # type: ignore[import-not-found]

        seen_package.state.COUNT += 1
        return super().forward(features)


class ImportsRelatively(Layer):
    def forward(self, features: torch.Tensor) -> torch.Tensor:
        from seen_package.steps import count  # type: ignore[import-not-found]

        count()
        return super().forward(features)


class OnlyReads(Layer):
    def forward(self, features: torch.Tensor) -> torch.Tensor:
        import seen_helper
        import seen_package.state as state

        scale: float = 1.0 + state.COUNT * seen_helper.WIDTH
        return super().forward(features) * scale


@pytest.mark.usefixtures("users_modules")
@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (ImportsInside, r"count\.<global>\.TOTAL"),
        (ImportsName, r"COUNTS\['steps'\]"),
        (ImportsWithDots, r"state\.COUNT"),
        (ImportsRelatively, r"COUNT"),
    ],
)
def test_a_module_that_is_imported_inside_a_method_is_seen_and_put_back(kind: type[nn.Module], what: str) -> None:
    trainer = trainer_of(lambda params: model_of(kind()))
    for _ in range(2):
        trainer.build("t", {})
        with pytest.raises(TrialFailed, match=rf"{what}` changed from 0 to \d+"):
            trainer.train(UNIT, feed("tabular", 0))


@pytest.mark.usefixtures("users_modules")
def test_a_module_that_is_imported_while_training_is_no_change() -> None:
    trainer = trainer_of(lambda params: model_of(OnlyReads()))
    trainer.build("t", {})
    trainer.train(UNIT, feed("tabular", 0))
    trainer.build("t", {})
    trainer.train(UNIT, feed("tabular", 0))
    assert trainer.builds == 2


@pytest.mark.usefixtures("users_modules")
def test_a_state_that_is_named_with_two_dots_is_seen() -> None:
    import seen_package.state

    known = {"seen_package": seen_package, "__name__": "__main__"}
    function = types.FunctionType(compile_step(), known)
    snapshot = ObjectSnapshot(lambda: {"train_fn": function}, lambda: lambda value: None)
    function()
    assert "seen_package.state.COUNT` changed from 0 to 1" in str(snapshot.find_change())
    snapshot.restore()
    assert seen_package.state.COUNT == 0


def compile_step() -> types.CodeType:
    known: dict[str, Any] = {}
    exec("def step():\n    seen_package.state.COUNT += 1\n", known)
    code: types.CodeType = known["step"].__code__
    return code


@pytest.mark.usefixtures("users_modules")
def test_an_import_that_fails_is_left_to_the_function() -> None:
    class Careful(Layer):
        def forward(self, features: torch.Tensor) -> torch.Tensor:
            with contextlib.suppress(ImportError):
                import seen_nowhere  # type: ignore[import-not-found]  # noqa: F401
            return super().forward(features)

    trainer = trainer_of(lambda params: model_of(Careful()))
    trainer.build("t", {})
    trainer.train(UNIT, feed("tabular", 0))


# -- objects that save less than they change


class Saves(Layer):
    """Counts in an attribute, and says what of it is saved."""

    def __init__(self) -> None:
        super().__init__()
        self.steps, self.seen, self.rate = 0, 0, 1.0
        self.log: list[int] = []

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        self.steps += 1
        self.rate = 1 / self.steps
        return super().forward(features) * self.rate

    def get_extra_state(self) -> Any:
        return {"counted": self.steps}

    def set_extra_state(self, state: Any) -> None:
        self.steps = state["counted"]
        self.rate = 1 / max(1, self.steps)


class SavesNothingNew(Saves):
    def get_extra_state(self) -> Any:
        return {"vocabulary": [1]}

    def set_extra_state(self, state: Any) -> None:
        pass


class SavesOneOfTwo(Saves):
    def forward(self, features: torch.Tensor) -> torch.Tensor:
        self.seen += 1
        return super().forward(features) * self.seen


class ListsUnsaved(SavesNothingNew):
    def forward(self, features: torch.Tensor) -> torch.Tensor:
        self.log.append(1)
        return self.layer(features).flatten() / len(self.log)  # type: ignore[no-any-return]


class ListsSaved(Saves):
    def forward(self, features: torch.Tensor) -> torch.Tensor:
        self.log.append(1)
        return super().forward(features) / len(self.log)

    def get_extra_state(self) -> Any:
        return {"steps": self.steps, "log": self.log}

    def set_extra_state(self, state: Any) -> None:
        self.steps, self.log[:] = state["steps"], list(state["log"])
        self.rate = 1 / max(1, self.steps)


@pytest.mark.parametrize(
    ("kind", "what"),
    [
        (SavesNothingNew, "SavesNothingNew.steps` changed from 0"),
        (SavesOneOfTwo, "SavesOneOfTwo.seen` changed from 0"),
        (ListsUnsaved, r"ListsUnsaved.log\[0\]` changed from \(nothing\)"),
    ],
)
def test_what_an_extra_state_does_not_carry_is_refused(kind: type[nn.Module], what: str) -> None:
    trainer = trainer_of(lambda params: model_of(kind()))
    trainer.build("t", {})
    with pytest.raises(TrialFailed, match=what):
        trainer.train(UNIT, feed("tabular", 0))


@pytest.mark.parametrize("kind", [Saves, ListsSaved])
def test_what_an_extra_state_carries_hops(kind: type[nn.Module]) -> None:
    trainer = trainer_of(lambda params: model_of(kind()))
    for _ in range(2):
        trainer.build("t", {})
        for epoch in (1, 2, 3):
            trainer.train(Unit("t", epoch, "0"), feed("tabular", 0))
    assert trainer.model().module.steps == 18
    assert trainer.model().module.rate == 1 / 18


class Schedule:
    """A schedule of the user's own, with names of its own in its state."""

    def __init__(self, optimizer: Any) -> None:
        self.optimizer = optimizer
        self.count = 0
        self.base = optimizer.param_groups[0]["lr"]

    def step(self) -> None:
        self.count += 1
        for group in self.optimizer.param_groups:
            group["lr"] = self.base / (1 + self.count)

    def state_dict(self) -> dict[str, Any]:
        return {"first rate": self.base, "steps": self.count}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.base, self.count = state["first rate"], state["steps"]


class Forgetful(Schedule):
    def state_dict(self) -> dict[str, Any]:
        return {"first rate": self.base, "rate now": self.optimizer.param_groups[0]["lr"]}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.base = state["first rate"]


def scheduled(kind: Any) -> Any:
    def model_fn(params: Any) -> TorchModel:
        model = model_of(Layer())
        model.lr_scheduler, model.scheduler_step = kind(model.optimizer), "batch"
        return model

    return model_fn


def test_what_the_state_of_an_own_schedule_does_not_carry_is_refused() -> None:
    trainer = trainer_of(scheduled(Forgetful))
    trainer.build("t", {})
    with pytest.raises(TrialFailed, match=r"Forgetful.count` changed from 0 to 6"):
        trainer.train(UNIT, feed("tabular", 0))


def test_what_the_state_of_an_own_schedule_carries_hops() -> None:
    trainer = trainer_of(scheduled(Schedule))
    for _ in range(2):
        trainer.build("t", {})
        for epoch in (1, 2):
            trainer.train(Unit("t", epoch, "0"), feed("tabular", 0))
    assert trainer.model().lr_scheduler.count == 12
    assert trainer.model().optimizer.param_groups[0]["lr"] == pytest.approx(0.1 / 13)


# -- attributes that look derived


def test_a_number_beside_a_parameter_of_a_like_name_counts() -> None:
    module: Any = Layer()
    module.scale_g, module.scale = nn.Parameter(torch.ones(1)), 1.0
    snapshot = snapshot_of(module)
    module.scale *= 0.9
    assert str(snapshot.find_change()) == "`Layer.scale` changed from 1.0 to 0.9"


def test_a_tensor_beside_a_parameter_of_a_like_name_counts() -> None:
    module = Layer()
    module.scale_orig, module.scale = nn.Parameter(torch.ones(1)), torch.ones(1)
    snapshot = snapshot_of(module)
    module.scale = module.scale * 0.5
    assert str(snapshot.find_change()) == "`Layer.scale` changed from tensor([1.0]) to tensor([0.5])"


@pytest.mark.filterwarnings("ignore:.*weight_norm.*:FutureWarning")
@pytest.mark.parametrize(
    "derive",
    [
        nn.utils.spectral_norm,
        nn.utils.weight_norm,
        lambda layer: prune.l1_unstructured(layer, "weight", amount=0.5),
        lambda layer: prune.random_unstructured(prune.l1_unstructured(layer, "weight", 0.5), "weight", 0.2),
    ],
)
def test_weights_that_pytorch_derives_in_every_call_do_not_count(derive: Any) -> None:
    def model_fn(params: Any) -> TorchModel:
        module = Layer()
        derive(module.layer)
        return model_of(module)

    trainer = trainer_of(model_fn)
    trainer.build("t", {})
    trainer.train(UNIT, feed("tabular", 0))


# -- odd types


def spread(value: Any) -> Iterator[float]:
    number = 0
    while True:
        number += 1
        yield value / number


def later(items: Iterator[Any], count: int) -> Iterator[Any]:
    for _ in range(count):
        next(items)
    return items


def set_first(layer: Any) -> None:
    layer.odd[0] = 2


def set_value(layer: Any) -> None:
    layer.odd.value = 2


@pytest.mark.parametrize(
    ("odd", "change"),
    [
        (Fraction(1, 2), lambda layer: setattr(layer, "odd", layer.odd * Fraction(9, 10))),
        (Decimal("0.5"), lambda layer: setattr(layer, "odd", layer.odd * 2)),
        (bytearray(1), set_first),
        (bytearray(20), lambda layer: layer.odd.append(3)),
        (array.array("d", [1.0]), set_first),
        (array.array("d", [1.0]), lambda layer: layer.odd.append(3.0)),
        (memoryview(bytearray(3)), set_first),
        (ctypes.c_double(1.0), set_value),
        ((ctypes.c_int * 3)(), set_first),
        (spread(1.0), lambda layer: next(layer.odd)),
        (itertools.cycle([0.1, 0.2]), lambda layer: next(layer.odd)),
        (later(itertools.cycle([0.1, 0.2]), 5), lambda layer: next(layer.odd)),
        (enumerate([1, 2]), lambda layer: next(layer.odd)),
        (map(str, [1, 2]), lambda layer: next(layer.odd)),
        (itertools.chain([1], [2]), lambda layer: next(layer.odd)),
        (itertools.islice(itertools.count(), 5), lambda layer: next(layer.odd)),
    ],
)
def test_values_of_the_standard_library_are_compared(odd: Any, change: Any) -> None:
    module = Layer()
    module.odd = odd
    snapshot = snapshot_of(module)
    assert snapshot.find_change() is None
    change(module)
    assert "`Layer.odd" in str(snapshot.find_change())


SHARED = {"bytes": bytearray(b"ab"), "array": array.array("i", [1, 2]), "number": ctypes.c_int(3)}


def test_values_that_trials_share_are_put_back() -> None:
    def train_fn() -> None:
        SHARED["bytes"].append(1)  # type: ignore[attr-defined]
        SHARED["array"][0] = 5  # type: ignore[index]
        SHARED["number"].value += 1  # type: ignore[attr-defined]

    snapshot = ObjectSnapshot(lambda: {"train_fn": train_fn}, lambda: lambda value: None)
    train_fn()
    assert snapshot.find_change() is not None
    snapshot.restore()
    assert snapshot.find_change() is None
    assert SHARED["bytes"] == b"ab"
