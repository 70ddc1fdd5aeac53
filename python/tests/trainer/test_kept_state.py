"""What users' functions keep outside of the model steers nothing, or their trial is refused by name; logs may grow."""

from __future__ import annotations

import argparse
import io
import itertools
from collections import UserList, deque
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from trainer_data import columns, feed

from cerebro_spark.errors import TrialFailed
from cerebro_spark.trainer import Hooks, Resources, TorchModel
from cerebro_spark.trainer.sharing.dependence import BuildWatch, find_dependence
from cerebro_spark.trainer.torch.trainer import TorchTrainer
from cerebro_spark.types import Unit

UNIT = Unit("t", 1, "0")
EVAL = Unit("t", 1, "0", "eval")


def model_fn(params: Any) -> TorchModel:
    module = nn.Sequential(nn.Linear(8, 4), nn.Dropout(0.2), nn.BatchNorm1d(4), nn.Linear(4, 1))
    return TorchModel(module, torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9), nn.BCEWithLogitsLoss())


def take_steps(model: TorchModel, batches: Any, rate: float = 0.1) -> dict[str, float]:
    total = rows = 0.0
    for batch in batches:
        model.optimizer.param_groups[0]["lr"] = rate
        model.optimizer.zero_grad()
        output = model.module(torch.from_numpy(batch["features"])).squeeze(-1)
        loss = nn.functional.binary_cross_entropy_with_logits(output, torch.from_numpy(batch["label"]).float())
        loss.backward()
        model.optimizer.step()
        total, rows = total + loss.item() * len(output), rows + len(output)
    return {"loss": total, "rows": rows}


def trainer_of(
    train_fn: Any = None, eval_fn: Any = None, input_fn: Any = None, model_fn: Any = model_fn
) -> TorchTrainer:
    hooks = Hooks(model_fn, input_fn, train_fn, eval_fn)
    return TorchTrainer(hooks, columns("tabular"), resources=Resources(device="cpu", threads=1))


def train_units(trainer: TorchTrainer, count: int) -> list[str]:
    """Train units of a trial and measure it after each; the digests of its checkpoints."""
    trainer.build("t", {})
    digests = []
    for number in range(count):
        trainer.train(Unit("t", 1 + number, "0"), feed("tabular", 0))
        digests.append(trainer.save(io.BytesIO()).digest)
        trainer.evaluate(EVAL, feed("tabular", 0))
    return digests


class Log:
    def __init__(self) -> None:
        self.seen: list[int] = []


SEEN: list[float] = []


def in_closure() -> Any:
    seen: list[int] = []

    def train_fn(model: Any, batches: Any, params: Any) -> dict[str, float]:
        seen.append(1)
        return take_steps(model, batches, 0.1 / len(seen))

    return train_fn


def in_default() -> Any:
    def train_fn(model: Any, batches: Any, params: Any, seen: Any = deque()) -> dict[str, float]:  # noqa: B006
        seen.append(1)
        return take_steps(model, batches, 0.1 / len(seen))

    return train_fn


def in_object() -> Any:
    log = Log()

    def train_fn(model: Any, batches: Any, params: Any) -> dict[str, float]:
        log.seen = [*log.seen, 1]  # another list each time
        return take_steps(model, batches, 0.1 / len(log.seen))

    return train_fn


def in_dict() -> Any:
    log: dict[str, list[int]] = {}

    def train_fn(model: Any, batches: Any, params: Any) -> dict[str, float]:
        log.setdefault("seen", []).append(1)
        return take_steps(model, batches, 0.1 / len(log["seen"]))

    return train_fn


def in_user_list() -> Any:
    seen: UserList[int] = UserList()

    def train_fn(model: Any, batches: Any, params: Any) -> dict[str, float]:
        seen.append(1)
        return take_steps(model, batches, 0.1 / len(seen))

    return train_fn


def beside_a_log() -> Any:
    history: list[float] = []
    seen: list[int] = []

    def train_fn(model: Any, batches: Any, params: Any) -> dict[str, float]:
        seen.append(1)
        told = take_steps(model, batches, 0.1 / len(seen))
        history.append(told["loss"])
        return told

    return train_fn


STEERING: dict[str, tuple[Callable[[], Any], str]] = {
    "closure": (in_closure, r"`train_fn.seen` changed from 0 items to 1"),
    "default": (in_default, r"`train_fn.<default 0>` changed from 0 items to 1"),
    "object": (in_object, r"`Log.seen` changed from 0 items to 1"),
    "dict": (in_dict, r"`train_fn.log` changed from 0 items to 2"),
    "user list": (in_user_list, r"`UserList.data` changed from 0 items to 1"),
    "beside a log": (beside_a_log, r"`train_fn.seen` changed from 0 items to 1"),
}


