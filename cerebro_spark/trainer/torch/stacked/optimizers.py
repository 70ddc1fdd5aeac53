"""PyTorch's optimizers over stacked members: one buffer of all parameters, with a row a member.

They do what the implementations of `torch.optim` do that are the default on a CPU, operation by operation. Numbers are
passed to the same kernels in the same way: at once for all rows whose numbers are equal, else row by row. These kernels
work element by element, and leave the same bits wherever an element lies.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar

import torch

Numbers = Mapping[str, Any]
"""The numbers of a group of parameters of one member: learning rate, weight decay, ..."""
Rows = slice | int

# All operations of a step on this many bytes of parameters come before those on the next: they stay in the cache.
_SLICE_BYTES = 1 << 18
_UNSTACKED = ("amsgrad", "maximize", "foreach", "fused", "capturable", "differentiable")


class StackedOptimizer(ABC):
    """An optimizer over the rows of some buffers.

    Args:
        parameters: The parameters, with a row a member.
        gradients: The gradients of the same shape. A step may overwrite them.
        moments: What the optimizer keeps of each parameter, by name and of the same shape.
        counts: The steps that each member has taken. They are counted on.
    """

    counts_steps: ClassVar[bool] = True
    """Whether it keeps a step count, under the name "step"."""

    def __init__(
        self,
        parameters: torch.Tensor,
        gradients: torch.Tensor,
        moments: Mapping[str, torch.Tensor],
        counts: list[float],
    ) -> None:
        self._p, self._g, self._moments, self.counts = parameters, gradients, moments, counts
        row_bytes = max(1, parameters[0].nbytes)
        self._rows = max(1, _SLICE_BYTES // row_bytes)
        self._scratch = torch.empty_like(parameters[: self._rows])

    @staticmethod
    @abstractmethod
    def moment_names(numbers: Numbers) -> tuple[str, ...]:
        """Return the names of what it keeps of each parameter, in PyTorch's order and without the step count.

        Members with different names cannot be stacked.
        """

    @staticmethod
    def mode(numbers: Numbers) -> tuple[bool, ...]:
        """Return what must be the same for all members."""
        return ()

    def step(self, numbers: Sequence[Numbers]) -> None:
        """Take a step, with the numbers of each member."""
        for index in range(len(self.counts)):
            self.counts[index] += 1
        for first in range(0, len(self.counts), self._rows):
            last = min(first + self._rows, len(self.counts))
            self._step(slice(first, last), numbers[first:last])

    @abstractmethod
    def _step(self, rows: slice, numbers: Sequence[Numbers]) -> None:
        """Take a step for some members."""

    def _decay(self, rows: slice, numbers: Sequence[Numbers]) -> None:
        """Add the weight decay to the gradients of those members that have one."""
        for part, decay in _parts(rows, [n["weight_decay"] for n in numbers]):
            if decay != 0:
                self._g[part].add_(self._p[part], alpha=decay)

    def _root(self, name: str, rows: slice) -> torch.Tensor:
        """Return the roots of a moment in a buffer that the next step overwrites."""
        return torch.sqrt(self._moments[name][rows], out=self._scratch[: rows.stop - rows.start])


def _parts(rows: slice, values: Sequence[Any]) -> Iterator[tuple[Rows, Any]]:
    """Yield all rows with their value, if they have the same, else row by row."""
    if all(value == values[0] for value in values):
        yield rows, values[0]
    else:
        yield from enumerate(values, rows.start)


def _local(part: Rows, rows: slice) -> Rows:
    """Return rows as counted in a scratch buffer that begins with the first of `rows`."""
    return slice(0, rows.stop - rows.start) if isinstance(part, slice) else part - rows.start


class StackedSGD(StackedOptimizer):
    counts_steps = False

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        # A member's first step makes its buffer of the gradients as they are.
        self.fresh = [False] * len(self.counts)

    @staticmethod
    def moment_names(numbers: Numbers) -> tuple[str, ...]:
        return ("momentum_buffer",) if numbers["momentum"] != 0 else ()

    @staticmethod
    def mode(numbers: Numbers) -> tuple[bool, ...]:
        return numbers["momentum"] != 0, bool(numbers["nesterov"])

    def _step(self, rows: slice, numbers: Sequence[Numbers]) -> None:
        self._decay(rows, numbers)
        if self._moments:
            self._add_momentum(rows, numbers)
        nesterov = not self._moments or numbers[0]["nesterov"]
        direction = self._g if nesterov else self._moments["momentum_buffer"]
        for part, rate in _parts(rows, [n["lr"] for n in numbers]):
            self._p[part].add_(direction[part], alpha=-rate)

    def _add_momentum(self, rows: slice, numbers: Sequence[Numbers]) -> None:
        buffer = self._moments["momentum_buffer"]
        settings = [(self.fresh[i], n["momentum"], n["dampening"]) for i, n in enumerate(numbers, rows.start)]
        for part, (fresh, momentum, dampening) in _parts(rows, settings):
            if fresh:
                buffer[part].copy_(self._g[part])
            else:
                buffer[part].mul_(momentum).add_(self._g[part], alpha=1 - dampening)
            if numbers[0]["nesterov"]:
                self._g[part].add_(buffer[part], alpha=momentum)
        self.fresh[rows] = [False] * (rows.stop - rows.start)


class StackedAdam(StackedOptimizer):
    @staticmethod
    def moment_names(numbers: Numbers) -> tuple[str, ...]:
        return "exp_avg", "exp_avg_sq"

    def _step(self, rows: slice, numbers: Sequence[Numbers]) -> None:
        self._decay_weights(rows, numbers)
        average, square = self._moments["exp_avg"], self._moments["exp_avg_sq"]
        for part, (beta1, beta2) in _parts(rows, [tuple(n["betas"]) for n in numbers]):
            average[part].lerp_(self._g[part], 1 - beta1)
            square[part].mul_(beta2).addcmul_(self._g[part], self._g[part], value=1 - beta2)
        divisor = self._root("exp_avg_sq", rows)
        counted = list(zip(numbers, self.counts[rows], strict=True))
        for part, correction in _parts(rows, [(1 - n["betas"][1] ** count) ** 0.5 for n, count in counted]):
            divisor[_local(part, rows)].div_(correction)
        for part, eps in _parts(rows, [n["eps"] for n in numbers]):
            divisor[_local(part, rows)].add_(eps)
        for part, size in _parts(rows, [n["lr"] / (1 - n["betas"][0] ** count) for n, count in counted]):
            self._p[part].addcdiv_(average[part], divisor[_local(part, rows)], value=-size)

    def _decay_weights(self, rows: slice, numbers: Sequence[Numbers]) -> None:
        # With this flag, which older versions have in the class, Adam is AdamW.
        if not numbers[0].get("decoupled_weight_decay", False):
            self._decay(rows, numbers)
            return
        for part, (rate, decay) in _parts(rows, [(n["lr"], n["weight_decay"]) for n in numbers]):
            if decay != 0:
                self._p[part].mul_(1 - rate * decay)

    @staticmethod
    def mode(numbers: Numbers) -> tuple[bool, ...]:
        return (bool(numbers.get("decoupled_weight_decay", False)),)


class StackedRMSprop(StackedOptimizer):
    @staticmethod
    def moment_names(numbers: Numbers) -> tuple[str, ...]:
        momentum = ("momentum_buffer",) if numbers["momentum"] > 0 else ()
        return "square_avg", *momentum, *(("grad_avg",) if numbers["centered"] else ())

    @staticmethod
    def mode(numbers: Numbers) -> tuple[bool, ...]:
        return numbers["momentum"] > 0, bool(numbers["centered"])

    def _step(self, rows: slice, numbers: Sequence[Numbers]) -> None:
        self._decay(rows, numbers)
        square, mean = self._moments["square_avg"], self._moments.get("grad_avg")
        for part, alpha in _parts(rows, [n["alpha"] for n in numbers]):
            square[part].mul_(alpha).addcmul_(self._g[part], self._g[part], value=1 - alpha)
            if mean is not None:
                mean[part].lerp_(self._g[part], 1 - alpha)
        divisor = self._root("square_avg", rows) if mean is None else self._center(rows, square, mean)
        for part, eps in _parts(rows, [n["eps"] for n in numbers]):
            divisor[_local(part, rows)].add_(eps)
        self._move(rows, numbers, divisor)

    def _center(self, rows: slice, square: torch.Tensor, mean: torch.Tensor) -> torch.Tensor:
        out = self._scratch[: rows.stop - rows.start]
        return torch.addcmul(square[rows], mean[rows], mean[rows], value=-1, out=out).sqrt_()

    def _move(self, rows: slice, numbers: Sequence[Numbers], divisor: torch.Tensor) -> None:
        buffer = self._moments.get("momentum_buffer")
        for part, (rate, momentum) in _parts(rows, [(n["lr"], n["momentum"]) for n in numbers]):
            divided = divisor[_local(part, rows)]
            if buffer is None:
                self._p[part].addcdiv_(self._g[part], divided, value=-rate)
            else:
                buffer[part].mul_(momentum).addcdiv_(self._g[part], divided)
                self._p[part].add_(buffer[part], alpha=-rate)


class StackedAdagrad(StackedOptimizer):
    @staticmethod
    def moment_names(numbers: Numbers) -> tuple[str, ...]:
        return ("sum",)

    def _step(self, rows: slice, numbers: Sequence[Numbers]) -> None:
        self._decay(rows, numbers)
        total = self._moments["sum"][rows]
        total.addcmul_(self._g[rows], self._g[rows], value=1)
        divisor = self._root("sum", rows)
        for part, eps in _parts(rows, [n["eps"] for n in numbers]):
            divisor[_local(part, rows)].add_(eps)
        counted = zip(numbers, self.counts[rows], strict=True)
        for part, rate in _parts(rows, [n["lr"] / (1 + (count - 1) * n["lr_decay"]) for n, count in counted]):
            self._p[part].addcdiv_(self._g[part], divisor[_local(part, rows)], value=-rate)


_KINDS: dict[type, type[StackedOptimizer]] = {
    torch.optim.SGD: StackedSGD,
    torch.optim.Adam: StackedAdam,
    torch.optim.AdamW: StackedAdam,
    torch.optim.RMSprop: StackedRMSprop,
    torch.optim.Adagrad: StackedAdagrad,
}


def find_stacked(optimizer: torch.optim.Optimizer) -> type[StackedOptimizer]:
    """Return the stacked kind of an optimizer. Raises ValueError that says why there is none."""
    kind = _KINDS.get(type(optimizer))
    if kind is None:
        raise ValueError(f"the optimizer {type(optimizer).__name__} is not stacked")
    for group in optimizer.param_groups:
        check_numbers(type(optimizer).__name__, group)
    return kind


def check_numbers(name: str, group: Numbers) -> None:
    """Raise ValueError if the numbers of a group say that PyTorch would take another way."""
    for flag in _UNSTACKED:
        if group.get(flag):
            raise ValueError(f"{name} with {flag}=True is not stacked")
    held = [key for key, value in group.items() if key != "params" and isinstance(value, torch.Tensor)]
    if held:
        raise ValueError(f"{name} with a tensor as {held[0]!r} is not stacked")
