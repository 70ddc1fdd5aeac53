"""What one trial's functions change of the process reaches no other trial, or is said."""

from __future__ import annotations

import functools
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.optim.optimizer import register_optimizer_step_pre_hook
from trainer_data import columns, feed

from cerebro_spark.errors import TrialFailed
from cerebro_spark.trainer import Hooks, Resources, TorchModel
from cerebro_spark.trainer.torch.libraries import TORCH_LIBRARIES
from cerebro_spark.trainer.torch.trainer import TorchTrainer
from cerebro_spark.types import Unit

UNIT, MEASURING = Unit("t", 1, "0"), Unit("t", 1, "0", "eval")


def make(params: Any = None) -> TorchModel:
    module = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 1), nn.Flatten(0))
    return TorchModel(module, torch.optim.SGD(module.parameters(), lr=0.1), nn.MSELoss())


def trainer_of(model_fn: Any, **hooks: Any) -> TorchTrainer:
    return TorchTrainer(Hooks(model_fn, **hooks), columns("tabular"), resources=Resources(device="cpu"))


def leaky(module: Any, x: torch.Tensor) -> torch.Tensor:
    return functional.leaky_relu(x)


class Other(nn.ReLU):
    pass


@functools.wraps(functional.relu)
def wrapped(x: torch.Tensor, inplace: bool = False) -> torch.Tensor:
    return -x


# What a patch is called, and how it is made.
PATCHES: dict[str, tuple[str, Callable[[], Any]]] = {
    "method": ("torch.nn.ReLU.forward", lambda: setattr(nn.ReLU, "forward", leaky)),
    "inherited method": ("torch.nn.Flatten.__call__", lambda: setattr(nn.Flatten, "__call__", leaky)),
    "of all modules": ("torch.nn.Module.train", lambda: setattr(nn.Module, "train", lambda self, mode=True: self)),
    "function": ("torch.nn.functional.relu", lambda: setattr(functional, "relu", wrapped)),
    "one for another": ("torch.nn.functional.relu", lambda: setattr(functional, "relu", functional.gelu)),
    "builtin": ("torch.relu", lambda: setattr(torch, "relu", torch.tanh)),
    "partial": (
        "torch.nn.functional.dropout",
        lambda: setattr(functional, "dropout", functools.partial(functional.dropout, p=0.9)),
    ),
    "class": ("torch.nn.ReLU", lambda: setattr(nn, "ReLU", Other)),
    "one class for another": ("torch.nn.ReLU", lambda: setattr(nn, "ReLU", nn.GELU)),
    "optimizer": ("torch.optim.SGD.step", lambda: setattr(torch.optim.SGD, "step", lambda self, closure=None: None)),
    "static method": ("torch.Tensor.relu", lambda: setattr(torch.Tensor, "relu", staticmethod(leaky))),
    "hook of all modules": (
        "torch.nn.modules.module._global_forward_hooks",
        lambda: nn.modules.module.register_module_forward_hook(lambda module, args, out: out * 2),
    ),
    "hook of all optimizers": (
        "torch.optim.optimizer._global_optimizer_pre_hooks",
        lambda: register_optimizer_step_pre_hook(lambda optimizer, args, kwargs: None),
    ),
    "gone": ("torch.nn.ReLU.extra_repr", lambda: delattr(nn.ReLU, "extra_repr")),
}


@pytest.fixture(autouse=True)
def as_before() -> Iterator[None]:
    """Have all as it was, whatever a test that fails leaves."""
    watched = {name: holder for name, holder in TORCH_LIBRARIES.items() if not isinstance(holder, dict)}
    before = {name: dict(vars(holder)) for name, holder in watched.items()}
    yield
    for name, holder in watched.items():
        for key, value in before[name].items():
            if vars(holder).get(key) is not value:
                setattr(holder, key, value)
        for key in vars(holder).keys() - before[name].keys():
            delattr(holder, key)


@pytest.mark.parametrize("kind", PATCHES)
def test_a_trial_that_replaces_a_function_of_a_library_is_refused_and_it_is_put_back(kind: str) -> None:
    name, patch = PATCHES[kind]

    def model_fn(params: Any) -> TorchModel:
        built = make()
        if params["patches"]:
            patch()
        return built

    plain = trainer_of(make)
    plain.build("t", {"patches": False})
    expected = plain.train(UNIT, feed("tabular", 0))

    trainer = trainer_of(model_fn)
    with pytest.raises(TrialFailed, match=rf"building trial t .*`{name}` changed from .* shared by all trials"):
        trainer.build("t", {"patches": True})
    trainer.build("t", {"patches": False})
    assert trainer.train(UNIT, feed("tabular", 0)) == expected


@pytest.mark.parametrize("kind", PATCHES)
@pytest.mark.parametrize("unit", [UNIT, MEASURING], ids=["train_fn", "eval_fn"])
def test_so_is_one_whose_unit_does(kind: str, unit: Unit) -> None:
    name, patch = PATCHES[kind]

    def run(model: TorchModel, batches: Any, params: Any) -> dict[str, float]:
        if params["patches"]:
            patch()
        return {"loss": 1.0, "rows": 1.0}

    trainer = trainer_of(make, train_fn=run, eval_fn=run)
    trainer.build("t", {"patches": True})
    call = trainer.train if unit.kind == "train" else trainer.evaluate
    with pytest.raises(TrialFailed, match=rf"in epoch 1 on partition 0: `{name}` changed from .*where the module of"):
        call(unit, feed("tabular", 0))
    trainer.build("t", {"patches": False})
    call = trainer.train if unit.kind == "train" else trainer.evaluate
    assert call(unit, feed("tabular", 0)).values() == {"loss": 1.0}


