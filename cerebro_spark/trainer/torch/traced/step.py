"""The traced step of one built model, over flat buffers that hold the state of its trial between two calls.

The model's own tensors stay what everything else reads: a unit fills the buffers from them, and leaves the result
there. Nothing here decides whether that is faster, or exact.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from itertools import chain
from typing import Any

import torch
from torch.utils import _pytree as pytree

from cerebro_spark.trainer.torch.batches import Tensors
from cerebro_spark.trainer.torch.built_model import BuiltTorchModel, loss_buffers
from cerebro_spark.trainer.torch.stacked.buffers import FlatGroup, list_trained, make_groups, make_slots
from cerebro_spark.trainer.torch.stacked.check import find_difference
from cerebro_spark.trainer.torch.stacked.members import check_kept
from cerebro_spark.trainer.torch.stacked.optimizers import StackedSGD, find_stacked
from cerebro_spark.trainer.torch.stacked.stack import LOSS, MODULE, find_trained, trace_step
from cerebro_spark.trainer.torch.stacked.trace import StepTrace
from cerebro_spark.trainer.torch.steps import ComputeLoss
from cerebro_spark.trainer.torch.traced.function import make_function


class TracedStep:
    """A step of one built model with batches of one shape.

    Args:
        model: The built model. It is only read here.
        compute: Computes the loss of a batch.
        batch: A batch; it is only read.

    Raises:
        ValueError: The step cannot be traced. The user's code may raise anything else.
    """

    def __init__(self, model: BuiltTorchModel, compute: ComputeLoss, batch: Tensors) -> None:
        self._model, self._optimizer = model, model.model.optimizer
        tree = {"parameters": dict(model.model.module.named_parameters()), **self._named_buffers()}
        # Of a copy: what the user's code does to the module while it is traced must not be seen by the trial.
        trace = trace_step(_copy_model(model), compute, list_trained(model), tree, batch)
        self._function = make_function(trace.graph)
        self._unpack = trace.unpack
        self._groups = self._make_groups(trace)
        self._slots = make_slots(self._groups, 0)
        self._gradients = [gradients[0] for group in self._groups for gradients in group.gradients]
        placed = [item for group in self._groups for item in zip(group.parameters, group.values, strict=True)]
        values = {MODULE + each.name: flat[0] for each, flat in placed}
        fixed = {MODULE + name: parameter for name, parameter in model.model.module.named_parameters()}
        *parameters, buffers, _ = trace.inputs
        self._fixed = [values.get(name, fixed[name]) for part in parameters for name in part]
        self._buffer_names = list(buffers)
        self._buffers: list[torch.Tensor] = []

    def _make_groups(self, trace: StepTrace) -> list[FlatGroup]:
        trained = find_trained(self._model, trace)
        if not trained:
            raise ValueError("no parameter has a gradient")
        return make_groups(find_stacked(self._optimizer), trained, self._optimizer.param_groups, 1)

    @property
    def nbytes(self) -> int:
        """The memory of the buffers, about."""
        return sum(view.nbytes * (4 + len(group.moments)) for group in self._groups for view in group.values)

    # The state

    @torch.no_grad()
    def fill(self, own_buffers: bool = False) -> None:
        """Take on the state of the model.

        Args:
            own_buffers: Whether steps change copies of the model's buffers, instead of these themselves.

        Raises:
            ValueError: Steps cannot go on from what the optimizer keeps.
        """
        kept = [self._kept(group) for group in self._groups]
        check_kept(list(chain.from_iterable(kept)), find_stacked(self._optimizer), self._optimizer.param_groups)
        for group, states in zip(self._groups, kept, strict=True):
            torch._foreach_copy_(_rows(group.values), [each.like for each in group.parameters])
            self._fill_moments(group, states)
        buffers = self._find_buffers()
        self._buffers = [buffer.clone() for buffer in buffers] if own_buffers else buffers
        if self._model.model.lr_scheduler is not None:
            self._optimizer._opt_called = True  # the scheduler warns if it is stepped before the optimizer

    def _fill_moments(self, group: FlatGroup, states: list[dict[str, Any]]) -> None:
        for name, views in group.moments.items():
            if states[0].get(name) is None:  # all of them have it, or none
                torch._foreach_zero_(_rows(views))
            else:
                torch._foreach_copy_(_rows(views), [state[name] for state in states])
        group.optimizer.counts[0] = float(states[0].get("step", 0.0))
        if isinstance(group.optimizer, StackedSGD):
            group.optimizer.fresh[0] = states[0].get("momentum_buffer") is None

    @torch.no_grad()
    def leave(self) -> None:
        """Put what was learned into the model. Its buffers have it already."""
        for group in self._groups:
            torch._foreach_copy_([each.like for each in group.parameters], _rows(group.values))
            for place, each in enumerate(group.parameters):
                moments = {name: views[place][0] for name, views in group.moments.items()}
                self._leave_moments(each.like, moments, group)

    def _leave_moments(self, parameter: torch.Tensor, moments: dict[str, torch.Tensor], group: FlatGroup) -> None:
        count = {"step": torch.tensor(group.optimizer.counts[0], device="cpu")} if group.optimizer.counts_steps else {}
        # In the order in which the optimizer makes them in its first step.
        new = {**count, **moments}
        if not new:
            return
        state = self._optimizer.state[parameter]
        for name, value in new.items():
            if state.get(name) is None:
                state[name] = value.clone()
            else:
                state[name].copy_(value)

    def find_change(self) -> str | None:
        """Return where the state in the buffers differs from that of the model after an eager step, or None."""
        trained = {each.like for group in self._groups for each in group.parameters}
        if trained != {parameter for parameter in self._model.parameters if parameter.grad is not None}:
            return "the list of parameters with a gradient"
        for group in self._groups:
            for place, each in enumerate(group.parameters):
                count = (
                    {"step": torch.tensor(group.optimizer.counts[0], device="cpu")}
                    if group.optimizer.counts_steps
                    else {}
                )
                moments = {name: views[place][0] for name, views in group.moments.items()}
                own = {"value": group.values[place][0], **count, **moments}
                other = {"value": each.like, **self._optimizer.state.get(each.like, {})}
                found = find_difference(own, other, each.name)
                if found is not None:
                    return found
        names = self._buffer_names
        return find_difference(
            dict(zip(names, self._buffers, strict=True)), dict(zip(names, self._find_buffers(), strict=True))
        )

    def _kept(self, group: FlatGroup) -> list[dict[str, Any]]:
        return [self._optimizer.state.get(each.like, {}) for each in group.parameters]

    def _named_buffers(self) -> dict[str, Tensors]:
        model = self._model.model
        return {"buffers": dict(model.module.named_buffers()), "loss": loss_buffers(model.loss)}

    def _find_buffers(self) -> list[torch.Tensor]:
        """Return the present buffers of the model: a step may replace one by another."""
        named = self._named_buffers()
        found = {MODULE + name: buffer for name, buffer in named["buffers"].items()}
        found |= {LOSS + name: buffer for name, buffer in named["loss"].items()}
        return [found[name] for name in self._buffer_names]

    # A step

    @torch.no_grad()
    def take(self, batch: Tensors) -> tuple[torch.Tensor, Any]:
        """Take a step. Return the loss and the output."""
        result = self._unpack(self._function(*self._fixed, *self._buffers, *batch.values()))
        for buffer, new in zip(self._buffers, result.buffers, strict=True):
            if new is not buffer:
                buffer.copy_(new)
        torch._foreach_copy_(self._gradients, result.gradients)
        self._clip()
        for group in self._groups:
            group.optimizer.step([self._optimizer.param_groups[group.number]])
        return result.loss, pytree.tree_unflatten(result.leaves, result.spec)

    def _clip(self) -> None:
        own = self._model.model
        if own.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(self._slots, own.clip_norm)
        if own.clip_value is not None:
            for group in self._groups:
                group.clamp_gradients(own.clip_value)


def _rows(views: list[torch.Tensor]) -> list[torch.Tensor]:
    return [view[0] for view in views]


def _copy_model(model: BuiltTorchModel) -> BuiltTorchModel:
    """Return a built model with copies of the module and the loss, to be computed but not trained."""
    own = model.model
    module, loss, batch_loss = copy.deepcopy((own.module, own.loss, model.loss))
    copied = copy.copy(model)
    copied.model = replace(own, module=module, loss=loss)
    copied.loss = batch_loss
    return copied
