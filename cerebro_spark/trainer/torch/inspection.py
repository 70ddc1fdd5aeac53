"""Inspects PyTorch objects for snapshots. What `BuiltTorchModel.state` has it leaves out, and nothing else."""

from __future__ import annotations

import hashlib
import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import chain
from operator import is_, itemgetter
from typing import Any

import torch
from torch.amp.grad_scaler import GradScaler
from torch.distributions.utils import lazy_property
from torch.nn.utils.prune import BasePruningMethod
from torch.nn.utils.spectral_norm import SpectralNorm
from torch.nn.utils.weight_norm import WeightNorm
from torch.optim.lr_scheduler import LRScheduler
from torch.utils.data.dataloader import _BaseDataLoaderIter

from cerebro_spark.trainer.sharing.inspection import (
    Guard,
    Inspection,
    Inspector,
    describe_array,
    guard_items,
    guard_objects,
    inspect_leaf,
)
from cerebro_spark.trainer.sharing.snapshot import ObjectSnapshot
from cerebro_spark.trainer.sharing.user_code import is_users
from cerebro_spark.trainer.torch.built_model import class_name, is_own_loss, keeps_extra_state, schedulers
from cerebro_spark.trainer.torch.carried_state import CarriedState
from cerebro_spark.trainer.torch.model import TorchModel
from cerebro_spark.trainer.torch.model_checks import is_metric_object
from cerebro_spark.trainer.torch.signature import hook_parts, optimizer_attributes, tensor_hooks

_SUMMED_BYTES = 1 << 16
_CHUNK = 1 << 22
_FIELDS = ("module", "loss", "metrics", "optimizer", "lr_scheduler", "scheduler_step", "clip_norm", "clip_value")
_HOOKS = tuple(name for name in vars(torch.nn.Module()) if "hook" in name and name != "_is_full_backward_hook")
_HELD = ("_parameters", "_buffers", "_modules", "_non_persistent_buffers_set")
# Every unit sets the mode. The others only say how a call is carried out, or that a warning was given.
_ASIDE = {*_HELD, *_HOOKS, "training", "_is_full_backward_hook", "_compiled_call_impl", "warnings_issued"}
# Set once `transformers` has registered its hooks, which only pass outputs on to a call that asks for them.
_ASIDE |= {"_output_capturing_hooks_installed"}
_SCHEDULER_ASIDE = {"optimizer", "_step_count", "_last_lr", "_get_lr_called_within_step", "_is_initial", "verbose"}
_SCHEDULER_ASIDE |= {"_schedulers"}
_DERIVING = (WeightNorm, SpectralNorm, BasePruningMethod)
_VALUES = (torch.dtype, torch.device, torch.Size, torch.memory_format, torch.layout)


def take_torch_snapshot(model: TorchModel) -> ObjectSnapshot:
    """Take a snapshot of everything that `model_fn` returned."""
    inspector = TorchInspector(model)
    return ObjectSnapshot(inspector.get_fields, inspector.find_buffers, inspector.normalize)


def take_passing_snapshot(model: TorchModel) -> ObjectSnapshot:
    """Take a snapshot in the middle of a unit: nothing is emptied or reset for it."""
    inspector = TorchInspector(model)
    return ObjectSnapshot(inspector.get_fields, inspector.find_buffers)


