"""Training steps by a strategy, kernel by kernel. It chooses none."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext

from cerebro_spark.trainer.torch.batches import Tensors
from cerebro_spark.trainer.torch.built_model import BuiltTorchModel
from cerebro_spark.trainer.torch.graphs import GraphedSteps
from cerebro_spark.trainer.torch.steps import ComputeLoss, EagerSteps, StepResult
from cerebro_spark.trainer.torch.strategies.host_state import HostedOptimizer
from cerebro_spark.trainer.torch.strategies.recomputing import Recomputing
from cerebro_spark.types import Steps


class StrategySteps:
    """The training steps of one built model. They leave the bits of eager steps of a model that lies there as it is.

    Args:
        model: The built model.
        compute: Computes the loss of a batch.
        as_for_graphs: Whether steps of the optimizer are those that graphs record, which round otherwise.
        recomputing: What computes blocks again; None computes none.
        hosted: What takes the optimizer's steps if its state is on the host; None if it is on the device.
        check: Called with the first batch, before anything is learnt from it. Raises StrategyRefused.
    """

    kind: Steps = "eager"

    def __init__(
        self,
        model: BuiltTorchModel,
        compute: ComputeLoss,
        as_for_graphs: bool,
        recomputing: Recomputing | None = None,
        hosted: HostedOptimizer | None = None,
        check: Callable[[Tensors], None] | None = None,
    ) -> None:
        self._steps = _HostedGraphed(model, compute, hosted) if as_for_graphs else _HostedEager(model, compute, hosted)
        self._recomputing = recomputing
        self._hosted = hosted
        self._check = check

    @contextmanager
    def unit(self) -> Iterator[None]:
        """Prepare for the steps of one unit; after it the model is as ever, and its state may be read."""
        with self._steps.unit():
            try:
                yield
            finally:
                if self._hosted is not None:
                    self._hosted.finish()

    def take(self, tensors: Tensors) -> StepResult:
        """Compute gradients, clip them, and take one step of the optimizer."""
        if self._check is not None:
            self._check(tensors)
            self._check = None
        with nullcontext() if self._recomputing is None else self._recomputing.in_force():
            return self._steps.take_eagerly(tensors)


class _HostedEager(EagerSteps):
    """Steps of the user's optimizer as it is."""

    def __init__(self, model: BuiltTorchModel, compute: ComputeLoss, hosted: HostedOptimizer | None) -> None:
        super().__init__(model, compute)
        self._hosted = hosted

    def take_eagerly(self, tensors: Tensors) -> StepResult:
        """Take a step."""
        return self.take(tensors)

    def _step_optimizer(self) -> None:
        take = super()._step_optimizer
        take() if self._hosted is None else self._hosted.step(take)


class _HostedGraphed(GraphedSteps):
    """Steps as graphs record them, of which none is recorded."""

    def __init__(self, model: BuiltTorchModel, compute: ComputeLoss, hosted: HostedOptimizer | None) -> None:
        super().__init__(model, compute)
        self._hosted = hosted

    def _step_optimizer(self) -> None:
        take = super()._step_optimizer
        take() if self._hosted is None else self._hosted.step(take)
