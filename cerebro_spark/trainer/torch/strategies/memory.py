"""How much memory a GPU has left for this process, and how what a failed try left is given up. It decides nothing."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import torch


def free_bytes(device: torch.device) -> int:
    """Return the memory of a GPU that is free, and that this process may have."""
    free, total = torch.cuda.mem_get_info(device)
    fraction = getattr(torch.cuda, "get_per_process_memory_fraction", None)  # older releases cannot tell
    allowed = total if fraction is None else int(total * fraction(device))
    return max(0, min(free, allowed - torch.cuda.memory_reserved(device)))


def used_bytes(device: torch.device) -> int:
    """Return the memory of a device that tensors have; 0 on a CPU."""
    return torch.cuda.memory_allocated(device) if device.type == "cuda" else 0


def collect_memory(device: torch.device) -> None:
    """Give memory back that nothing refers to any more."""
    gc.collect()
    if device.type == "cuda":
        torch.cuda.synchronize(device)
        torch.cuda.empty_cache()


def is_out_of_device_memory(error: BaseException) -> bool:
    """Whether an error says that the memory of a device is used up.

    >>> [is_out_of_device_memory(error) for error in (torch.cuda.OutOfMemoryError("no memory"), MemoryError())]
    [True, False]
    """
    if isinstance(error, torch.cuda.OutOfMemoryError):
        return True
    said = str(error)
    return isinstance(error, RuntimeError) and any(
        each in said for each in ("_ALLOC_FAILED", "CUDA error: out of memory")
    )


def causes_of(error: BaseException) -> Iterator[BaseException]:
    """Yield an error and all that led to it."""
    seen: set[int] = set()
    left: list[BaseException | None] = [error]
    while left:
        each = left.pop()
        if each is not None and id(each) not in seen:
            seen.add(id(each))
            yield each
            left += [each.__context__, each.__cause__]
