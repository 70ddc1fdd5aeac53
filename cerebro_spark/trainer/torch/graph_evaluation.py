"""Evaluations of several trials as one CUDA graph, each trial on a stream of its own. It knows no trainer and no feed.

All members get the same batch. The kernels of a member are those of its evaluation alone, so they leave the same bits.
What the host does between them is not repeated. So a graph is used only once it was compared with evaluations kernel
by kernel, of the same batches from the same states, with other states of the host's generators.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch.utils._pytree import tree_leaves

from cerebro_spark.trainer.checkpoints.randomness import seed_host
from cerebro_spark.trainer.torch.batches import Tensors
from cerebro_spark.trainer.torch.branches import Branches
from cerebro_spark.trainer.torch.built_model import BuiltTorchModel
from cerebro_spark.trainer.torch.graph_bundle import BundleResult, WeighedResult, make_result, weigh_result
from cerebro_spark.trainer.torch.metrics import copy_output
from cerebro_spark.trainer.torch.stacked.check import host_state
from cerebro_spark.trainer.torch.state_copy import StateCopy
from cerebro_spark.trainer.torch.steps import ComputeLoss, Shapes, shapes_of
from cerebro_spark.trainer.torch.tensors import is_same_bits, tensor_bytes

BATCHES_TO_COMPARE = 2
"""As many batches of a shape are compared, if there are as many: what only repeats shows from the second on."""


class _Recording(NamedTuple):
    """A graph of evaluations of all members, with the memory of the batch and the results, and what it depends on."""

    replay: Callable[[], None]
    inputs: Tensors
    result: BundleResult
    depends_on: Any

    def repeat(self, batch: Tensors) -> BundleResult:
        for name, tensor in batch.items():
            self.inputs[name].copy_(tensor)
        self.replay()
        return self.result


class _Found(NamedTuple):
    """What evaluations of some batches left: results, states of the models and generators, and the host's draws."""

    results: list[bytes]
    state: StateCopy
    generators: list[bytes]
    drew_on_host: bool

    def matches(self, other: _Found) -> bool:
        seen, wanted = (self.results, self.generators), (other.results, other.generators)
        return seen == wanted and self.state.matches(other.state)


