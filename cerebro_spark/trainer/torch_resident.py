"""A built PyTorch model that takes on the state of any trial of its architecture. It never trains."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler
from torch.nn.modules import loss as torch_losses

from cerebro_spark.errors import ConfigurationError
from cerebro_spark.trainer.checkpoint import Entry, Source
from cerebro_spark.trainer.resident import Resident
from cerebro_spark.trainer.state import TAG_NAMES, check_same, unflatten
from cerebro_spark.trainer.structure import class_token, signature
from cerebro_spark.trainer.torch_model import TorchModel

RETURNS = (
    "model_fn must return cs.TorchModel(module, optimizer, loss), for example\n"
    "    module = torch.nn.Linear(64, 1)\n"
    "    optimizer = torch.optim.Adam(module.parameters(), lr=params['lr'])\n"
    "    return cs.TorchModel(module, optimizer, torch.nn.BCEWithLogitsLoss())"
)

_DTYPES = {getattr(torch, name): tag for tag, name in TAG_NAMES.items() if hasattr(torch, name)}
_CLASS_NUMBER_LOSSES = (torch_losses.CrossEntropyLoss, torch_losses.NLLLoss, torch_losses.MultiMarginLoss)
_MODULE_INTERNALS = set(vars(torch.nn.Module()))


class TorchResident(Resident):
    """A TorchModel on its device, with what was worked out once: parameter lists, the label's form, the loss scaler."""

    def __init__(self, model: TorchModel, device: torch.device, precision: str | None) -> None:
        self.model = model
        self.device = device
        model.module.to(device)
        dtype = {"bfloat16": torch.bfloat16, "float16": torch.float16}.get(precision or "")
        self.autocast: AbstractContextManager[Any] = nullcontext()
        if dtype is not None:
            self.autocast = torch.autocast(device.type, dtype=dtype)
        scaled = dtype is torch.float16 and device.type == "cuda"
        self.scaler = GradScaler("cuda") if scaled else None
        self.parameters = [p for group in model.optimizer.param_groups for p in group["params"]]
        self.fit_label = label_fitter(model.loss)

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
            "optimizer": {
                "state": [dict(model.optimizer.state.get(p, {})) for p in self.parameters],
                "groups": [_without_params(group) for group in model.optimizer.param_groups],
            },
            "scheduler": None if model.lr_scheduler is None else model.lr_scheduler.state_dict(),
            "scaler": None if self.scaler is None else self.scaler.state_dict(),
        }

    def numbers(self) -> Any:
        groups = [_without_params(group) for group in self.model.optimizer.param_groups]
        return [{key: v.item() if isinstance(v, torch.Tensor) else v for key, v in group.items()} for group in groups]

    @torch.no_grad()
    def restore(self, source: Source, numbers: Any = None) -> None:
        saved = source.meta["model"]
        module, optimizer = self.model.module, self.model.optimizer
        for kind, own in (("parameters", module.named_parameters()), ("buffers", module.named_buffers())):
            for name, tensor in own:
                read_tensor(source, f"model/{kind}/{name}", tensor)
        groups = unflatten(saved["optimizer"]["groups"], lambda name: new_tensor(source, name, torch.device("cpu")))
        for group, values in zip(optimizer.param_groups, groups, strict=True):
            for key, value in values.items():
                _set_number(group, key, value)
        self._restore_optimizer_state(source, saved["optimizer"]["state"])
        if self.model.lr_scheduler is not None:
            self.model.lr_scheduler.load_state_dict(
                unflatten(saved["scheduler"], lambda name: new_tensor(source, name, torch.device("cpu")))
            )
            # The scheduler warns when it is stepped first; the steps of the workers before this one count too.
            optimizer._opt_called = True
        if self.scaler is not None and saved["scaler"]:
            self.scaler.load_state_dict(saved["scaler"])
        if numbers is not None:
            self._use_numbers(numbers)

    def _restore_optimizer_state(self, source: Source, saved: list[Any]) -> None:
        optimizer = self.model.optimizer
        for index, (parameter, group) in enumerate(_with_groups(optimizer)):
            old = optimizer.state.get(parameter, {})
            new: dict[str, Any] = {}
            for key, value in saved[index].items():
                if isinstance(value, dict) and "$array" in value:
                    on_host = key == "step" and not (group.get("capturable") or group.get("fused"))
                    device = torch.device("cpu") if on_host else parameter.device
                    new[key] = reuse_tensor(source, value["$array"], old.get(key), device)
                else:
                    new[key] = unflatten(value, lambda name: new_tensor(source, name, parameter.device))  # noqa: B023
            if new or parameter in optimizer.state:
                optimizer.state[parameter] = new

    def _use_numbers(self, numbers: list[dict[str, Any]]) -> None:
        """Fresh hyperparameters; a rate that a scheduler has moved keeps its share of the initial one."""
        for group, fresh in zip(self.model.optimizer.param_groups, numbers, strict=True):
            rate = float(fresh["lr"])
            if group.get("initial_lr") and fresh.get("initial_lr"):
                rate = float(group["lr"]) * float(fresh["initial_lr"]) / float(group["initial_lr"])
            for key, value in {**fresh, "lr": rate}.items():
                _set_number(group, key, value)
        groups = self.model.optimizer.param_groups
        scheduler = self.model.lr_scheduler
        for part in [] if scheduler is None else [scheduler, *getattr(scheduler, "_schedulers", [])]:
            part.base_lrs = [group["initial_lr"] for group in groups]
            part._last_lr = [group["lr"] for group in groups]


