"""Reads and sets the states of PyTorch metric objects. It never updates or computes one."""

from __future__ import annotations

from collections import Counter, OrderedDict, defaultdict, deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from cerebro_spark.errors import ConfigurationError
from cerebro_spark.trainer.torch.model_checks import is_metric_object

States = dict[str, Any]

# Without a '$' in front: event logs use such names themselves.
_TENSOR, _ARRAY, _TUPLE, _ITEMS, _KIND = "tensor", "array", "tuple", "items", "kind"
_FACTORIES: dict[str, Any] = {"": None, **{kind.__name__: kind for kind in (int, float, list, dict, set)}}
# What torchmetrics counts in a metric; `_mark_updated` sets it.
_BOOKKEEPING = frozenset({"_update_count", "_computed", "_forward_cache", "_cache", "_dtype_convert", "training"})
_PLAIN_MODULE = frozenset(vars(torch.nn.Module()))


def move_part(part: Any, device: torch.device) -> None:
    """Move the tensors of a module or metric object to a device; a function has none."""
    if isinstance(part, torch.nn.Module):
        part.to(device)
    elif is_metric_object(part):
        for name, value in vars(part).items():
            if isinstance(value, torch.Tensor) and value.device != device:
                setattr(part, name, value.to(device))
        for _, held in list_held(part):
            held.to(device)


def adds_up(metric: Any) -> bool:
    """Whether the states of parts add up to the state of the whole: torchmetrics' `dist_reduce_fx="sum"`."""
    reductions = [fn for _, part in _parts(metric) for fn in getattr(part, "_reductions", {"": None}).values()]
    by_sum = all(getattr(fn, "__name__", "") in ("dim_zero_sum", "sum") for fn in reductions)
    by_sum = by_sum and all(isinstance(value, torch.Tensor) for value in _states(metric).values())
    return bool(reductions) and by_sum and all(_starts_from_zeros(part) for _, part in _parts(metric))


def _starts_from_zeros(metric: Any) -> bool:
    """Whether the states of a torchmetrics object have the shapes that they began with, and began as zeros.

    Others are no sums of what parts have: each part has the beginning in it once more, or a shape that nobody knows.
    """
    defaults = {name: torch.as_tensor(value) for name, value in getattr(metric, "_defaults", {}).items()}
    return all(
        getattr(metric, name).shape == default.shape and not bool(default.any()) for name, default in defaults.items()
    )


def get_added_state(metric: Any) -> tuple[float, ...]:
    """Return a state that adds up, as numbers."""
    return tuple(float(x) for value in _states(metric).values() for x in value.double().reshape(-1).tolist())


def set_added_state(metric: Any, state: tuple[float, ...]) -> None:
    """Put a metric object into a state that `get_added_state` returned, or into a sum of such states."""
    metric.reset()
    rest = torch.tensor(state, dtype=torch.float64, device="cpu")
    for name, value in _states(metric).items():
        part, rest = rest[: value.numel()], rest[value.numel() :]
        _assign(metric, name, part.reshape(value.shape).to(value))
    _mark_updated(metric)


def get_state(name: str, metric: Any) -> Any:
    """Return the state of a metric object of this name as JSON."""
    return {key: _encode(f"metric {name!r} keeps `{key}`", value) for key, value in _states(metric).items()}


def set_state(metric: Any, state: Any, device: torch.device) -> None:
    """Put a metric object into a state that `get_state` returned."""
    for name, value in state.items():
        _assign(metric, name, _decode(value, device))
    _mark_updated(metric)


def get_hidden_state(metric: Any) -> dict[str, Any]:
    """Return what a torchmetrics object has besides its states. If an update changes it, it would not hop.

    Other objects have no such state: all their attributes are their state.
    """
    found: dict[str, Any] = {}
    for path, part in _parts(metric):
        if hasattr(part, "_defaults"):
            names = vars(part).keys() - _PLAIN_MODULE - _BOOKKEEPING - set(part._defaults)
            found.update({_joined(path, name): _summarize(vars(part)[name]) for name in sorted(names)})
    return found


