"""Watches a user's own training loop: what it leaves undone, or does twice. It changes nothing of what it computes."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch
from torch.optim.lr_scheduler import LRScheduler
from torch.optim.optimizer import register_optimizer_step_post_hook

from cerebro_spark.errors import ConfigurationError
from cerebro_spark.trainer.sharing.user_code import named_in
from cerebro_spark.trainer.torch.model import TorchModel

_log = logging.getLogger(__name__)


@contextmanager
def watch_own_loop(model: TorchModel, train_fn: Callable[..., Any]) -> Iterator[None]:
    """Watch a unit that `train_fn` trains inside the block.

    Gradients that no step has used, schedules that nobody steps and limits that nobody keeps are said in the log.

    Raises:
        ConfigurationError: It has stepped a schedule that is stepped after every epoch anyway.
    """
    parameters = list(model.module.parameters())
    used: dict[int, tuple[int, int] | None] = {}

    def note(*_: Any) -> None:
        used.update((index, _mark(parameter.grad)) for index, parameter in enumerate(parameters))

    steps = _count_steps(model.lr_scheduler)
    handle = register_optimizer_step_post_hook(note)
    try:
        yield
    finally:
        handle.remove()
    if any(_is_left(parameter.grad, used.get(index)) for index, parameter in enumerate(parameters)):
        _warn_of_gradients()
    _check_schedule(model, steps)
    for name in ("clip_norm", "clip_value"):
        code = getattr(train_fn, "__code__", None)
        if getattr(model, name) is not None and (code is None or name not in named_in(code)):
            _warn_of_limit(name)


def _mark(gradient: torch.Tensor | None) -> tuple[int, int] | None:
    """Return what tells a gradient from one that was computed later."""
    return None if gradient is None else (id(gradient), gradient._version)


def _is_left(gradient: torch.Tensor | None, used: tuple[int, int] | None) -> bool:
    """Whether a gradient has changed since the last step, and is not zero."""
    return gradient is not None and _mark(gradient) != used and bool(gradient.any())


def _count_steps(scheduler: Any) -> int | None:
    """Return how often a schedule of PyTorch's kind was stepped; None for any other."""
    if not isinstance(scheduler, LRScheduler):
        return None
    # A chain counts no steps; its parts do.
    parts: Any = getattr(scheduler, "_schedulers", None)
    return scheduler.last_epoch if hasattr(scheduler, "last_epoch") else _count_steps(parts[0])


def _check_schedule(model: TorchModel, before: int | None) -> None:
    after = _count_steps(model.lr_scheduler)
    if before is None or after is None:
        return
    if model.scheduler_step == "epoch" and after != before:
        raise ConfigurationError(
            f"train_fn has stepped lr_scheduler (a {type(model.lr_scheduler).__name__}), which is stepped after every"
            " epoch anyway: leave that out, or say scheduler_step='batch', with which a train_fn alone steps it"
        )
    if model.scheduler_step == "batch" and after == before:
        _warn_of_schedule(type(model.lr_scheduler).__name__)


@cache
def _warn_of_gradients() -> None:
    _log.warning(
        "train_fn has left gradients that no step has used, as after the last few batches of an accumulation. They do"
        " not hop with the checkpoint, and are dropped: take a step with them before it returns"
    )


@cache
def _warn_of_schedule(name: str) -> None:
    _log.warning(
        "lr_scheduler (a %s) has scheduler_step='batch', but train_fn has not stepped it, so that the learning rate"
        " stays as it is: call model.lr_scheduler.step() after each step of the optimizer",
        name,
    )


@cache
def _warn_of_limit(name: str) -> None:
    _log.warning(
        "TorchModel.%s is for the built-in loop: train_fn, which takes its place, does not name it. Clip the gradients"
        " there, as by torch.nn.utils.clip_grad_norm_",
        name,
    )
