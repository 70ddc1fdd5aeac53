"""Checks what a PyTorch `model_fn` returned, before the first step. It changes nothing."""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch.optim.lr_scheduler import ReduceLROnPlateau
from torch.optim.swa_utils import SWALR

from cerebro_spark.errors import ConfigurationError
from cerebro_spark.trainer.torch.model import TorchModel

RETURNS = (
    "model_fn must return cs.TorchModel(module, optimizer, loss), for example\n"
    "    module = torch.nn.Linear(64, 1)\n"
    "    optimizer = torch.optim.Adam(module.parameters(), lr=params['lr'])\n"
    "    return cs.TorchModel(module, optimizer, torch.nn.BCEWithLogitsLoss())"
)

_SEVERAL = "gives several values: make a metric of each of them"
# Classes of torchmetrics that are not one value of all rows, independent of partitions and batches.
_NO_VALUE = {
    "MetricCollection": "gives several values: pass its metrics by name, as metrics=dict(collection.items())",
    "MultitaskWrapper": _SEVERAL,
    "MultioutputWrapper": _SEVERAL,
    "ClasswiseWrapper": _SEVERAL,
    "MinMaxMetric": "goes by how often it is computed: use the metric inside; a result's history has every epoch",
    "MetricTracker": "goes by how often it is computed: use the metric inside; a result's history has every epoch",
    "BootStrapper": "draws rows at random in every batch: use the metric inside",
    "Running": "goes by the last batches, not by rows: use the metric inside",
}
_NO_SCHEDULER = {
    ReduceLROnPlateau: "which needs a validation metric that no single worker knows: use a scheduler that goes by steps"
    " or epochs",
    SWALR: "whose state holds a function that no checkpoint can: use a LambdaLR, or a SequentialLR of a LinearLR and a"
    " ConstantLR that ends at the same rate",
}


def check_model(made: Any, *, own_loop: bool = False) -> TorchModel:
    """Return what `model_fn` returned if it can be trained.

    Args:
        made: What `model_fn` returned.
        own_loop: Whether a `train_fn` of the user takes the steps.

    Raises:
        ConfigurationError: It cannot be trained; the message shows what to return.
    """
    if not isinstance(made, TorchModel):
        raise ConfigurationError(f"model_fn returned {made!r} of type {type(made).__name__}. {RETURNS}")
    _check_loss(made.loss)
    _check_module(made, own_loop)
    _check_metrics(made.metrics)
    _check_scheduler(made)
    for name, limit in (("clip_norm", made.clip_norm), ("clip_value", made.clip_value)):
        if limit is not None and (isinstance(limit, bool) or not isinstance(limit, int | float) or not limit > 0):
            raise ConfigurationError(f"TorchModel.{name} is {limit!r}, but must be a number above 0, or None")
    return made


def is_metric_object(metric: Any) -> bool:
    """Whether a metric is an object that is updated batch by batch, and not a function that returns values a row."""
    return not isinstance(metric, type) and all(
        callable(getattr(metric, name, None)) for name in ("update", "compute", "reset")
    )


def _check_module(made: TorchModel, own_loop: bool) -> None:
    if not isinstance(made.module, torch.nn.Module):
        raise ConfigurationError(f"TorchModel.module is {_show(made.module)}, not a torch.nn.Module. {RETURNS}")
    if not isinstance(made.optimizer, torch.optim.Optimizer):
        raise ConfigurationError(
            f"TorchModel.optimizer is {_show(made.optimizer)}, not a torch.optim.Optimizer. {RETURNS}"
        )
    own = {id(p) for p in made.module.parameters()}
    if any(id(p) not in own for group in made.optimizer.param_groups for p in group["params"]):
        raise ConfigurationError(
            f"TorchModel.optimizer holds parameters of another module: build it over module.parameters(). {RETURNS}"
        )
    needed = _required_arguments(made.optimizer)
    if needed and not own_loop:
        raise ConfigurationError(
            f"TorchModel.optimizer is {type(made.optimizer).__name__}, whose step() needs {needed}"
            " (as LBFGS does), but is called without: give a train_fn of your own that calls it, or use another"
            " optimizer, such as torch.optim.Adam"
        )


def _required_arguments(stepping: Any) -> str:
    """The arguments that `step` needs. The class has them: a scheduler wraps the method of the object."""
    try:
        _, *parameters = inspect.signature(type(stepping).step).parameters.values()
    except (TypeError, ValueError):
        return ""
    loose = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)
    return ", ".join(f"`{p.name}`" for p in parameters if p.default is p.empty and p.kind not in loose)


def _check_loss(loss: Any) -> None:
    if isinstance(loss, Mapping):
        raise ConfigurationError(
            f"TorchModel.loss is a dict of {', '.join(map(repr, loss))}, but must be one function of all outputs and"
            " labels, such as lambda output, label: F.mse_loss(output['a'], label['a']) + F.mse_loss(output['b'],"
            " label['b'])"
        )
    if isinstance(loss, type) or not callable(loss):
        raise ConfigurationError(
            f"TorchModel.loss is {_show(loss)}, but must be called as loss(output, label). {RETURNS}"
        )
    named = loss.named_parameters() if isinstance(loss, torch.nn.Module) else ()
    learning = [name for name, parameter in named if parameter.requires_grad]
    if learning:
        raise ConfigurationError(
            f"TorchModel.loss is a {type(loss).__name__} with parameters ({', '.join(learning[:3])}), but only those of"
            " the module are trained and hop: make the loss a part of it (module.criterion = criterion), build the"
            " optimizer over module.parameters() after that, and give"
            " loss=lambda output, label: module.criterion(output, label)"
        )