def check_hidden(name: str, before: Mapping[str, Any], metric: Any) -> None:
    """Refuse a metric if an update has changed more than its states; an empty `before` is not compared."""
    if not before:
        return
    changed = [key for key, value in get_hidden_state(metric).items() if key in before and before[key] != value]
    if changed:
        raise ConfigurationError(
            f"metric {name!r} ({type(metric).__name__}) changed {changed[0]!r} in `update`, which is none of its states"
            " and would not go from partition to partition: register it with `add_state`, and keep metrics that it is"
            " made of as attributes or in a torch.nn.ModuleList"
        )


def copy_states(metric: Any) -> States:
    """Return a copy of the states of a torchmetrics object, without those of metrics that it is made of."""
    own = _own_states(metric)
    return {name: list(value) if isinstance(value, list) else value.clone() for name, value in own.items()}


def exchange_states(metric: Any, states: States) -> States:
    """Give a torchmetrics object other states, and return those that it had."""
    before = _own_states(metric)
    for name, value in states.items():
        setattr(metric, name, value)
    return before


def encode_states(states: States) -> Any:
    """Return the states of an object as JSON."""
    return {name: _encode(f"a metric keeps `{name}`", value) for name, value in states.items()}


def decode_states(encoded: Any, device: torch.device) -> States:
    """Return the states of which `encode_states` made JSON."""
    return {name: _decode(value, device) for name, value in encoded.items()}


def flatten_states(states: States) -> list[float]:
    """Return states that add up as numbers."""
    return [float(x) for value in states.values() for x in value.double().reshape(-1).tolist()]


def unflatten_states(like: States, numbers: Sequence[float]) -> States:
    """Return the states of which `flatten_states` made numbers, in the shapes of others."""
    sizes = [value.numel() for value in like.values()]
    parts = torch.tensor(numbers, dtype=torch.float64, device="cpu").split(sizes)
    return {name: part.reshape(like[name].shape).to(like[name]) for name, part in zip(like, parts, strict=True)}


def _parts(metric: Any) -> Iterator[tuple[str, Any]]:
    """Yield a metric and the metrics that it is made of, with their paths."""
    if isinstance(metric, torch.nn.Module):
        yield from ((path, part) for path, part in metric.named_modules() if not path or is_metric_object(part))
        return
    yield "", metric
    for name, part in list_held(metric):
        yield from ((_joined(name, path) if path else name, inner) for path, inner in _parts(part))


def list_held(metric: Any) -> list[tuple[str, Any]]:
    """Return the metrics of torchmetrics that are attributes of an object which is no module, by name."""
    if isinstance(metric, torch.nn.Module):
        return []
    held = getattr(metric, "__dict__", {}).items()
    return [(name, part) for name, part in held if isinstance(part, torch.nn.Module) and is_metric_object(part)]


def _states(metric: Any) -> dict[str, Any]:
    return {_joined(path, name): value for path, part in _parts(metric) for name, value in _own_states(part).items()}


def _own_states(metric: Any) -> dict[str, Any]:
    names = getattr(metric, "_defaults", None)
    if isinstance(names, Mapping):
        return {name: getattr(metric, name) for name in names}
    if isinstance(metric, torch.nn.Module):
        plain = {name: value for name, value in vars(metric).items() if name not in _PLAIN_MODULE}
        return {**plain, **dict(metric.named_buffers(recurse=False))}
    held = dict(list_held(metric))
    return {name: value for name, value in vars(metric).items() if name not in held}


