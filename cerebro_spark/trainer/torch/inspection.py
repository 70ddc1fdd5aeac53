"""Inspects PyTorch objects for snapshots. What `BuiltTorchModel.state` has it leaves out, and nothing else."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from operator import is_, itemgetter
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from cerebro_spark.trainer.sharing.inspection import (
    Guard,
    Inspection,
    Inspector,
    describe_array,
    guard_items,
    inspect_leaf,
)
from cerebro_spark.trainer.sharing.snapshot import ObjectSnapshot
from cerebro_spark.trainer.sharing.user_code import is_users
from cerebro_spark.trainer.torch.built_model import class_name, is_own_loss, schedulers
from cerebro_spark.trainer.torch.model import TorchModel
from cerebro_spark.trainer.torch.model_checks import is_metric_object

_VERSIONED_BYTES = 1 << 16
_FIELDS = ("module", "loss", "metrics", "optimizer", "lr_scheduler", "scheduler_step", "clip_norm", "clip_value")
_HOOKS = tuple(name for name in vars(torch.nn.Module()) if "hook" in name and name != "_is_full_backward_hook")
_HELD = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")
# Every unit sets the mode. The others only say how a call is carried out, or that a warning was given.
_ASIDE = {*_HELD, *_HOOKS, "training", "_is_full_backward_hook", "_compiled_call_impl", "warnings_issued"}
# Set once `transformers` has registered its hooks, which only pass outputs on to a call that asks for them.
_ASIDE |= {"_output_capturing_hooks_installed"}
_CAPTURING = "transformers.utils.output_capturing"
_OPTIMIZER_ASIDE = {"state", "param_groups", "step", "_opt_called", "_warned_capturable_if_run_uncaptured"}
_OPTIMIZER_ASIDE |= {"_need_device_dtype_check_for_fused"}
_SCHEDULER_ASIDE = {"optimizer", "_step_count", "_last_lr", "_get_lr_called_within_step", "_is_initial", "verbose"}
_VALUES = (torch.dtype, torch.device, torch.Size, torch.memory_format, torch.layout)


def take_torch_snapshot(model: TorchModel) -> ObjectSnapshot:
    """Take a snapshot of everything that `model_fn` returned."""
    saved = _SavedParts(model)
    return ObjectSnapshot(
        lambda: {name: getattr(model, name) for name in _FIELDS}, lambda: TorchInspector(saved), saved.normalize
    )


class _SavedParts:
    """The parts of a model that a checkpoint saves, as built. They are kept, so that no other object gets their ids."""

    def __init__(self, model: TorchModel | None = None) -> None:
        self.model = model
        self.parameters: dict[str, torch.Tensor] = {}
        self.modules: list[torch.nn.Module] = []
        self.schedulers: list[Any] = []
        self.metrics: list[Any] = []
        if model is not None:
            self.parameters = dict(model.module.named_parameters())
            loss: Any = model.loss
            self.modules = [*model.module.modules(), *(loss.modules() if is_own_loss(loss) else ())]
            self.schedulers = schedulers(model.lr_scheduler)
            self.metrics = [metric for metric in model.metrics.values() if is_metric_object(metric)]
        self.module = getattr(model, "module", None)
        self.optimizer = getattr(model, "optimizer", None)
        self._caches = [place for thing in (*self.modules, self.optimizer) for place in _caches(thing)]

    def normalize(self) -> None:
        """Empty all caches, as when built, and reset all metrics, as every unit does."""
        for own, name, empty in self._caches:
            if empty is not None:
                empty.clear()
            own[name] = empty
        for metric in self.metrics:
            if is_users(type(metric).__module__):
                metric.reset()

    def buffers(self) -> list[tuple[str, torch.Tensor]]:
        """Return the present buffers: one may be replaced by another of its name."""
        return [(name, buffer) for part in self.modules for name, buffer in part.named_buffers(recurse=False)]

    def guard_fields(self) -> Guard:
        then = [getattr(self.model, name) for name in _FIELDS]
        return lambda: all(getattr(self.model, name) is was for name, was in zip(_FIELDS, then, strict=True))

    def guard_tensors(self) -> Guard:
        """Return a guard of the parameters: they have the same shapes, and as many hooks and attributes."""
        then = [_tensor_form(p) for p in self.parameters.values()]
        return lambda: all(_tensor_form(p) == was for p, was in zip(self.parameters.values(), then, strict=True))


class TorchInspector(Inspector):
    """Inspects modules, optimizers, schedules and tensors, by whether a checkpoint saves them."""

    def __init__(self, saved: _SavedParts | None = None) -> None:
        saved = saved or _SavedParts()
        self._saved = saved
        self._parameters = {id(p): name for name, p in saved.parameters.items()}
        self._modules = {id(part) for part in saved.modules}
        self._schedules = {id(part) for part in saved.schedulers}
        self._metrics = {id(metric) for metric in saved.metrics}
        self._buffers = {id(buffer): name for name, buffer in saved.buffers()}

    def __call__(self, value: Any) -> Inspection | None:
        if isinstance(value, torch.Tensor):
            return self._inspect_tensor(value)
        if id(value) in self._metrics:
            return self._inspect_metric(value)
        if isinstance(value, torch.nn.Module):
            return self._inspect_module(value)
        if isinstance(value, torch.optim.Optimizer):
            return self._inspect_optimizer(value)
        if id(value) in self._schedules:
            return _inspect_schedule(value)
        if isinstance(value, LRScheduler):
            return Inspection(f"a {type(value).__name__}", _attributes(vars(value)), [guard_items(vars(value))])
        if isinstance(value, torch.Generator):
            return inspect_leaf(lambda: f"a generator in state {describe_array(value.get_state().numpy())[-8:]}")
        return Inspection(repr(value)) if isinstance(value, _VALUES) else None

    def _inspect_tensor(self, tensor: torch.Tensor) -> Inspection:
        name = self._parameters.get(id(tensor))
        if name is not None:
            return Inspection(f"parameter {name} {_spec(tensor)}", _tensor_parts(tensor))
        if id(tensor) in self._buffers:
            return Inspection(f"buffer {self._buffers[id(tensor)]}")
        if tensor.device.type == "meta":
            return Inspection(f"tensor {_spec(tensor)}")
        if tensor.nbytes > _VERSIONED_BYTES and not tensor.is_inference():
            # Too large to be read after every unit. PyTorch counts the writes to a tensor as its version.
            then = (tensor.data_ptr(), tensor._version)
            return Inspection(describe_tensor(tensor), (), [lambda: (tensor.data_ptr(), tensor._version) == then])
        return inspect_leaf(lambda: describe_tensor(tensor))

    def _inspect_metric(self, metric: Any) -> Inspection | None:
        """Every unit resets the state of a metric; what `reset` does not reach counts."""
        if not is_users(type(metric).__module__):
            return Inspection(f"a {type(metric).__name__}")
        return self._inspect_module(metric) if isinstance(metric, torch.nn.Module) else None

    def _inspect_module(self, module: torch.nn.Module) -> Inspection:
        own = vars(module)
        saved = id(module) in self._modules
        plain = {name: value for name, value in own.items() if name not in _ASIDE and not _is_derived(name, module)}
        if _keeps_extra_state(module) and saved:
            plain = {}
        parts = [*_attributes(plain), *_attributes(module._parameters), *_hooks(own)]
        for name, buffer in module._buffers.items():
            parts.append((f".{name}", f"buffer {_spec(buffer)}" if saved and buffer is not None else buffer))
        parts.extend(_attributes(module._modules))
        parts.append((".__class__", type(module)))
        guards = [_guard_module(module, list(plain), saved)]
        if module is self._saved.module:
            guards += [self._saved.guard_fields(), self._saved.guard_tensors()]
        return Inspection(f"a {type(module).__name__}", parts, guards, type(module).__name__)

    def _inspect_optimizer(self, optimizer: Any) -> Inspection:
        saved = optimizer is self._saved.optimizer
        own = {k: v for k, v in vars(optimizer).items() if k not in _OPTIMIZER_ASIDE and "hook" not in k}
        if type(optimizer).__module__.startswith("torch.optim."):
            own.pop("defaults", None)
        parts = [*_attributes(own), *_hooks(vars(optimizer)), (".__class__", type(optimizer))]
        parts.append((".param_groups", [_group(group, saved) for group in optimizer.param_groups]))
        if saved:
            extra = {key: value for key, value in optimizer.state.items() if not isinstance(key, torch.Tensor)}
            parts.append((".state", extra))
        else:
            parts.append((".state", list(optimizer.state.values())))
        guards = [_guard_attributes(optimizer, _OPTIMIZER_ASIDE), _guard_groups(optimizer)]
        guards.append(lambda: saved and all(isinstance(key, torch.Tensor) for key in optimizer.state))
        return Inspection(f"a {type(optimizer).__name__}", parts, guards, type(optimizer).__name__)


def _caches(thing: Any) -> list[tuple[dict[str, Any], str, Any]]:
    """Return the empty caches of an object of a library: tables that follow from shapes or weights.

    A cache is an attribute that is None and has a private name, or an empty dict with "cache" in its name.
    """
    if thing is None or is_users(type(thing).__module__):
        return []
    own = vars(thing)
    named = [(name, value) for name, value in own.items() if name not in _ASIDE]
    return [
        (own, n, v) for n, v in named if (v is None and n[0] == "_") or (type(v) is dict and not v and "cache" in n)
    ]


def describe_tensor(tensor: torch.Tensor) -> str:
    """Describe a tensor: a small one by its values, a large one by a digest."""
    if tensor.is_sparse or tensor.is_quantized or type(tensor).__name__ == "FakeTensor":
        return f"tensor {_spec(tensor)} version {tensor._version}"
    plain = tensor.detach().cpu()
    if plain.dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2):
        plain = plain.float()
    return describe_array(plain.resolve_conj().resolve_neg().numpy(), "tensor")


def _spec(tensor: Any) -> str:
    return f"of {str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def _tensor_form(tensor: torch.Tensor) -> Any:
    hooks = tensor._backward_hooks, getattr(tensor, "_post_accumulate_grad_hooks", None)
    return tensor.shape, tensor.dtype, *(len(each or ()) for each in hooks), len(tensor.__dict__)


def _tensor_parts(tensor: torch.Tensor) -> Iterator[tuple[str, Any]]:
    # PyTorch's compiler leaves notes on tensors.
    yield from _attributes({name: value for name, value in vars(tensor).items() if not name.startswith("_dynamo")})
    for name in ("_backward_hooks", "_post_accumulate_grad_hooks"):
        yield from ((f".{name}[{i}]", hook) for i, hook in enumerate((getattr(tensor, name, None) or {}).values()))


def _attributes(own: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(f".{name}", value) for name, value in own.items()]


def _hooks(own: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Yield registered functions in their order. Their keys are no help: they count on through the process."""
    for name, kept in own.items():
        if "hook" in name and isinstance(kept, Mapping):
            hooks = [hook for hook in kept.values() if getattr(hook, "__module__", None) != _CAPTURING]
            yield from ((f".{name}[{index}]", hook) for index, hook in enumerate(hooks))


