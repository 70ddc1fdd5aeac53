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
from cerebro_spark.trainer.torch.graph_optimizer import GraphOptimizer, steps_on_host
from cerebro_spark.trainer.torch.metrics import copy_output, detach
from cerebro_spark.trainer.torch.model_checks import is_metric_object
from cerebro_spark.trainer.torch.steps import ComputeLoss, EagerSteps, Shapes, StepResult, shapes_of

_EAGER_STEPS = 2


class GraphedSteps(EagerSteps):
    """The training steps of one built model as CUDA graphs, one for each shape of batches.

    Args:
        model: The built model.
        compute: Computes the loss of a batch.
    """

    def __init__(self, model: BuiltTorchModel, compute: ComputeLoss) -> None:
        super().__init__(model, compute)
        self._graphs: dict[Shapes, _Graph] = {}
        self._checked: set[Shapes] = set()
        """The shapes of the graphs for which nothing has moved since they were last checked."""
        self._splits = model.scaler.is_enabled() or steps_on_host(model.model.optimizer)
        """Whether the optimizer's step stays out of the graph: the host does something in it that is not repeated."""
        self._in_a_row = 0
        self._last_shapes: Shapes = ()
        self._has_stepped = False
        # A metric object may keep what it is given; the memory of a graph is written again by the next step.
        self._copies = any(map(is_metric_object, model.model.metrics.values()))
        self.optimizer = GraphOptimizer(model)
        self.captures = 0

    @contextmanager
    def unit(self) -> Iterator[None]:
        """Prepare for the steps of one unit."""
        self.begin()
        with self.optimizer.on_device():
            yield

    def begin(self) -> None:
        """Take notice that the state of the model may be another one now."""
        self._in_a_row, self._last_shapes, self._has_stepped = 0, (), False
        self._checked.clear()

    def take_eagerly(self, tensors: Tensors) -> StepResult:
        """Take a step kernel by kernel. It leaves the bits that `take` would."""
        self.optimizer.send_rates()
        result = super().take(tensors)
        self.optimizer.settle()
        self._checked.clear()
        self._has_stepped = True
        return result

    def take(self, tensors: Tensors) -> StepResult:
        """Take a step by a graph, which is recorded if there is none that fits.

        Recording waits for a few steps of one shape, in which libraries make their workspaces and the optimizer its
        state. So the short last batch of a unit, of which there is one, is not recorded.
        """
        shapes = shapes_of(tensors)
        self._in_a_row = self._in_a_row + 1 if shapes == self._last_shapes else 0
        self._last_shapes = shapes
        graph = self._find_graph(shapes)
        if graph is None:
            if self._in_a_row < _EAGER_STEPS:
                return self.take_eagerly(tensors)
            graph = self._record(shapes, tensors)
        return self._take_by_graph(graph, tensors)

    @property
    def is_ready(self) -> bool:
        """Whether the optimizer has its state, which its first step makes; some keep none."""
        state = self._model.model.optimizer.state
        trained = [parameter for parameter in self._model.parameters if parameter.requires_grad]
        return self._has_stepped or all(state.get(parameter) for parameter in trained)

    @property
    def is_whole(self) -> bool:
        """Whether the whole step can be part of a graph that serves all learning rates."""
        return not self._splits and not self.optimizer.is_plain

    def take_recorded(self, tensors: Tensors) -> StepResult:
        """Take a step while a graph of others is recorded. What it returns is valid until that graph is repeated."""
        loss, output, label = super().take(tensors)
        return loss, detach(output), label

    def dependencies(self) -> tuple[Any, Any]:
        """Return what a graph with this step depends on, besides the batch: what units change, and what steps do."""
        return self._places(), self._numbers()

    def forget(self) -> None:
        """Free all graphs."""
        self._graphs.clear()
        self._checked.clear()

    def _find_graph(self, shapes: Shapes) -> _Graph | None:
        """Return the graph of these shapes, unless something has changed that it depends on."""
        graph = self._graphs.get(shapes)
        if graph is None or graph.numbers != self._numbers():
            return None
        if shapes not in self._checked:
            if graph.places != self._places():
                return None
            self._checked.add(shapes)
        return graph

    def _take_by_graph(self, graph: _Graph, tensors: Tensors) -> StepResult:
        self.optimizer.send_rates()
        loss, output, label = graph.replay(tensors)
        if self._splits:
            graph.show_gradients()
            self._apply_gradients()
        if self._copies:
            output, label = copy_output(output), copy_output(label)
        return loss.clone(), output, label

    def _record(self, shapes: Shapes, tensors: Tensors) -> _Graph:
        old = self._graphs.pop(shapes, None)
        # Numbers that change from step to step, such as the momentum of a one-cycle schedule, are no constants.
        changing = old is not None and old.replays == 1
        self._splits = self._splits or changing or not self.optimizer.is_repeatable
        del old
        self.optimizer.send_rates()
        step = self._compute_gradients if self._splits else super().take
        graph = _Graph(self._places(), self._numbers(), tensors, step, self._model.parameters)
        self._graphs[shapes] = graph
        self._checked.add(shapes)
        self.captures += 1
        return graph

    def _step_optimizer(self) -> None:
        if self._model.scaler.is_enabled():
            super()._step_optimizer()
        else:
            self.optimizer.step()

    def _numbers(self) -> Any:
        """Return the numbers that a graph has as constants, which schedules may change from step to step."""
        return () if self._splits else self.optimizer.constants()

    def _places(self) -> Any:
        """Return what else a graph depends on, which changes between units only: above all, where tensors are."""
        model = self._model
        module = model.model.module
        parts = [*module.parameters(), *module.buffers(), *model.parameters]
        parts += [] if self._splits else self.optimizer.state_tensors()
        flags = tuple(parameter.requires_grad for parameter in model.parameters)
        scaler = model.scaler if model.scaler.is_enabled() else None
        return [part.data_ptr() for part in parts], flags, module.training, scaler


def end_broken_recording(device: torch.device) -> None:
    """Let the generator of a device be used again: a recording that broke off leaves it waiting for its end.

    Another recording, which ends, does that. A new generator would not: all graphs that there are draw from this one.
    """
    torch.cuda.synchronize(device)
    with torch.cuda.graph(torch.cuda.CUDAGraph(), capture_error_mode="thread_local"):
        torch.zeros(1, device=device)


class _Graph:
    """One recorded step, with the memory that it reads batches from and leaves results in."""

    def __init__(
        self,
        places: Any,
        numbers: Any,
        example: Tensors,
        step: Callable[[Tensors], StepResult],
        parameters: Sequence[torch.Tensor],
    ) -> None:
        self.places = places
        self.numbers = numbers
        self.replays = 0
        self._inputs = {name: tensor.clone() for name, tensor in example.items()}
        self._graph = torch.cuda.CUDAGraph()
        # What other threads do meanwhile is not recorded, and does not break the recording.
        with torch.cuda.graph(self._graph, capture_error_mode="thread_local"):
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
