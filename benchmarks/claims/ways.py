"""The other ways to train on partitioned rows, in one process and without a cluster. It counts steps, never seconds.

What several workers would compute between two exchanges is computed by one process after another's share, so curves are
those of the real thing, and times are not.
"""

from __future__ import annotations

import copy
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from benchmarks.claims.digits import Rows, model_fn


class Point(NamedTuple):
    """What a model is worth after an epoch, on the rows for validation."""

    loss: float
    error: float


class Way(ABC):
    """One trial, trained an epoch at a time."""

    def __init__(self, params: Mapping[str, Any], parts: Sequence[Rows]) -> None:
        import torch

        made = model_fn(params)
        self.module, self.optimizer, self.loss = made.module, made.optimizer, made.loss
        self.parts, self.batch = parts, int(params["batch_size"])
        self.random = torch.Generator().manual_seed(params["seed"])
        self.steps = 0

    @abstractmethod
    def epoch(self) -> None:
        """Train on every row once."""

    def order(self, rows: int) -> Any:
        """A new order of so many rows."""
        import torch

        return torch.randperm(rows, generator=self.random)

    def step(self, module: Any, optimizer: Any, x: Any, y: Any) -> None:
        self.steps += 1
        optimizer.zero_grad()
        self.loss(module(x), y).backward()
        optimizer.step()


class Sequential(Way):
    """Plain SGD: one process has all rows, and shuffles them anew every epoch."""

    def epoch(self) -> None:
        import torch

        x, y = (torch.cat(column) for column in zip(*self.parts, strict=True))
        for rows in self.order(len(y)).split(self.batch):
            self.step(self.module, self.optimizer, x[rows], y[rows])


class Synchronous(Way):
    """Data parallel: at every step each worker takes its share of the batch, and the mean of all gradients is one step.

    The mean over workers of the gradients of their mean losses is the gradient of the mean loss over all their rows,
    so one process takes that step with the rows of all. `batch_size` is what all workers take together.
    """

    def epoch(self) -> None:
        import torch

        share = max(1, self.batch // len(self.parts))
        shares = [self.order(len(y)).split(share) for _, y in self.parts]
        for number in range(max(len(each) for each in shares)):
            taken = [
                (x[each[number]], y[each[number]])
                for (x, y), each in zip(self.parts, shares, strict=True)
                if number < len(each)
            ]
            x, y = (torch.cat(column) for column in zip(*taken, strict=True))
            self.step(self.module, self.optimizer, x, y)


class Averaging(Way):
    """Model averaging: each worker trains a copy on its own partition, and once an epoch the weights are averaged.

    Each worker keeps its own state of the optimizer.
    """

    def __init__(self, params: Mapping[str, Any], parts: Sequence[Rows]) -> None:
        super().__init__(params, parts)
        self.workers = [copy.deepcopy((self.module, self.optimizer)) for _ in parts]

    def epoch(self) -> None:
        start = self.module.state_dict()
        for (module, optimizer), (x, y) in zip(self.workers, self.parts, strict=True):
            module.load_state_dict(start)
            for rows in self.order(len(y)).split(self.batch):
                self.step(module, optimizer, x[rows], y[rows])
        self.module.load_state_dict(mean([module.state_dict() for module, _ in self.workers]))


def mean(states: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The average of the same tensors of several models."""
    import torch

    return {name: torch.stack([state[name] for state in states]).mean(dim=0) for name in states[0]}


def measure(module: Any, loss: Callable[..., Any], validation: Rows) -> Point:
    """The loss and the share of rows that are taken for something else."""
    import torch

    x, y = validation
    with torch.no_grad():
        output = module(x)
        return Point(float(loss(output, y)), float((output.argmax(dim=1) != y).float().mean()))


def curve(way: Way, epochs: int, validation: Rows) -> list[Point]:
    """Train so many epochs; what the model was worth after each."""
    points = []
    for _ in range(epochs):
        way.epoch()
        points.append(measure(way.module, way.loss, validation))
    return points
