"""A built PyTorch model that takes on the state of any trial of its architecture. It never trains."""

from __future__ import annotations

import copy
import inspect
from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler
from torch.nn.modules import loss as torch_losses

from cerebro_spark.trainer.checkpoints.arrays import StateSource
from cerebro_spark.trainer.checkpoints.fit import check_fact, check_names, check_spec
from cerebro_spark.trainer.checkpoints.tree import unflatten
from cerebro_spark.trainer.sharing.built_model import BuiltModel
from cerebro_spark.trainer.torch.losses import BatchLoss
from cerebro_spark.trainer.torch.metric_states import move_part
from cerebro_spark.trainer.torch.model import TorchModel
from cerebro_spark.trainer.torch.recurrent_dropout import find_dropping
from cerebro_spark.trainer.torch.settings import Settings
from cerebro_spark.trainer.torch.tensors import (
    TENSOR_TAGS,
    fill_tensor,
    is_same_bits,
    lay_out_like,
    read_tensor,
    reuse_tensor,
)


class BuiltTorchModel(BuiltModel):
    """A TorchModel on its device, with what is found out once: parameter lists, the loss, the gradient scaler."""

    def __init__(self, model: TorchModel, device: torch.device, precision: str | None) -> None:
        self.model = model
        for part in (model.module, model.loss, *model.metrics.values()):
            move_part(part, device)
        _move_optimizer_state(model.optimizer)
        self.autocast: AbstractContextManager[Any] = nullcontext()
        if precision is not None:
            self.autocast = torch.autocast(device.type, dtype=getattr(torch, precision))
        self.scaler = GradScaler("cuda", enabled=precision == "float16" and device.type == "cuda")
        self.parameters = [p for group in model.optimizer.param_groups for p in group["params"]]
        self._trainable = {name: p.requires_grad for name, p in model.module.named_parameters()}
        self.loss = BatchLoss(model.loss)
        self.dropping = find_dropping(model.module, device)
        """The recurrent layers for whose dropout cuDNN draws."""
        self.settings: Settings = {}
        """What `model_fn` set otherwise than the process, for its trial."""
        self.steps: Any = None
        """What takes training steps with it, if that keeps something between units."""
        self.keeps_state_on_host = False
        """Whether the state of the optimizer is read into the host's memory, wherever the parameters are."""

    @property
    def nbytes(self) -> int:
        module = self.model.module
        moments = [value for state in self.model.optimizer.state.values() for value in state.values()]
        parts = [*module.parameters(), *module.buffers(), *self.parameters, *moments]
        buffers: int = getattr(self.steps, "nbytes", 0)
        return buffers + sum(part.nbytes for part in parts if isinstance(part, torch.Tensor))

    def state(self) -> Any:
        model = self.model
        return {
            **self._tensors(),
            "extra": {name: part.get_extra_state() for name, part in _with_extra_state(model.module)},
            "optimizer": {
                "class": class_name(model.optimizer),
                "sizes": [len(group["params"]) for group in model.optimizer.param_groups],
                "state": [dict(model.optimizer.state.get(p, {})) for p in self.parameters],
                "groups": [_without_params(group) for group in model.optimizer.param_groups],
            },
            "scheduler_class": class_name(model.lr_scheduler),
            "scheduler": None if model.lr_scheduler is None else model.lr_scheduler.state_dict(),
            "scaler": self.scaler.state_dict() or None,
            **self._changed_flags(),
        }

    def hyperparameters(self) -> Any:
        groups = [_without_params(group) for group in self.model.optimizer.param_groups]
        plain = [{key: v.item() if isinstance(v, torch.Tensor) else v for key, v in group.items()} for group in groups]
        loss = {name: buffer.clone() for name, buffer in loss_buffers(self.model.loss).items()}
        return plain, [_schedule_numbers(part) for part in schedulers(self.model.lr_scheduler)], loss

    @torch.no_grad()
    def restore(self, source: StateSource, hyperparameters: Any = None) -> None:
        self._check_fit(source)
        saved = source.meta["model"]
        self._restore_module(source, saved)
        self._restore_groups(source, saved["optimizer"]["groups"])
        self._restore_optimizer_state(source, saved["optimizer"]["state"])
        self._restore_schedule(source, saved["scheduler"])
        # A new one: if a step broke off, the old one is still in the middle of it.
        self.scaler = GradScaler("cuda", enabled=self.scaler.is_enabled())
        if saved["scaler"]:
            self.scaler.load_state_dict(saved["scaler"])
        if hyperparameters is not None:
            self._use_hyperparameters(*hyperparameters)

    def copy_statistics(self) -> Any:
        return {name: tensor.clone() for name, tensor in self._buffers().items()}

    @torch.no_grad()
    def restore_statistics(self, copies: Any) -> None:
        for name, tensor in self._buffers().items():
            if name in copies and tensor.shape == copies[name].shape and not is_same_bits(tensor, copies[name]):
                tensor.copy_(copies[name])

    def _changed_flags(self) -> dict[str, Any]:
        """Which parameters are trained, if that is not as built: most models need no such entry."""
        named = self.model.module.named_parameters()
        changed = {name: p.requires_grad for name, p in named if p.requires_grad != self._trainable.get(name)}
        return {"requires_grad": changed} if changed else {}

    def _buffers(self) -> dict[str, torch.Tensor]:
        tensors = self._tensors()
        return {**{f"module.{n}": t for n, t in tensors["buffers"].items()}, **tensors["loss"]}

    def _tensors(self) -> dict[str, dict[str, torch.Tensor]]:
        """All tensors that are restored in place, by kind and name."""
        module = self.model.module
        return {
            "parameters": dict(module.named_parameters()),
            "buffers": dict(module.named_buffers()),
            "loss": loss_buffers(self.model.loss),
        }

    def _check_fit(self, source: StateSource) -> None:
        """Refuse the state of another model, optimizer or scheduler, before anything is changed."""
        saved, model = source.meta["model"], self.model
        for kind, own in self._tensors().items():
            check_names(source, f"model/{kind}/", own)
            for name, tensor in own.items():
                check_spec(source, f"model/{kind}/{name}", TENSOR_TAGS[tensor.dtype], tensor.shape)
        extra = [name for name, _ in _with_extra_state(model.module)]
        check_fact(source, "list of modules with extra state", list(saved["extra"]), extra)
        optimizer = saved["optimizer"]
        check_fact(source, "optimizer", optimizer["class"], class_name(model.optimizer))
        sizes = [len(group["params"]) for group in model.optimizer.param_groups]
        check_fact(source, "number of parameters in each group of the optimizer", optimizer["sizes"], sizes)
        check_fact(source, "learning rate schedule", saved["scheduler_class"], class_name(model.lr_scheduler))

    def _restore_module(self, source: StateSource, saved: Any) -> None:
        for kind, own in self._tensors().items():
            for name, tensor in own.items():
                fill_tensor(source, f"model/{kind}/{name}", tensor)
        trainable = self._trainable | saved.get("requires_grad", {})
        for name, parameter in self.model.module.named_parameters():
            if parameter.requires_grad != trainable[name]:
                parameter.requires_grad_(trainable[name])
        for name, part in _with_extra_state(self.model.module):
            part.set_extra_state(unflatten(saved["extra"][name], lambda array: read_tensor(source, array)))

    def _restore_groups(self, source: StateSource, saved: list[Any]) -> None:
        groups = unflatten(saved, lambda name: read_tensor(source, name))
        for group, values in zip(self.model.optimizer.param_groups, groups, strict=True):
            for key in group.keys() - values.keys() - {"params"}:
                del group[key]  # some optimizers count their steps there, from their first step on
            for key, value in values.items():
                _set_number(group, key, value)

    def _restore_optimizer_state(self, source: StateSource, saved: list[Any]) -> None:
        optimizer = self.model.optimizer
        for index, (parameter, group) in enumerate(_with_groups(optimizer)):
            old = optimizer.state.get(parameter, {})
            new: dict[str, Any] = {}
            for key, value in saved[index].items():
                if isinstance(value, dict) and "$array" in value:
                    device = self._find_state_device(source, value["$array"], key, parameter, group)
                    new[key] = lay_out_like(parameter, reuse_tensor(source, value["$array"], old.get(key), device))
                else:
                    new[key] = unflatten(value, lambda name: read_tensor(source, name, parameter.device))  # noqa: B023
            if new or parameter in optimizer.state:
                optimizer.state[parameter] = new

    def _find_state_device(
        self, source: StateSource, name: str, key: str, parameter: torch.Tensor, group: dict[str, Any]
    ) -> torch.device:
        """Return where an array of the optimizer's state is read to."""
        if self.keeps_state_on_host and source.spec(name)[1]:
            return torch.device("cpu")
        return _state_device(key, parameter, group)

    def _restore_schedule(self, source: StateSource, saved: Any) -> None:
        if self.model.lr_scheduler is None:
            return
        self.model.lr_scheduler.load_state_dict(unflatten(saved, lambda name: read_tensor(source, name)))
        # A scheduler warns if it is stepped before the optimizer; the optimizer's steps on other workers count too.
        self.model.optimizer._opt_called = True

    def _use_hyperparameters(
        self, numbers: list[dict[str, Any]], schedules: list[dict[str, Any]], loss: dict[str, torch.Tensor]
    ) -> None:
        """Use new hyperparameters. A rate that a scheduler has changed keeps its ratio to the initial one.

        The buffers of a loss may be hyperparameters too, so they start anew.
        """
        for name, buffer in loss_buffers(self.model.loss).items():
            buffer.copy_(loss[name])
        parts = schedulers(self.model.lr_scheduler)
        for part, own in zip(parts, schedules, strict=True):
            vars(part).update(copy.deepcopy(own))
        groups = self.model.optimizer.param_groups
        for group, fresh in zip(groups, numbers, strict=True):
            rate = float(fresh["lr"])
            if group.get("initial_lr") and fresh.get("initial_lr"):
                rate = float(group["lr"]) * float(fresh["initial_lr"]) / float(group["initial_lr"])
            for key, value in {**fresh, "lr": rate}.items():
                _set_number(group, key, value)
        for part in parts:
            part.base_lrs = [group["initial_lr"] for group in groups]
            part._last_lr = [group["lr"] for group in groups]


