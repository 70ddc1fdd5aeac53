"""Whatever a unit does to a module is seen, or hops; and what a unit leaves as it was is no reason to refuse."""

from __future__ import annotations

import functools
import io
import random
from collections.abc import Callable
from typing import Any

import hypothesis
import numpy as np
import pytest
import torch
from hypothesis import strategies as st
from torch import nn
from trainer_data import columns, feed

from cerebro_spark.errors import CerebroError, TrialFailed
from cerebro_spark.trainer import Hooks, Resources, TorchModel
from cerebro_spark.trainer.sharing.snapshot import ObjectSnapshot, StateChange
from cerebro_spark.trainer.torch.inspection import take_torch_snapshot
from cerebro_spark.trainer.torch.trainer import TorchTrainer
from cerebro_spark.trainer.unit_errors import unsaved_change
from cerebro_spark.types import Unit

UNIT = Unit("t", 1, "0")
EVAL = Unit("t", 1, "0", "eval")


def model_fn(params: Any) -> TorchModel:
    module = nn.Sequential(nn.Linear(8, 4), nn.Dropout(0.2), nn.BatchNorm1d(4), nn.Linear(4, 1))
    return TorchModel(module, torch.optim.SGD(module.parameters(), lr=0.1), nn.BCEWithLogitsLoss())


Change = Callable[[TorchModel, int], Any]

# What no checkpoint has: each must be refused.
LEAKS: dict[str, Change] = {
    "attribute": lambda m, n: setattr(m.module[n], "extra", n + 1.5),
    "hook": lambda m, n: m.module[n].register_forward_hook(lambda *_: None),
    "rate": lambda m, n: setattr(m.module[1], "p", 0.3 + n / 10),
    "buffer": lambda m, n: m.module[n].register_buffer("statistics", torch.ones(2)),
    "momentum": lambda m, n: setattr(m.module[2], "momentum", 0.5 + n / 10),
    "module": lambda m, n: m.module[n].add_module("child", nn.Identity()),
}
# What hops, or is no change.
KEEPS: dict[str, Change] = {
    "freeze": lambda m, n: m.module[n].requires_grad_(False),
    "weights": lambda m, n: [p.data.mul_(0.9) for p in m.module[n].parameters()],
    "mode": lambda m, n: m.module[n].eval(),
    "rate of learning": lambda m, n: m.optimizer.param_groups[0].update(lr=0.01 * (n + 1)),
    "the same": lambda m, n: setattr(m.module[0], "in_features", int("8")),
    "statistics": lambda m, n: m.module[2].reset_running_stats(),
}


def trainer_of(train_fn: Any = None, eval_fn: Any = None) -> TorchTrainer:
    hooks = Hooks(model_fn, train_fn=train_fn, eval_fn=eval_fn)
    trainer = TorchTrainer(hooks, columns("tabular"), resources=Resources(device="cpu", threads=1))
    trainer.build("t", {})
    return trainer


def applying(names: list[tuple[str, int]]) -> Any:
    def train_fn(model: TorchModel, batches: Any, params: Any) -> dict[str, float]:
        for name, number in names if params.get("change", True) else ():
            (LEAKS | KEEPS)[name](model, number)
        return {"loss": 1.0, "rows": 1.0}

    return train_fn


changes = st.lists(st.tuples(st.sampled_from([*LEAKS, *KEEPS]), st.integers(0, 3)), max_size=4)


@hypothesis.settings(deadline=None, derandomize=True)
@hypothesis.given(changes)
def test_a_change_hops_or_is_refused(names: list[tuple[str, int]]) -> None:
    trainer = trainer_of(applying(names))
    fresh = trainer_of()
    initial = fresh.save(io.BytesIO()).digest
    if any(name in LEAKS for name, _ in names):
        with pytest.raises(TrialFailed, match="changed from"):
            trainer.train(UNIT, feed("tabular", 0))
        assert len(trainer.models) == 0
        trainer.build("t", {})
        assert trainer.save(io.BytesIO()).digest == initial
        return
    trainer.train(UNIT, feed("tabular", 0))
    file = io.BytesIO()
    saved = trainer.save(file)
    fresh.load("t", {}, file.getvalue(), digest=saved.digest)
    assert fresh.save(io.BytesIO()).digest == saved.digest
    trainer.build("t", {})
    assert trainer.save(io.BytesIO()).digest == initial


def test_a_checkpoint_from_before_flags_were_kept_has_those_of_the_built_model() -> None:
    trainer = trainer_of(applying([("freeze", 0)]))
    file = io.BytesIO()
    trainer.save(file)
    assert b"requires_grad" not in file.getvalue()
    trainer.train(UNIT, feed("tabular", 0))
    frozen = io.BytesIO()
    trainer.save(frozen)
    assert b"requires_grad" in frozen.getvalue()
    trainer.load("t", {}, file.getvalue())
    assert all(p.requires_grad for p in trainer.model().module.parameters())