@pytest.mark.parametrize("name", STEERING)
def test_a_container_that_steers_training_is_refused_by_name(name: str) -> None:
    make, says = STEERING[name]
    trainer = trainer_of(make())
    for _ in range(2):  # the refusal leaves no trace
        trainer.build("t", {})
        with pytest.raises(TrialFailed, match=rf"{says}.*the state of the trial is another.*buffer of the model"):
            trainer.train(UNIT, feed("tabular", 0))


def test_a_refused_trial_leaves_no_trace_for_others() -> None:
    seen: list[int] = []

    def train_fn(model: Any, batches: Any, params: Any) -> dict[str, float]:
        if params.get("steers"):
            seen.append(1)
        return take_steps(model, batches, 0.1 / (1 + len(seen)))

    expected = train_units(trainer_of(train_fn), 1)
    trainer = trainer_of(train_fn)
    trainer.build("bad", {"steers": True})
    with pytest.raises(TrialFailed, match=r"`train_fn.seen`"):
        trainer.train(Unit("bad", 1, "0"), feed("tabular", 0))
    assert train_units(trainer, 1) == expected
    assert seen == []


def test_batches_that_depend_on_a_container_are_refused() -> None:
    def input_fn(batch: Any, params: Any) -> Any:
        SEEN.append(1.0)
        return {**batch, "features": batch["features"] / len(SEEN)}

    trainer = trainer_of(input_fn=input_fn)
    trainer.build("t", {})
    with pytest.raises(TrialFailed, match=r"`input_fn.<global>.SEEN` changed from 0 items to \d+"):
        trainer.train(UNIT, feed("tabular", 0))


def test_what_training_adds_for_evaluation_is_refused() -> None:
    best: list[float] = []

    def train_fn(model: Any, batches: Any, params: Any) -> dict[str, float]:
        told = take_steps(model, batches)
        best.append(told["loss"])
        return told

    def eval_fn(model: Any, batches: Any, params: Any) -> dict[str, float]:
        return {"loss": min(best, default=1.0), "rows": 1.0}

    trainer = trainer_of(train_fn, eval_fn)
    trainer.build("t", {})
    with pytest.raises(TrialFailed, match=r"`train_fn.best` changed.*`loss` is another"):
        trainer.train(UNIT, feed("tabular", 0))


def test_a_log_that_steers_once_it_is_long_is_refused_then() -> None:
    history: list[float] = []

    def train_fn(model: Any, batches: Any, params: Any) -> dict[str, float]:
        told = take_steps(model, batches, 0.01 if len(history) > 5 else 0.1)
        history.append(told["loss"])
        return told

    with pytest.raises(TrialFailed, match=r"`train_fn.history` changed from 0 items to 8"):
        train_units(trainer_of(train_fn), 10)


def only_logging(read: bool) -> Any:
    history: list[float] = []
    tables: dict[int, Any] = {}
    log: dict[str, list[Any]] = {"losses": []}

    def train_fn(model: Any, batches: Any, params: Any) -> dict[str, float]:
        for width in (4, 8):
            if width not in tables:
                tables[width] = torch.arange(width)
        told = take_steps(model, batches)
        if read:
            history.append(told["loss"])
            log["losses"].append((len(history), told["loss"]))
            if len(history) % 3 == 0:
                print("the best so far is", min(history))
        return told

    return train_fn


def test_a_log_that_is_read_for_printing_may_grow_and_changes_no_bit(capsys: pytest.CaptureFixture[str]) -> None:
    logging = only_logging(read=True)
    assert train_units(trainer_of(logging), 6) == train_units(trainer_of(only_logging(read=False)), 6)
    assert "the best so far" in capsys.readouterr().out
    history = next(cell.cell_contents for cell in logging.__closure__ if isinstance(cell.cell_contents, list))
    assert len(history) == 6, "what was tried is in no log"


def test_what_differs_by_itself_tells_nothing() -> None:
    seen: list[int] = []
    clock = itertools.count()
    ticks = clock.__next__  # as a clock of the system: its state is not seen

    def train_fn(model: Any, batches: Any, params: Any) -> dict[str, float]:
        seen.append(1)
        return {**take_steps(model, batches), "seconds": float(time())}

    def time() -> int:
        return ticks()

    train_units(trainer_of(train_fn), 3)
    assert len(seen) == 3


def test_a_dependence_shows_each_time() -> None:
    numbers = itertools.count()

    def outcome(weights: str) -> Callable[[], dict[str, str]]:
        return lambda: {"seconds": str(next(numbers)), "the weights": weights}

    assert find_dependence(outcome("a"), outcome("b")) == "the weights"
    assert find_dependence(outcome("a"), outcome("a")) == ""


FILLED: dict[int, torch.Tensor] = {}


class Filling(nn.Module):
    """Fills a global table: to look up what it needs, or to count its calls."""

    def __init__(self, counts: bool) -> None:
        super().__init__()
        self.counts = counts

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        key = len(FILLED) if self.counts else x.shape[-1]
        if key not in FILLED:
            FILLED[key] = torch.ones(x.shape[-1])
        return x * FILLED[key] / (len(FILLED) if self.counts else 1)


