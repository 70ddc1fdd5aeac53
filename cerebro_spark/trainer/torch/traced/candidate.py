"""What is known of the traced steps of one structure: not tried, compared, timed, used or refused."""

from __future__ import annotations

import logging
from typing import Any, Literal

import torch

from cerebro_spark.trainer.torch.batches import Tensors
from cerebro_spark.trainer.torch.metrics import detach
from cerebro_spark.trainer.torch.stacked.check import find_difference, host_state
from cerebro_spark.trainer.torch.steps import EagerSteps, StepResult
from cerebro_spark.trainer.torch.traced.pace import Pace
from cerebro_spark.trainer.torch.traced.step import TracedStep

Stage = Literal["waiting", "comparing", "timing", "traced", "eager"]

# Steps that are compared with eager ones.
_COMPARED = 3
_log = logging.getLogger(__name__)


class Candidate:
    """The traced steps of one built model with batches of one shape, and one mode of its optimizer.

    Args:
        name: What the structure is called in the log.
        measures: Whether traced steps must also be faster. False takes them wherever they are exact.

    Attributes:
        stage: How far the choice is made.
        pace: The times of its steps.
        step: The traced step, while it is tried or used.
    """

    def __init__(self, name: str, measures: bool) -> None:
        self._name, self._measures = name, measures
        self.stage: Stage = "waiting"
        self.pace = Pace()
        self.step: TracedStep | None = None
        self._compared = 0
        self._follows = False

    @property
    def is_due(self) -> bool:
        """Whether the step is to be traced now."""
        return self.stage == "waiting" and (self.pace.is_due or not self._measures)

    def refuse(self, reason: str) -> None:
        """Take eager steps from now on."""
        self._settle("eager", reason)
        self.step = None

    def begin_comparing(self, step: TracedStep) -> None:
        """Compare the next steps, the first of which is the first of a unit."""
        self.step, self.stage = step, "comparing"

    def stop_following(self) -> None:
        """Steps of another kind, or of another unit, came between: the next comparison begins with a new state."""
        self._follows = False

    def compare(self, eager: EagerSteps, batch: Tensors) -> StepResult:
        """Take an eager step, and a traced one from the same state that only the buffers learn from.

        What eager code between two steps changes, and a trace would freeze, makes one of several steps differ.
        """
        copied = {name: tensor.clone() for name, tensor in batch.items()}
        self._follow()
        before, host = torch.get_rng_state(), host_state()
        result = eager.take(batch)
        after = torch.get_rng_state()
        if host_state() != host:
            self.refuse("it draws random numbers from Python or NumPy")
        if self.step is not None:
            torch.set_rng_state(before)
            try:
                self._judge(self._find_difference(self.step, copied, result, after))
            finally:
                torch.set_rng_state(after)
        return result

    def settle(self, steps: int) -> None:
        """Choose by the times, for units of so many steps."""
        pace = self.pace
        alone, now = pace.eager * 1e6, pace.traced_share(steps) * pace.eager * 1e6
        if pace.gains(steps):
            self._settle("traced", f"{now:.0f} us a step instead of {alone:.0f}")
        else:
            self.refuse(f"a traced step takes {now:.0f} us, an eager one {alone:.0f}")

    def _follow(self) -> None:
        """Fill the buffers, unless they have followed the steps of this unit."""
        if self.step is None or self._follows:
            return
        try:
            self.step.fill(own_buffers=True)
            self._follows = True
        except ValueError as error:
            self.refuse(str(error))

    def _find_difference(self, step: TracedStep, batch: Tensors, eager: StepResult, after: torch.Tensor) -> str | None:
        try:
            traced = step.take(batch)
        except Exception as error:  # a kernel may raise anything for values that it cannot take
            return f"{type(error).__name__}: {error}"
        seen: tuple[Any, ...] = *detach(traced), torch.get_rng_state()
        return find_difference(seen, (eager[0], detach(eager[1]), after)) or step.find_change()

    def _judge(self, place: str | None) -> None:
        if place is not None:
            self.refuse(f"a traced step leaves other bits than an eager one (at {place})")
            return
        self._compared += 1
        if self._compared == _COMPARED:
            self.stage = "timing"
            if not self._measures:
                self._settle("traced", "they leave the same bits")

    def _settle(self, stage: Literal["traced", "eager"], why: str) -> None:
        self.stage = stage
        _log.info("%s trains by %s steps: %s", self._name, stage, why)
