"""Says in words that executors lack this package, which Spark says in a traceback. It asks them nothing by itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from cerebro_spark.errors import BackendError


@contextmanager
def package_on_executors() -> Iterator[None]:
    """While the block lasts, a job whose tasks cannot be unpickled for lack of this package raises BackendError.

    >>> with package_on_executors():
    ...     raise RuntimeError("ModuleNotFoundError: No module named 'cerebro_spark'")
    Traceback (most recent call last):
    ...
    cerebro_spark.errors.BackendError: the executors do not have cerebro_spark: install it there, or ship this
    environment with spark.archives (see docs/deploy)
    """
    try:
        yield
    except Exception as error:
        if "No module named 'cerebro_spark'" in str(error):
            raise BackendError(
                "the executors do not have cerebro_spark: install it there, or ship this environment with"
                " spark.archives (see docs/deploy)"
            ) from error
        raise
