"""A built PyTorch model that takes on the state of any trial of its architecture. It never trains."""

from __future__ import annotations

import copy
import inspect
import warnings
from collections import Counter
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import numpy as np
import torch
from torch.amp.grad_scaler import GradScaler
from torch.nn.modules import loss as torch_losses

from cerebro_spark.trainer.checkpoints.file import Entry, Source
from cerebro_spark.trainer.checkpoints.state import TAG_NAMES, check_fact, check_names, check_same, unflatten
from cerebro_spark.trainer.sharing.resident import Resident
from cerebro_spark.trainer.torch.losses import BatchLoss
from cerebro_spark.trainer.torch.metric_states import move_metric
from cerebro_spark.trainer.torch.model import TorchModel

_DTYPES = {getattr(torch, name): tag for tag, name in TAG_NAMES.items() if hasattr(torch, name)}


class TorchResident(Resident):
    """A TorchModel on its device, with what was worked out once: parameter lists, the loss, its scaler."""

    def __init__(self, model: TorchModel, device: torch.device, precision: str | None) -> None:
        self.model = model
        self.device = device
        model.module.to(device)
        if isinstance(model.loss, torch.nn.Module):
            model.loss.to(device)
        for metric in model.metrics.values():
            move_metric(metric, device)
        _move_optimizer_state(model.optimizer)
        dtype = {"bfloat16": torch.bfloat16, "float16": torch.float16}.get(precision or "")
        self.autocast: AbstractContextManager[Any] = nullcontext()
        if dtype is not None:
            self.autocast = torch.autocast(device.type, dtype=dtype)
        scaled = dtype is torch.float16 and device.type == "cuda"
        self.scaler = GradScaler("cuda") if scaled else None
        self.parameters = [p for group in model.optimizer.param_groups for p in group["params"]]
        self._learning = {name: p.requires_grad for name, p in model.module.named_parameters()}
        self.loss = BatchLoss(model.loss)

    @property
    def nbytes(self) -> int:
        module = self.model.module
        tensors = [*module.parameters(), *module.buffers(), *self.parameters]
        for state in self.model.optimizer.state.values():
            tensors.extend(value for value in state.values() if isinstance(value, torch.Tensor))
        return sum(tensor.nbytes for tensor in tensors)

    def state(self) -> Any:
        model = self.model
        return {
            "parameters": dict(model.module.named_parameters()),
            "buffers": dict(model.module.named_buffers()),
            "loss": loss_buffers(model.loss),
            "extra": {name: part.get_extra_state() for name, part in _with_extra_state(model.module)},
            "optimizer": {
                "class": class_name(model.optimizer),
                "sizes": [len(group["params"]) for group in model.optimizer.param_groups],
                "state": [dict(model.optimizer.state.get(p, {})) for p in self.parameters],
                "groups": [_without_params(group) for group in model.optimizer.param_groups],
            },
            "scheduler_class": class_name(model.lr_scheduler),
            "scheduler": None if model.lr_scheduler is None else model.lr_scheduler.state_dict(),
            "scaler": None if self.scaler is None else self.scaler.state_dict(),
            **self._thawed_and_frozen(),
        }

    def _thawed_and_frozen(self) -> dict[str, Any]:
        """Which parameters learn, of those where it is not as when built: of most models there is nothing to say."""
        named = self.model.module.named_parameters()
        changed = {name: p.requires_grad for name, p in named if p.requires_grad != self._learning.get(name)}
        return {"requires_grad": changed} if changed else {}

    def numbers(self) -> Any:
        groups = [_without_params(group) for group in self.model.optimizer.param_groups]
        plain = [{key: v.item() if isinstance(v, torch.Tensor) else v for key, v in group.items()} for group in groups]
        loss = {name: buffer.clone() for name, buffer in loss_buffers(self.model.loss).items()}
        return plain, [_schedule_numbers(part) for part in schedulers(self.model.lr_scheduler)], loss

    @torch.no_grad()
    def restore(self, source: Source, numbers: Any = None) -> None:
        self._check_fits(source)
        saved = source.meta["model"]
        module, optimizer = self.model.module, self.model.optimizer
        for kind, own in self._tensors().items():
            for name, tensor in own.items():
                read_tensor(source, f"model/{kind}/{name}", tensor)
        learning = self._learning | saved.get("requires_grad", {})
        for name, parameter in module.named_parameters():
            if parameter.requires_grad != learning[name]:
                parameter.requires_grad_(learning[name])
        for name, part in _with_extra_state(module):
            kept = saved["extra"][name]
            part.set_extra_state(unflatten(kept, lambda array: new_tensor(source, array, torch.device("cpu"))))
        groups = unflatten(saved["optimizer"]["groups"], lambda name: new_tensor(source, name, torch.device("cpu")))
        for group, values in zip(optimizer.param_groups, groups, strict=True):
            for key in group.keys() - values.keys() - {"params"}:
                del group[key]  # some optimizers count their steps there from the first on
            for key, value in values.items():
                _set_number(group, key, value)
        self._restore_optimizer_state(source, saved["optimizer"]["state"])
        if self.model.lr_scheduler is not None:
            self.model.lr_scheduler.load_state_dict(
                unflatten(saved["scheduler"], lambda name: new_tensor(source, name, torch.device("cpu")))
            )
            # The scheduler warns when it is stepped first; the steps of the workers before this one count too.
            optimizer._opt_called = True
        if self.scaler is not None:
            # A new one: if a step broke off, the old one still believes itself in the middle of it.
            self.scaler = GradScaler("cuda")
            self.scaler.load_state_dict(saved["scaler"] or self.scaler.state_dict())
        if numbers is not None:
            self._use_numbers(*numbers)

    def volatile(self) -> Any:
        return {name: tensor.clone() for name, tensor in self._buffers().items()}

    @torch.no_grad()
    def settle(self, kept: Any) -> None:
        for name, tensor in self._buffers().items():
            if name in kept and tensor.shape == kept[name].shape and not _same_bits(tensor, kept[name]):
                tensor.copy_(kept[name])

    def _buffers(self) -> dict[str, torch.Tensor]:
        tensors = self._tensors()
        return {**{f"module.{n}": t for n, t in tensors["buffers"].items()}, **tensors["loss"]}

    def _tensors(self) -> dict[str, dict[str, torch.Tensor]]:
        """All that is restored in place, by kind and name."""
        module = self.model.module
        return {
            "parameters": dict(module.named_parameters()),
            "buffers": dict(module.named_buffers()),
            "loss": loss_buffers(self.model.loss),
        }

    def _check_fits(self, source: Source) -> None:
        """Refuse what another model, optimizer or scheduler left, before anything is changed."""
        saved, model = source.meta["model"], self.model
        for kind, own in self._tensors().items():
            check_names(source, f"model/{kind}/", own)
            for name, tensor in own.items():
                check_same(source, f"model/{kind}/{name}", _DTYPES[tensor.dtype], tensor.shape)
        extra = [name for name, _ in _with_extra_state(model.module)]
        check_fact(source, "list of modules with extra state", list(saved["extra"]), extra)
        optimizer = saved["optimizer"]
        check_fact(source, "optimizer", optimizer["class"], class_name(model.optimizer))
        sizes = [len(group["params"]) for group in model.optimizer.param_groups]
        check_fact(source, "number of parameters in each group of the optimizer", optimizer["sizes"], sizes)
        check_fact(source, "learning rate schedule", saved["scheduler_class"], class_name(model.lr_scheduler))

    def _restore_optimizer_state(self, source: Source, saved: list[Any]) -> None:
        optimizer = self.model.optimizer
        for index, (parameter, group) in enumerate(_with_groups(optimizer)):
            old = optimizer.state.get(parameter, {})
            new: dict[str, Any] = {}
            for key, value in saved[index].items():
                if isinstance(value, dict) and "$array" in value:
                    device = _home(key, parameter, group)
                    new[key] = reuse_tensor(source, value["$array"], old.get(key), device)
                else:
                    new[key] = unflatten(value, lambda name: new_tensor(source, name, parameter.device))  # noqa: B023
            if new or parameter in optimizer.state:
                optimizer.state[parameter] = new

    def _use_numbers(
        self, numbers: list[dict[str, Any]], schedules: list[dict[str, Any]], loss: dict[str, torch.Tensor]
    ) -> None:
        """Fresh hyperparameters; a rate that a scheduler has moved keeps its share of the initial one.

        The buffers of a loss may be hyperparameters too, so they begin anew.
        """
        for name, buffer in loss_buffers(self.model.loss).items():
            buffer.copy_(loss[name])
        parts = schedulers(self.model.lr_scheduler)
        for part, own in zip(parts, schedules, strict=True):
            vars(part).update(copy.deepcopy(own))
        for group, fresh in zip(self.model.optimizer.param_groups, numbers, strict=True):
            rate = float(fresh["lr"])
            if group.get("initial_lr") and fresh.get("initial_lr"):
                rate = float(group["lr"]) * float(fresh["initial_lr"]) / float(group["initial_lr"])
            for key, value in {**fresh, "lr": rate}.items():
                _set_number(group, key, value)
        groups = self.model.optimizer.param_groups
        for part in parts:
            part.base_lrs = [group["initial_lr"] for group in groups]
            part._last_lr = [group["lr"] for group in groups]


