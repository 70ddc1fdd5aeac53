"""A twin of CUDA graphs on the host: it records kernels and repeats them on the same memory, without Python code."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import numpy as np
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from cerebro_spark.trainer import Feed
from cerebro_spark.trainer.torch.batches import Tensors
from cerebro_spark.trainer.torch.built_model import BuiltTorchModel
from cerebro_spark.trainer.torch.places import Current, Place
from cerebro_spark.trainer.torch.trainer import TorchTrainer


class Tape(TorchDispatchMode):
    """Notes all kernels that are called, and by which branch."""

    def __init__(self, branches: HostBranches) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._branches = branches
        self._calls: list[tuple[int | None, Any, Any, Any, Any]] = []
        self._written: list[tuple[torch.Tensor, torch.Tensor]] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func is torch.ops.aten._local_scalar_dense.default:
            raise RuntimeError("operation not permitted when stream is capturing")
        if func._schema.is_mutable:
            given = [tensor for tensor in tree_leaves((args, kwargs)) if isinstance(tensor, torch.Tensor)]
            self._written += [(tensor, tensor.detach().clone()) for tensor in given]
        out = func(*args, **(kwargs or {}))
        self._calls.append((self._branches.current, func, args, kwargs or {}, out))
        return out

    @torch.no_grad()
    def undo(self) -> None:
        """Undo what was written: while a graph is recorded, nothing is computed."""
        for tensor, before in reversed(self._written):
            tensor.copy_(before)

    @torch.no_grad()
    def replay(self) -> None:
        for branch, func, args, kwargs, out in self._calls:
            with nullcontext() if branch is None else self._branches.drawing_from(branch):
                made = func(*args, **kwargs)
            for old, new in zip(tree_leaves(out), tree_leaves(made), strict=True):
                if isinstance(old, torch.Tensor) and old.data_ptr() != new.data_ptr():
                    old.copy_(new)


class HostBranches:
    """Branches whose graphs are tapes."""

    def __init__(self, count: int, device: Any = None) -> None:
        self.generators = [torch.Generator() for _ in range(count)]
        self.current: int | None = None

    def run_in_turn(self, compute: Callable[[int], Any]) -> list[Any]:
        results = []
        for index in range(len(self.generators)):
            with self.drawing_from(index):
                results.append(compute(index))
        return results

    run_side_by_side = run_in_turn

    def record(self, compute: Callable[[], Any]) -> tuple[Callable[[], None], Any]:
        tape, before = Tape(self), self.generator_states()
        with tape:
            result = compute()
        tape.undo()
        self.set_generators(before)
        return tape.replay, result

    def generator_states(self) -> list[torch.Tensor]:
        return [generator.get_state() for generator in self.generators]

    def set_generators(self, states: Sequence[torch.Tensor]) -> None:
        for generator, state in zip(self.generators, states, strict=True):
            generator.set_state(state)

    @contextmanager
    def drawing_from(self, index: int) -> Iterator[None]:
        default, own = torch.default_generator, torch.default_generator.get_state()
        default.set_state(self.generators[index].get_state())
        before, self.current = self.current, index
        try:
            yield
        finally:
            self.current = before
            self.generators[index].set_state(default.get_state())
            default.set_state(own)


class HostTrainer(TorchTrainer):
    """A trainer on a CPU that takes the way of a GPU, with tapes for graphs."""

    _has_graphs = True

    def _evaluates_by_graphs(self, model: BuiltTorchModel) -> bool:
        return True

    def _make_branches(self, count: int) -> Any:
        return HostBranches(count)

    def _find_generator_state(self, current: Current) -> torch.Tensor:
        tree = current.generators
        return torch.from_numpy(np.array(tree["cuda"] if "cuda" in tree else tree["torch"]))

    def gather(self, feeds: Sequence[Feed]) -> Iterator[Tensors]:
        """Stands in for `load_on_device`."""
        names = self.columns.names
        arrays = {name: self._batches._to_tensor(name, feeds[0].arrays[name]) for name in names}
        return self._batches._gather_together(feeds, arrays)

    def places(self) -> list[Place]:
        """All places."""
        return [place for structure in self._bundled.values() for place in structure.places]
