"""Checks whether a checkpoint fits a model, before anything of the model is changed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from cerebro_spark.errors import CerebroError, CheckpointError
from cerebro_spark.trainer.checkpoints.arrays import StateSource

_RULE = "a checkpoint fits only the architecture that wrote it"


@contextmanager
def checking_fit(source: StateSource, framework: str) -> Iterator[None]:
    """Raise CheckpointError if another framework wrote the source, or if anything fails inside the block."""
    found = source.meta.get("framework") if isinstance(source.meta, dict) else None
    if found != framework:
        raise CheckpointError(
            f"{source.label} was written by {found!r}, but this search trains with {framework!r}: a checkpoint is"
            " loaded by the framework that wrote it"
        )
    try:
        yield
    except (CerebroError, OSError):
        raise
    except Exception as error:
        raise CheckpointError(
            f"{source.label} does not fit the model that params build ({type(error).__name__}: {error}): {_RULE}"
        ) from error


def check_spec(source: StateSource, name: str, tag: str, shape: Sequence[int]) -> None:
    """Raise CheckpointError unless the array of the source has this dtype and shape."""
    found_tag, found_shape = source.spec(name)
    if (found_tag, found_shape) != (tag, tuple(shape)):
        raise CheckpointError(
            f"{name!r} is {found_tag} of shape {list(found_shape)} in {source.label}, but {tag} of shape {list(shape)}"
            f" in the model: {_RULE}"
        )


def check_names(source: StateSource, prefix: str, own: Iterable[str]) -> None:
    """Raise CheckpointError unless the source has the same arrays under `prefix` as the model."""
    found = {name.removeprefix(prefix) for name in source.names() if name.startswith(prefix)}
    wanted = set(own)
    for names, where in ((found - wanted, "in the file only"), (wanted - found, "in the model only")):
        if names:
            few = ", ".join(repr(name) for name in sorted(names)[:5])
            raise CheckpointError(
                f"{source.label} was written by a model of another structure: {few} (of {len(names)}) under {prefix!r}"
                f" is {where}; {_RULE}"
            )


def check_fact(source: StateSource, what: str, found: Any, own: Any) -> None:
    """Raise CheckpointError unless a fact about the writer of the source is true of this model."""
    if found != own:
        raise CheckpointError(f"the {what} is {found} in {source.label}, but {own} in the model: {_RULE}")