def test_an_evaluation_that_changed_the_state_is_not_trained_on() -> None:
    def eval_fn(model: TorchModel, batches: Any, params: Any) -> dict[str, float]:
        with torch.no_grad():
            model.module[0].weight.mul_(2)
        return {"loss": 1.0, "rows": 1.0}

    trainer = trainer_of(eval_fn=eval_fn)
    file = io.BytesIO()
    digest = trainer.save(file).digest
    trainer.evaluate(EVAL, feed("tabular", 0))

    assert not trainer.holds("t", digest)
    with pytest.raises(CerebroError, match="load its checkpoint again"):
        trainer.train(UNIT, feed("tabular", 0))
    trainer.load("t", {}, file.getvalue(), digest=digest)
    assert trainer.holds("t", digest)


def test_an_evaluation_that_changed_nothing_is_trained_on_from_where_it_was() -> None:
    trainer = trainer_of()
    digest = trainer.save(io.BytesIO()).digest
    trainer.evaluate(EVAL, feed("tabular", 0))
    trainer.predict(feed("tabular", 0))

    assert trainer.holds("t", digest)
    assert trainer.save(io.BytesIO()).digest == digest


def test_statistics_that_an_evaluation_moved_are_put_back() -> None:
    def eval_fn(model: TorchModel, batches: Any, params: Any) -> dict[str, float]:
        model.module.train()
        for batch in batches:
            model.module(torch.from_numpy(batch["features"]))
        return {"loss": 1.0, "rows": 1.0}

    trainer = trainer_of(eval_fn=eval_fn)
    digest = trainer.save(io.BytesIO()).digest
    trainer.evaluate(EVAL, feed("tabular", 0))
    assert trainer.holds("t", digest)


def test_functions_that_a_unit_changed_begin_anew_for_the_next_trial() -> None:
    calls = {"n": 0}

    def train_fn(model: TorchModel, batches: Any, params: Any) -> dict[str, float]:
        if params.get("change"):
            calls["n"] += 1
        return {"loss": float(calls["n"]), "rows": 1.0}

    trainer = trainer_of(train_fn)
    trainer.build("bad", {"change": True})
    with pytest.raises(TrialFailed, match=r"`train_fn.calls\['n'\]` changed from 0 to 1 while training"):
        trainer.train(Unit("bad", 1, "0"), feed("tabular", 0))
    trainer.build("good", {})
    assert trainer.train(Unit("good", 1, "0"), feed("tabular", 0)).values() == {"loss": 0.0}


def test_a_snapshot_is_equal_where_things_are() -> None:
    things: dict[str, Any] = {"list": [1, {"a": (2.5, None)}], "set": {1, 2}, "nan": float("nan")}
    snapshot = ObjectSnapshot(lambda: {"things": things}, lambda: lambda value: None)
    things["list"] = [1, {"a": (2.5, None)}]
    things["nan"] = float("nan")
    assert snapshot.find_change() is None
    things["list"][1]["a"] = (2.5, 1)
    assert str(snapshot.find_change()) == "`things['list'][1]['a'][1]` changed from None to 1"


@pytest.mark.parametrize(
    ("change", "way_out"),
    [
        (StateChange("Anneal.steps", "module.0.steps", "0", "1"), "use `register_buffer`"),
        (StateChange("Lookahead._base", "optimizer._base", "0", "1"), "keep what the optimizer notes in `state`"),
        (
            StateChange("Noise.own", "module.1.own", "a generator in state a", "a generator in state b"),
            "default generator",
        ),
    ],
)
def test_the_way_out_is_that_of_the_part_that_changed(change: StateChange, way_out: str) -> None:
    said = str(unsaved_change(change, Unit("t0", 1, "p"), {"lr": 0.1}, "is no buffer: use `register_buffer`"))
    assert f"`{change.what}`" in said
    assert way_out in said


class Table(nn.Module):
    """Makes its large table anew in every call: the same one, or another."""

    def __init__(self, step: float) -> None:
        super().__init__()
        self.step = step
        self.table = [torch.zeros(20_000)]

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.table[0] = self.table[0] + self.step
        return x


@pytest.mark.parametrize(("step", "says"), [(0.0, None), (1.0, "digest")])
def test_large_tensors_count_as_the_same_if_they_are_equal(step: float, says: str | None) -> None:
    module = Table(step)
    snapshot = take_torch_snapshot(TorchModel(module, torch.optim.SGD([nn.Parameter(torch.zeros(1))]), nn.MSELoss()))
    module(torch.zeros(1))
    change = snapshot.find_change()
    assert (change is None) == (says is None)
    assert says is None or says in str(change)


COUNTS: dict[str, Any] = {"calls": 0, "rates": [1.0]}
TABLES: dict[int, torch.Tensor] = {}
WORDS = np.arange(100_000)


