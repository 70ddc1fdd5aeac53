"""Which trainer a search needs, seen from the code of `model_fn`. It never calls it, which would be too early.

Threads and devices must be claimed before a framework is first used, so the choice cannot wait for what `model_fn`
returns. What the function, and the functions it uses, mention decides; where that is not clear the user must say.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import CodeType, FunctionType, ModuleType
from typing import Any

from cerebro_spark.errors import ConfigurationError
from cerebro_spark.trainer.base import Trainer
from cerebro_spark.trainer.torch.model import TorchModel

_FAMILIES = {"torch": "torch", "torchvision": "torch", "TorchModel": "torch", "keras": "keras", "tensorflow": "keras"}


def choose_trainer(model_fn: Callable[..., Any], framework: str | type[Trainer] = "auto") -> type[Trainer]:
    """The class of trainer for `framework`, or for what `model_fn` mentions if that is "auto"; a class is itself."""
    if isinstance(framework, type):
        return framework
    chosen = framework_of(model_fn) if framework == "auto" else framework
    if chosen == "torch":
        from cerebro_spark.trainer.torch.trainer import TorchTrainer

        return TorchTrainer
    if chosen == "keras":
        from cerebro_spark.trainer.keras.trainer import KerasTrainer

        return KerasTrainer
    raise ConfigurationError(f"`framework` is {framework!r}, but must be 'auto', 'keras' or 'torch'")


def framework_of(model_fn: Callable[..., Any]) -> str:
    """ "keras" or "torch".

    >>> def model_fn(params):
    ...     import torch
    ...     return TorchModel(torch.nn.Linear(2, 1), None, None)
    >>> framework_of(model_fn)
    'torch'
    """
    found = {_FAMILIES[name] for name in _mentioned(model_fn, set()) if name in _FAMILIES}
    # Keras' own torch backend makes a function mention both; a TorchModel is only ever returned for PyTorch.
    if found == {"keras", "torch"} and "TorchModel" not in set(_mentioned(model_fn, set())):
        found = {"keras"}
    if len(found) != 1:
        raise ConfigurationError(
            f"it is not clear from the code of {getattr(model_fn, '__name__', model_fn)!r} whether it builds a Keras or"
            " a PyTorch model: say framework='keras' or framework='torch'"
        )
    return found.pop()


def _mentioned(function: Any, seen: set[int]) -> Iterator[str]:
    """Names that a function, its inner functions and the functions it uses mention; of modules, their first part."""
    function = getattr(function, "__func__", function)
    function = getattr(function, "func", function)
    if not isinstance(function, FunctionType):
        function = vars(type(function)).get("__call__")
    if not isinstance(function, FunctionType) or id(function) in seen:
        return
    seen.add(id(function))
    cells = [cell.cell_contents for cell in function.__closure__ or ()]
    for name in _names(function.__code__):
        yield name.split(".")[0]
        value = function.__globals__.get(name)
        yield from _of_value(value, seen)
    for value in cells:
        yield from _of_value(value, seen)


def _of_value(value: Any, seen: set[int]) -> Iterator[str]:
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
