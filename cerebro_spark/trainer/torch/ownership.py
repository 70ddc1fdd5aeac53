"""Gives a built PyTorch model tensors of its own, whatever `model_fn` made it from. It changes no value."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
import xxhash

from cerebro_spark.trainer.earlier_builds import BuiltArray, EarlierBuilds
from cerebro_spark.trainer.torch.model import TorchModel
from cerebro_spark.trainer.torch.tensors import tensor_bytes

_REMEDY = (
    "Build that part in model_fn, or copy it there: copy.deepcopy(backbone), tensor.clone(). A part that nothing"
    " changes (frozen, and without running statistics) may be shared"
)
# Copies begin at a multiple of it, as new tensors do: views lie in them as they did before.
_ALIGNMENT = 64


def compute_fingerprint(tensor: torch.Tensor) -> str:
    """Return a text that is another one for other values; "" for a tensor that has no plain memory."""
    if not _has_memory(tensor):
        return ""
    # Of a copy: a tensor whose memory was given away as an array can never be resized again.
    return xxhash.xxh3_128(tensor_bytes(tensor.detach().clone())).hexdigest()


_BUILDS = EarlierBuilds(compute_fingerprint, _REMEDY)


def refuse_shared(model: TorchModel) -> None:
    """Raise ConfigurationError if a model shares parameters with an earlier one, or buffers that have changed."""
    _BUILDS.refuse_shared(_list_arrays(model))


def note_built(model: TorchModel) -> None:
    """Remember the tensors of a model that was built, on its device."""
    _BUILDS.note(_list_arrays(model))


def own_tensors(model: TorchModel, device: torch.device) -> None:
    """Give parameters and buffers memory of their own: a model may be made over the memory of a global or an array.

    Tensors of other devices are left out, since moving them copies them, and so are those of earlier models.
    """
    tensors = [each.array for each in _list_arrays(model)]
    give_own_memory(t for t in tensors if t.device.type == device.type and not _BUILDS.has(t))
    for group in model.optimizer.param_groups:
        rates = {key: value for key, value in group.items() if isinstance(value, torch.Tensor)}
        group.update({key: value.detach().clone() for key, value in rates.items()})


@torch.no_grad()
def give_own_memory(tensors: Iterable[torch.Tensor]) -> None:
    """Copy the memory of tensors, in place: they stay the same objects, with their strides and their values.

    Those that share memory with each other still do afterwards. What they have in common with any other does not.

    >>> table = torch.zeros(2, 3)
    >>> layer = torch.nn.Embedding.from_pretrained(table, freeze=False)
    >>> give_own_memory(layer.parameters())
    >>> _ = torch.nn.init.ones_(layer.weight)
    >>> table.sum().item()
    0.0
    """
    groups: dict[tuple[torch.device, int], dict[int, torch.Tensor]] = {}
    for tensor in tensors:
        if _has_memory(tensor) and tensor.numel():
            place = tensor.device, tensor.untyped_storage().data_ptr()
            groups.setdefault(place, {})[id(tensor)] = tensor
    for group in groups.values():
        _copy_together(list(group.values()))


def _copy_together(tensors: list[torch.Tensor]) -> None:
    """Copy the memory that tensors of one storage span, once."""
    begin = min(tensor.storage_offset() * tensor.itemsize for tensor in tensors)
    begin -= begin % _ALIGNMENT
    end = max(map(_find_end, tensors))
    whole = max((tensor.untyped_storage() for tensor in tensors), key=len)
    memory = torch.empty(0, dtype=torch.uint8, device=whole.device).set_(whole, begin, (end - begin,), (1,))
    own = memory.clone().untyped_storage()
    for tensor in tensors:
        offset = tensor.storage_offset() - begin // tensor.itemsize
        empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
        tensor.data = empty.set_(own, offset, tensor.size(), tensor.stride())


def _find_end(tensor: torch.Tensor) -> int:
    """Return where the memory of a tensor ends in its storage, in bytes."""
    last = sum((size - 1) * stride for size, stride in zip(tensor.size(), tensor.stride(), strict=True))
    return int(tensor.storage_offset() + last + 1) * tensor.itemsize


def _has_memory(tensor: torch.Tensor) -> bool:
    """Whether a tensor is nothing but numbers in memory: not sparse, quantized, without data, or of a class that is."""
    if torch.nn.parameter.is_lazy(tensor) or tensor.is_meta or tensor.is_quantized or tensor.is_inference():
        return False
    plain = tensor.layout is torch.strided and not tensor.is_conj() and not tensor.is_neg()
    return plain and type(tensor.data) is torch.Tensor


def _list_arrays(model: TorchModel) -> Iterator[BuiltArray]:
    """Yield the parameters and buffers of the module and of the loss."""
    held = {id(p) for group in model.optimizer.param_groups for p in group["params"] if p.requires_grad}
    parts: list[tuple[str, Any]] = [("", model.module), ("loss.", model.loss)]
    for prefix, part in parts:
        if isinstance(part, torch.nn.Module):
            named = [*part.named_parameters(), *part.named_buffers()]
            yield from (BuiltArray(prefix + name, tensor, id(tensor) in held) for name, tensor in named)