def _same_bits(one: torch.Tensor, other: torch.Tensor) -> bool:
    """Equal, where a NaN equals itself."""
    return torch.equal(one, other) or tensor_bytes(one) == tensor_bytes(other)


def schedulers(scheduler: Any) -> list[Any]:
    """A schedule and those it is made of."""
    inner = [part for each in getattr(scheduler, "_schedulers", []) for part in schedulers(each)]
    return [] if scheduler is None else [scheduler, *inner]


def _schedule_numbers(scheduler: Any) -> dict[str, Any]:
    """What a schedule was made with, as far as it keeps that under the names of its arguments.

    >>> optimizer = torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)
    >>> _schedule_numbers(torch.optim.lr_scheduler.StepLR(optimizer, step_size=3, gamma=0.5))
    {'step_size': 3, 'gamma': 0.5}
    """
    asked = [name for name in inspect.signature(type(scheduler)).parameters if name not in ("optimizer", "last_epoch")]
    names = [name for each in asked for name in (each, f"{each}s", f"_{each}") if name in vars(scheduler)]
    return {name: copy.deepcopy(vars(scheduler)[name]) for name in names if _is_number(vars(scheduler)[name])}


def _is_number(value: Any) -> bool:
    if isinstance(value, list | tuple | Counter):
        return all(map(_is_number, value))
    return isinstance(value, bool | int | float | str)


