"""Training steps of PyTorch as CUDA graphs: all kernels of a step are launched at once. It decides nothing.

A graph repeats the kernels that it recorded, on the same memory. What the host does between them (Python code, its
random numbers, numbers that it passes to kernels) is not repeated. So what may differ from step to step is in tensors:
the batch, the states of the generators, the learning rate and the step count of the optimizer. All other numbers are
constants of the graph: it is recorded anew if one of them has changed, or if a tensor has moved.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from cerebro_spark.trainer.torch.batches import Tensors
from cerebro_spark.trainer.torch.built_model import BuiltTorchModel
from cerebro_spark.trainer.torch.metrics import detach
from cerebro_spark.trainer.torch.steps import ComputeLoss, EagerSteps, StepResult

_EAGER_STEPS = 2


class GraphOptimizer:
    """Takes steps of an optimizer whose learning rates and step counts are on the device.

    The user's optimizer keeps its numbers: schedulers see and set them as ever. A step leaves the same bits whether it
    is recorded, repeated or taken at once; those of a step without this class differ, by rounding.

    Args:
        model: The built model whose optimizer it is.
    """

    def __init__(self, model: BuiltTorchModel) -> None:
        self._optimizer = model.model.optimizer
        self._device = model.parameters[0].device
        self._rates = [torch.zeros((), dtype=torch.float64, device=self._device) for _ in self._groups]
        self._sent: list[float | None] = [None] * len(self._rates)
        self._counts: dict[torch.Tensor, torch.Tensor] = {}

    @property
    def _groups(self) -> list[dict[str, Any]]:
        groups: list[dict[str, Any]] = self._optimizer.param_groups
        return groups

    @property
    def has_constant_rates(self) -> bool:
        """Whether a learning rate would be a constant of the graph: optimizers such as SGD take none on the device."""
        return not all("capturable" in group for group in self._groups)

    @property
    def is_repeatable(self) -> bool:
        """Whether all that a step counts is on the device; some optimizers count their steps on the host."""
        states = [value for state in self._optimizer.state.values() for value in state.values()]
        return all(isinstance(value, torch.Tensor) and value.device == self._device for value in states)

    @contextmanager
    def on_device(self) -> Iterator[None]:
        """Keep the step counts on the device for a unit; afterwards they are where the optimizer had them."""
        moved = []
        for parameter, state in self._optimizer.state.items():
            count = state.get("step")
            if isinstance(count, torch.Tensor) and count.device != self._device and not self.has_constant_rates:
                kept = self._counts.setdefault(parameter, torch.zeros_like(count, device=self._device))
                state["step"] = kept.copy_(count)
        try:
            yield
        finally:
            for parameter, state in self._optimizer.state.items():
                count = state.get("step")
                if isinstance(count, torch.Tensor) and count.device == self._device and self._counts_on_host(parameter):
                    self._counts[parameter] = count
                    moved.append((state, count.cpu()))
            for state, count in moved:
                state["step"] = count

    def _counts_on_host(self, parameter: torch.Tensor) -> bool:
        group = next(group for group in self._groups if any(own is parameter for own in group["params"]))
        return not (group.get("capturable") or group.get("fused"))

    def send_rates(self) -> None:
        """Bring the learning rates up to date on the device."""
        if self.has_constant_rates:
            return
        for index, (group, rate) in enumerate(zip(self._groups, self._rates, strict=True)):
            if self._sent[index] != group["lr"]:
                rate.fill_(float(group["lr"]))
                self._sent[index] = float(group["lr"])

    def step(self) -> None:
        """Take a step, with the rates that were sent."""
        if self.has_constant_rates:
            self._optimizer.step()
            return
        own = [(group["lr"], group["capturable"]) for group in self._groups]
        for group, rate in zip(self._groups, self._rates, strict=True):
            group["lr"], group["capturable"] = rate, True
        try:
            self._optimizer.step()
        finally:
            for group, (rate, capturable) in zip(self._groups, own, strict=True):
                group["lr"], group["capturable"] = rate, capturable

    def constants(self) -> tuple[Any, ...]:
        """Return the numbers that a graph of a step has as constants."""
        sent = set() if self.has_constant_rates else {"lr", "initial_lr"}
        return tuple(
            (key, value.data_ptr() if isinstance(value, torch.Tensor) else value)
            for group in self._groups
            for key, value in sorted(group.items())
            if key not in sent and key != "params"
        )


class GraphedSteps(EagerSteps):
    """The training steps of one built model as CUDA graphs, one for each shape of batches.

    Args:
        model: The built model.
        compute: Computes the loss of a batch.
    """

    def __init__(self, model: BuiltTorchModel, compute: ComputeLoss) -> None:
        super().__init__(model, compute)
        self._graphs: dict[Any, _Graph] = {}
        self._splits = model.scaler.is_enabled()
        """Whether the optimizer's step stays out of the graph: the host does something in it that is not repeated."""
        self._in_a_row = 0
        self._last_shapes: Any = None
        self.optimizer = GraphOptimizer(model)
        self.captures = 0

    @contextmanager
    def unit(self) -> Iterator[None]:
        """Prepare for the steps of one unit."""
        self._in_a_row, self._last_shapes = 0, None
        with self.optimizer.on_device():
            yield

    def take_eagerly(self, tensors: Tensors) -> StepResult:
        """Take a step kernel by kernel. It leaves the bits that `take` would."""
        self.optimizer.send_rates()
        return super().take(tensors)

    def take(self, tensors: Tensors) -> StepResult:
        """Take a step by a graph, which is recorded if there is none that fits.

        Recording waits for a few steps of one shape, in which libraries make their workspaces and the optimizer its
        state. So the short last batch of a unit, of which there is one, is not recorded.
        """
        shapes = tuple((name, tensor.shape, tensor.dtype) for name, tensor in tensors.items())
        self._in_a_row = self._in_a_row + 1 if shapes == self._last_shapes else 0
        self._last_shapes = shapes
        graph = self._graphs.get(shapes)
        if graph is not None and graph.key == self._key():
            return self._take_by_graph(graph, tensors)
        if self._in_a_row < _EAGER_STEPS:
            return self.take_eagerly(tensors)
        del graph
        return self._take_by_graph(self._record(shapes, tensors), tensors)

    def _take_by_graph(self, graph: _Graph, tensors: Tensors) -> StepResult:
        self.optimizer.send_rates()
        loss, output, label = graph.replay(tensors)
        if self._splits:
            graph.show_gradients()
            self._apply_gradients()
        return loss.clone(), output, label

    def _record(self, shapes: Any, tensors: Tensors) -> _Graph:
        old = self._graphs.pop(shapes, None)
        # Numbers that change from step to step, such as the momentum of a one-cycle schedule, are no constants.
        changing = old is not None and old.replays == 1
        self._splits = self._splits or changing or not self.optimizer.is_repeatable
        self.optimizer.send_rates()
        step = self._compute_gradients if self._splits else super().take
        self._graphs[shapes] = _Graph(self._key(), tensors, step, self._model.parameters)
        self.captures += 1
        return self._graphs[shapes]

    def _step_optimizer(self) -> None:
        if self._model.scaler.is_enabled():
            super()._step_optimizer()
        else:
            self.optimizer.step()

    def _key(self) -> tuple[Any, ...]:
        """Return what a graph depends on besides the batch: where tensors are, and numbers that it has as constants."""
        module = self._model.model.module
        tensors = [*module.parameters(), *module.buffers(), *self._model.parameters]
        states = [value for state in self._model.model.optimizer.state.values() for value in state.values()]
        places = [part.data_ptr() for part in (*tensors, *states) if isinstance(part, torch.Tensor)]
        flags = [p.requires_grad for p in self._model.parameters]
        numbers = () if self._splits else self.optimizer.constants()
        scaler = self._model.scaler if self._model.scaler.is_enabled() else None
        return tuple(places), tuple(flags), module.training, numbers, scaler


class _Graph:
    """One recorded step, with the memory that it reads batches from and leaves results in."""

    def __init__(
        self,
        key: Any,
        example: Tensors,
        step: Callable[[Tensors], StepResult],
        parameters: Sequence[torch.Tensor],
    ) -> None:
        self.key = key
        self.replays = 0
        self._inputs = {name: tensor.clone() for name, tensor in example.items()}
        self._graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(self._graph):
            loss, output, label = step(self._inputs)
        # Without its graph of gradients, which would tie eager steps to the stream of this one.
        self._result = loss, detach(output), label
        self._gradients = [(parameter, parameter.grad) for parameter in parameters]

    def show_gradients(self) -> None:
        """Let the optimizer see the gradients of the last step, which others may have put away."""
        for parameter, gradient in self._gradients:
            parameter.grad = gradient

    def replay(self, tensors: Tensors) -> StepResult:
        """Take a step with this batch; the result is valid until the next one."""
        self.replays += 1
        for name, tensor in tensors.items():
            self._inputs[name].copy_(tensor)
        self._graph.replay()
        return self._result
