"""Checks of a search's arguments, as soon as they are given: functions, counts, objects. It never calls a function."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

from cerebro_spark.backend.base import Backend
from cerebro_spark.checks import check_at_least, check_seconds
from cerebro_spark.data.partitioning.spec import check_allow_nan
from cerebro_spark.errors import ConfigurationError
from cerebro_spark.result.decoding import check_kind
from cerebro_spark.trainer.base import Hooks
from cerebro_spark.trainer.feed import batch_size_of
from cerebro_spark.trainer.resources import Resources
from cerebro_spark.tune.options import TrainingOptions
from cerebro_spark.tune.spaces.space import Space

# As many trials as "auto" lets train together: more gain little on a CPU, and take memory on a GPU.
_AUTO_FUSED = 32
# Where trials may train together, a search that learns from them asks for this many for each worker, but for no more
# than this part of all trials: it would learn nothing from those that it asked for too early.
_FUSED_AT_ONCE = 8
_PART_AT_ONCE = 4
# "auto" sets no limit to groups: there are never more workers than that.
_AUTO_GROUP = 1024
_CALLS = {
    "model_fn": ("params",),
    "input_fn": ("batch", "params"),
    "train_fn": ("model", "batches", "params"),
    "eval_fn": ("model", "batches", "params"),
}

# What PyTorch's modules have, and Keras' models.
_OF_MODELS = (("parameters", "state_dict"), ("trainable_weights", "get_weights"))


def check_functions_fit(hooks: Hooks) -> None:
    """Raise ConfigurationError for a function that cannot be called with what it will be given.

    >>> check_functions_fit(Hooks(lambda: None))
    Traceback (most recent call last):
    cerebro_spark.errors.ConfigurationError: `model_fn` is <lambda>(), but is called as model_fn(params): give it
    exactly these arguments
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
    if any(hasattr(hooks.model_fn, one) and hasattr(hooks.model_fn, two) for one, two in _OF_MODELS):
        raise ConfigurationError(
            f"`model_fn` is a model, a {type(hooks.model_fn).__name__}, but must be a function of params that makes"
            " one: each trial trains its own. Return it compiled, or in a cs.TorchModel"
        )
    for name, arguments in _CALLS.items():
        function = getattr(hooks, name)
        if function is not None:
            _check_call(name, function, arguments)


def check_options(options: TrainingOptions) -> None:
    """Raise ConfigurationError for an option that can never be right, whatever the data and the backend."""
    check_at_least("replicas", options.replicas, 1)
    check_at_least("seed", options.seed, 0)
    check_allow_nan(options.allow_nan)
    for name in ("partitions", "max_kills"):
        if getattr(options, name) is not None:
            check_at_least(name, getattr(options, name), 1)
    if options.unit_timeout is not None:
        check_seconds("unit_timeout", options.unit_timeout)
    fused_trials(options.fuse)
    group_of(options.workers_per_trial)
    check_backend(options.backend)
    if options.resources is not None and not isinstance(options.resources, Resources):
        raise ConfigurationError(
            f"`resources` is {options.resources!r}, but must be cs.Resources: write cs.Resources(threads=2), for"
            " example"
        )
    if isinstance(options.trackers, str) or not isinstance(options.trackers, Iterable):
        raise ConfigurationError(
            f"`trackers` is {options.trackers!r}, but must be a list of trackers: write [cs.CSVTracker('run.csv')], for"
            " example"
        )
    check_kind(options.kind)
    _check_strategy(options)


def _check_strategy(options: TrainingOptions) -> None:
    """Raise ConfigurationError if models are to lie in parts at several workers, but trials have one at a time."""
    if options.resources is None or options.resources.strategy != "shard":
        return
    group = group_of(options.workers_per_trial)
    if group.auto or group.size < 2:
        raise ConfigurationError(
            f"strategy is 'shard' and `workers_per_trial` is {options.workers_per_trial!r}, but a model lies in parts"
            " at a number of workers of one host, at least 2: write workers_per_trial=2, or use another strategy, such"
            " as 'offload'"
        )
    if fused_trials(options.fuse) > 1:
        raise ConfigurationError(
            f"strategy is 'shard' and `fuse` is {options.fuse!r}, but trials in a bundle have one worker, and models in"
            " parts have several: leave out `fuse`, or use another strategy"
        )


