"""Chooses between eager steps and CUDA graphs while a model trains, once for each structure in a process.

Both leave the same bits, so the choice may come at any time and needs no record.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch

from cerebro_spark.trainer.torch.batches import Tensors
from cerebro_spark.trainer.torch.built_model import BuiltTorchModel
from cerebro_spark.trainer.torch.graphs import GraphedSteps
from cerebro_spark.trainer.torch.pilot import Generators, Pilot
from cerebro_spark.trainer.torch.steps import ComputeLoss, Shapes, StepResult, shapes_of
from cerebro_spark.types import Steps

_log = logging.getLogger(__name__)

_WARM_UP = 3
_TIMED = 6
BATCHES_TO_SETTLE = 2 * (_WARM_UP + _TIMED) + 2
"""As many batches of one size are enough to choose."""
_LEAST_HOST_SHARE = 0.6
"""The share of a step's time that the host takes to launch it, below which the device is the limit anyway."""


class Stopwatch:
    """Times a few steps in a row, after some that do not count. The device is waited for before and after each.

    Steps that overlapped would not tell how long the host takes: it waits where too many kernels are in the queue.

    Args:
        clock: Returns the time in seconds.
        wait: Waits for the device.

    >>> from itertools import cycle
    >>> ticks = cycle([0.0, 0.5, 2.0])
    >>> watch = Stopwatch(lambda: next(ticks), lambda: None)
    >>> for _ in range(_WARM_UP + _TIMED):
    ...     watch.begin()
    ...     watch.end()
    >>> watch.is_done, watch.seconds, watch.host_share
    (True, 2.0, 0.25)
    """

    def __init__(
        self,
        clock: Callable[[], float] = time.perf_counter,
        wait: Callable[[], None] = torch.cuda.synchronize,
    ) -> None:
        self._clock = clock
        self._wait = wait
        self.reset()

    def reset(self) -> None:
        """Begin anew: what interrupts a row of steps must not be counted."""
        self._steps = 0
        self._began = 0.0
        self._launching = 0.0
        self._total = 0.0

    @property
    def is_done(self) -> bool:
        return self._steps == _WARM_UP + _TIMED

    @property
    def seconds(self) -> float:
        """The time of a step."""
        return self._total / _TIMED

    @property
    def host_share(self) -> float:
        """The share of it that the host took to launch the step."""
        return self._launching / self._total if self._total else 1.0

    def begin(self) -> None:
        """A step begins."""
        if self._steps >= _WARM_UP:
            self._wait()
            self._began = self._clock()

    def end(self) -> None:
        """The host has launched a step."""
        if self._steps >= _WARM_UP:
            self._launching += self._clock() - self._began
            self._wait()
            self._total += self._clock() - self._began
        self._steps += 1


class AutoSteps:
    """The training steps of one built model: eager at first, by graphs once these are known to be exact and faster.

    Args:
        model: The built model.
        compute: Computes the loss of a batch.
        generators: The random generators of the process.
        measures: Whether graphs must also be faster. False takes them wherever they are exact.
    """

    def __init__(
        self, model: BuiltTorchModel, compute: ComputeLoss, generators: Generators, measures: bool = True
    ) -> None:
        self.graphed = GraphedSteps(model, compute)
        self._pilot = Pilot(model, compute, generators)
        self._name = type(model.model.module).__name__
        self._measures = measures
        self._batches: list[Tensors] = []
        self._shapes: Shapes = ()
        self._eager, self._graphed = Stopwatch(), Stopwatch()
        self._choice: bool | None = None
        self._is_settled = False
        self.has_tried = False
        """Whether graphs were tried, which takes memory of their own."""

    @property
    def kind(self) -> Steps:
        """How steps are taken now."""
        return "graph" if self._choice else "eager"

    @property
    def is_settled(self) -> bool:
        """Whether the choice is made."""
        return self._is_settled

    @contextmanager
    def unit(self) -> Iterator[None]:
        """Prepare for the steps of one unit."""
        self._start_over()
        with self.graphed.unit():
            yield

    def take(self, tensors: Tensors) -> StepResult:
        """Compute gradients, clip them, and take one step of the optimizer."""
        if self._is_settled:
            return self.graphed.take(tensors) if self._choice else self.graphed.take_eagerly(tensors)
        shapes = shapes_of(tensors)
        if shapes != self._shapes:
            self._start_over()
            self._shapes = shapes
        return self._try_graph(tensors) if self._choice else self._try_eager(tensors)

    def _start_over(self) -> None:
        self._batches.clear()
        self._shapes = ()
        for watch in (self._eager, self._graphed):
            if not watch.is_done:
                watch.reset()

    def _try_eager(self, tensors: Tensors) -> StepResult:
        if self._eager.is_done:
            # Not after the last step: whoever still has its result would tie gradients to the stream of eager steps.
            self._decide()
            self._batches.clear()
            return self.take(tensors)
        self._batches.append(tensors)
        return self._timed(self._eager, self.graphed.take_eagerly, tensors)

    def _decide(self) -> None:
        """Choose between eager steps for good and a try of graphs."""
        if self._measures and self._eager.host_share < _LEAST_HOST_SHARE:
            self._settle(
                False, f"its steps keep the GPU busy: launching them takes {self._eager.host_share:.0%} of them"
            )
            return
        self.has_tried = True
        obstacle = self._find_obstacle()
        if obstacle:
            self._settle(False, obstacle)
            return
        self._choice = True
        if not self._measures:
            self._settle(True, "they leave the same bits")

    def _find_obstacle(self) -> str:
        try:
            return self._pilot.find_obstacle(self._batches)
        except torch.cuda.OutOfMemoryError:
            pass
        # Only now nothing refers to what the error has seen.
        torch.cuda.empty_cache()
        return "no memory is left to try graphs"

    def _try_graph(self, tensors: Tensors) -> StepResult:
        result = self._timed(self._graphed, self.graphed.take, tensors)
        if self._graphed.is_done:
            before, now = self._eager.seconds * 1e6, self._graphed.seconds * 1e6
            times = f"{now:.0f} us a step instead of {before:.0f}"
            self._settle(now < before, times)
        return result

    def _settle(self, choice: bool, why: str) -> None:
        self._choice, self._is_settled = choice, True
        if not choice:
            self.graphed.forget()
        how = "CUDA graphs" if choice else "eager steps"
        _log.info("%s trains by %s: %s", self._name, how, why)

    def _timed(self, watch: Stopwatch, take: Callable[[Tensors], StepResult], tensors: Tensors) -> StepResult:
        watch.begin()
        result = take(tensors)
        watch.end()
        return result