def schedulers(scheduler: Any) -> list[Any]:
    """Return a scheduler and those that it is made of."""
    inner = [part for each in getattr(scheduler, "_schedulers", []) for part in schedulers(each)]
    return [] if scheduler is None else [scheduler, *inner]


def _schedule_numbers(scheduler: Any) -> dict[str, Any]:
    """Return the arguments that a scheduler was made with, as far as it keeps them under their names.

    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    >>> _schedule_numbers(torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.5))
    {'step_size': 3, 'gamma': 0.5}
    """
    asked = [name for name in inspect.signature(type(scheduler)).parameters if name not in ("optimizer", "last_epoch")]
    names = [name for each in asked for name in (each, f"{each}s", f"_{each}") if name in vars(scheduler)]
    return {name: copy.deepcopy(vars(scheduler)[name]) for name in names if _is_setting(vars(scheduler)[name])}


def _is_setting(value: Any) -> bool:
    if isinstance(value, list | tuple | Counter):
        return all(map(_is_setting, value))
    return isinstance(value, bool | int | float | str)


def loss_buffers(loss: Any) -> dict[str, torch.Tensor]:
    """Return the buffers of a user's own loss. Those of PyTorch's losses are settings, which `model_fn` makes."""
    return dict(loss.named_buffers()) if is_own_loss(loss) else {}