class TorchInspector(Inspector):
    """Inspects modules, optimizers, schedules and tensors, by whether a checkpoint of the model saves them.

    The parts of the model are those as built. They are kept, so that no other object gets their ids.
    """

    def __init__(self, model: TorchModel | None = None) -> None:
        self._model = model
        self._parameters: dict[torch.Tensor, str] = {}
        self._buffers: dict[int, str] = {}
        self._modules: dict[int, torch.nn.Module] = {}
        self._schedules: dict[int, Any] = {}
        self._metrics: dict[int, Any] = {}
        self._extra: dict[int, torch.nn.Module] = {}
        self._carried: dict[int, CarriedState] = {}
        if model is not None:
            loss: Any = model.loss
            modules = [*model.module.modules(), *(loss.modules() if is_own_loss(loss) else ())]
            self._parameters = {parameter: name for name, parameter in model.module.named_parameters()}
            self._modules = {id(part): part for part in modules}
            self._extra = {id(part): part for part in model.module.modules() if keeps_extra_state(part)}
            self._schedules = {id(part): part for part in schedulers(model.lr_scheduler)}
            self._metrics = {id(metric): metric for metric in model.metrics.values() if is_metric_object(metric)}
        self._module, self._optimizer = getattr(model, "module", None), getattr(model, "optimizer", None)
        self._caches = [place for part in (*self._modules.values(), self._optimizer) for place in _caches(part)]

    def get_fields(self) -> dict[str, Any]:
        """Return the present parts of the model."""
        return {name: getattr(self._model, name) for name in _FIELDS}

    def find_buffers(self) -> TorchInspector:
        """Note the present buffers, and return itself: a buffer may be replaced by another of its name."""
        buffers = [item for part in self._modules.values() for item in part.named_buffers(recurse=False)]
        self._buffers = {id(buffer): name for name, buffer in buffers}
        return self

    def normalize(self) -> None:
        """Empty all caches, as when built, and reset all metrics, as every unit does."""
        for own, name, empty in self._caches:
            if empty is not None:
                empty.clear()
            own[name] = empty
        for metric in self._metrics.values():
            if is_users(type(metric).__module__):
                metric.reset()

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
            return self._inspect_schedule(value)
        if isinstance(value, LRScheduler):
            return Inspection(f"a {type(value).__name__}", _attributes(vars(value)), [guard_items(vars(value))])
        if isinstance(value, GradScaler):
            return _inspect_scaler(value)
        if isinstance(value, torch.Generator):
            return inspect_leaf(lambda: f"a generator in state {describe_array(value.get_state().numpy())[-8:]}")
        if isinstance(value, _BaseDataLoaderIter):
            return inspect_leaf(lambda: f"an iterator that has given {value._num_yielded} batches")
        if isinstance(value, torch.quasirandom.SobolEngine):
            return inspect_leaf(lambda: f"a generator that has drawn {value.num_generated} points")
        if isinstance(value, torch.distributions.Distribution):
            return _inspect_distribution(value)
        return Inspection(repr(value)) if isinstance(value, _VALUES) else None

    def _inspect_tensor(self, tensor: torch.Tensor) -> Inspection:
        if tensor in self._parameters:
            return Inspection(f"parameter {self._parameters[tensor]} {_spec(tensor)}", _tensor_parts(tensor))
        if id(tensor) in self._buffers:
            return Inspection(f"buffer {self._buffers[id(tensor)]}")
        if tensor.device.type == "meta":
            return Inspection(f"tensor {_spec(tensor)}")
        return inspect_leaf(lambda: describe_tensor(tensor))

    def _inspect_metric(self, metric: Any) -> Inspection | None:
        """Every unit resets the state of a metric; what `reset` does not reach counts."""
        if not is_users(type(metric).__module__):
            return Inspection(f"a {type(metric).__name__}")
        return self._inspect_module(metric) if isinstance(metric, torch.nn.Module) else None

    def _inspect_module(self, module: torch.nn.Module) -> Inspection:
        own, saved = vars(module), id(module) in self._modules
        plain = {name: value for name, value in own.items() if name not in _ASIDE and not _is_derived(name, module)}
        carried: set[str] = set()
        if id(module) in self._extra and is_users(type(module).__module__):
            carried = self._find_carried(module, module.get_extra_state, module.set_extra_state, plain)
        elif id(module) in self._extra:
            plain = {}
        buffers = {name: f"buffer {_spec(b)}" if saved and b is not None else b for name, b in module._buffers.items()}
        parts = [*_attributes(plain), *_attributes(module._parameters), *hook_parts(own)]
        parts += [*_attributes(buffers), *_attributes(module._modules), (".__class__", type(module))]
        guards = [_guard_module(module, list(plain), saved)]
        if isinstance(module, torch.jit.ScriptModule):
            scripted = _read_scripted(module)
            parts += _attributes(scripted)
            guards.append(lambda: _read_scripted(module) == scripted)
        if module is self._module:
            guards += [_guard_parts(lambda: list(self.get_fields().items())), self._guard_parameters()]
        return Inspection(f"a {type(module).__name__}", parts, guards, type(module).__name__, _in_parts(carried))

    def _find_carried(self, thing: Any, save: Callable[[], Any], load: Callable[[Any], Any], names: Any) -> set[str]:
        """Return the attributes that have changed since the object was first seen, and that hop with its own state."""
        if id(thing) not in self._carried:
            held = [vars(thing)[name] for name in _HELD if isinstance(vars(thing).get(name), dict)]
            groups = self._optimizer.param_groups if self._optimizer is not None else []
            self._carried[id(thing)] = CarriedState(vars(thing), save, load, [*held, *groups])
        return self._carried[id(thing)].find(names)

    def _inspect_schedule(self, scheduler: Any) -> Inspection:
        """Inspect what a schedule's `state_dict` does not have. That of a library's own kind is trusted."""
        if isinstance(scheduler, LRScheduler):
            return _inspect_torch_schedule(scheduler)
        fact, kind = f"a {class_name(scheduler)}", type(scheduler)
        if not is_users(kind.__module__) or not hasattr(scheduler, "__dict__"):
            return Inspection(fact)
        own = {name: value for name, value in vars(scheduler).items() if name != "optimizer"}
        carried = self._find_carried(scheduler, scheduler.state_dict, scheduler.load_state_dict, own)
        parts = [*_attributes(own), (".__class__", kind)]
        return Inspection(fact, parts, [guard_items(vars(scheduler))], kind.__name__, _in_parts(carried))

    def _guard_parameters(self) -> Guard:
        """Return a guard of the parameters: they have the same shapes, and as many hooks and attributes."""
        then = [_tensor_form(parameter) for parameter in self._parameters]
        return lambda: [_tensor_form(parameter) for parameter in self._parameters] == then

    def _inspect_optimizer(self, optimizer: Any) -> Inspection:
        saved, state = optimizer is self._optimizer, optimizer.state
        # The numbers of the groups are in the checkpoint, and so is the state of each parameter.
        groups = [{"params": group["params"]} if saved else dict(group) for group in optimizer.param_groups]
        kept = {key: value for key, value in state.items() if not isinstance(key, torch.Tensor)}

        def list_own() -> list[tuple[str, Any]]:
            return [*_attributes(optimizer_attributes(optimizer)), *hook_parts(vars(optimizer))]

        def list_grouped() -> list[tuple[int, Any]]:
            return [item for group in optimizer.param_groups for item in enumerate((group, *group["params"]))]

        parts = [*list_own(), (".__class__", type(optimizer)), (".param_groups", groups)]
        parts.append((".state", kept if saved else list(state.values())))
        guards = [_guard_parts(list_own), _guard_parts(list_grouped)]
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
    if tensor.is_cuda and tensor.nbytes > _SUMMED_BYTES:
        return f"tensor {_spec(tensor)} with digest {_digest_on_device(tensor)}"
    plain = tensor.detach().cpu()
    if plain.dtype in (torch.bfloat16, torch.float8_e4m3fn, torch.float8_e5m2):
        plain = plain.float()
    return describe_array(plain.resolve_conj().resolve_neg().numpy(), "tensor")


