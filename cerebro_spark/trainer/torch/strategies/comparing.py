"""Finds out whether a model that is computed again learns the same. It takes no step.

It leaves no trace in a model for which that is so. What it refuses may have written into its parameters.
"""

from __future__ import annotations

import random
from contextlib import nullcontext
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch.utils._pytree import tree_leaves

from cerebro_spark.trainer.sharing.snapshot import ObjectSnapshot
from cerebro_spark.trainer.torch.batches import Tensors
from cerebro_spark.trainer.torch.built_model import BuiltTorchModel
from cerebro_spark.trainer.torch.inspection import take_passing_snapshot
from cerebro_spark.trainer.torch.metrics import detach
from cerebro_spark.trainer.torch.pilot import Generators, repeatable_kernels
from cerebro_spark.trainer.torch.steps import ComputeLoss
from cerebro_spark.trainer.torch.strategies.memory import causes_of, is_out_of_device_memory
from cerebro_spark.trainer.torch.strategies.recomputing import Recomputing
from cerebro_spark.trainer.torch.strategies.refusal import StrategyRefused
from cerebro_spark.trainer.torch.tensors import is_same_bits

_ROWS = 8
"""The rows of a batch that are compared on a GPU, where more may not fit without computing anything again."""

Outcome = dict[str, list[torch.Tensor]]
"""What a batch leaves, each part on the host, by its name."""


class Comparison:
    """Computes the gradients of a batch with blocks computed again and without, and compares all that they leave.

    Args:
        model: The built model.
        compute: Computes the loss of a batch.
        recomputing: What computes blocks again.
        generators: The random generators of the process, which are put back.
    """

    def __init__(
        self, model: BuiltTorchModel, compute: ComputeLoss, recomputing: Recomputing, generators: Generators
    ) -> None:
        self._model = model
        self._compute = compute
        self._recomputing = recomputing
        self._generators = generators

    def require_same(self, tensors: Tensors) -> None:
        """Raise StrategyRefused if the gradients of a real batch, or anything beside them, are not the same."""
        if self._device.type == "cuda":
            tensors = {name: tensor[:_ROWS] for name, tensor in tensors.items()}
        start, statistics = self._generators.capture(), self._model.copy_statistics()

        def run(again: bool, times: int = 1) -> _Ran:
            self._generators.restore(start)
            self._model.restore_statistics(statistics)
            with self._recomputing.in_force() if again else nullcontext():
                outcomes = [self._run(tensors, again) for _ in range(times)]
            return _Ran(outcomes[-1], take_passing_snapshot(self._model.model))

        try:
            with repeatable_kernels():
                _compare(take_passing_snapshot(self._model.model), run, self._rounding)
                _compare_in_a_row(run, self._rounding)
        finally:
            self._drop_gradients()
            self._generators.restore(start)
            self._model.restore_statistics(statistics)

    @property
    def _device(self) -> torch.device:
        device: torch.device = self._model.parameters[0].device
        return device

    @property
    def _rounding(self) -> float:
        """By how much of the largest number a result may differ from itself where kernels add up in any order."""
        kind: torch.dtype = getattr(self._model.autocast, "fast_dtype", self._model.parameters[0].dtype)
        return float(torch.finfo(kind).eps ** 0.5)

    def _run(self, batch: Tensors, again: bool) -> Outcome:
        """Compute the gradients of a batch, and return all that it leaves."""
        model = self._model
        self._drop_gradients()
        written = [(name, p, p._version) for name, p in model.model.module.named_parameters()]
        try:
            loss, output, _ = self._compute(model, batch)
            torch.autograd.backward(loss)
        except Exception as error:
            known = any(isinstance(each, StrategyRefused) or is_out_of_device_memory(each) for each in causes_of(error))
            if known or not again:
                raise
            said = (str(error).strip().splitlines() or [type(error).__name__])[0]
            raise StrategyRefused(f"it cannot be computed again: {said}") from error
        for name, parameter, version in written:
            if parameter._version != version:
                raise StrategyRefused(
                    f"its forward writes into its parameter {name!r}, and would do so each time that it is computed:"
                    " make it a buffer (`register_buffer`), or compute with a changed copy of it"
                )
        results = [leaf.cpu() for leaf in tree_leaves((loss.detach(), detach(output))) if _is_tensor(leaf)]
        gradients = [_gradient_of(parameter) for parameter in model.parameters]
        self._drop_gradients()
        return {
            "its output": results,
            "its gradients": gradients,
            "its buffers": [buffer.cpu() for buffer in model.copy_statistics().values()],
            "what it draws at random": _drawn(self._device),
        }

    def _drop_gradients(self) -> None:
        # A module may have parameters that the optimizer does not step.
        self._model.model.module.zero_grad()
        self._model.model.optimizer.zero_grad()