def loss_buffers(loss: Any) -> dict[str, torch.Tensor]:
    """What a user's own loss keeps in buffers; of PyTorch's losses those are settings, which `model_fn` makes."""
    return dict(loss.named_buffers()) if is_own_loss(loss) else {}


def is_own_loss(loss: Any) -> bool:
    """Whether a loss is a module that PyTorch did not bring."""
    return isinstance(loss, torch.nn.Module) and type(loss).__module__ != torch_losses.__name__


def _with_extra_state(module: torch.nn.Module) -> list[tuple[str, torch.nn.Module]]:
    """The parts that keep something beside parameters and buffers, in PyTorch's own way."""
    plain = torch.nn.Module.get_extra_state
    return [(name, part) for name, part in module.named_modules() if type(part).get_extra_state is not plain]


def torch_entry(name: str, leaf: Any) -> Entry | None:
    """The entry of a tensor; its bytes are copied off the device only when asked for."""
    if not isinstance(leaf, torch.Tensor) or leaf.dtype not in _DTYPES:
        return None
    return Entry(name, _DTYPES[leaf.dtype], tuple(leaf.shape), lambda: tensor_bytes(leaf))


def tensor_bytes(tensor: torch.Tensor) -> memoryview:
    """The tensor's memory as bytes: its own where it is contiguous and on the host."""
    flat = tensor.detach().cpu().contiguous().reshape(-1)
    data: Any = flat.view(torch.uint8).numpy()
    return memoryview(data) if flat.numel() else memoryview(b"")


def read_tensor(source: Source, name: str, tensor: torch.Tensor) -> None:
    """Fill a tensor in place."""
    check_same(source, name, _DTYPES[tensor.dtype], tensor.shape)
    if tensor.device.type == "cpu" and tensor.is_contiguous():
        source.read_into(name, tensor_bytes(tensor))
    else:
        tensor.copy_(new_tensor(source, name, torch.device("cpu")))


def new_tensor(source: Source, name: str, device: torch.device) -> torch.Tensor:
    """Read an array into a tensor of its own."""
    tag, shape = source.spec(name)
    tensor = torch.empty(shape, dtype=getattr(torch, TAG_NAMES[tag]))
    source.read_into(name, tensor_bytes(tensor))
    return tensor.to(device)


def reuse_tensor(source: Source, name: str, old: Any, device: torch.device) -> torch.Tensor:
    """Read an array into `old` if it fits, else into a new tensor."""
    tag, shape = source.spec(name)
    if isinstance(old, torch.Tensor) and (_DTYPES.get(old.dtype), tuple(old.shape)) == (tag, shape):
        read_tensor(source, name, old)
        return old
    return new_tensor(source, name, device)


def from_numpy(array: Any) -> torch.Tensor:
    """A tensor over the array's memory. It is only read from, so a read-only (memory-mapped) array is fine."""
    if array.dtype.name in ("uint16", "uint32", "uint64"):
        array = array.astype("int64")
    if any(stride < 0 for stride in array.strides):
        # PyTorch knows no backward steps, which is how NumPy flips.
        array = np.ascontiguousarray(array)
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)


def _set_number(group: dict[str, Any], key: str, value: Any) -> None:
    if isinstance(group.get(key), torch.Tensor):
        group[key].fill_(value) if not isinstance(value, torch.Tensor) else group[key].copy_(value)
    else:
        group[key] = value


def _home(key: str, parameter: torch.Tensor, group: dict[str, Any]) -> torch.device:
    """Where an optimizer keeps a tensor of its state: with the parameter, but its step count mostly on the host."""
    on_host = key == "step" and not (group.get("capturable") or group.get("fused"))
    return torch.device("cpu") if on_host else parameter.device


def _move_optimizer_state(optimizer: Any) -> None:
    """Some optimizers (Adagrad) make their state at once, where the parameters were before they moved."""
    for parameter, group in _with_groups(optimizer):
        state = optimizer.state.get(parameter, {})
        for key, value in state.items():
            if isinstance(value, torch.Tensor):
                state[key] = value.to(_home(key, parameter, group))


def class_name(thing: Any) -> str | None:
    return None if thing is None else f"{type(thing).__module__}.{type(thing).__qualname__}"


def _without_params(group: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key != "params"}


def _with_groups(optimizer: Any) -> list[tuple[torch.Tensor, dict[str, Any]]]:
    return [(parameter, group) for group in optimizer.param_groups for parameter in group["params"]]
