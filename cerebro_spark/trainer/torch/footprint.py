"""What of a PyTorch model hops with no checkpoint. What `TorchResident.state` has it leaves out, and nothing else."""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from operator import is_, itemgetter
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler

from cerebro_spark.trainer.sharing.footprint import Footprint, Guard, Look, Seen, array_fact, leaf, same_items
from cerebro_spark.trainer.sharing.users_code import is_users
from cerebro_spark.trainer.torch.model import TorchModel
from cerebro_spark.trainer.torch.resident import class_name, is_own_loss, schedulers
from cerebro_spark.trainer.torch.returns import is_metric_object

_LARGE = 1 << 16
_FIELDS = ("module", "loss", "metrics", "optimizer", "lr_scheduler", "scheduler_step", "clip_norm", "clip_value")
_HOOKS = tuple(name for name in vars(torch.nn.Module()) if "hook" in name and name != "_is_full_backward_hook")
_HELD = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")
# Every unit sets the mode; the others only say how a call is carried out, or that a warning was given.
_ASIDE = {*_HELD, *_HOOKS, "training", "_is_full_backward_hook", "_compiled_call_impl", "warnings_issued"}
# That `transformers` has hung its hooks in, which only hand on outputs to a call that asks for them.
_ASIDE |= {"_output_capturing_hooks_installed"}
_CAPTURING = "transformers.utils.output_capturing"
_OPTIMIZER_ASIDE = {"state", "param_groups", "step", "_opt_called", "_warned_capturable_if_run_uncaptured"}
_OPTIMIZER_ASIDE |= {"_need_device_dtype_check_for_fused"}
_SCHEDULER_ASIDE = {"optimizer", "_step_count", "_last_lr", "_get_lr_called_within_step", "_is_initial", "verbose"}
_VALUES = (torch.dtype, torch.device, torch.Size, torch.memory_format, torch.layout)


def torch_footprint(model: TorchModel) -> Footprint:
    """The footprint of everything that `model_fn` returned."""
    known = _Known(model)
    return Footprint(lambda: {name: getattr(model, name) for name in _FIELDS}, lambda: TorchLook(known), known.tidy)


class _Known:
    """The parts of a model that hop, as it is built; kept, so that no other object gets their ids."""

    def __init__(self, model: TorchModel | None = None) -> None:
        self.model = model
        self.parameters: dict[str, torch.Tensor] = {}
        self.hopping: list[torch.nn.Module] = []
        self.schedulers: list[Any] = []
        self.metrics: list[Any] = []
        if model is not None:
            self.parameters = dict(model.module.named_parameters())
            loss: Any = model.loss
            self.hopping = [*model.module.modules(), *(loss.modules() if is_own_loss(loss) else ())]
            self.schedulers = schedulers(model.lr_scheduler)
            self.metrics = [metric for metric in model.metrics.values() if is_metric_object(metric)]
        self.module = getattr(model, "module", None)
        self.optimizer = getattr(model, "optimizer", None)
        self._caches = [place for thing in (*self.hopping, self.optimizer) for place in _caches(thing)]

    def tidy(self) -> None:
        """Begin with empty caches, as when built, and with metrics that have seen nothing, as every unit does."""
        for own, name, empty in self._caches:
            if empty is not None:
                empty.clear()
            own[name] = empty
        for metric in self.metrics:
            if is_users(type(metric).__module__):
                metric.reset()

    def buffers(self) -> list[tuple[str, torch.Tensor]]:
        """Those that there are now: one may be replaced by another under its name."""
        return [(name, buffer) for part in self.hopping for name, buffer in part.named_buffers(recurse=False)]

    def fields_guard(self) -> Guard:
        then = [getattr(self.model, name) for name in _FIELDS]
        return lambda: all(getattr(self.model, name) is was for name, was in zip(_FIELDS, then, strict=True))

    def tensors_guard(self) -> Guard:
        """Whether parameters have the shapes, hooks and attributes that they had."""
        then = [_tensor_form(p) for p in self.parameters.values()]
        return lambda: all(_tensor_form(p) == was for p, was in zip(self.parameters.values(), then, strict=True))