def is_own_loss(loss: Any) -> bool:
    """Whether a loss is a module that the user wrote."""
    return isinstance(loss, torch.nn.Module) and type(loss).__module__ != torch_losses.__name__


def class_name(thing: Any) -> str | None:
    """Return the full name of an object's class; None for None."""
    return None if thing is None else f"{type(thing).__module__}.{type(thing).__qualname__}"


def keeps_extra_state(module: torch.nn.Module) -> bool:
    """Whether a module defines PyTorch's `get_extra_state`."""
    return type(module).get_extra_state is not torch.nn.Module.get_extra_state


def _with_extra_state(module: torch.nn.Module) -> list[tuple[str, torch.nn.Module]]:
    return [(name, part) for name, part in module.named_modules() if keeps_extra_state(part)]


def _set_number(group: dict[str, Any], key: str, value: Any) -> None:
    if isinstance(group.get(key), torch.Tensor):
        group[key].fill_(value) if not isinstance(value, torch.Tensor) else group[key].copy_(value)
    else:
        group[key] = value


def _state_device(key: str, parameter: torch.Tensor, group: dict[str, Any]) -> torch.device:
    """Where an optimizer keeps a tensor of its state: with the parameter, but its step count mostly on the host."""
    on_host = key == "step" and not (group.get("capturable") or group.get("fused"))
    return torch.device("cpu") if on_host else parameter.device


def _move_optimizer_state(optimizer: Any) -> None:
    """Move the state of optimizers (Adagrad) that make it at once, before the parameters were moved."""
    for parameter, group in _with_groups(optimizer):
        state = optimizer.state.get(parameter, {})
        tensors = {key: value for key, value in state.items() if isinstance(value, torch.Tensor)}
        state.update({key: value.to(_state_device(key, parameter, group)) for key, value in tensors.items()})


def _without_params(group: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key != "params"}


def _with_groups(optimizer: Any) -> list[tuple[torch.Tensor, dict[str, Any]]]:
    return [(parameter, group) for group in optimizer.param_groups for parameter in group["params"]]