def _joined(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _assign(metric: Any, key: str, value: Any) -> None:
    path, _, name = key.rpartition(".")
    setattr(get_part(metric, path), name, value)


def get_part(metric: Any, path: str) -> Any:
    """Return the metric at a path inside another; the other itself at an empty one."""
    if not path or isinstance(metric, torch.nn.Module):
        return metric.get_submodule(path) if path else metric
    name, _, rest = path.partition(".")
    return get_part(getattr(metric, name), rest)


def _mark_updated(metric: Any) -> None:
    # torchmetrics warns of a `compute` without an `update`, and keeps the last computed value.
    for _, part in _parts(metric):
        if hasattr(part, "_update_count"):
            part._update_count = max(1, part._update_count)
            part._computed = None


def _summarize(value: Any) -> Any:
    """Return something that is equal for equal values, as far as that can be compared cheaply."""
    if isinstance(value, torch.nn.Module):
        return _summarize(_states(value))
    if isinstance(value, torch.Tensor):
        return (tuple(value.shape), float(value.double().sum())) if not value.is_complex() else tuple(value.shape)
    if isinstance(value, list | tuple):
        return [_summarize(item) for item in value]
    if isinstance(value, dict):
        return {key: _summarize(item) for key, item in value.items()}
    return value if value is None or isinstance(value, bool | int | float | str) else type(value)


def _encode(what: str, value: Any) -> Any:
    if isinstance(value, torch.Tensor):
        dtype = str(value.dtype).removeprefix("torch.")
        return {_TENSOR: value.detach().cpu().reshape(-1).tolist(), "dtype": dtype, "shape": list(value.shape)}
    if isinstance(value, np.ndarray | np.generic) and value.dtype.kind in "fiub":
        numbers = {_ARRAY: value.reshape(-1).tolist(), "dtype": str(value.dtype), "shape": list(value.shape)}
        return numbers if isinstance(value, np.ndarray) else {**numbers, _KIND: "number"}
    if value is None or type(value) in (bool, int, float, str):
        return value
    if type(value) is list:
        return [_encode(what, item) for item in value]
    if type(value) is tuple:
        return {_TUPLE: [_encode(what, item) for item in value]}
    if type(value) in (dict, OrderedDict, Counter):
        items = [[_encode(what, key), _encode(what, item)] for key, item in value.items()]
        return {_ITEMS: items} if type(value) is dict else {_ITEMS: items, _KIND: type(value).__name__}
    if type(value) is defaultdict and value.default_factory in _FACTORIES.values():
        items = [[_encode(what, key), _encode(what, item)] for key, item in value.items()]
        return {_ITEMS: items, _KIND: "defaultdict", "of": getattr(value.default_factory, "__name__", "")}
    if type(value) is deque:
        return {_TUPLE: [_encode(what, item) for item in value], _KIND: "deque", "most": value.maxlen}
    if type(value) is set:
        return {_TUPLE: [_encode(what, item) for item in sorted(value, key=repr)], _KIND: "set"}
    raise ConfigurationError(
        f"{what} as a {type(value).__name__}, which cannot go from partition to partition: keep it as a tensor, an"
        " array of numbers, a number, or a list, tuple or dict of them"
    )


def _decode(value: Any, device: torch.device) -> Any:
    if isinstance(value, list):
        return [_decode(item, device) for item in value]
    if not isinstance(value, dict):
        return value
    if _TUPLE in value:
        items = tuple(_decode(item, device) for item in value[_TUPLE])
        kind = value.get(_KIND)
        return items if kind is None else set(items) if kind == "set" else deque(items, value["most"])
    if _ITEMS in value:
        return _make_dict(value, {_decode(key, device): _decode(item, device) for key, item in value[_ITEMS]})
    if _ARRAY in value:
        array = np.array(value[_ARRAY], dtype=value["dtype"]).reshape(value["shape"])
        return array[()] if _KIND in value else array
    dtype = getattr(torch, value["dtype"])
    return torch.tensor(value[_TENSOR], dtype=dtype, device=device).reshape(value["shape"])


def _make_dict(encoded: Mapping[str, Any], items: dict[Any, Any]) -> dict[Any, Any]:
    """Return items in the kind of dict that they were in."""
    kind = encoded.get(_KIND)
    if kind == "defaultdict":
        return defaultdict(_FACTORIES[encoded["of"]], items)
    return items if kind is None else OrderedDict(items) if kind == "OrderedDict" else Counter(items)