class _Ran(NamedTuple):
    """What computing a batch left.

    Attributes:
        outcome: All that it computed.
        snapshot: All objects of the model then.
    """

    outcome: Outcome
    snapshot: ObjectSnapshot


class _Run(Protocol):
    """Computes a batch, once or several times in a row, from the same state: with blocks computed again, or without."""

    def __call__(self, again: bool, times: int = 1) -> _Ran: ...


def _compare(before: ObjectSnapshot, run: _Run, rounding: float) -> None:
    """Raise StrategyRefused if computing again leaves anything else than computing once."""
    plain, again = run(False), run(True)
    differing = _find_differing(plain.outcome, again.outcome)
    added, more = before.measure_growth(plain.snapshot), plain.snapshot.measure_growth(again.snapshot)
    if differing:
        differing -= _find_near(plain, again, run(False), rounding)
    if differing:
        raise StrategyRefused(
            f"{min(differing)} would not be the same: something in its forward does not do the same when it is"
            " computed again from the same inputs, buffers and random numbers"
        )
    twice = next((place for place, count in more.items() if count > added.get(place, 0)), None)
    if twice is not None:
        raise StrategyRefused(f"its forward adds to {twice}, which gets more items when it is computed again")
    change = plain.snapshot.find_difference(again.snapshot)
    if change is not None:
        raise StrategyRefused(
            f"its forward changes `{change.what}`, which is {change.after} instead of {change.before} when it is"
            " computed again: return the value from forward, or set it outside of the blocks"
        )


def _compare_in_a_row(run: _Run, rounding: float) -> None:
    """Raise StrategyRefused if computing again changes what the next batch leaves: of that nothing else may show."""
    plain, again = run(False, times=2), run(True, times=2)
    differing = _find_differing(plain.outcome, again.outcome)
    if differing:
        differing -= _find_near(plain, again, run(False, times=2), rounding)
    if differing:
        raise StrategyRefused(
            f"{min(differing)} would not be the same from the second batch on: its forward goes by a state of the"
            " device that goes on from batch to batch, and cannot be put back"
        )


def _find_near(plain: _Ran, again: _Ran, plain_once_more: _Ran, rounding: float) -> set[str]:
    """Return what differs by rounding alone: some kernels add up in another order each time."""
    unsteady = _find_differing(plain.outcome, plain_once_more.outcome)
    return {name for name in unsteady if _are_near(plain.outcome[name], again.outcome[name], rounding)}


def _find_differing(one: Outcome, other: Outcome) -> set[str]:
    return {name for name, tensors in one.items() if not _are_same(tensors, other[name])}


def _are_same(some: list[torch.Tensor], others: list[torch.Tensor]) -> bool:
    if len(some) != len(others):
        return False
    return all(a.shape == b.shape and is_same_bits(a, b) for a, b in zip(some, others, strict=True))


def _are_near(some: list[torch.Tensor], others: list[torch.Tensor], rounding: float) -> bool:
    if [each.shape for each in some] != [each.shape for each in others]:
        return False
    pairs = [(_as_numbers(a), _as_numbers(b)) for a, b in zip(some, others, strict=True) if a.numel()]
    largest = max((float(a.abs().max()) for a, _ in pairs), default=0.0)
    return all(float((a - b).abs().max()) <= rounding * largest for a, b in pairs)


def _as_numbers(tensor: torch.Tensor) -> torch.Tensor:
    plain = tensor.resolve_conj().resolve_neg()
    return (torch.view_as_real(plain) if plain.is_complex() else plain).double()


def _drawn(device: torch.device) -> list[torch.Tensor]:
    """Return where all generators are now."""
    words: Any = np.random.get_state(legacy=True)
    python = torch.tensor([hash(random.getstate())])
    host = torch.tensor([hash(words[1].tobytes()), words[2]])
    own = [torch.cuda.get_rng_state(device)] if device.type == "cuda" else []
    return [python, host, torch.get_rng_state(), *own]


def _gradient_of(parameter: torch.Tensor) -> torch.Tensor:
    return torch.zeros(0) if parameter.grad is None else parameter.grad.to_dense().cpu()


def _is_tensor(value: Any) -> bool:
    return isinstance(value, torch.Tensor)
