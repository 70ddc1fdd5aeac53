"""Libraries that only some parts of the package need: what to install if one is missing. It imports none itself."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from cerebro_spark.errors import MissingDependency


@contextmanager
def needed_by(user: str, library: str, extra: str) -> Iterator[None]:
    """Raise MissingDependency, with the command that installs the library, for an ImportError in the block.

    Args:
        user: What needs the library, for the message.
        library: The library that is imported in the block.
        extra: The extra of this package that has it.

    Raises:
        MissingDependency: An import failed.
    """
    try:
        yield
    except ImportError as error:
        raise MissingDependency(
            f"{user} needs {library}, which cannot be imported ({error}): pip install 'cerebro-spark[{extra}]'"
        ) from error
