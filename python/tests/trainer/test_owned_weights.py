"""A trial starts from the weights that `model_fn` gave it, not from what another trial has made of them."""

from __future__ import annotations

import copy
import functools
import gc
import io
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from small_search import FEATURES, small_dataset
from torch import nn
from trainer_data import columns, feed

from cerebro_spark.backend.job import Job
from cerebro_spark.backend.worker.rehearsal import rehearse
from cerebro_spark.data.loading.cache import Cache
from cerebro_spark.errors import ConfigurationError
from cerebro_spark.trainer import Hooks, Resources, TorchModel
from cerebro_spark.trainer.spec import TrainerSpec
from cerebro_spark.trainer.torch.ownership import give_own_memory
from cerebro_spark.trainer.torch.trainer import TorchTrainer
from cerebro_spark.types import Unit

Make = Callable[[], nn.Module]


class Embedded(nn.Module):
    """A table that is looked up by the signs of two features."""

    def __init__(self, table: nn.Embedding) -> None:
        super().__init__()
        self.table, self.head = table, nn.Linear(table.embedding_dim, 1)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.head(self.table((features[:, 0] > 0).long()))
        return out


class Counting(nn.Module):
    """Adds up the batches that it was trained on, in a buffer that it is given."""

    count: torch.Tensor

    def __init__(self, count: torch.Tensor) -> None:
        super().__init__()
        self.head = nn.Linear(8, 1)
        self.register_buffer("count", count)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        if self.training:
            self.count += 1
        out: torch.Tensor = self.head(features) / self.count
        return out


def linear_over(array: Any) -> nn.Module:
    layer = nn.Linear(8, 1)
    layer.weight.data = torch.from_numpy(array)
    return layer


def linear_assigned(state: Any) -> nn.Module:
    layer = nn.Linear(8, 1)
    layer.load_state_dict(state, assign=True)
    return layer


def aliased() -> dict[str, tuple[Any, Make]]:
    """Return modules over memory that outlives them, by name, with what outlives them."""
    table, array, state = torch.rand(2, 3), np.ones((1, 8), "float32"), nn.Linear(8, 1).state_dict()
    large = torch.ones(100, 8)
    return {
        "an embedding of a global tensor": (
            table,
            lambda: Embedded(nn.Embedding.from_pretrained(table, freeze=False)),
        ),
        "an array": (array, lambda: linear_over(array)),
        "a slice of a tensor": (large, lambda: linear_assigned({"weight": large[7:8], "bias": torch.zeros(1)})),
        "an assigned state": (state["weight"], lambda: linear_assigned(state)),
    }


def trainer_of(
    make: Make, loss: Any = None, train: Callable[[nn.Module], Any] = nn.Module.parameters, lr: Any = 0.5
) -> TorchTrainer:
    def model_fn(params: Any) -> TorchModel:
        module = make()
        return TorchModel(module, torch.optim.SGD(train(module), lr=lr), loss or nn.BCEWithLogitsLoss())

    return TorchTrainer(Hooks(model_fn), columns("tabular"), resources=Resources(device="cpu", threads=1))


def first_digest(trainer: TorchTrainer, trial: str) -> str:
    trainer.build(trial, {})
    return trainer.save(io.BytesIO()).digest


def train(trainer: TorchTrainer, trial: str) -> str:
    trainer.build(trial, {})
    trainer.train(Unit(trial, 1, "0"), feed("tabular", 0))
    return trainer.save(io.BytesIO()).digest


@pytest.mark.parametrize("name", aliased())
def test_training_leaves_what_a_model_was_made_from_as_it_was(name: str) -> None:
    source, make = aliased()[name]
    before = copy.deepcopy(source)
    trainer = trainer_of(make)
    first = first_digest(trainer, "t2")
    assert train(trainer, "t1") != first
    assert np.array_equal(np.asarray(source), np.asarray(before))
    assert first_digest(trainer, "t2") == first


def test_a_rate_that_is_a_tensor_stays_as_it_was() -> None:
    rate = torch.tensor(0.5)
    trainer = trainer_of(lambda: nn.Linear(8, 1), lr=rate)
    trainer.build("t1", {})
    trainer.model().optimizer.param_groups[0]["lr"].fill_(0.25)
    assert rate.item() == 0.5


