"""Finds out whether CUDA graphs leave the bits of eager steps. It leaves no trace in the model or the generators."""

from __future__ import annotations

import random
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch.utils._pytree import tree_leaves

from cerebro_spark.trainer.checkpoints.randomness import capture_host, seed_host
from cerebro_spark.trainer.checkpoints.tree import Tree
from cerebro_spark.trainer.torch.batches import Tensors
from cerebro_spark.trainer.torch.built_model import BuiltTorchModel, keeps_extra_state
from cerebro_spark.trainer.torch.graphs import GraphedSteps, end_broken_recording
from cerebro_spark.trainer.torch.metrics import copy_output, detach
from cerebro_spark.trainer.torch.state_copy import has_room_for_copies
from cerebro_spark.trainer.torch.steps import ComputeLoss, StepResult
from cerebro_spark.trainer.torch.tensors import TensorSource, tensor_bytes


@dataclass(frozen=True, slots=True)
class Generators:
    """How the random generators of the process are read and set.

    Attributes:
        capture: Returns the states of all generators.
        restore: Sets them.
    """

    capture: Callable[[], Tree]
    restore: Callable[[Tree], None]


@dataclass(frozen=True, slots=True)
class _Outcome:
    """What steps left: the state of the model and of the device's generator, what they returned, the host's draws."""

    state: TensorSource
    generator: bytes
    results: list[bytes]
    drew_on_host: bool

    def matches(self, other: _Outcome) -> bool:
        """Whether other steps left the same bits."""
        rest = self.generator, self.results, self.drew_on_host
        return rest == (other.generator, other.results, other.drew_on_host) and self.state.matches(other.state)


class Pilot:
    """Takes steps with the same batches from the same state, eagerly and by graphs, and compares all they leave.

    The host's generators differ between the two. So what a graph would freeze shows: random numbers of the host, and
    attributes, hooks and other Python code that make one step differ from another.

    Args:
        model: The built model; its state is put back afterwards.
        compute: Computes the loss of a batch.
        generators: The random generators of the process, which are put back too.
    """

    def __init__(self, model: BuiltTorchModel, compute: ComputeLoss, generators: Generators) -> None:
        self._model = model
        self._compute = compute
        self._generators = generators
        self._kept_on: Literal["device", "host"] = "device"

    def find_obstacle(self, batches: Sequence[Tensors]) -> str:
        """Return why steps cannot be taken by graphs; "" if nothing speaks against it.

        Args:
            batches: Real batches of one shape, enough for a graph to be recorded and to be repeated several times.
        """
        if keeper := find_extra_state(self._model.model.module):
            return f"{keeper} keeps extra state, which may be another for the next trial, and a graph would not read it"
        start = self._generators.capture()
        self._kept_on = "device" if has_room_for_copies(self._model) else "host"
        state = self._copy_state()
        try:
            with repeatable_kernels():
                return self._compare(batches, state, start)
        finally:
            self._put_back(state, start)

    def _compare(self, batches: Sequence[Tensors], state: TensorSource, start: Tree) -> str:
        steps = GraphedSteps(self._model, self._compute)
        eager = self._try(steps.take_eagerly, batches, state, start, seed=1)
        if eager.drew_on_host:
            return "it draws random numbers on the host"
        try:
            graphed = self._try(steps.take, batches, state, start, seed=2)
        except Exception as error:  # recording runs the user's code, which may raise anything where it asks the device
            end_broken_recording(self._model.parameters[0].device)
            cause = str(error.__context__ or error).strip().splitlines()
            return f"it cannot be recorded: {cause[0] if cause else type(error).__name__}"
        if steps.captures == 0:
            return "no step of it is like the one before"
        if not graphed.matches(eager):
            return "a recorded step would not do what its Python code does in every step"
        # From the first step on by the graph: a state of the device that nobody puts back would have gone on.
        steps.begin()
        if not self._try(steps.take, batches, state, start, seed=3).matches(eager):
            return "recorded steps go on with a state of the device that no checkpoint carries"
        return ""

    def _try(
        self,
        take: Callable[[Tensors], StepResult],
        batches: Sequence[Tensors],
        state: TensorSource,
        start: Tree,
        seed: int,
    ) -> _Outcome:
        """Take a step with each batch, from a state, with other generators of the host for every `seed`."""
        self._put_back(state, start)
        seed_host(seed)
        torch.default_generator.manual_seed(seed)
        before = self._host_state()
        results = [copy_output(detach(take(batch))) for batch in batches]
        drew = before != self._host_state()
        generator = torch.cuda.get_rng_state(self._model.parameters[0].device)
        # Only now the device is waited for.
        parts = [tensor_bytes(leaf).tobytes() for leaf in _tensors_of(results)]
        return _Outcome(self._copy_state(), bytes(generator.numpy()), parts, drew)

    def _copy_state(self) -> TensorSource:
        return TensorSource(self._model.state(), copy=self._kept_on)

    def _put_back(self, state: TensorSource, generators: Tree) -> None:
        self._model.model.optimizer.zero_grad()
        self._model.restore(state)
        self._generators.restore(generators)

    def _host_state(self) -> Any:
        return repr(capture_host()["numpy"]), random.getstate(), torch.default_generator.get_state().numpy().tobytes()


def find_extra_state(module: torch.nn.Module) -> str:
    """Return the name of the first part that keeps extra state, which is no tensor of the model; "" if none does."""
    return next((type(part).__name__ for part in module.modules() if keeps_extra_state(part)), "")


def _tensors_of(tree: Any) -> list[torch.Tensor]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, torch.Tensor)]


@contextmanager
def repeatable_kernels() -> Iterator[None]:
    """Choose kernels that leave the same bits each time, where PyTorch has them: others could not be compared."""
    cudnn = torch.backends.cudnn
    before = cudnn.deterministic, cudnn.benchmark
    strict, only_warns = (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        cudnn.deterministic, cudnn.benchmark = True, False
        torch.use_deterministic_algorithms(True, warn_only=True)
        try:
            yield
        finally:
            cudnn.deterministic, cudnn.benchmark = before
            torch.use_deterministic_algorithms(strict, warn_only=only_warns)
