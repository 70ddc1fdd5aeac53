"""Streams and random generators for models that compute side by side on a GPU. It knows no model."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import TypeVar

import torch

R = TypeVar("R")

# More gain nothing, and every stream has memory of its own.
_STREAMS = 32


class Branches:
    """Runs what several models compute, each with its own random generator, in turn or side by side.

    Args:
        count: The number of models.
        device: The GPU.

    Attributes:
        generators: The random generators of the models.
    """

    def __init__(self, count: int, device: torch.device) -> None:
        self.generators = [torch.Generator(device) for _ in range(count)]
        self._streams = [torch.cuda.Stream(device) for _ in range(min(count, _STREAMS))]
        self._default = torch.cuda.default_generators[device.index]

    def run_in_turn(self, compute: Callable[[int], R]) -> list[R]:
        """Return what `compute` returns for the number of each model."""
        results = []
        for index in range(len(self.generators)):
            with self._drawing_from(index):
                results.append(compute(index))
        return results

    def run_side_by_side(self, compute: Callable[[int], R]) -> list[R]:
        """Return what `compute` returns for the number of each model, each on its stream."""
        main, results = torch.cuda.current_stream(), []
        for stream in self._streams:
            stream.wait_stream(main)
        for index in range(len(self.generators)):
            with torch.cuda.stream(self._streams[index % len(self._streams)]), self._drawing_from(index):
                results.append(compute(index))
        for stream in self._streams:
            main.wait_stream(stream)
        return results

    def record(self, compute: Callable[[], R]) -> tuple[Callable[[], None], R]:
        """Record what is computed; return what repeats it, and its result, which each repetition writes anew."""
        graph = torch.cuda.CUDAGraph()
        for generator in self.generators:
            graph.register_generator_state(generator)
        # What other threads do meanwhile is not recorded, and does not break the recording.
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):
            result = compute()
        return graph.replay, result

    def generator_states(self) -> list[torch.Tensor]:
        """Return the states of all generators."""
        return [generator.get_state() for generator in self.generators]

    def set_generators(self, states: Sequence[torch.Tensor]) -> None:
        """Put the generators into these states."""
        for generator, state in zip(self.generators, states, strict=True):
            generator.set_state(state)

    @contextmanager
    def _drawing_from(self, index: int) -> Iterator[None]:
        """Let kernels draw from the generator of a model."""
        own = self._default.graphsafe_get_state()
        self._default.graphsafe_set_state(self.generators[index])
        try:
            yield
        finally:
            self._default.graphsafe_set_state(own)