class GraphEvaluation:
    """Evaluates built models of one structure on batches that they share.

    Args:
        models: The built models.
        compute: Computes the loss of a batch.
        branches: Streams and generators for as many models.

    Attributes:
        branches: The streams and generators.
        captures: How many graphs were recorded.
    """

    def __init__(self, models: Sequence[BuiltTorchModel], compute: ComputeLoss, branches: Branches) -> None:
        self._models = models
        self._compute = compute
        self._recordings: dict[Shapes, _Recording] = {}
        self.branches = branches
        self.captures = 0

    def begin(self) -> None:
        """Prepare for an evaluation: give up graphs if something has moved that they depend on."""
        needed = self._dependencies()
        self._recordings = {key: each for key, each in self._recordings.items() if each.depends_on == needed}

    def is_recorded(self, batch: Tensors) -> bool:
        """Whether there is a graph for batches of this shape."""
        return shapes_of(batch) in self._recordings

    def measure(self, batch: Tensors) -> BundleResult:
        """Evaluate all members on a batch whose shape is recorded. The result is valid until the next one."""
        return self._recordings[shapes_of(batch)].repeat(batch)

    def record(self, batches: Sequence[Tensors]) -> None:
        """Record a graph for batches of one shape, and compare it with evaluations kernel by kernel.

        It changes the generators of the host, which the caller puts back; those of the members it puts back itself.

        Args:
            batches: Real batches. One is evaluated twice if it is the only one.

        Raises:
            ValueError: Graphs would not find what evaluations by themselves do. It says why.
        """
        tried = batches if len(batches) > 1 else [*batches, *batches]
        start, state = self.branches.generator_states(), StateCopy(self._models)
        plain = self._try(self._measure_in_turn, tried, seed=1)
        if plain.drew_on_host:
            raise ValueError("it draws random numbers on the host")
        self._put_back(start, state)
        seed_host(2)
        torch.default_generator.manual_seed(2)
        recording = self._capture(tried[0])
        for seed in (3, 4):  # repeated, since a state of the device's may have gone on that nobody puts back
            recorded = self._try(recording.repeat, tried, seed)
            if not recorded.matches(plain):
                raise ValueError("a recorded evaluation would not do what its Python code does for every batch")
            self._put_back(start, state)
        self._recordings[shapes_of(tried[0])] = recording

    def _capture(self, batch: Tensors) -> _Recording:
        self._recordings.pop(shapes_of(batch), None)
        inputs = {name: tensor.clone() for name, tensor in batch.items()}
        try:
            replay, result = self.branches.record(lambda: self._measure_side_by_side(inputs))
        except torch.cuda.OutOfMemoryError:
            raise
        except Exception as error:  # recording runs the user's code, which may raise anything where it asks the device
            cause = str(error.__context__ or error).strip().splitlines()
            raise ValueError(f"it cannot be recorded: {cause[0] if cause else type(error).__name__}") from error
        self.captures += 1
        return _Recording(replay, inputs, result, self._dependencies())

    def _put_back(self, generators: Sequence[torch.Tensor], state: StateCopy) -> None:
        self.branches.set_generators(generators)
        if not state.restore_statistics():
            raise ValueError("evaluating it changes more of its state than its buffers")

    def _try(self, measure: Callable[[Tensors], BundleResult], batches: Sequence[Tensors], seed: int) -> _Found:
        """Evaluate some batches, with other generators of the host for every `seed`."""
        seed_host(seed)
        torch.default_generator.manual_seed(seed)
        before = _host_generators()
        results = []
        for batch in batches:
            found = measure(batch)
            results.append([copy_output(part) for part in (found.losses, found.weights, found.results)])
        drew = before != _host_generators()
        generators = [bytes(generator.numpy()) for generator in self.branches.generator_states()]
        return _Found(_bytes_of(results), StateCopy(self._models), generators, drew)

    def _measure_in_turn(self, batch: Tensors) -> BundleResult:
        def measure(index: int) -> WeighedResult:
            own = {name: tensor.clone() for name, tensor in batch.items()}
            versions = [tensor._version for tensor in own.values()]
            result = self._measure_one(index, own)
            written = versions != [tensor._version for tensor in own.values()]
            if written or not all(is_same_bits(tensor, batch[name]) for name, tensor in own.items()):
                raise ValueError("it changes its batch, which all members share")
            return result

        return make_result(self.branches.run_in_turn(measure))

    def _measure_side_by_side(self, batch: Tensors) -> BundleResult:
        return make_result(self.branches.run_side_by_side(lambda index: self._measure_one(index, batch)))

    @torch.no_grad()
    def _measure_one(self, index: int, batch: Tensors) -> WeighedResult:
        model = self._models[index]
        return weigh_result(model.loss.weigh, self._compute(model, batch))

    def _dependencies(self) -> Any:
        """Return what a graph depends on, besides the batch: above all, where tensors are."""
        return [_depends_on(model) for model in self._models]


def _depends_on(model: BuiltTorchModel) -> Any:
    own, loss = model.model.module, model.model.loss
    parts = [*own.parameters(), *own.buffers()]
    if isinstance(loss, torch.nn.Module):
        parts += [*loss.parameters(), *loss.buffers()]
    return [part.data_ptr() for part in parts], own.training


def _bytes_of(results: Any) -> list[bytes]:
    """Return the bytes of all tensors of some results.

    Raises ValueError if there is anything else that a copy would share with the next result.
    """
    found: list[bytes] = []
    for leaf in tree_leaves(results):
        if isinstance(leaf, torch.Tensor):
            found.append(tensor_bytes(leaf).tobytes())
        elif not isinstance(leaf, bool | int | float | str | type(None)):
            raise ValueError(f"its output has a {type(leaf).__name__}, which cannot be copied")
    return found


def _host_generators() -> Any:
    return host_state(), torch.default_generator.get_state().numpy().tobytes()
