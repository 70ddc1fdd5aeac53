"""Units of PyTorch models. A step costs what the plain loop's costs: nothing here waits for a GPU inside the loop."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import numpy as np
import torch

from cerebro_spark.errors import ConfigurationError
from cerebro_spark.trainer.base import Hooks, Params, Resources, Trainer
from cerebro_spark.trainer.checkpoints.file import Entry
from cerebro_spark.trainer.checkpoints.randomness import Tree, capture_host, restore_host, seed_host
from cerebro_spark.trainer.checkpoints.state import numpy_entry
from cerebro_spark.trainer.feed import Array, Batch, Columns, Feed
from cerebro_spark.trainer.sharing.footprint import Footprint, Look
from cerebro_spark.trainer.sharing.resident import Resident
from cerebro_spark.trainer.torch.device import claim_torch
from cerebro_spark.trainer.torch.footprint import TorchLook, torch_footprint
from cerebro_spark.trainer.torch.metrics import Tally
from cerebro_spark.trainer.torch.model import TorchModel
from cerebro_spark.trainer.torch.resident import TorchResident, from_numpy, torch_entry
from cerebro_spark.trainer.torch.returns import check_model
from cerebro_spark.trainer.torch.structure import model_signature
from cerebro_spark.types import Metrics

__all__ = ["TorchModel", "TorchTrainer"]

Tensors = dict[str, torch.Tensor]


class TorchTrainer(Trainer):
    """Trains what `model_fn` returns as a TorchModel.

    >>> from cerebro_spark.trainer import ColumnSpec
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

    def __init__(self, hooks: Hooks, columns: Columns, *, seed: int = 0, resources: Resources | None = None) -> None:
        self._kept: dict[str, tuple[Any, Tensors]] = {}
        super().__init__(hooks, columns, seed=seed, resources=resources)

    def warm_up(self) -> None:
        # A process's first optimizer loads PyTorch's compiler, which takes as long as half of `import torch`.
        torch.optim.SGD([torch.nn.Parameter(torch.zeros(1))], lr=0.1)

    def _claim_resources(self) -> None:
        self.device = claim_torch(self.resources)

    def _build(self, params: Params, seed: int) -> tuple[Resident, Tree]:
        outer = self._capture()
        try:
            seed_host(seed)
            torch.manual_seed(seed)
            model = check_model(self.hooks.model_fn(params), own_loop=self.hooks.train_fn is not None)
            if any(torch.nn.parameter.is_lazy(p) for p in model.module.parameters()):
                with torch.no_grad():
                    self._forward(model.module, {n: from_numpy(a) for n, a in self._sample(params).items()})
            return TorchResident(model, self.device, self.resources.precision), self._capture()
        finally:
            self._restore(outer)

    def _signature(self, resident: Resident) -> str:
        return model_signature(_own(resident).model)

    def _footprint(self, resident: Resident) -> Footprint:
        return torch_footprint(_own(resident).model)

    def _look(self) -> Look:
        return TorchLook()

    @property
    def _remedy(self) -> str:
        return (
            "is no parameter or buffer: use `register_buffer` (or `get_extra_state` and `set_extra_state`), so that it"
            " hops with the checkpoint, set it in model_fn, or undo it before the unit ends"
        )

    def _users(self, resident: Resident) -> TorchModel:
        return _own(resident).model

    def _epochs_passed(self, resident: Resident, count: int) -> None:
        model = _own(resident).model
        if model.lr_scheduler is not None and model.scheduler_step == "epoch":
            for _ in range(count):
                model.lr_scheduler.step()

    def _begin(self, resident: Resident, training: bool) -> None:
        model = _own(resident).model
        model.module.train(training)
        if isinstance(model.loss, torch.nn.Module):
            model.loss.train(training)
        # What somebody's train_fn left of his gradients is no business of whoever comes next.
        model.module.zero_grad()
        model.optimizer.zero_grad()

    def _train(self, resident: Resident, feed: Feed | Iterable[Batch], carried: Metrics | None) -> Metrics:
        own = _own(resident)
        model = own.model
        tally = Tally(model.metrics, carried, own.loss.weigh, self.device)
        weight_name = self.columns.weight
        by_batch = model.scheduler_step == "batch" and model.lr_scheduler is not None
        for tensors in self._tensors(feed):
            label = self._label(tensors)
            with own.autocast:
                output = self._forward(model.module, tensors)
                loss = batch_loss(own, output, label, tensors[weight_name] if weight_name else None)
            step(own, loss)
            if by_batch:
                model.lr_scheduler.step()
            tally.add(loss.detach(), output, label)
        model.optimizer.zero_grad()
        return tally.metrics()

    @torch.no_grad()
    def _evaluate(self, resident: Resident, feed: Feed | Iterable[Batch], carried: Metrics | None) -> Metrics:
        own = _own(resident)
        tally = Tally(own.model.metrics, carried, own.loss.weigh, self.device)
        weight_name = self.columns.weight
        for tensors in self._tensors(feed):
            label = self._label(tensors)
            with own.autocast:
                output = self._forward(own.model.module, tensors)
                loss = batch_loss(own, output, label, tensors[weight_name] if weight_name else None)
            tally.add(loss, output, label)
        return tally.metrics()

    @torch.no_grad()
    def _predict(self, resident: Resident, batches: Iterable[Batch]) -> Iterator[dict[str, Array]]:
        own = _own(resident)
        own.model.module.eval()
        for batch in batches:
            tensors = {name: from_numpy(batch[name]).to(self.device) for name in self.columns.inputs}
            with own.autocast:
                output = self._forward(own.model.module, tensors)
            outputs = output if isinstance(output, dict) else {"prediction": output}
            yield {name: value.float().cpu().numpy() for name, value in outputs.items()}

    def _finish(self, resident: Resident, metrics: Metrics) -> dict[str, float]:
        own = _own(resident)
        return Tally(own.model.metrics, None, own.loss.weigh, self.device).finish(metrics)

    def _forward(self, module: Any, tensors: Tensors) -> Any:
        names = self.columns.inputs
        if len(names) == 1:
            return module(tensors[next(iter(names))])
        return module(**{name: tensors[name] for name in names})

    def _label(self, tensors: Tensors) -> Any:
        names = self.columns.labels
        return tensors[next(iter(names))] if len(names) == 1 else {name: tensors[name] for name in names}

    def _tensors(self, feed: Feed | Iterable[Batch]) -> Iterator[Tensors]:
        """Batches as tensors on the device, gathered there when the arrays fit."""
        if not isinstance(feed, Feed):
            for batch in feed:
                tensors = {name: self._tensor(name, batch[name]).to(self.device) for name in self.columns.names}
                if len(next(iter(tensors.values()))):
                    yield tensors
            return
        kept = self._on_device(feed)
        arrays = kept or {name: self._tensor(name, feed.arrays[name]) for name in self.columns.names}
        order = torch.from_numpy(feed.order)
        if kept is not None:
            order = order.to(self.device)
        # An empty tensor splits into one empty part, whose mean loss would be NaN.
        for rows in torch.split(order, feed.sizes) if len(order) else ():
            batch_ = {name: array.index_select(0, rows) for name, array in arrays.items()}
            if kept is None and self.device.type == "cuda":
                batch_ = {n: t.pin_memory().to(self.device, non_blocking=True) for n, t in batch_.items()}
            yield batch_

    def _tensor(self, name: str, array: Array) -> torch.Tensor:
        tensor = from_numpy(array)
        whole = not tensor.is_floating_point() and tensor.dtype is not torch.bool
        return tensor.long() if whole and name in self.columns.labels else tensor

    def _on_device(self, feed: Feed) -> Tensors | None:
        """The feed's arrays on the GPU, kept between units; None on a CPU or where they do not fit."""
        if self.device.type != "cuda":
            return None
        arrays, tensors = self._kept.get(feed.key, (None, {}))
        if feed.key and arrays is feed.arrays:
            return tensors
        budget = self.resources.data_memory
        if budget is None:
            budget = torch.cuda.mem_get_info(self.device)[0] // 2
            held = 0
        else:
            held = sum(t.nbytes for _, kept in self._kept.values() for t in kept.values())
        if held + feed.nbytes > budget:
            return None
        tensors = {name: self._tensor(name, feed.arrays[name]).to(self.device) for name in self.columns.names}
        if feed.key:
            self._kept[feed.key] = (feed.arrays, tensors)
        return tensors

    def forget(self, key: str) -> None:
        """Let go of a partition's arrays that were kept on the GPU."""
        self._kept.pop(key, None)

    def _entry(self, name: str, leaf: Any) -> Entry | None:
        return torch_entry(name, leaf) or numpy_entry(name, leaf)

    def _capture(self) -> Tree:
        tree = {**capture_host(), "torch": torch.get_rng_state().numpy()}
        if self.device.type == "cuda":
            tree["cuda"] = torch.cuda.get_rng_state(self.device).numpy()
        return tree

    def _restore(self, tree: Tree) -> None:
        restore_host(tree)
        torch.set_rng_state(torch.from_numpy(np.array(tree["torch"])))
        if self.device.type == "cuda":
            if "cuda" in tree:
                torch.cuda.set_rng_state(torch.from_numpy(np.array(tree["cuda"])), self.device)
            else:
                # The checkpoint comes from a worker without a GPU: go on from a state that follows from it.
                torch.cuda.manual_seed(int(np.array(tree["torch"]).view(np.uint64).sum() & 0x7FFFFFFF))

    def _versions(self) -> dict[str, str]:
        return {"torch": torch.__version__, "numpy": np.__version__, "threads": str(torch.get_num_threads())}