class TorchLook(Look):
    """One look at a model: modules, optimizers, schedules and tensors, by whether they hop."""

    def __init__(self, known: _Known | None = None) -> None:
        known = known or _Known(None)
        self._known = known
        self._parameters = {id(p): name for name, p in known.parameters.items()}
        self._hopping = {id(part) for part in known.hopping}
        self._schedules = {id(part) for part in known.schedulers}
        self._metrics = {id(metric) for metric in known.metrics}
        self._buffers = {id(buffer): name for name, buffer in known.buffers()}

    def __call__(self, value: Any) -> Seen | None:
        if isinstance(value, torch.Tensor):
            return self._tensor(value)
        if id(value) in self._metrics:
            return self._metric(value)
        if isinstance(value, torch.nn.Module):
            return self._module(value)
        if isinstance(value, torch.optim.Optimizer):
            return self._optimizer(value)
        if id(value) in self._schedules:
            return _schedule(value)
        if isinstance(value, LRScheduler):
            return Seen(f"a {type(value).__name__}", _attributes(vars(value)), [same_items(vars(value))])
        if isinstance(value, torch.Generator):
            return leaf(lambda: f"a generator in state {array_fact(value.get_state().numpy())[-8:]}")
        return Seen(repr(value)) if isinstance(value, _VALUES) else None

    def _tensor(self, tensor: torch.Tensor) -> Seen:
        name = self._parameters.get(id(tensor))
        if name is not None:
            return Seen(f"parameter {name} {_spec(tensor)}", _tensor_parts(tensor))
        if id(tensor) in self._buffers:
            return Seen(f"buffer {self._buffers[id(tensor)]}")
        if tensor.device.type == "meta":
            return Seen(f"tensor {_spec(tensor)}")
        if tensor.nbytes > _LARGE and not tensor.is_inference():
            # Too large to be read after every unit: whoever writes to it counts its version up.
            then = (tensor.data_ptr(), tensor._version)
            return Seen(tensor_fact(tensor), (), [lambda: (tensor.data_ptr(), tensor._version) == then])
        return leaf(lambda: tensor_fact(tensor))

    def _metric(self, metric: Any) -> Seen | None:
        """Its state is begun anew by every unit; whatever outlives `reset` counts."""
        if not is_users(type(metric).__module__):
            return Seen(f"a {type(metric).__name__}")
        return self._module(metric) if isinstance(metric, torch.nn.Module) else None

    def _module(self, module: torch.nn.Module) -> Seen:
        own = vars(module)
        hops = id(module) in self._hopping
        plain = {name: value for name, value in own.items() if name not in _ASIDE and not _is_derived(name, module)}
        if _keeps_extra_state(module) and hops:
            plain = {}
        inside = [*_attributes(plain), *_attributes(module._parameters), *_hooks(own)]
        for name, buffer in module._buffers.items():
            inside.append((f".{name}", f"buffer {_spec(buffer)}" if hops and buffer is not None else buffer))
        inside.extend(_attributes(module._modules))
        inside.append((".__class__", type(module)))
        guards = [_same_module(module, list(plain), hops)]
        if module is self._known.module:
            guards += [self._known.fields_guard(), self._known.tensors_guard()]
        return Seen(f"a {type(module).__name__}", inside, guards, type(module).__name__)

    def _optimizer(self, optimizer: Any) -> Seen:
        hops = optimizer is self._known.optimizer
        own = {k: v for k, v in vars(optimizer).items() if k not in _OPTIMIZER_ASIDE and "hook" not in k}
        if type(optimizer).__module__.startswith("torch.optim."):
            own.pop("defaults", None)
        inside = [*_attributes(own), *_hooks(vars(optimizer)), (".__class__", type(optimizer))]
        inside.append((".param_groups", [_group(group, hops) for group in optimizer.param_groups]))
        if hops:
            extra = {key: value for key, value in optimizer.state.items() if not isinstance(key, torch.Tensor)}
            inside.append((".state", extra))
        else:
            inside.append((".state", list(optimizer.state.values())))
        guards = [_same_names(optimizer, _OPTIMIZER_ASIDE), _same_groups(optimizer)]
        guards.append(lambda: hops and all(isinstance(key, torch.Tensor) for key in optimizer.state))
        return Seen(f"a {type(optimizer).__name__}", inside, guards, type(optimizer).__name__)


def _caches(thing: Any) -> list[tuple[dict[str, Any], str, Any]]:
    """What a library's own class keeps and has not filled yet: tables that follow from shapes or weights.

    It is None under a private name, or an empty dict under one that says what it is.
    """
    if thing is None or is_users(type(thing).__module__):
        return []
    own = vars(thing)
    named = [(name, value) for name, value in own.items() if name not in _ASIDE]
    return [
        (own, n, v) for n, v in named if (v is None and n[0] == "_") or (type(v) is dict and not v and "cache" in n)
    ]


def tensor_fact(tensor: torch.Tensor) -> str:
    """A tensor in words."""
    if tensor.is_sparse or tensor.is_quantized or type(tensor).__name__ == "FakeTensor":
        return f"tensor {_spec(tensor)} version {tensor._version}"
    plain = tensor.detach().cpu()
    if plain.dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2):
        plain = plain.float()
    return array_fact(plain.resolve_conj().resolve_neg().numpy(), "tensor")