def _digest_on_device(tensor: torch.Tensor) -> str:
    """Return a digest of a large tensor, computed where it is: its bytes times numbers that go by their place."""
    numbers = tensor.detach().resolve_conj().resolve_neg().contiguous().reshape(-1).view(torch.uint8)
    places = torch.arange(1, 2 * _CHUNK, 2, device=tensor.device)  # odd, so that no bit of a product is lost
    sums = [(chunk * places[: len(chunk)]).sum() for chunk in numbers.split(_CHUNK)]
    return hashlib.sha256(torch.stack(sums).cpu().numpy().tobytes()).hexdigest()[:8]


def _spec(tensor: Any) -> str:
    return f"of {str(tensor.dtype).removeprefix('torch.')} {list(tensor.shape)}"


def _tensor_form(tensor: torch.Tensor) -> Any:
    hooks = tensor._backward_hooks, getattr(tensor, "_post_accumulate_grad_hooks", None)
    return tensor.shape, tensor.dtype, *(len(each or ()) for each in hooks), len(tensor.__dict__)


def _tensor_parts(tensor: torch.Tensor) -> Iterator[tuple[str, Any]]:
    # PyTorch's compiler leaves notes on tensors.
    yield from _attributes({name: value for name, value in vars(tensor).items() if not name.startswith("_dynamo")})
    yield from tensor_hooks(tensor)


def _attributes(own: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(f".{name}", value) for name, value in own.items()]


def _in_parts(names: set[str]) -> frozenset[str]:
    return frozenset(f".{name}" for name in names)