def _is_derived(name: str, module: torch.nn.Module) -> bool:
    """Whether an attribute is computed anew in every call (weight norm, spectral norm, pruning)."""
    return any(f"{name}{ending}" in module._parameters for ending in ("_orig", "_g"))


def _keeps_extra_state(module: torch.nn.Module) -> bool:
    return type(module).get_extra_state is not torch.nn.Module.get_extra_state


def _guard_module(module: torch.nn.Module, names: list[str], saved: bool) -> Guard:
    own = vars(module)
    size = len(own)
    names = [*names, "_parameters", "_modules", "_buffers"]
    get = itemgetter(*names)
    then = get(own)
    parameters, modules, buffers = module._parameters, module._modules, module._buffers
    params_then, modules_then = list(parameters.values()), list(modules.values())
    hooks = itemgetter(*_HOOKS)
    hooks_then = [tuple(kept) for kept in hooks(own)]
    hooked = any(hooks_then)
    forms_then = [_form(b, saved) for b in buffers.values()]

    def same() -> bool:
        if len(own) != size or len(parameters) != len(params_then) or len(modules) != len(modules_then):
            return False
        if len(buffers) != len(forms_then) or not all(map(is_, get(own), then)):
            return False
        if not all(map(is_, parameters.values(), params_then)) or not all(map(is_, modules.values(), modules_then)):
            return False
        if any(hooks(own)) if not hooked else [tuple(kept) for kept in hooks(own)] != hooks_then:
            return False
        return all(_form(b, saved) == form for b, form in zip(buffers.values(), forms_then, strict=True))

    return _without_errors(same)