def _spec(tensor: Any) -> str:
    return f"of {str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def _tensor_form(tensor: torch.Tensor) -> Any:
    hooks = tensor._backward_hooks, getattr(tensor, "_post_accumulate_grad_hooks", None)
    return tensor.shape, tensor.dtype, *(len(each or ()) for each in hooks), len(tensor.__dict__)


def _tensor_parts(tensor: torch.Tensor) -> Iterator[tuple[str, Any]]:
    # A compiler leaves notes on tensors.
    yield from _attributes({name: value for name, value in vars(tensor).items() if not name.startswith("_dynamo")})
    for name in ("_backward_hooks", "_post_accumulate_grad_hooks"):
        yield from ((f".{name}[{i}]", hook) for i, hook in enumerate((getattr(tensor, name, None) or {}).values()))


def _attributes(own: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(f".{name}", value) for name, value in own.items()]


def _hooks(own: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    """Registered functions in their order: the numbers that they are kept under count on through the process."""
    for name, kept in own.items():
        if "hook" in name and isinstance(kept, Mapping):
            hooks = [hook for hook in kept.values() if getattr(hook, "__module__", None) != _CAPTURING]
            yield from ((f".{name}[{index}]", hook) for index, hook in enumerate(hooks))


def _is_derived(name: str, module: torch.nn.Module) -> bool:
    """Whether an attribute is worked out anew in every call (weight norm, spectral norm, pruning)."""
    return any(f"{name}{ending}" in module._parameters for ending in ("_orig", "_g"))


def _keeps_extra_state(module: torch.nn.Module) -> bool:
    return type(module).get_extra_state is not torch.nn.Module.get_extra_state


def _same_module(module: torch.nn.Module, names: list[str], hops: bool) -> Guard:
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
    forms_then = [_form(b, hops) for b in buffers.values()]

    def same() -> bool:
        if len(own) != size or len(parameters) != len(params_then) or len(modules) != len(modules_then):
            return False
        if len(buffers) != len(forms_then) or not all(map(is_, get(own), then)):
            return False
        if not all(map(is_, parameters.values(), params_then)) or not all(map(is_, modules.values(), modules_then)):
            return False
        if any(hooks(own)) if not hooked else [tuple(kept) for kept in hooks(own)] != hooks_then:
            return False
        return all(_form(b, hops) == form for b, form in zip(buffers.values(), forms_then, strict=True))

    return _never_raising(same)


def _form(buffer: Any, hops: bool) -> Any:
    if buffer is None:
        return None
    return (buffer.shape, buffer.dtype) if hops else id(buffer)


def _never_raising(guard: Guard) -> Guard:
    """What cannot be found any more has changed."""

    def same() -> bool:
        try:
            return guard()
        except (KeyError, AttributeError):
            return False

    return same


def _same_names(thing: Any, aside: Container[str]) -> Guard:
    """Whether a thing has the very same attributes, but for those aside, and as many hooks."""
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


def _group(group: Mapping[str, Any], hops: bool) -> Any:
    """The parameters of a group; its numbers hop with the checkpoint."""
    return {"params": group["params"]} if hops else dict(group)


def _same_groups(optimizer: Any) -> Guard:
    then = [list(group["params"]) for group in optimizer.param_groups]

    def same() -> bool:
        groups = optimizer.param_groups
        return len(groups) == len(then) and all(
            len(group["params"]) == len(was) and all(map(is_, group["params"], was))
            for group, was in zip(groups, then, strict=True)
        )

    return same


def _schedule(scheduler: Any) -> Seen:
    """What a schedule's `state_dict` does not bring, and the functions inside those that it does."""
    fact = f"a {class_name(scheduler)}"
    if not isinstance(scheduler, LRScheduler):
        return Seen(fact)
    restored = set(scheduler.state_dict())
    own = vars(scheduler)
    kept = {n: v for n, v in own.items() if n not in restored and n not in _SCHEDULER_ASIDE and n != "_schedulers"}
    # Of objects that are called for a rate, the state has the attributes.
    functions = [each for each in getattr(scheduler, "lr_lambdas", []) if hasattr(each, "__code__")]
    inside = [*_attributes(kept), (".lr_lambdas", functions), (".__class__", type(scheduler))]
    inside += [(f"._schedulers[{index}]", part) for index, part in enumerate(getattr(scheduler, "_schedulers", []))]
    guard = _same_names(scheduler, restored | _SCHEDULER_ASIDE)
    return Seen(fact, inside, [guard], type(scheduler).__name__)
