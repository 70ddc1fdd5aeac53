"""All that makes a trainer, as one value that runs, workers and saved models carry, and the choice of its framework.

It loads a framework only when the class of the trainer is asked for.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import CodeType, FunctionType, ModuleType
from typing import Any, Literal

from cerebro_spark.errors import ConfigurationError
from cerebro_spark.trainer.base import Hooks, Resources, Trainer
from cerebro_spark.trainer.feed import Columns
from cerebro_spark.trainer.metric_rule import MetricRule
from cerebro_spark.trainer.torch.model import TorchModel
from cerebro_spark.types import Strategy, TrialId

Framework = Literal["auto", "keras", "torch"] | type[Trainer]

_FAMILIES = {"torch": "torch", "torchvision": "torch", "TorchModel": "torch", "keras": "keras", "tensorflow": "keras"}


@dataclass(frozen=True, slots=True)
class TrainerSpec:
    """A trainer before it is made.

    Attributes:
        hooks: The user's functions.
        seed: The seed of weights, dropout and the order of rows.
        framework: "keras" or "torch"; "auto" goes by the code of `model_fn`; a class is used as it is.
        resources: What the trainer may use of its machine.
        metric_rule: What tells classification metrics that outputs are logits. It is part of a run's recipe, so that
            a run is resumed and replayed by its own rule.
        strategies: How the models of trials lie on their devices, where that is known before they train. Empty by
            default.
    """

    hooks: Hooks
    seed: int = 0
    framework: Framework = "auto"
    resources: Resources = field(default_factory=Resources)
    metric_rule: MetricRule = "rows"
    strategies: Mapping[TrialId, Strategy] = field(default_factory=dict)

    def __setstate__(self, state: Sequence[Any]) -> None:
        """Take on the pickled fields. An older pickle lacks the last ones, and means the rule of then."""
        once: dict[str, Any] = {"metric_rule": "guess", "strategies": {}}
        for index, known in enumerate(dataclasses.fields(self)):
            object.__setattr__(self, known.name, state[index] if index < len(state) else once[known.name])

    @property
    def trainer_class(self) -> type[Trainer]:
        """The class of the trainer; reading it loads the framework."""
        return choose_trainer(self.hooks.model_fn, self.framework)

    def make_trainer(self, columns: Columns) -> Trainer:
        """Return a new trainer for data with these columns."""
        trainer = self.trainer_class(self.hooks, columns, seed=self.seed, resources=self.resources)
        trainer.metric_rule = self.metric_rule
        trainer.strategies = self.strategies
        return trainer

    def with_modules(self) -> TrainerSpec:
        """Return the same with the modules that the functions need, as they are now."""
        return dataclasses.replace(self, hooks=self.hooks.with_modules())

    def with_resources(self, **changes: Any) -> TrainerSpec:
        """Return the same with some fields of `resources` changed."""
        return dataclasses.replace(self, resources=dataclasses.replace(self.resources, **changes))


def choose_trainer(model_fn: Callable[..., Any], framework: str | type[Trainer] = "auto") -> type[Trainer]:
    """Return the class of trainer of a search.

    Args:
        model_fn: The user's function.
        framework: "keras", "torch", "auto" for the one that `model_fn` mentions (the default), or a class of trainer.

    Returns:
        The class; choosing it loads the framework.

    Raises:
        ConfigurationError: The framework has another name, or cannot be told from the code.
    """
    if isinstance(framework, type):
        return framework
    chosen = detect_framework(model_fn) if framework == "auto" else framework
    if chosen == "torch":
        from cerebro_spark.trainer.torch.trainer import TorchTrainer

        return TorchTrainer
    if chosen == "keras":
        from cerebro_spark.trainer.keras.trainer import KerasTrainer

        return KerasTrainer
    raise ConfigurationError(f"`framework` is {framework!r}, but must be 'auto', 'keras' or 'torch'")


def detect_framework(model_fn: Callable[..., Any]) -> str:
    """Return "keras" or "torch", whichever the code of `model_fn` mentions. Raises ConfigurationError if unclear.

    `model_fn` is not called: threads and devices must be claimed before a framework is first used, so the choice cannot
    wait for what it returns.

    >>> def model_fn(params):
    ...     import torch
    ...     return TorchModel(torch.nn.Linear(2, 1), None, None)
    >>> detect_framework(model_fn)
    'torch'
    """
    names = set(_mentioned(model_fn, set()))
    found = {_FAMILIES[name] for name in names & _FAMILIES.keys()}
    # With Keras' torch backend a function may mention both; a TorchModel is only returned for PyTorch.
    if found == {"keras", "torch"} and "TorchModel" not in names:
        found = {"keras"}
    if len(found) != 1:
        raise ConfigurationError(
            f"it is not clear from the code of {getattr(model_fn, '__name__', model_fn)!r} whether it builds a Keras or"
            " a PyTorch model: say framework='keras' or framework='torch'"
        )
    return found.pop()


def _mentioned(function: Any, seen: set[int]) -> Iterator[str]:
    """Yield the names in a function, its inner functions and the functions it uses; of modules, the first part."""
    function = getattr(function, "__func__", function)
    function = getattr(function, "func", function)
    if not isinstance(function, FunctionType):
        function = vars(type(function)).get("__call__")
    if not isinstance(function, FunctionType) or id(function) in seen:
        return
    seen.add(id(function))
    names = list(_names(function.__code__))
    yield from (name.split(".")[0] for name in names)
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    for value in (*map(function.__globals__.get, names), *cells):
        yield from _mentioned_by(value, seen)


def _mentioned_by(value: Any, seen: set[int]) -> Iterator[str]:
    if isinstance(value, ModuleType):
        yield value.__name__.split(".")[0]
    elif value is TorchModel:
        yield "TorchModel"
    elif isinstance(value, type):
        yield from (base.__module__.split(".")[0] for base in value.__mro__)
    elif isinstance(value, FunctionType):
        yield value.__module__.split(".")[0]
        yield from _mentioned(value, seen)


def _names(code: CodeType) -> Iterator[str]:
    yield from code.co_names
    for constant in code.co_consts:
        if isinstance(constant, CodeType):
            yield from _names(constant)