def check_progress(progress: object) -> None:
    """Raise ConfigurationError unless a progress bar is wanted, not wanted, or left to us."""
    if progress not in (None, True, False):
        raise ConfigurationError(f"`progress` is {progress!r}, but must be True, False or None")


def fused_trials(fuse: object) -> int:
    """Return how many trials may be trained together, 1 for every trial by itself.

    Raises:
        ConfigurationError: `fuse` is none of its values.

    >>> fused_trials("auto"), fused_trials(8), fused_trials(False)
    (32, 8, 1)
    """
    if fuse == "auto":
        return _AUTO_FUSED
    if fuse is False:
        return 1
    if isinstance(fuse, bool) or not isinstance(fuse, int) or fuse < 2:
        raise ConfigurationError(
            f"`fuse` is {fuse!r}, but must be 'auto', False, or how many trials may be trained together, at least 2:"
            " write fuse='auto', or fuse=False for every trial by itself"
        )
    return fuse


class Group(NamedTuple):
    """How many workers may train a unit of a trial together; `auto` says that fewer do where that is as good."""

    size: int
    auto: bool = False


def group_of(workers_per_trial: object) -> Group:
    """Return how many workers train a trial together.

    Raises:
        ConfigurationError: `workers_per_trial` is none of its values.

    >>> group_of("auto"), group_of(4), group_of(1)
    (Group(size=1024, auto=True), Group(size=4, auto=False), Group(size=1, auto=False))
    """
    if workers_per_trial == "auto":
        return Group(_AUTO_GROUP, auto=True)
    if isinstance(workers_per_trial, bool) or not isinstance(workers_per_trial, int) or workers_per_trial < 1:
        raise ConfigurationError(
            f"`workers_per_trial` is {workers_per_trial!r}, but must be 'auto' or how many workers train a trial"
            " together, at least 1: write workers_per_trial='auto', or 1 for one at a time"
        )
    return Group(workers_per_trial)


def check_group(workers_per_trial: object, workers: int, partitions: int) -> None:
    """Raise ConfigurationError for groups that are larger than there are workers, or partitions for their members."""
    size, auto = group_of(workers_per_trial)
    for name, most in (("workers", workers), ("partitions to train on", partitions)):
        if not auto and size > most:
            raise ConfigurationError(
                f"`workers_per_trial` is {size}, but there are {most} {name}, and each of these workers trains on a"
                f" partition of its own: use at most {most}, or 'auto'"
            )


def concurrent_trials(fuse: object, workers: int, alone: int, trials: float | None) -> int:
    """Return how many trials a search that learns from trials runs at a time, where the user does not say.

    Args:
        fuse: The option of the search.
        workers: How many workers there are.
        alone: How many trials it runs for each worker if every trial is trained by itself.
        trials: How many trials there will be in all; None if that is not known.

    >>> concurrent_trials(False, workers=2, alone=2, trials=100), concurrent_trials("auto", 2, 2, 100)
    (4, 16)
    >>> concurrent_trials("auto", workers=2, alone=2, trials=40), concurrent_trials(4, 2, 1, None)
    (10, 8)
    """
    fused = workers * min(fused_trials(fuse), _FUSED_AT_ONCE)
    return max(alone * workers, fused if trials is None else int(min(fused, trials / _PART_AT_ONCE)))


def check_backend(backend: object) -> None:
    """Raise ConfigurationError for what is neither a backend nor None."""
    if backend is not None and not isinstance(backend, Backend):
        raise ConfigurationError(
            f"`backend` is a {type(backend).__name__}, but must be a cs.SparkBackend(spark) or a cs.LocalBackend()"
        )


def check_batch_sizes(space: Space) -> None:
    """Raise ConfigurationError if a trial could get a batch size that cannot be used."""
    for size in space.ends("batch_size"):
        batch_size_of({"batch_size": size})


def check_replicas(replicas: int, workers: int) -> None:
    """Raise ConfigurationError if there are fewer workers than replicas."""
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
        return  # some functions that are written in C have no signature to check
    try:
        signature.bind(*arguments)
    except TypeError as error:
        own = getattr(function, "__name__", type(function).__name__)
        raise ConfigurationError(
            f"`{name}` is {own}{signature}, but is called as {call}: give it exactly these arguments"
        ) from error
