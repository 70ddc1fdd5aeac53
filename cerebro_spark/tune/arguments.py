"""What users say to a search, checked as they say it: functions, names, counts. It never calls any of them."""

from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any

from cerebro_spark.backend.base import Backend, check_seconds
from cerebro_spark.errors import ConfigurationError
from cerebro_spark.result.reading import check_kind
from cerebro_spark.trainer.base import Hooks
from cerebro_spark.trainer.feed import batch_size_of
from cerebro_spark.trainer.resources import Resources
from cerebro_spark.tune.algorithms.base import at_least
from cerebro_spark.tune.spaces.space import Space

_CALLS = {
    "model_fn": ("params",),
    "input_fn": ("batch", "params"),
    "train_fn": ("model", "batches", "params"),
    "eval_fn": ("model", "batches", "params"),
}


def check_names(search: str, given: Iterable[str], known: Collection[str]) -> None:
    """Raise ConfigurationError for an argument that a search does not have.

    >>> check_names("GridSearch", ["seeds"], ["seed", "space"])
    Traceback (most recent call last):
    cerebro_spark.errors.ConfigurationError: GridSearch has no argument 'seeds': did you mean 'seed'?
    """
    for name in given:
        if name not in known:
            near = difflib.get_close_matches(name, sorted(known), n=1)
            hint = f"did you mean {near[0]!r}?" if near else f"it has {', '.join(sorted(known))}"
            raise ConfigurationError(f"{search} has no argument {name!r}: {hint}")


def check_functions_fit(hooks: Hooks) -> None:
    """Raise ConfigurationError for a function that cannot be called with what it will be given.

    >>> check_functions_fit(Hooks(lambda: None))
    Traceback (most recent call last):
    cerebro_spark.errors.ConfigurationError: `model_fn` is <lambda>(), but is called as model_fn(params): give it just
    these arguments
    """
    if not callable(hooks.model_fn):
        raise ConfigurationError(
            f"`model_fn` is {hooks.model_fn!r}, but must be a function of params that returns a compiled Keras model or"
            " a cs.TorchModel"
        )
    if isinstance(hooks.model_fn, type):
        raise ConfigurationError(
            f"`model_fn` is the class {hooks.model_fn.__name__}, but must be a function of params: write a function"
            " that makes one and returns it, compiled or in a cs.TorchModel"
        )
    for name, arguments in _CALLS.items():
        function = getattr(hooks, name)
        if function is not None:
            _check_call(name, function, arguments)


def check_options(options: Mapping[str, Any]) -> None:
    """Raise ConfigurationError for an option that can never be right, whatever the data and the backend."""
    at_least("replicas", options.get("replicas", 1), 1)
    at_least("seed", options.get("seed", 0), 0)
    for name in ("partitions", "max_concurrent", "max_kills"):
        if options.get(name) is not None:
            at_least(name, options[name], 1)
    if options.get("unit_timeout") is not None:
        check_seconds("unit_timeout", options["unit_timeout"])
    backend, resources, trackers = (options.get(name) for name in ("backend", "resources", "trackers"))
    if backend is not None and not isinstance(backend, Backend):
        raise ConfigurationError(
            f"`backend` is a {type(backend).__name__}, but must be a cs.SparkBackend(spark) or a cs.LocalBackend()"
        )
    if resources is not None and not isinstance(resources, Resources):
        raise ConfigurationError(
            f"`resources` is {resources!r}, but must be cs.Resources: write cs.Resources(threads=2), for example"
        )
    if trackers is not None and (isinstance(trackers, str) or not isinstance(trackers, Iterable)):
        raise ConfigurationError(
            f"`trackers` is {trackers!r}, but must be a list of trackers: write [cs.CSVTracker('run.csv')], for example"
        )
    check_kind(options.get("kind"))
    if options.get("progress") not in (None, True, False):
        raise ConfigurationError(f"`progress` is {options['progress']!r}, but must be True, False or None")


def check_batch_sizes(space: Space) -> None:
    """Raise ConfigurationError if a trial could get a batch size that is none."""
    for size in space.ends("batch_size"):
        batch_size_of({"batch_size": size})


def check_replicas(replicas: int, workers: int) -> None:
    """Raise ConfigurationError if a partition is to be held by more workers than there are."""
    if replicas > workers:
        raise ConfigurationError(
            f"`replicas` is {replicas}, but there are only {workers} workers to hold a partition: use"
            f" replicas={workers} or fewer, or a backend with more workers"
        )


def _check_call(name: str, function: Callable[..., Any], arguments: tuple[str, ...]) -> None:
    call = f"{name}({', '.join(arguments)})"
    if not callable(function):
        raise ConfigurationError(f"`{name}` is {function!r}, but must be a function, called as {call}")
    try:
        signature = inspect.signature(function)
    except ValueError:
        return  # some that are written in C do not tell
    try:
        signature.bind(*arguments)
    except TypeError as error:
        own = getattr(function, "__name__", type(function).__name__)
        raise ConfigurationError(
            f"`{name}` is {own}{signature}, but is called as {call}: give it just these arguments"
        ) from error
