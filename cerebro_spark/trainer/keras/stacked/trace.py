"""The training step of a Keras model on PyTorch, traced once into a list of plain calls. It stacks nothing.

All of the step is traced: outputs, loss, gradients, optimizer and metrics. What it reads and changes are variables and
the batch. What Python code did between the calls is frozen, so a trace is only used once it was compared with single
steps.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode

from cerebro_spark.trainer.keras.built_model import BuiltKerasModel
from cerebro_spark.trainer.torch.batches import Tensors
from cerebro_spark.trainer.torch.stacked.calls import clean, own_kernels, split_numbers
from cerebro_spark.trainer.torch.stacked.scaled import add_scaled_

_FOREACH = "_foreach_"
_ON_HOST: tuple[Any, ...] = (torch.Tensor.numpy, torch.Tensor.tolist, torch.Tensor.__array__)
_READS = "its step reads numbers from tensors: it branches on data, or draws random numbers from a seed of its own"


def list_variables(model: BuiltKerasModel) -> list[Any]:
    """Return all variables that a step may read or change, each once: of the model, the optimizer and the metrics."""
    own = model.model
    every = [*own.variables, *own.optimizer.variables, *own.metrics_variables, model.default_seed]
    return list({id(variable): variable for variable in every}.values())


def read_values(model: BuiltKerasModel) -> list[torch.Tensor]:
    """Return copies of the values of all variables."""
    return [variable.value.detach().clone() for variable in list_variables(model)]


@torch.no_grad()
def write_values(model: BuiltKerasModel, values: Sequence[torch.Tensor]) -> None:
    """Put values into all variables."""
    for variable, value in zip(list_variables(model), values, strict=True):
        variable.value.copy_(value)


class StepTrace:
    """The traced step of one member.

    Args:
        model: The built model, with the state of the member. It is only read.
        batch: A batch of the member.

    Attributes:
        graph: The calls. Its inputs are the values of all variables, which it changes, and the columns of the batch.
        likes: Tensors like the values of the variables.
        names: The names of the variables.
        numbers: The fractions among the arguments of the calls, in their order: rates of dropout, weight decay, ...
        key: Equal for steps that differ only in these numbers.

    Raises:
        ValueError: The step reads the values of tensors.
    """

    def __init__(self, model: BuiltKerasModel, batch: Tensors) -> None:
        self.likes = read_values(model)
        self.names = [f"{place} {variable.path}" for place, variable in enumerate(list_variables(model))]
        names = list(batch)

        def whole(*flat: torch.Tensor) -> list[torch.Tensor]:
            values, columns = flat[: len(self.likes)], flat[len(self.likes) :]
            _take_step(model, values, dict(zip(names, columns, strict=True)))
            return []

        inputs = [tensor.clone() for tensor in (*self.likes, *batch.values())]
        self.graph = _trace(whole, inputs)
        clean(self.graph)
        self.numbers, calls = split_numbers(self.graph)
        shapes = [(name, tensor.shape, tensor.dtype) for name, tensor in zip(self.names, self.likes, strict=True)]
        self.key = calls, repr(shapes), repr([(name, part.shape, part.dtype) for name, part in batch.items()])


def _trace(step: Callable[..., list[torch.Tensor]], inputs: Sequence[torch.Tensor]) -> GraphModule:
    mode = _StepMode()
    try:
        with own_kernels(inputs[0].device), mode:
            graph: GraphModule = make_fx(step, decomposition_table=_single_kernels(), tracing_mode="real")(*inputs)
    except Exception as error:
        # Keras raises errors of layers as others, with more text.
        if mode.has_read or "_local_scalar_dense" in str(error):
            raise ValueError(_READS) from error
        raise
    if mode.has_read:
        raise ValueError(_READS)
    return graph


def _take_step(model: BuiltKerasModel, values: Sequence[torch.Tensor], batch: Tensors) -> None:
    """Take a step as the backend does."""
    own = model.model
    own.make_train_function()
    own.train()
    try:
        with _replaced(list_variables(model), values):
            own.train_function([model.pack(batch)])
    finally:
        own.eval()


@contextmanager
def _replaced(variables: Sequence[Any], values: Sequence[torch.Tensor]) -> Iterator[None]:
    """Have variables hold other tensors for a block."""
    kept = [variable._value for variable in variables]
    try:
        for variable, value in zip(variables, values, strict=True):
            trained = variable._value.requires_grad
            variable._value = value.detach().requires_grad_() if trained else value
        yield
    finally:
        for variable, value in zip(variables, kept, strict=True):
            variable._value = value


class _StepMode(TorchFunctionMode):
    """Keeps numbers in tensors while a step is traced, and refuses steps that take them out.

    Attributes:
        has_read: Whether a step has tried to.
    """

    def __init__(self) -> None:
        super().__init__()
        self.has_read = False

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        kwargs = kwargs or {}
        if func in _ON_HOST:
            self.has_read = True
            raise ValueError(_READS)
        if func is torch._foreach_add_ and isinstance(kwargs.get("alpha"), torch.Tensor):
            for target, other in zip(*args, strict=True):
                add_scaled_(target, other, kwargs["alpha"])
            return None
        return func(*args, **kwargs)


@functools.cache
def _single_kernels() -> dict[Any, Any]:
    """Return what kernels over lists of tensors do for each of them; on a CPU they do nothing else."""
    kernels: dict[Any, Any] = {}
    for name in dir(torch.ops.aten):
        if name.startswith(_FOREACH):
            packet = getattr(torch.ops.aten, name)
            single = functools.partial(_for_each, name.removeprefix(_FOREACH))
            kernels |= {getattr(packet, each): single for each in packet.overloads() if not each.endswith("out")}
    return kernels


def _for_each(name: str, *args: Any, **kwargs: Any) -> Any:
    method = getattr(torch.Tensor, name, None)
    if method is None:
        return NotImplemented

    def of(place: int) -> list[Any]:
        return [value[place] if isinstance(value, list | tuple) else value for value in args]

    made = [method(*of(place), **kwargs) for place in range(len(args[0]))]
    return None if name.endswith("_") else made