def batch_loss(own: TorchResident, output: Any, label: Any, weight: torch.Tensor | None) -> torch.Tensor:
    """The scalar loss of a batch: the mean over its rows, each times its sample weight."""
    loss = own.loss(output, label)
    if weight is None:
        return loss if loss.ndim == 0 else loss.mean()
    if loss.ndim == 0:
        raise ConfigurationError(
            "a sample weight needs a loss a row, but `loss` returned a single number: use reduction='none',"
            " such as torch.nn.BCEWithLogitsLoss(reduction='none')"
        )
    return (loss.reshape(len(loss), -1).mean(1) * weight.reshape(len(loss))).mean()


def step(own: TorchResident, loss: torch.Tensor) -> None:
    """One optimizer step."""
    model, scaler = own.model, own.scaler
    model.optimizer.zero_grad()
    if scaler is None:
        torch.autograd.backward(loss)
    else:
        torch.autograd.backward(scaler.scale(loss))
    if model.clip_norm is not None or model.clip_value is not None:
        if scaler is not None:
            scaler.unscale_(model.optimizer)
        if model.clip_norm is not None:
            torch.nn.utils.clip_grad_norm_(own.parameters, model.clip_norm)
        if model.clip_value is not None:
            torch.nn.utils.clip_grad_value_(own.parameters, model.clip_value)
    if scaler is None:
        model.optimizer.step()
    else:
        scaler.step(model.optimizer)
        scaler.update()


def _own(resident: Resident) -> TorchResident:
    assert isinstance(resident, TorchResident)
    return resident