class Outside(nn.Module):
    """Uses what lies outside of it, in methods of all sorts."""

    @staticmethod
    def count() -> None:
        COUNTS["calls"] += 1
        COUNTS["rates"].append(2.0)

    @property
    def table(self) -> torch.Tensor:
        return TABLES.setdefault(len(TABLES), torch.zeros(4))

    @functools.cached_property
    def words(self) -> int:
        return int(WORDS[0])

    @classmethod
    @functools.cache
    def size(cls) -> int:
        return len(COUNTS)


def snapshot_of(module: nn.Module) -> ObjectSnapshot:
    return take_torch_snapshot(TorchModel(module, torch.optim.SGD([nn.Parameter(torch.zeros(1))]), nn.MSELoss()))


def test_what_methods_use_is_seen_and_put_back_in_place() -> None:
    module = Outside()
    snapshot, rates = snapshot_of(module), COUNTS["rates"]
    module.count()
    assert str(snapshot.find_change()) == "`Outside.count.<global>.COUNTS['calls']` changed from 0 to 1"
    snapshot.restore()
    assert COUNTS == {"calls": 0, "rates": [1.0]}
    assert COUNTS["rates"] is rates
    assert snapshot.find_change() is None


def test_tables_of_methods_may_get_items_but_keep_those_they_have() -> None:
    module = Outside()
    snapshot = snapshot_of(module)
    for _ in range(2):
        assert module.table.sum() == module.words == 0
        assert module.size() == 2
        del module.__dict__["words"]
        assert snapshot.find_change() is None
    TABLES[0] += 1
    assert "TABLES[0]` changed from tensor" in str(snapshot.find_change())
    snapshot.restore()
    assert TABLES[0].sum() == 0


def test_large_arrays_of_methods_are_compared_by_their_values() -> None:
    module = Outside()
    snapshot = snapshot_of(module)
    WORDS[-1] += 1
    assert "<global>.WORDS` changed from array of int64 [100000] with digest" in str(snapshot.find_change())
    snapshot.restore()
    assert snapshot.find_change() is None
    assert WORDS[-1] == 99_999


def test_a_variable_of_a_method_that_is_bound_anew_is_put_back() -> None:
    calls = 0

    class Closing(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            nonlocal calls
            calls += 1
            return x

    module = Closing()
    snapshot = snapshot_of(module)
    module(torch.zeros(1))
    assert str(snapshot.find_change()) == "`Closing.forward.calls` changed from 0 to 1"
    snapshot.restore()
    assert calls == 0


@pytest.mark.parametrize("growing", [False, True])
@pytest.mark.parametrize("make", [dict.fromkeys, list])
def test_large_tables_are_compared_as_a_whole(make: Any, growing: bool) -> None:
    things = {"table": make(range(20_000)), "small": make(range(4_000))}
    snapshot = ObjectSnapshot(lambda: {"things": things}, lambda: lambda value: None, growing=growing)
    assert len(snapshot._taken.facts) < 5_000
    things["table"] = make(range(20_000))
    assert snapshot.find_change() is None

    for name, table in things.items():
        table.update(more=1) if isinstance(table, dict) else table.append(1)
        change = snapshot.find_change()
        assert (change is None) == growing, name
        snapshot = ObjectSnapshot(lambda: {"things": things}, lambda: lambda value: None, growing=growing)
        table[7] = -1
        assert "`things['" + name + "'][7]` changed from" in str(snapshot.find_change())
        table[7] = 7 if isinstance(table, list) else None
        assert snapshot.find_change() is None


def test_a_small_table_may_grow_large() -> None:
    log: list[float] = []
    snapshot = ObjectSnapshot(lambda: {"log": log}, lambda: lambda value: None, growing=True)
    for _ in range(3):
        log.extend(range(4_000))
        assert snapshot.find_change() is None
    log[0] = -1
    assert "`log[0]` changed from 0 to -1" in str(snapshot.find_change())


def test_items_whose_keys_look_alike_are_told_apart() -> None:
    kind = torch.float32
    table: dict[Any, Any] = {(4, kind): 1, (8, kind): 2, torch.device("cpu"): 3, Outside(): 4, Outside(): 5}
    snapshot = ObjectSnapshot(lambda: {"table": table}, lambda: lambda value: None, growing=True)
    table[16, kind] = 6
    assert snapshot.find_change() is None
    table[4, kind] = 7
    assert str(snapshot.find_change()) == "`table[(4, torch.float32)]` changed from 1 to 7"
    table[4, kind] = 1
    first = next(key for key in table if isinstance(key, Outside))
    table[first] = 8
    assert str(snapshot.find_change()) == "`table[a Outside]` changed from 4 to 8"


def test_the_generator_of_the_system_has_no_state() -> None:
    system = random.SystemRandom()
    snapshot = ObjectSnapshot(lambda: {"own": system}, lambda: lambda value: None)
    system.random()
    assert snapshot.find_change() is None
    snapshot.restore()
