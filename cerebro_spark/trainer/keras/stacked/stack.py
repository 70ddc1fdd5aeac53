"""Members as one Keras model: their variables in shared buffers, and steps of all of them at once. It reads no feed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from cerebro_spark.trainer.base import Member
from cerebro_spark.trainer.framework_trainer import CurrentTrial
from cerebro_spark.trainer.keras.built_model import BuiltKerasModel
from cerebro_spark.trainer.keras.stacked.trace import StepTrace
from cerebro_spark.trainer.torch.batches import Tensors
from cerebro_spark.trainer.torch.stacked.program import make_program
from cerebro_spark.trainer.torch.stacked.structures import Structure

# Rows begin at multiples of 64 bytes at least, as tensors of their own do.
_ALIGNMENT = 64


@dataclass(slots=True)
class KerasMember:
    """A member with its state, ready to be stacked.

    Attributes:
        index: Its place in the bundle.
        member: What it was asked for.
        structure: What is known of its structure.
        current: Its trial, with its generators and counters.
        values: The values of all its variables, those of the metrics as its unit begins.
        batches: How many batches are stacked.
        key: What its structure is known by; structures that differ only in numbers have different ones.
        constants: The numbers among the arguments of its traced step.
        seconds: The time that reading it took.
    """

    index: int
    member: Member
    structure: Structure
    current: CurrentTrial[BuiltKerasModel]
    values: list[torch.Tensor]
    batches: int
    key: Any = None
    constants: list[float] = field(default_factory=list)
    seconds: float = 0.0


class KerasStack:
    """Members of one structure and batch shape that are computed as one model.

    Args:
        trace: The traced step of one of them.
        width: The number of members.
        varying: The places of the numbers of the traced step that differ by member.

    Attributes:
        width: The number of members.
        compared: The structures of members whose stacked steps were compared with single ones.

    Raises:
        ValueError: The step draws random numbers, or changes tensors, in a way that cannot be told by members.
    """

    def __init__(self, trace: StepTrace, width: int, varying: Sequence[int]) -> None:
        self.width = width
        self.compared: set[Any] = set()
        self._names = trace.names
        self._values = [_make_rows(like, width) for like in trace.likes]
        self._generators = [torch.Generator() for _ in range(width)]
        self._varying = varying
        self._constants: dict[int, list[float]] = {}
        self._program = make_program(trace.graph, width, varying)

    def fill(self, states: Sequence[KerasMember]) -> None:
        """Take on the states of members, as many as there are rows."""
        self._constants = {place: [state.constants[place] for state in states] for place in self._varying}
        for row, state in enumerate(states):
            for rows, value in zip(self._values, state.values, strict=True):
                rows[row].copy_(value)
            self._generators[row].set_state(torch.from_numpy(np.array(state.current.generators["torch"])))

    def values(self, row: int) -> list[torch.Tensor]:
        """Return the values of the variables of a member. They are those of the stack."""
        return [rows[row] for rows in self._values]

    def named_values(self, row: int) -> dict[str, torch.Tensor]:
        """Return the same by the names of the variables."""
        return dict(zip(self._names, self.values(row), strict=True))

    def generator_state(self, row: int) -> torch.Tensor:
        """Return the state of a member's generator."""
        return self._generators[row].get_state()

    @torch.no_grad()
    def step(self, batch: Tensors, states: Sequence[KerasMember], number: int) -> None:
        """Take a step of all members. Learning rates and all else that goes by steps are variables."""
        self._program([*self._values, *batch.values()], self._generators, self._constants)


def _make_rows(like: torch.Tensor, width: int) -> torch.Tensor:
    """Return a tensor with a row a member, each of this shape."""
    size = like.numel()
    flat = torch.zeros(width, -(-size // _ALIGNMENT) * _ALIGNMENT, dtype=like.dtype, device=like.device)
    return flat[:, :size].view(width, *like.shape)