def test_a_function_that_fails_after_it_replaced_one_leaves_nothing_either() -> None:
    own = functional.relu

    def model_fn(params: Any) -> TorchModel:
        setattr(functional, "relu", wrapped)  # noqa: B010
        raise ValueError("no")

    trainer = trainer_of(model_fn)
    with pytest.raises(TrialFailed, match="ValueError: no"):
        trainer.build("t", {})
    assert functional.relu is own


def test_what_is_undone_in_the_same_call_and_what_a_library_does_itself_is_nobodys_fault() -> None:
    def model_fn(params: Any) -> TorchModel:
        with mock.patch.object(functional, "relu", wrapped):
            built = make()
        functional.helper_of_mine = wrapped  # type: ignore[attr-defined]
        return built

    trainer = trainer_of(model_fn)
    trainer.build("t", {})
    assert trainer.train(UNIT, feed("tabular", 0)).values()["loss"] > 0


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("what", ["model", "layer", "method"])
def test_models_that_pytorch_compiles_are_nobodys_fault(what: str) -> None:
    """Its compiler replaces `torch.nn.Module.__init__` when it is first used, in a process of its own here."""
    program = f"""
import torch
from torch import nn
from trainer_data import columns, feed
from cerebro_spark.trainer import Hooks, Resources, TorchModel
from cerebro_spark.trainer.torch.trainer import TorchTrainer
from cerebro_spark.types import Unit

def model_fn(params):
    net = nn.Sequential(nn.Linear(8, 4), nn.ReLU(), nn.Linear(4, 1), nn.Flatten(0))
    if {what!r} == "model":
        net = torch.compile(net, backend="eager")
    elif {what!r} == "layer":
        net[0] = torch.compile(net[0], backend="eager")
    else:
        net[0].compile(backend="eager")
    return TorchModel(net, torch.optim.SGD(net.parameters(), lr=0.1), nn.MSELoss())

trainer = TorchTrainer(Hooks(model_fn), columns("tabular"), resources=Resources(device="cpu"))
for trial in ("a", "b"):
    trainer.build(trial, {{}})
    print(trainer.train(Unit(trial, 1, "0"), feed("tabular", 0)).values()["loss"] > 0)
"""
    path = os.pathsep.join([str(Path(__file__).parent), str(Path(__file__).parents[1]), *sys.path])
    done = subprocess.run(
        [sys.executable, "-c", program],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": path},
    )
    assert done.stdout.split() == ["True", "True"], done.stderr[-3000:]


def test_folder_and_numpys_errors_are_put_back_and_that_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    here, handling = os.getcwd(), np.geterr()

    def model_fn(params: Any) -> TorchModel:
        assert os.getcwd() == here
        assert np.geterr() == handling
        os.chdir(tmp_path)
        np.seterr(all="raise")
        return make()

    trainer = trainer_of(model_fn)
    with caplog.at_level(logging.WARNING, "cerebro_spark"):
        for trial in ("a", "b"):
            trainer.build(trial, {})
    assert os.getcwd() == here
    assert np.geterr() == handling
    assert "`os.getcwd()` was set to" in caplog.text
    assert "`numpy.geterr()` was set to" in caplog.text


def test_what_the_user_changes_between_units_is_left_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A trainer lives in a notebook too, behind `result.evaluate`."""
    trainer = trainer_of(make)
    trainer.build("t", {})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("CEREBRO_TEST_SLOPE", "1")
    monkeypatch.setattr(nn.ReLU, "forward", leaky)
    handling = np.geterr()
    try:
        np.seterr(all="warn")
        with caplog.at_level(logging.WARNING, "cerebro_spark"):
            trainer.evaluate(MEASURING, feed("tabular", 0))
            trainer.build("u", {})
        assert np.geterr()["under"] == "warn"
    finally:
        np.seterr(**handling)
    assert Path.cwd() == tmp_path
    assert nn.ReLU.forward is leaky
    assert caplog.text == ""


def test_a_folder_that_is_gone_is_no_concern(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    gone = tmp_path / "gone"
    gone.mkdir()
    monkeypatch.chdir(gone)
    gone.rmdir()
    trainer = trainer_of(make)
    trainer.build("t", {})
    assert trainer.train(UNIT, feed("tabular", 0)).values()["loss"] > 0


def test_variables_of_the_environment_stay_and_that_is_said_once(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CEREBRO_TEST_SLOPE", "1")

    def model_fn(params: Any) -> TorchModel:
        os.environ["CEREBRO_TEST_SLOPE"] = "2"
        return make()

    trainer = trainer_of(model_fn)
    with caplog.at_level(logging.WARNING, "cerebro_spark"):
        for trial in ("a", "b"):
            trainer.build(trial, {})
    assert caplog.text.count("`os.environ['CEREBRO_TEST_SLOPE']` was changed by a function for one trial") == 1
    assert os.environ["CEREBRO_TEST_SLOPE"] == "2"
