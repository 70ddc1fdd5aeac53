"""How many operations of PyTorch a step is. It changes none of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from torch.utils._python_dispatch import TorchDispatchMode


class CountedOperations(TorchDispatchMode):
    """Counts the operations of PyTorch in its block, those of the backward pass included.

    Attributes:
        number: How many there were so far.

    >>> import torch
    >>> with CountedOperations() as counted:
    ...     _ = torch.ones(2) + torch.ones(2)
    >>> counted.number
    3
    """

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # PyTorch does not say its type
        self.number = 0

    def __torch_dispatch__(
        self,
        operation: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        self.number += 1
        return operation(*args, **(kwargs or {}))