SHARED = nn.Linear(8, 4)


@functools.cache
def cached_part() -> nn.Module:
    return nn.Linear(8, 4)


def with_head(part: nn.Module) -> nn.Module:
    return nn.Sequential(part, nn.ReLU(), nn.Linear(4, 1))


def with_parameter(parameter: nn.Parameter) -> nn.Module:
    module = nn.Linear(8, 1)
    module.weight = parameter
    return module


def trained_twice() -> dict[str, Make]:
    part, parameter, whole = nn.Linear(8, 4), nn.Parameter(torch.zeros(1, 8)), nn.Linear(8, 1)
    return {
        "a global": lambda: with_head(SHARED),
        "a variable": lambda: with_head(part),
        "a cached function": lambda: with_head(cached_part()),
        "a parameter": lambda: with_parameter(parameter),
        "the whole model": lambda: whole,
    }


@pytest.mark.parametrize("name", trained_twice())
def test_a_trained_part_that_models_share_is_refused_by_name(name: str) -> None:
    trainer = trainer_of(trained_twice()[name])
    train(trainer, "t1")
    with pytest.raises(ConfigurationError, match=r"the same `(0\.)?weight`.* trained: .*copy\.deepcopy"):
        trainer.build("t2", {})


def test_another_trainer_of_the_process_may_not_share_it_either() -> None:
    part = nn.Linear(8, 4)
    trainers = [trainer_of(lambda: with_head(part)) for _ in range(2)]
    trainers[0].build("t", {})
    with pytest.raises(ConfigurationError, match=r"the same `0\.weight`, `0\.bias`, which are trained"):
        trainers[1].build("t", {})


def test_a_part_that_was_trained_may_not_be_shared_frozen() -> None:
    part = nn.Linear(8, 4)
    trainer = trainer_of(lambda: with_head(part))
    train(trainer, "t1")
    part.requires_grad_(False)
    with pytest.raises(ConfigurationError, match="which are trained"):
        trainer.build("t2", {})


def test_frozen_statistics_that_training_changes_are_refused() -> None:
    part = nn.Sequential(nn.Linear(8, 4), nn.BatchNorm1d(4)).requires_grad_(False)
    trainer = trainer_of(lambda: with_head(part))
    train(trainer, "t1")
    changed = r"the same `0\.1\.running_mean`, `0\.1\.running_var`, `0\.1\.num_batches_tracked`, which have changed"
    with pytest.raises(ConfigurationError, match=changed):
        trainer.build("t2", {})


def test_a_buffer_that_counts_and_outlives_the_model_is_refused() -> None:
    count = torch.zeros(())
    trainer = trainer_of(lambda: Counting(count))
    train(trainer, "t1")
    with pytest.raises(ConfigurationError, match=r"the same `count`, which has changed since.*tensor\.clone"):
        trainer.build("t2", {})


def test_new_parameters_may_take_the_addresses_of_those_that_are_gone() -> None:
    places: set[int] = set()
    gc.freeze()  # what is there already need not be looked through each time
    try:
        for _ in range(50):
            trainer = trainer_of(lambda: nn.Linear(8, 1))
            trainer.build("t", {})
            place = id(trainer.model().module.weight)
            if place in places:
                return
            places.add(place)
            del trainer
            gc.collect()
    finally:
        gc.unfreeze()
    pytest.fail("no address was taken again, so that nothing was shown")


class Frozen(nn.BatchNorm1d):
    """Statistics that stay as they are in all modes."""

    def train(self, mode: bool = True) -> Frozen:
        super().train(False)
        return self


def harmless() -> dict[str, TorchTrainer]:
    part = nn.Linear(8, 4)
    frozen = nn.Sequential(nn.Linear(8, 4), Frozen(4)).requires_grad_(False)
    weight, mask = torch.tensor([2.0]), torch.zeros(())
    loss = nn.BCEWithLogitsLoss(pos_weight=weight)

    def masked() -> nn.Module:
        module = nn.Linear(8, 1)
        module.register_buffer("mask", mask)
        return module

    return {
        "copied": trainer_of(lambda: with_head(copy.deepcopy(part))),
        "frozen": trainer_of(lambda: with_head(frozen)),
        "not in the optimizer": trainer_of(
            lambda: with_head(part), train=lambda module: list(module.children())[2].parameters()
        ),
        "a constant": trainer_of(masked),
        "a loss": trainer_of(lambda: nn.Linear(8, 1), loss),
        "weights of a loss": trainer_of(lambda: nn.Linear(8, 1), nn.BCEWithLogitsLoss(pos_weight=weight)),
    }