def _form(buffer: Any, saved: bool) -> Any:
    if buffer is None:
        return None
    return (buffer.shape, buffer.dtype) if saved else id(buffer)


def _without_errors(guard: Guard) -> Guard:
    """Return a guard for which an attribute that is gone is a change."""

    def same() -> bool:
        try:
            return guard()
        except (KeyError, AttributeError):
            return False

    return same


def _guard_attributes(thing: Any, aside: Container[str]) -> Guard:
    """Return a guard of an object: it has the very same attributes, except for those aside, and the same hooks."""
    names, values, hooks = _visible(thing, aside)

    def same() -> bool:
        now, now_values, now_hooks = _visible(thing, aside)
        return now == names and all(map(is_, now_values, values)) and now_hooks == hooks

    return same


def _visible(thing: Any, aside: Container[str]) -> tuple[list[str], list[Any], list[Any]]:
    own = [(name, value) for name, value in vars(thing).items() if name not in aside]
    plain = [item for item in own if "hook" not in item[0]]
    hooks = [tuple(value) for name, value in own if "hook" in name and isinstance(value, Mapping)]
    return [name for name, _ in plain], [value for _, value in plain], hooks


def _group(group: Mapping[str, Any], saved: bool) -> Any:
    """The parameters of a group; its numbers are in the checkpoint."""
    return {"params": group["params"]} if saved else dict(group)