def _is_derived(name: str, module: torch.nn.Module) -> bool:
    """Whether PyTorch computes a tensor anew in every call (weight norm, spectral norm, pruning)."""
    if not isinstance(vars(module).get(name), torch.Tensor):
        return False
    hooks = [hook for hook in module._forward_pre_hooks.values() if isinstance(hook, _DERIVING)]
    return any(name in (getattr(hook, "name", None), getattr(hook, "_tensor_name", None)) for hook in hooks)


def _guard_module(module: torch.nn.Module, names: list[str], saved: bool) -> Guard:
    """Return a guard of a module: it has the very same attributes, parts and hooks, and buffers of the same form.

    It is called for every module after every unit: what is compared is put into one list, and empty dicts are skipped.
    """
    own, size = vars(module), len(vars(module))
    parameters, modules, buffers = module._parameters, module._modules, module._buffers
    get, hooks = itemgetter(*names, "_parameters", "_modules", "_buffers"), itemgetter(*_HOOKS)

    def look() -> tuple[list[Any], list[Any]]:
        forms = [_form(buffer, saved) for buffer in buffers.values()] if buffers else []
        hooked = chain.from_iterable(filter(None, hooks(own)))
        return [*get(own), *parameters.values(), *modules.values(), *hooked], forms

    then, forms_then = look()

    def same() -> bool:
        try:
            now, forms = look()
        except (KeyError, AttributeError):
            return False  # an attribute is gone
        return len(own) == size and len(now) == len(then) and all(map(is_, now, then)) and forms == forms_then

    return same


def _form(buffer: Any, saved: bool) -> Any:
    if buffer is None:
        return None
    return (buffer.shape, buffer.dtype) if saved else id(buffer)


def _guard_parts(list_parts: Callable[[], Sequence[tuple[object, Any]]]) -> Guard:
    """Return a guard of parts: they have the same names, and are the very same objects."""
    then = list_parts()

    def same() -> bool:
        now = list_parts()
        pairs = zip(now, then, strict=False)
        return len(now) == len(then) and all(part is old and name == before for (name, part), (before, old) in pairs)

    return same


def _read_scripted(module: Any) -> dict[str, Any]:
    """Return the attributes that a compiled module keeps for itself: numbers as they are, others described."""
    held = {*module._parameters.keys(), *module._buffers.keys(), *module._modules.keys()}
    names = [name for name in module._concrete_type.get_attributes() if name not in _ASIDE | held]
    return {name: _describe_scripted(getattr(module, name)) for name in names}


def _describe_scripted(value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        return describe_tensor(value)
    return value if value is None or isinstance(value, bool | int | float | str) else repr(value)


def _inspect_distribution(distribution: torch.distributions.Distribution) -> Inspection:
    """Inspect the parameters of a distribution, without what it computes from them when it is first asked for."""
    kind = type(distribution)

    def read() -> dict[str, Any]:
        own = vars(distribution).items()
        return {n: value for n, value in own if not isinstance(inspect.getattr_static(kind, n, None), lazy_property)}

    guard = guard_objects(lambda: list(read().values()))
    return Inspection(f"a {kind.__name__}", [*_attributes(read()), (".__class__", kind)], [guard], kind.__name__)


def _inspect_scaler(scaler: GradScaler) -> Inspection:
    """Inspect the numbers of a scaler; one that is not enabled has none."""
    then = scaler.state_dict()
    return Inspection("a GradScaler", _attributes(then), [lambda: scaler.state_dict() == then], GradScaler.__name__)


def _inspect_torch_schedule(scheduler: Any) -> Inspection:
    """Inspect what a schedule's `state_dict` does not have, and the functions in what it has."""
    fact = f"a {class_name(scheduler)}"
    aside = _SCHEDULER_ASIDE | scheduler.state_dict().keys()

    def list_parts() -> list[tuple[str, Any]]:
        own = {name: value for name, value in vars(scheduler).items() if name not in aside}
        # Of callable objects, the `state_dict` has the attributes.
        functions = [each for each in getattr(scheduler, "lr_lambdas", []) if hasattr(each, "__code__")]
        parts = [(f".lr_lambdas[{index}]", each) for index, each in enumerate(functions)]
        parts += [(f"._schedulers[{index}]", part) for index, part in enumerate(getattr(scheduler, "_schedulers", []))]
        return [*_attributes(own), *parts, (".__class__", type(scheduler))]

    return Inspection(fact, list_parts(), [_guard_parts(list_parts)], type(scheduler).__name__)