@pytest.mark.parametrize("counts", [True, False])
def test_a_table_of_a_layer_may_be_filled_but_not_counted(counts: bool) -> None:
    def filling(params: Any) -> TorchModel:
        module = nn.Sequential(Filling(counts), nn.Linear(8, 1), nn.Flatten(0))
        return TorchModel(module, torch.optim.SGD(module.parameters(), lr=0.1), nn.BCEWithLogitsLoss())

    FILLED.clear()
    trainer = trainer_of(model_fn=filling)
    if not counts:
        assert len(train_units(trainer, 3)) == 3
        assert list(FILLED) == [8]
        return
    for _ in range(2):
        trainer.build("t", {})
        with pytest.raises(TrialFailed, match=r"`Filling.forward.<global>.FILLED` changed from 0 items to"):
            trainer.train(UNIT, feed("tabular", 0))
        assert FILLED == {}


def test_an_iterator_that_is_advanced_is_refused() -> None:
    rates = iter([0.1, 0.01, 0.001])

    def train_fn(model: Any, batches: Any, params: Any) -> dict[str, float]:
        return take_steps(model, batches, next(rates))

    trainer = trainer_of(train_fn)
    trainer.build("t", {})
    with pytest.raises(TrialFailed, match=r"`train_fn.rates` changed from an iterator with 3 items left to .* 2 items"):
        trainer.train(UNIT, feed("tabular", 0))


BUILT = 0
MADE: list[int] = []
ARGUMENTS = argparse.Namespace(built=0)
MEAN: float | None = None


def sized(width: int) -> TorchModel:
    module = nn.Sequential(nn.Linear(8, width), nn.Linear(width, 1), nn.Flatten(0))
    return TorchModel(module, torch.optim.SGD(module.parameters(), lr=0.1), nn.BCEWithLogitsLoss())


def by_global(params: Any) -> TorchModel:
    global BUILT
    BUILT += 1
    return sized(4 + BUILT)


def by_list(params: Any) -> TorchModel:
    MADE.append(1)
    return sized(4 + len(MADE))


def by_arguments(params: Any) -> TorchModel:
    ARGUMENTS.built += 1
    return sized(4 + ARGUMENTS.built)


def by_closure() -> Any:
    built = 0

    def model_fn(params: Any) -> TorchModel:
        nonlocal built
        built += 1
        model = sized(4)
        with torch.no_grad():
            model.module[0].weight.mul_(built)
        return model

    return model_fn


@pytest.mark.parametrize(
    ("model_fn", "says"),
    [
        (by_global, r"`by_global.<global>.BUILT` changed from 0 to 1 .*structure"),
        (by_list, r"`by_list.<global>.MADE\[0\]` changed from .nothing. to 1 .*structure"),
        (by_arguments, r"`Namespace.built` changed from 0 to 1 .*structure"),
        (by_closure(), r"`model_fn.built` changed from 0 to 1 .*first weights"),
    ],
)
def test_a_model_that_depends_on_how_many_were_built_is_refused_by_name(model_fn: Any, says: str) -> None:
    trainer = trainer_of(model_fn=model_fn)
    for _ in range(3):  # nothing is left of a refused one
        with pytest.raises(TrialFailed, match=rf"(?s){says}.*Take it from params"):
            trainer.build("t", {})


def test_a_model_that_differs_from_the_second_on_is_refused() -> None:
    built = 0

    def model_fn(params: Any) -> TorchModel:
        nonlocal built
        built += 1
        return sized(4 if built < 3 else 5)

    trainer = trainer_of(model_fn=model_fn)
    trainer.build("t0", {})
    with pytest.raises(TrialFailed, match=r"`model_fn.built` changed from 0 to 2"):
        trainer.build("t1", {})


def test_what_units_change_in_an_object_that_all_models_share_is_no_matter_of_building() -> None:
    shared = Log()

    def model_fn(params: Any) -> Any:
        return shared

    def build_again() -> dict[str, str]:
        pytest.fail("nothing was changed while building")

    watch = BuildWatch(model_fn)
    for _ in range(2):
        watch.begin()
        assert watch.find_steering(build_again) is None
        shared.seen.append(1)  # by a unit


def test_what_is_counted_or_kept_while_building_stays_if_no_model_depends_on_it() -> None:
    built, names, weights = 0, list[str](), dict[str, Any]()

    def model_fn(params: Any) -> TorchModel:
        nonlocal built
        global MEAN
        built += 1
        names.append(f"model {built}")
        if MEAN is None:
            MEAN = 0.5
        if "first" not in weights:
            weights["first"] = torch.full((4, 8), MEAN)
        model = sized(4)
        with torch.no_grad():
            model.module[0].weight.copy_(weights["first"])
        return model

    trainer = trainer_of(model_fn=model_fn)
    for number in range(5):
        trainer.build(f"t{number}", {})
    assert (built, len(names), MEAN, list(weights), trainer.builds) == (5, 5, 0.5, ["first"], 5)