def check_model(made: Any) -> TorchModel:
    """Return what `model_fn` made if it can be trained, else raise ConfigurationError that shows what to return."""
    if not isinstance(made, TorchModel):
        raise ConfigurationError(f"model_fn returned {made!r} of type {type(made).__name__}. {RETURNS}")
    if not isinstance(made.module, torch.nn.Module):
        raise ConfigurationError(
            f"TorchModel.module is a {type(made.module).__name__}, not a torch.nn.Module. {RETURNS}"
        )
    if not isinstance(made.optimizer, torch.optim.Optimizer):
        raise ConfigurationError(
            f"TorchModel.optimizer is a {type(made.optimizer).__name__}, not a torch.optim.Optimizer. {RETURNS}"
        )
    own = {id(p) for p in made.module.parameters()}
    if any(id(p) not in own for group in made.optimizer.param_groups for p in group["params"]):
        raise ConfigurationError("the optimizer holds parameters of another module: build it over module.parameters()")
    if isinstance(made.lr_scheduler, torch.optim.lr_scheduler.ReduceLROnPlateau):
        raise ConfigurationError(
            "lr_scheduler is a ReduceLROnPlateau, which waits for a validation metric that no single worker knows: use"
            " a scheduler that goes by steps or epochs"
        )
    if made.scheduler_step not in ("epoch", "batch"):
        raise ConfigurationError(f"scheduler_step is {made.scheduler_step!r}, but must be 'epoch' or 'batch'")
    return made


def model_signature(model: TorchModel) -> str:
    """Equal for models that differ only in weights, optimizer numbers and scheduler state."""
    modules = [
        (name, class_token(type(module)), {k: v for k, v in vars(module).items() if k not in _MODULE_INTERNALS},
         {k: len(v) for k, v in vars(module).items() if "hooks" in k and v})
        for name, module in model.module.named_modules()
    ]  # fmt: skip
    tensors = [
        (name, str(t.dtype), tuple(t.shape), t.requires_grad)
        for name, t in (*model.module.named_parameters(), *model.module.named_buffers())
    ]
    named = {id(p): name for name, p in model.module.named_parameters()}
    groups = [[named[id(p)] for p in group["params"]] for group in model.optimizer.param_groups]
    scheduler = model.lr_scheduler
    rest = [model.loss, dict(model.metrics), model.scheduler_step, model.clip_norm, model.clip_value]
    lambdas = [getattr(scheduler, "lr_lambdas", None), getattr(scheduler, "_scale_fn_custom", None)]
    return signature(
        modules, tensors, groups, type(model.optimizer), type(scheduler), lambdas, rest, special=_describe_tensors
    )


def _describe_tensors(value: Any) -> Any:
    if isinstance(value, torch.nn.Module):
        return ("module", model_part(value))
    if isinstance(value, torch.Tensor):
        return ("tensor", str(value.dtype), tuple(value.shape), value.detach().cpu().reshape(-1).tolist())
    if isinstance(value, torch.dtype | torch.device):
        return repr(value)
    return None


def model_part(module: torch.nn.Module) -> Any:
    """A module inside a loss or a metric: described by class, plain attributes and the values of its tensors."""
    plain = {k: v for k, v in vars(module).items() if k not in _MODULE_INTERNALS}
    tensors = {**dict(module.named_parameters()), **dict(module.named_buffers())}
    children = [model_part(child) for child in module.children()]
    return class_token(type(module)), signature(plain, tensors, special=_describe_tensors), children


def label_fitter(loss: Any) -> Callable[[Any, Any], Any]:
    """How a stored label becomes what `loss` wants: PyTorch's own losses are known, any other gets it untouched."""
    if isinstance(loss, _CLASS_NUMBER_LOSSES):
        return lambda output, label: label.to(output.dtype) if label.ndim == output.ndim else label.long()
    if isinstance(loss, torch_losses._Loss):
        return _like_output
    return lambda _, label: label


def _like_output(output: Any, label: Any) -> Any:
    if not isinstance(output, torch.Tensor) or not isinstance(label, torch.Tensor):
        return label
    label = label if label.is_floating_point() else label.to(output.dtype)
    return label.unsqueeze(-1) if output.shape == (*label.shape, 1) else label


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
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="The given NumPy array is not writable")
        return torch.from_numpy(array)


def _set_number(group: dict[str, Any], key: str, value: Any) -> None:
    if isinstance(group.get(key), torch.Tensor):
        group[key].fill_(value) if not isinstance(value, torch.Tensor) else group[key].copy_(value)
    else:
        group[key] = value


def _without_params(group: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in group.items() if key != "params"}


def _with_groups(optimizer: Any) -> list[tuple[torch.Tensor, dict[str, Any]]]:
    return [(parameter, group) for group in optimizer.param_groups for parameter in group["params"]]
