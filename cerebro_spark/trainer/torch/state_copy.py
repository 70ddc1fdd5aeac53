"""Copies of the states of built models, on their devices, to see whether something has changed. It reads no file."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
from torch.utils._pytree import tree_leaves

from cerebro_spark.trainer.torch.built_model import BuiltTorchModel
from cerebro_spark.trainer.torch.strategies.memory import free_bytes

_COPIES = 8
"""How many times the state of a model must fit into the free memory of its GPU to be copied there."""


class StateCopy:
    """A copy of all that checkpoints of some built models would have, except for generators and counters.

    All tensors of a device and dtype are copied and compared at once: models may be many and small.

    Args:
        models: The built models.

    >>> from cerebro_spark.trainer import TorchModel
    >>> module = torch.nn.BatchNorm1d(2)
    >>> made = TorchModel(module, torch.optim.SGD(module.parameters(), lr=0.1), torch.nn.MSELoss())
    >>> copied = StateCopy([BuiltTorchModel(made, torch.device("cpu"), None)])
    >>> _ = module.running_mean.fill_(7.0)
    >>> copied.restore_statistics(), module.running_mean.tolist()
    (True, [0.0, 0.0])
    >>> with torch.no_grad():
    ...     _ = module.weight.fill_(7.0)
    >>> copied.restore_statistics(), copied.is_current()
    (False, False)
    """

    def __init__(self, models: Sequence[BuiltTorchModel]) -> None:
        self._models = models
        leaves = [leaf for model in models for leaf in tree_leaves(model.state())]
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        self._numbers = repr([leaf for leaf in leaves if not isinstance(leaf, torch.Tensor)])
        self._shapes = [(_kind(tensor), tensor.shape) for tensor in tensors]
        groups: dict[Any, list[torch.Tensor]] = {}
        for tensor in tensors:
            groups.setdefault(_kind(tensor), []).append(tensor.detach().reshape(-1))
        self._values = {kind: torch.cat(parts) for kind, parts in groups.items()}

    def matches(self, other: StateCopy) -> bool:
        """Whether two copies are equal, bit by bit. It waits for the devices."""
        if (self._numbers, self._shapes) != (other._numbers, other._shapes):
            return False
        pairs = ((values, other._values[kind]) for kind, values in self._values.items())
        return all(torch.equal(_bits(one), _bits(two)) for one, two in pairs)

    def is_current(self) -> bool:
        """Whether the models still have this state, bit by bit. It waits for the devices."""
        leaves = [leaf for model in self._models for leaf in tree_leaves(model.state())]
        tensors = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor)]
        if self._numbers != repr([leaf for leaf in leaves if not isinstance(leaf, torch.Tensor)]):
            return False
        if self._shapes != [(_kind(tensor), tensor.shape) for tensor in tensors]:
            return False
        pairs = zip(tensors, self._split(), strict=True)
        return all(torch.equal(_bits(tensor), _bits(copied)) for tensor, copied in pairs)

    def restore_statistics(self) -> bool:
        """Give buffers the values that they had, and return whether the models now have this state, bit by bit.

        Only buffers are put back, as by an evaluation of one trial. It waits for the devices.
        """
        now = StateCopy(self._models)
        if self.matches(now):
            return True
        if self._shapes == now._shapes:
            self._fill_buffers()
        return self.matches(StateCopy(self._models))

    @torch.no_grad()
    def _fill_buffers(self) -> None:
        copies = self._split()
        for model in self._models:
            state = model.state()
            buffers = {id(tensor) for kind in ("buffers", "loss") for tensor in state[kind].values()}
            for leaf in tree_leaves(state):
                if isinstance(leaf, torch.Tensor):
                    copied = next(copies)
                    if id(leaf) in buffers:
                        leaf.copy_(copied)

    def _split(self) -> Iterator[torch.Tensor]:
        """Yield the copies of all tensors, in their order."""
        starts = dict.fromkeys(self._values, 0)
        for kind, shape in self._shapes:
            start = starts[kind]
            starts[kind] = start + shape.numel()
            yield self._values[kind][start : starts[kind]].reshape(shape)


def has_room_for_copies(model: BuiltTorchModel) -> bool:
    """Whether the GPU of a model has room for a few copies of its state, and for steps beside them."""
    return model.nbytes * _COPIES < free_bytes(model.parameters[0].device)


def _bits(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.detach().reshape(-1).view(torch.uint8)


def _kind(tensor: torch.Tensor) -> tuple[torch.device, torch.dtype]:
    return tensor.device, tensor.dtype