@pytest.mark.parametrize("name", harmless())
def test_parts_that_nothing_changes_may_be_shared(name: str) -> None:
    trainer = harmless()[name]
    first = first_digest(trainer, "t2")
    learned = train(trainer, "t1")
    assert learned != first
    assert first_digest(trainer, "t2") == first
    assert train(trainer, "t1") == learned


def test_tensors_keep_their_objects_ties_strides_and_values() -> None:
    flat = torch.arange(24.0)
    views = [flat[:6].view(2, 3), flat[6:12].view(3, 2).t(), flat[3:9]]
    spread = torch.arange(3.0).expand(4, 3)
    image = torch.rand(2, 3, 4, 4).to(memory_format=torch.channels_last)
    late = torch.arange(100, dtype=torch.float64)[50:60:3]
    frozen = nn.Parameter(torch.ones(2), requires_grad=False)
    tensors = [*views, spread, image, late, frozen, torch.zeros(0), torch.tensor(True)]
    before = [(t.clone(), t.stride(), t.requires_grad, t.data_ptr()) for t in tensors]
    give_own_memory([*tensors, views[0]])
    for tensor, (value, stride, trained, place) in zip(tensors, before, strict=True):
        assert torch.equal(tensor, value)
        assert (tensor.stride(), tensor.requires_grad) == (stride, trained)
        assert tensor.data_ptr() != place or not tensor.numel()
    views[2].fill_(7.0)
    assert views[0][1].tolist() == [7.0, 7.0, 7.0]
    assert flat.tolist() == list(range(24))
    assert late.untyped_storage().nbytes() < 200


def test_odd_tensors_are_left_alone() -> None:
    sparse = torch.eye(3).to_sparse()
    empty = nn.parameter.UninitializedParameter()
    with torch.inference_mode():
        inferred = torch.ones(2)
    abstract = torch.ones(2, device="meta")
    give_own_memory([sparse, empty, inferred, abstract, torch.tensor([1j]).conj()])
    assert torch.equal(sparse.to_dense(), torch.eye(3))


def test_tied_layers_and_recurrent_ones_train_as_before() -> None:
    class Tied(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Linear(8, 8, bias=False), nn.Linear(8, 8, bias=False)
            self.second.weight = self.first.weight
            self.recurrent, self.head = nn.LSTM(8, 3), nn.Linear(3, 1)

        def forward(self, features: torch.Tensor) -> torch.Tensor:
            out: torch.Tensor = self.head(self.recurrent(self.second(self.first(features)))[0])
            return out

    trainer = trainer_of(Tied)
    train(trainer, "t1")
    module = trainer.model().module
    assert module.first.weight is module.second.weight
    plain = trainer_of(Tied)
    assert train(plain, "t1") == train(trainer, "t1")


def test_a_rehearsal_finds_a_part_that_trials_would_share(tmp_path: Path) -> None:
    part, dataset = nn.Linear(FEATURES, 4), small_dataset(tmp_path, rows=40)

    def model_fn(params: Any) -> TorchModel:
        module = nn.Sequential(copy.deepcopy(part) if params["copy"] else part, nn.Linear(4, 1), nn.Flatten(0))
        return TorchModel(module, torch.optim.SGD(module.parameters(), lr=0.1), nn.BCEWithLogitsLoss())

    job = Job("r1", dataset=dataset, store=dataset.store, trainer=TrainerSpec(Hooks(model_fn), framework="torch"))
    with Cache(folder=tmp_path, memory_budget=0) as cache:
        for copies in (True, False):
            trainer = TorchTrainer(Hooks(model_fn), job.columns, resources=Resources(device="cpu", threads=1))
            found = rehearse({"copy": copies}, job, cache, lambda: trainer)  # noqa: B023
            assert found is None if copies else "the same `0.weight`, `0.bias`, which are trained" in str(found)