def _guard_groups(optimizer: Any) -> Guard:
    then = [list(group["params"]) for group in optimizer.param_groups]

    def same() -> bool:
        groups = optimizer.param_groups
        return len(groups) == len(then) and all(
            len(group["params"]) == len(was) and all(map(is_, group["params"], was))
            for group, was in zip(groups, then, strict=True)
        )

    return same


def _inspect_schedule(scheduler: Any) -> Inspection:
    """Inspect what a schedule's `state_dict` does not have, and the functions in what it has."""
    fact = f"a {class_name(scheduler)}"
    if not isinstance(scheduler, LRScheduler):
        return Inspection(fact)
    restored = set(scheduler.state_dict())
    own = vars(scheduler)
    kept = {n: v for n, v in own.items() if n not in restored and n not in _SCHEDULER_ASIDE and n != "_schedulers"}
    # Of callable objects, the `state_dict` has the attributes.
    functions = [each for each in getattr(scheduler, "lr_lambdas", []) if hasattr(each, "__code__")]
    parts = [*_attributes(kept), (".lr_lambdas", functions), (".__class__", type(scheduler))]
    parts += [(f"._schedulers[{index}]", part) for index, part in enumerate(getattr(scheduler, "_schedulers", []))]
    guard = _guard_attributes(scheduler, restored | _SCHEDULER_ASIDE)
    return Inspection(fact, parts, [guard], type(scheduler).__name__)
