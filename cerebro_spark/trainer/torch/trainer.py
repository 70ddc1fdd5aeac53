"""Units of PyTorch models. A step costs what that of a plain loop costs: nothing waits for a GPU inside the loop."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

import numpy as np
import torch

from cerebro_spark.errors import ConfigurationError
from cerebro_spark.trainer.base import Params
from cerebro_spark.trainer.checkpoints.arrays import StateArray, wrap_numpy
from cerebro_spark.trainer.checkpoints.randomness import capture_host, restore_host, seed_host
from cerebro_spark.trainer.checkpoints.tree import Tree
from cerebro_spark.trainer.feed import Array, Batch, Feed
from cerebro_spark.trainer.group import Group, Meeting
from cerebro_spark.trainer.group_checks import FINE_ROUNDING, Probe
from cerebro_spark.trainer.label_rules import LabelRule
from cerebro_spark.trainer.shares import Step
from cerebro_spark.trainer.sharing.hooks import own_params
from cerebro_spark.trainer.sharing.inspection import Inspector
from cerebro_spark.trainer.sharing.snapshot import ObjectSnapshot
from cerebro_spark.trainer.torch.auto_steps import AutoSteps
from cerebro_spark.trainer.torch.batches import TensorBatches, Tensors
from cerebro_spark.trainer.torch.built_model import BuiltTorchModel
from cerebro_spark.trainer.torch.device import capture_torch, claim_torch_device, restore_torch
from cerebro_spark.trainer.torch.group_probe import probe_model
from cerebro_spark.trainer.torch.group_rules import refuse_in_group
from cerebro_spark.trainer.torch.grouped_steps import GroupedSteps
from cerebro_spark.trainer.torch.inspection import TorchInspector, take_torch_snapshot
from cerebro_spark.trainer.torch.layout import ChannelsLast
from cerebro_spark.trainer.torch.libraries import TORCH_LIBRARIES
from cerebro_spark.trainer.torch.metrics import MetricCollector
from cerebro_spark.trainer.torch.model import TorchModel
from cerebro_spark.trainer.torch.model_checks import check_model
from cerebro_spark.trainer.torch.own_loops import watch_own_loop
from cerebro_spark.trainer.torch.ownership import note_built, own_tensors, refuse_shared
from cerebro_spark.trainer.torch.pilot import Generators
from cerebro_spark.trainer.torch.recurrent_dropout import begin_anew
from cerebro_spark.trainer.torch.settings import capture_settings, restore_settings
from cerebro_spark.trainer.torch.shapes import with_rows
from cerebro_spark.trainer.torch.signature import compute_model_signature
from cerebro_spark.trainer.torch.stacked.comparing import StepObserver
from cerebro_spark.trainer.torch.state_copy import StateCopy, has_room_for_copies
from cerebro_spark.trainer.torch.steps import EagerSteps
from cerebro_spark.trainer.torch.strategies.host_state import find_obstacle as find_offload_obstacle
from cerebro_spark.trainer.torch.strategies.ladder import offloads, shards
from cerebro_spark.trainer.torch.strategies.steps import StrategySteps
from cerebro_spark.trainer.torch.strategies.training import StrategyTraining
from cerebro_spark.trainer.torch.tensors import TensorSource, from_numpy, wrap_tensor
from cerebro_spark.trainer.torch.traced.steps import TracedSteps
from cerebro_spark.types import Metrics

if TYPE_CHECKING:  # some builds of PyTorch have no such part
    from cerebro_spark.trainer.torch.strategies.sharded_steps import ShardedSteps

__all__ = ["TorchModel", "TorchTrainer"]


class TorchTrainer(StrategyTraining):
    """Trains what `model_fn` returns as a TorchModel.

    >>> from cerebro_spark.trainer import ColumnSpec, Columns, Hooks, Resources
    >>> from cerebro_spark.types import Unit
    >>> def model_fn(params):
    ...     module = torch.nn.Linear(4, 1)
    ...     return TorchModel(module, torch.optim.SGD(module.parameters(), lr=params["lr"]), torch.nn.MSELoss())
    >>> columns = Columns({"x": ColumnSpec("float32", (4,))}, {"y": ColumnSpec("float32")})
    >>> trainer = TorchTrainer(Hooks(model_fn), columns, resources=Resources(device="cpu"))
    >>> trainer.build("t1", {"lr": 0.1})
    >>> feed = Feed({"x": np.ones((8, 4), "float32"), "y": np.ones(8, "float32")}, batch_size=4)
    >>> sorted(trainer.train(Unit("t1", 1, "train-00000"), feed).values())
    ['loss']
    """

    framework = "torch"
    _remedy = (
        "is no parameter or buffer: use `register_buffer` (or `get_extra_state` and `set_extra_state`), so that it hops"
        " with the checkpoint, set it in model_fn, or undo it before the unit ends. What no later batch reads, such as"
        " a value to look at or for the loss, can be returned from forward instead"
    )

    def warm_up(self) -> None:
        # A process's first optimizer loads PyTorch's compiler, which takes as long as half of `import torch`.
        torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)

    def forget(self, key: str) -> None:
        self._batches.forget(key)

    # Building

    def _claim_resources(self) -> None:
        self.device = claim_torch_device(self.resources)
        self.on_gpu = self.device.type == "cuda"
        self._batches = TensorBatches(self.columns, self.device, self.resources.data_memory)
        self._layout = ChannelsLast(self._compute_loss, self._sign)

    def _libraries(self) -> Mapping[str, Any]:
        return TORCH_LIBRARIES

    def _build(self, params: Params, seed: int) -> BuiltTorchModel:
        seed_host(seed)
        torch.manual_seed(seed)
        with torch.enable_grad():
            made = self.hooks.model_fn(own_params(params))
        model = check_model(made, own_loop=self.hooks.train_fn is not None)
        refuse_shared(model)
        if any(torch.nn.parameter.is_lazy(p) for p in model.module.parameters()):
            with torch.no_grad():
                self._forward(model.module, {n: from_numpy(a) for n, a in self._sample(params).items()})
        own_tensors(model, self.device)
        built = BuiltTorchModel(model, self.device, self.resources.precision)
        built.settings = capture_settings()
        note_built(model)
        return built

    def _prepare(self, model: BuiltTorchModel, params: Params) -> None:
        strategy, on_gpu = self.resources.strategy, self.device.type == "cuda"
        model.keeps_state_on_host = (
            on_gpu and (offloads(strategy) or shards(strategy)) and not find_offload_obstacle(model)
        )
        # FSDP takes parameters with their axes in order alone.
        if self.resources.compile and on_gpu and self.hooks.train_fn is None and not shards(strategy):
            with self._outer_generators():
                self._layout.convert(model, lambda: self._batches.load_batch(self._sample(params)))

    def _move_state(self, built: BuiltTorchModel, model: BuiltTorchModel) -> None:
        model.restore(TensorSource(built.state()))

    def _sign(self, model: BuiltTorchModel) -> str:
        signature = compute_model_signature(model.model)
        return f"{signature} with {model.settings}" if model.settings else signature

    def _take_snapshot(self, model: BuiltTorchModel) -> ObjectSnapshot:
        return take_torch_snapshot(model.model)

    def _make_inspector(self) -> Inspector:
        return TorchInspector()

    # The steps of a unit

    def _end_epochs(self, model: BuiltTorchModel, count: int) -> None:
        scheduler = model.model.lr_scheduler
        if scheduler is not None and model.model.scheduler_step == "epoch":
            for _ in range(count):
                scheduler.step()

    def _copy_state(self, model: BuiltTorchModel) -> StateCopy | None:
        if self.device.type != "cuda" or not has_room_for_copies(model):
            return None
        return StateCopy([model])

    def _label_rules(self, model: BuiltTorchModel) -> Mapping[str, LabelRule]:
        rule = model.loss.label_rule
        return {} if rule is None or len(self.columns.labels) > 1 else dict.fromkeys(self.columns.labels, rule)

    def _begin_unit(self, model: BuiltTorchModel, training: bool) -> None:
        torch.set_grad_enabled(True)  # a user's function may have left it off
        own = model.model
        own.module.train(training)
        if isinstance(own.loss, torch.nn.Module):
            own.loss.train(training)
        # Gradients that a user's train_fn left must not reach the next trial.
        own.module.zero_grad()
        own.optimizer.zero_grad()

    def _watch_function(self, model: BuiltTorchModel, function: Callable[..., Any]) -> AbstractContextManager[None]:
        return watch_own_loop(model.model, function) if function is self.hooks.train_fn else nullcontext()

    def _train(self, model: BuiltTorchModel, feed: Feed | Iterable[Batch], carried: Metrics | None) -> Metrics:
        collector = self._make_collector(model, carried)
        self._take_steps(model, self._batches.load(feed), collector)
        return collector.collect()

    def _take_steps(
        self, model: BuiltTorchModel, batches: Iterable[Tensors], collector: StepObserver, eagerly: bool = False
    ) -> None:
        scheduler = model.model.lr_scheduler if model.model.scheduler_step == "batch" else None
        steps = EagerSteps(model, self._compute_loss) if eagerly else self._steps_of(model)
        with steps.unit():
            for tensors in batches:
                collector.add(*steps.take(tensors))
                if scheduler is not None:
                    scheduler.step()
            model.model.optimizer.zero_grad()
        self.steps = steps.kind

    def _steps_of(self, model: BuiltTorchModel) -> EagerSteps | AutoSteps | TracedSteps | StrategySteps:
        special = self._make_strategy_steps(model)
        if special is not None:
            return special
        on_gpu = self.device.type == "cuda"
        if not self.resources.compile or (self.resources.precision is not None and not on_gpu):
            return EagerSteps(model, self._compute_loss)
        if model.steps is None:
            model.steps = self._make_auto_steps(model) if on_gpu else self._make_traced_steps(model)
        steps: AutoSteps | TracedSteps = model.steps
        return steps

    def _make_auto_steps(self, model: BuiltTorchModel) -> AutoSteps:
        generators = Generators(self._capture_draws, self._restore_draws)
        return AutoSteps(model, self._compute_loss, generators, self.resources.compile == "auto")

    def _make_traced_steps(self, model: BuiltTorchModel) -> TracedSteps:
        generators = Generators(self._capture_draws, self._restore_draws)
        measures = self.resources.compile == "auto"
        return TracedSteps(model, self._compute_loss, self._pick_label, generators, measures)

    # Groups

    def _refuse_in_group(self, model: BuiltTorchModel) -> str | None:
        return refuse_in_group(model)

    def _join(self, meeting: Meeting) -> Group:
        # Not above: some builds of PyTorch have no such part.
        from cerebro_spark.trainer.torch.links import join_group

        return join_group(meeting, self.device)

    def _seed_member(self, model: BuiltTorchModel, seed: int) -> None:
        seed_host(seed)
        torch.manual_seed(seed)

    def _probe(self, model: BuiltTorchModel, batch: Batch, training: bool) -> Probe:
        tensors, describe = self._batches.load_batch(batch), self._describe_generators
        return probe_model(model, tensors, self._compute_loss, self._make_collector, training, describe)

    def _computes_narrow(self, model: BuiltTorchModel) -> bool:
        return super()._computes_narrow(model) or any(
            part.dtype in (torch.float16, torch.bfloat16) for part in model.parameters
        )

    def _rounding(self, model: BuiltTorchModel) -> float:
        exact = self.device.type == "cpu" and not self._computes_narrow(model)
        return FINE_ROUNDING if exact else super()._rounding(model)

    def _train_share(
        self, model: BuiltTorchModel, feed: Feed | Iterable[Batch], steps: Sequence[Step], group: Group
    ) -> Metrics:
        scheduler = model.model.lr_scheduler if model.model.scheduler_step == "batch" else None
        collector, batches = self._make_collector(model, None), iter(self._batches.load(feed))
        with self._shared_steps(model, group) as taken:
            for step in steps:
                result = taken.take_share(next(batches) if step.rows else None, step)
                if result is not None:
                    collector.add(*result)
                if scheduler is not None:
                    scheduler.step()
        model.model.optimizer.zero_grad()
        self._loss_parts = taken.loss_parts
        return collector.collect()

    def _find_inexact(self, model: BuiltTorchModel) -> str:
        return self._loss_parts.find_difference(self._rounding(model))

    @contextmanager
    def _shared_steps(self, model: BuiltTorchModel, group: Group) -> Iterator[GroupedSteps | ShardedSteps]:
        """Yield what takes the steps of a unit together with others."""
        if not shards(self.resources.strategy):
            yield GroupedSteps(model, self._compute_loss, group)
            return
        from cerebro_spark.trainer.torch.links import TorchLinks
        from cerebro_spark.trainer.torch.strategies.sharded_steps import ShardedSteps
        from cerebro_spark.trainer.torch.strategies.sharding import sharded

        assert isinstance(group, TorchLinks), "as _join returns them"
        generators = Generators(self._capture_draws, self._restore_draws)
        with sharded(model, group) as parts:
            yield ShardedSteps(model, self._compute_loss, group, parts, generators, self._lend_rows)

    @torch.no_grad()
    def _evaluate(self, model: BuiltTorchModel, feed: Feed | Iterable[Batch], carried: Metrics | None) -> Metrics:
        collector = self._make_collector(model, carried)
        for tensors in self._batches.load(feed):
            collector.add(*self._compute_loss(model, tensors))
        return collector.collect()

    @torch.no_grad()
    def _predict(self, model: BuiltTorchModel, batches: Iterable[Batch]) -> Iterator[dict[str, Array]]:
        model.model.module.eval()
        for batch in batches:
            with model.autocast:
                output = self._forward(model.model.module, self._batches.load_inputs(batch))
            outputs = output if isinstance(output, dict) else {"prediction": output}
            yield {name: value.float().cpu().numpy() for name, value in outputs.items()}

    def _finish(self, model: BuiltTorchModel, metrics: Metrics) -> dict[str, float]:
        return self._make_collector(model, None).finish(metrics)

    def _make_collector(
        self, model: BuiltTorchModel, carried: Metrics | None, metrics: Mapping[str, Any] | None = None
    ) -> MetricCollector:
        own = model.model.metrics if metrics is None else metrics
        takes_logits = None if self.metric_rule == "guess" else model.loss.takes_logits
        by_rows = self.metric_rule == "rows"
        return MetricCollector(own, carried, model.loss.weigh, self.device, takes_logits, by_rows)

    def _compute_loss(self, model: BuiltTorchModel, tensors: Tensors) -> tuple[torch.Tensor, Any, Any]:
        """Return the loss of a batch, the output and the label."""
        label, weight = self._pick_label(tensors), self.columns.weight
        begin_anew(model.dropping)
        with model.autocast:
            output = with_rows(self._forward(model.model.module, tensors), label)
            return reduce_loss(model.loss(output, label), tensors[weight] if weight else None), output, label

    def _pick_label(self, tensors: Tensors) -> Any:
        """Return the label of a batch; a dict of several."""
        names = self.columns.labels
        return tensors[next(iter(names))] if len(names) == 1 else {name: tensors[name] for name in names}

    def _forward(self, module: Any, tensors: Tensors) -> Any:
        names = self.columns.inputs
        if len(names) == 1:
            return module(tensors[next(iter(names))])
        return module(**{name: tensors[name] for name in names})

    # The state

    def _wrap_array(self, name: str, leaf: Any) -> StateArray | None:
        return wrap_tensor(name, leaf) or wrap_numpy(name, leaf)

    def _capture_generators(self) -> Tree:
        return {**self._capture_draws(), **capture_settings()}

    def _restore_generators(self, tree: Tree) -> None:
        restore_settings(tree)
        self._restore_draws(tree)

    def _capture_draws(self) -> Tree:
        """Return the states of the generators alone."""
        return {**capture_host(), **capture_torch(self.device)}

    def _restore_draws(self, tree: Tree) -> None:
        restore_host(tree)
        restore_torch(tree, self.device)

    def _versions(self) -> dict[str, str]:
        return {"torch": torch.__version__, "numpy": np.__version__, "threads": str(torch.get_num_threads())}


def reduce_loss(loss: torch.Tensor, weight: torch.Tensor | None) -> torch.Tensor:
    """Return the scalar loss of a batch: the mean over its rows, each times its sample weight."""
    if weight is None:
        return loss if loss.ndim == 0 else loss.mean()
    if loss.ndim == 0:
        raise ConfigurationError(
            "a sample weight needs a loss a row, but `loss` returned a single number: use reduction='none',"
            " such as torch.nn.BCEWithLogitsLoss(reduction='none')"
        )
    return (loss.reshape(len(loss), -1).mean(1) * weight.reshape(len(loss))).mean()