def _check_metrics(metrics: Any) -> None:
    example = "such as metrics={'accuracy': lambda output, label: output.argmax(1) == label}"
    if not isinstance(metrics, Mapping):
        if type(metrics).__module__.startswith("torchmetrics."):
            example = "as metrics=dict(collection.items()) of a MetricCollection"
        raise ConfigurationError(f"TorchModel.metrics is {_show(metrics)}, but must be a dict from names, {example}")
    for name, metric in metrics.items():
        if not isinstance(name, str) or name == "loss":
            raise ConfigurationError(
                f"a metric is named {name!r}, but names are strings, and 'loss' is the loss itself: name it otherwise"
            )
        if isinstance(metric, type) or not (callable(metric) or is_metric_object(metric)):
            raise ConfigurationError(
                f"metric {name!r} is {_show(metric)}, but must be a function of (output, label), {example}, or an"
                " object with update, compute and reset"
            )
    _check_objects({name: metric for name, metric in metrics.items() if is_metric_object(metric)})


def _check_objects(metrics: Mapping[str, Any]) -> None:
    """Refuse objects that are not one value of all rows, and those that have two names."""
    owners: dict[int, str] = {}
    for name, metric in metrics.items():
        parts = list(metric.modules()) if isinstance(metric, torch.nn.Module) else [metric]
        _check_arguments(name, metric)
        for part in parts:
            _check_part(name, part)
            if is_metric_object(part) and owners.setdefault(id(part), name) != name:
                raise ConfigurationError(
                    f"metrics {owners[id(part)]!r} and {name!r} share one {type(part).__name__}, which would count"
                    " every row twice: give each an object of its own"
                )
        if hasattr(metric, "_defaults") and not any(getattr(part, "_defaults", None) for part in parts):
            raise ConfigurationError(
                f"metric {name!r} ({type(metric).__name__}) has no state that could go from partition to partition:"
                " register what `update` changes with `add_state`"
            )


def _check_arguments(name: str, metric: Any) -> None:
    """Refuse a mean of torchmetrics, which would take labels for weights, alone or in an expression."""
    for operand in (getattr(metric, "metric_a", None), getattr(metric, "metric_b", None)):
        if is_metric_object(operand):
            _check_arguments(name, operand)
    update = getattr(type(metric), "update", None)
    if getattr(update, "__qualname__", "") == "MeanMetric.update" and update.__module__ == "torchmetrics.aggregation":
        raise ConfigurationError(
            f"metric {name!r} is, or is made of, a torchmetrics MeanMetric, which would take labels for weights: give a"
            " function of (output, label) that returns a value a row, of which the mean over all rows is taken"
        )


def _check_part(name: str, part: Any) -> None:
    if type(part).__name__.endswith("StructuralSimilarityIndexMeasure") and getattr(part, "data_range", 0) is None:
        raise ConfigurationError(
            f"metric {name!r} is, or is made of, a torchmetrics {type(part).__name__} without data_range, which takes"
            " the range of values from each batch by itself: say it, as data_range=1.0"
        )
    for kind in type(part).__mro__:
        if kind.__module__.startswith("torchmetrics.") and kind.__name__ in _NO_VALUE:
            raise ConfigurationError(
                f"metric {name!r} is, or is made of, a torchmetrics {kind.__name__}, which {_NO_VALUE[kind.__name__]}"
            )


def _check_scheduler(made: TorchModel) -> None:
    scheduler = made.lr_scheduler
    if made.scheduler_step not in ("epoch", "batch"):
        raise ConfigurationError(f"scheduler_step is {made.scheduler_step!r}, but must be 'epoch' or 'batch'")
    if scheduler is None:
        return
    for part in _list_schedulers(scheduler):
        for kind, why in _NO_SCHEDULER.items():
            if isinstance(part, kind):
                found = "is" if part is scheduler else f"is a {type(scheduler).__name__} with"
                raise ConfigurationError(f"lr_scheduler {found} a {kind.__name__}, {why}")
    able = all(callable(getattr(scheduler, name, None)) for name in ("step", "state_dict", "load_state_dict"))
    example = "such as lr_scheduler=torch.optim.lr_scheduler.StepLR(optimizer, 1)"
    if isinstance(scheduler, type) or not able:
        raise ConfigurationError(f"TorchModel.lr_scheduler is {_show(scheduler)}, but must be a scheduler, {example}")
    needed = _required_arguments(scheduler)
    if needed:
        raise ConfigurationError(
            f"lr_scheduler is a {type(scheduler).__module__}.{type(scheduler).__name__}, whose step() needs"
            f" {needed} (as timm's do), but is called without: use one of PyTorch's, such as"
            " torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: ...) with the same rates"
        )
    if getattr(scheduler, "optimizer", made.optimizer) is not made.optimizer:
        raise ConfigurationError(f"TorchModel.lr_scheduler steers another optimizer: build it over this one, {example}")


def _list_schedulers(scheduler: Any) -> Iterator[Any]:
    """Yield a scheduler, and those that it is made of, as a SequentialLR or a ChainedScheduler is."""
    yield scheduler
    for part in getattr(scheduler, "_schedulers", ()):
        yield from _list_schedulers(part)


def _show(value: Any) -> str:
    return f"the class {value.__name__}" if isinstance(value, type) else f"{value!r} of type {type(value).__name__}"
