"""The step of one member, traced once into a list of plain calls: loss, gradients, buffers. It stacks nothing.

A trace repeats the kernels that a single step calls. What Python code did between them (branches, random numbers of
Python or NumPy, attributes that it read) is frozen, so a trace is only used once it was compared with single steps.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch.func import functional_call
from torch.fx import GraphModule
from torch.fx.experimental.proxy_tensor import make_fx
from torch.overrides import TorchFunctionMode
from torch.utils import _pytree as pytree

from cerebro_spark.trainer.torch.batches import Tensors
from cerebro_spark.trainer.torch.built_model import BuiltTorchModel
from cerebro_spark.trainer.torch.shapes import row_count
from cerebro_spark.trainer.torch.stacked.calls import clean, own_kernels, split_numbers

ComputeLoss = Callable[[BuiltTorchModel, Tensors], tuple[torch.Tensor, Any, Any]]


class StepInputs(NamedTuple):
    """The tensors that a step reads, by name.

    Attributes:
        trained: The parameters that the optimizer has, and that take gradients.
        fixed: All other parameters.
        buffers: The buffers of the module and of the loss.
        batch: The columns of a batch.
    """

    trained: Tensors
    fixed: Tensors
    buffers: Tensors
    batch: Tensors

    def flat(self) -> list[torch.Tensor]:
        """Return all tensors in their order."""
        return [tensor for part in self for tensor in part.values()]

    def like(self, flat: Iterable[torch.Tensor]) -> StepInputs:
        """Return other tensors under the same names."""
        left = iter(flat)
        return StepInputs(*({name: next(left) for name in part} for part in self))


class StepModule(torch.nn.Module):
    """The module and the loss of a built model as one, so that the tensors of both can be replaced for a call.

    Args:
        model: The built model.
        compute: Computes the loss of a batch.
    """

    def __init__(self, model: BuiltTorchModel, compute: ComputeLoss) -> None:
        super().__init__()
        self.module = model.model.module
        if isinstance(model.model.loss, torch.nn.Module):
            self.loss = model.model.loss
        self._built = [model]  # in a list: it is no part of this module
        self._compute = compute

    def forward(self, tensors: Tensors) -> tuple[torch.Tensor, Any, Any, Tensors]:
        """Return the loss, how much it counts, the output, and the buffers as they are now."""
        (model,) = self._built
        loss, output, label = self._compute(model, tensors)
        weight = model.loss.weigh(output, label, row_count(label))
        return loss, weight, output, dict(self.named_buffers())


class StepTrace:
    """The traced step of one member.

    Args:
        module: The module and the loss.
        inputs: The tensors of a member; they are only read.

    Attributes:
        graph: The calls. Its outputs are those of `unpack`.
        inputs: The names of its inputs.
        trained: The names of the parameters that have a gradient.
        numbers: The fractions among the arguments of the calls, in their order: rates of dropout, slopes, ...
        key: Equal for steps that differ only in these numbers.
    """

    def __init__(self, module: StepModule, inputs: StepInputs) -> None:
        self._weight: Any = None
        self._spec: Any = None
        self._unused: set[str] = set()
        copied = inputs.like([tensor.clone() for tensor in inputs.flat()])

        def whole(*flat: torch.Tensor) -> list[torch.Tensor]:
            return self._compute(module, copied.like(flat))

        with own_kernels(next(iter(inputs.batch.values())).device), _HiddenValues():
            self.graph: GraphModule = make_fx(whole, tracing_mode="real")(*copied.flat())
        clean(self.graph)
        self.inputs = copied
        self.trained = [name for name in inputs.trained if name not in self._unused]
        self.numbers, calls = split_numbers(self.graph)
        shapes = [(name, tensor.shape, tensor.dtype) for part in copied for name, tensor in part.items()]
        weight = "" if isinstance(self._weight, torch.Tensor) else repr(self._weight)
        self.key = calls, repr(shapes), repr(self._spec), weight, tuple(self.trained)

    def _compute(self, module: StepModule, inputs: StepInputs) -> list[torch.Tensor]:
        trained = {name: tensor.detach().requires_grad_() for name, tensor in inputs.trained.items()}
        with torch.enable_grad():
            parameters = {**trained, **inputs.fixed}
            loss, weight, output, after = functional_call(module, (parameters, inputs.buffers), (inputs.batch,))
            found = torch.autograd.grad(loss, list(trained.values()), allow_unused=True)
        gradients = {name: gradient for name, gradient in zip(trained, found, strict=True) if gradient is not None}
        self._unused = trained.keys() - gradients.keys()
        self._weight = weight
        leaves, self._spec = pytree.tree_flatten(output)
        weights = [weight] if isinstance(weight, torch.Tensor) else []
        buffers = [after[name] for name in inputs.buffers]
        return [part.detach() for part in (loss, *weights, *gradients.values(), *buffers, *leaves)]

    def unpack(self, outputs: Iterable[Any]) -> StepResult:
        """Return what the outputs of the graph mean."""
        left = iter(outputs)
        loss = next(left)
        weight = next(left) if isinstance(self._weight, torch.Tensor) else self._weight
        gradients = [next(left) for _ in self.trained]
        buffers = [next(left) for _ in self.inputs.buffers]
        return StepResult(loss, weight, gradients, buffers, list(left), self._spec)


class StepResult(NamedTuple):
    """What a step gives. Of stacked members each tensor has a row a member, or is a list with one of each.

    Attributes:
        loss: The loss.
        weight: How much the loss counts: a tensor, a number, or None for a loss that is a sum over rows.
        gradients: The gradients of the trained parameters.
        buffers: The buffers after the step.
        leaves: The tensors of the output.
        spec: How the output is made of them.
    """

    loss: Any
    weight: Any
    gradients: list[Any]
    buffers: list[Any]
    leaves: list[Any]
    spec: Any

    def of(self, row: int) -> tuple[Any, Any, Any]:
        """Return the loss, the weight and the output of one member."""
        weight = self.weight[row] if isinstance(self.weight, torch.Tensor | list) else self.weight
        return self.loss[row], weight, pytree.tree_unflatten([leaf[row] for leaf in self.leaves], self.spec)


class _HiddenValues(TorchFunctionMode):
    """Refuses calls that read values of tensors past PyTorch's kernels. A trace would freeze what they return."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in _READING:
            raise ValueError(f"it reads the values of a tensor by `{func.__name__}`")
        return func(*args, **(kwargs or {}))


_READING = {torch.Tensor.numpy, torch.Tensor.tolist, torch.Tensor.__array__, torch.Tensor.__dlpack__}
