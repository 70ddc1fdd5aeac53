"""Training steps on a CPU: eager at first, traced once these are known to leave the same bits and to be faster.

Both leave the same bits, so the choice may come at any time and needs no record. It is made once for each built model,
batch shape and mode of the optimizer in a process.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from cerebro_spark.trainer.torch.batches import Tensors
from cerebro_spark.trainer.torch.built_model import BuiltTorchModel
from cerebro_spark.trainer.torch.pilot import Generators
from cerebro_spark.trainer.torch.stacked.check import host_state
from cerebro_spark.trainer.torch.stacked.optimizers import find_stacked
from cerebro_spark.trainer.torch.stacked.refusals import refuse_model
from cerebro_spark.trainer.torch.stacked.structures import explain
from cerebro_spark.trainer.torch.steps import ComputeLoss, EagerSteps, StepResult, shapes_of
from cerebro_spark.trainer.torch.traced.candidate import Candidate
from cerebro_spark.trainer.torch.traced.step import TracedStep
from cerebro_spark.types import Steps

# Structures of one model that are counted, and that are traced at a time: these hold the memory of their buffers.
_COUNTED, _TRACED = 64, 8


class TracedSteps:
    """The training steps of one built model on a CPU.

    Args:
        model: The built model.
        compute: Computes the loss of a batch.
        pick_label: Returns the label of a batch, as `compute` does.
        generators: The random generators of the process.
        measures: Whether traced steps must also be faster. False takes them wherever they are exact.
        clock: Returns the time in seconds.
    """

    def __init__(
        self,
        model: BuiltTorchModel,
        compute: ComputeLoss,
        pick_label: Callable[[Tensors], Any],
        generators: Generators,
        measures: bool = True,
        clock: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._model, self._compute, self._pick_label = model, compute, pick_label
        self._eager = EagerSteps(model, compute)
        self._generators, self._measures, self._clock = generators, measures, clock
        self.candidates: dict[Any, Candidate] = {}
        """What is known of each structure."""
        self.kind: Steps = "eager"
        self._mode: Any = None
        self._counts: dict[Any, int] = {}
        self._last: Candidate | None = None
        self._filled: TracedStep | None = None
        """The step whose buffers hold the state of the trial, instead of the model."""
        self._fill_seconds = 0.0

    @property
    def nbytes(self) -> int:
        """The memory of all buffers, about."""
        return sum(each.step.nbytes for each in self.candidates.values() if each.step is not None)

    @contextmanager
    def unit(self) -> Iterator[None]:
        """Prepare for the steps of one unit; after it the model has the whole state."""
        self.kind, self._filled, self._last, self._counts = "eager", None, None, {}
        self._mode = self._find_mode()
        yield
        self._leave()
        self._settle()

    def take(self, tensors: Tensors) -> StepResult:
        """Compute gradients, clip them, and take one step of the optimizer."""
        if self._model.model.scheduler_step == "batch" and self._model.model.lr_scheduler is not None:
            self._mode = self._find_mode()
        key = shapes_of(tensors), self._mode
        candidate = self._find_candidate(key, tensors)
        is_first, self._counts[key] = not self._counts, self._counts.get(key, 0) + 1
        before, self._last = self._last, candidate
        if candidate is None or candidate.stage == "eager":
            return self._take_eagerly(tensors)
        if is_first and candidate.is_due:
            self._trace(candidate, tensors)
        if candidate.stage == "traced":
            return self._take_traced(candidate, tensors)
        if candidate.stage == "comparing":
            self._leave()
            if candidate is not before:
                candidate.stop_following()
            return candidate.compare(self._eager, tensors)
        if candidate.stage == "timing" and not candidate.pace.is_timed:
            return self._take_timed(candidate, tensors)
        candidate.pace.waited += 1
        return self._take_eagerly(tensors)

    # Structures

    def _find_mode(self) -> Any:
        """Return what a traced step has frozen besides shapes; None for an optimizer that cannot be traced."""
        own = self._model.model
        try:
            kind = find_stacked(own.optimizer)
        except ValueError:
            return None
        modes = tuple((kind.mode(group), kind.moment_names(group)) for group in own.optimizer.param_groups)
        return modes, tuple(parameter.requires_grad for parameter in self._model.parameters)

    def _find_candidate(self, key: Any, tensors: Tensors) -> Candidate | None:
        if key not in self.candidates and len(self.candidates) < _COUNTED:
            rows = len(next(iter(tensors.values())))
            name = f"{type(self._model.model.module).__name__} with batches of {rows}"
            self.candidates[key] = Candidate(name, self._measures)
        return self.candidates.get(key)

    def _trace(self, candidate: Candidate, tensors: Tensors) -> None:
        """Trace the first step of a unit, before it is taken: modules are as every unit finds them."""
        reason = refuse_model(self._model)
        if sum(each.step is not None for each in self.candidates.values()) >= _TRACED:
            reason = f"{_TRACED} other kinds of its batches and optimizers are traced already"
        if reason is not None:
            candidate.refuse(reason)
            return
        start, host = self._generators.capture(), host_state()
        try:
            candidate.begin_comparing(TracedStep(self._model, self._compute, tensors))
            if host_state() != host:
                candidate.refuse("it draws random numbers from Python or NumPy")
        except Exception as error:  # tracing runs the user's code, which may raise anything where it asks for values
            candidate.refuse(explain(error))
        finally:
            self._generators.restore(start)

    def _settle(self) -> None:
        """Choose once enough was timed, by units as long as this one."""
        for key, steps in self._counts.items():
            candidate = self.candidates.get(key)
            if candidate is not None and candidate.stage == "timing" and candidate.pace.is_timed:
                candidate.settle(steps)

    # Steps

    def _take_eagerly(self, tensors: Tensors) -> StepResult:
        self._leave()
        return self._eager.take(tensors)

    def _take_traced(self, candidate: Candidate, tensors: Tensors) -> StepResult:
        if not self._fill(candidate):
            return self._take_eagerly(tensors)
        assert candidate.step is not None
        self.kind = "traced"
        loss, output = candidate.step.take(tensors)
        return loss, output, self._pick_label(tensors)

    def _take_timed(self, candidate: Candidate, tensors: Tensors) -> StepResult:
        is_traced = candidate.pace.traces_next
        if is_traced and not self._fill(candidate):
            return self._eager.take(tensors)
        if not is_traced:
            self._leave(candidate)
        began = self._clock()
        result = self._take_traced(candidate, tensors) if is_traced else self._eager.take(tensors)
        candidate.pace.note_turn(self._clock() - began)
        return result

    # Where the state is

    def _fill(self, candidate: Candidate) -> bool:
        """Have the buffers of a traced step take on the state; False if they cannot."""
        if self._filled is candidate.step:
            return True
        self._leave()
        assert candidate.step is not None
        began = self._clock()
        try:
            candidate.step.fill()
        except ValueError:
            return False  # the optimizer keeps something else of this trial
        self._filled, self._fill_seconds = candidate.step, self._clock() - began
        return True

    def _leave(self, timed: Candidate | None = None) -> None:
        """Have the model take on the state, if the buffers of a traced step hold it."""
        if self._filled is None:
            return
        began = self._clock()
        self._filled.leave()
        self._filled = None
        if timed is not None:
            seconds = self._fill_seconds + self._clock() - began
            timed.pace.switching = min(timed.pace.switching, seconds)
