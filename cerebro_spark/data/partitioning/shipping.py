"""What executors need of this environment: its Python where they are on this machine, and this package anywhere.

It says in words what they lack, where Spark says it in a traceback, and asks them nothing by itself.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from cerebro_spark.errors import BackendError


def use_this_python(context: Any) -> None:
    """Have a Spark of this machine run the interpreter of this process where nobody said which.

    Spark would take the `python3` of the PATH, which is another one where the environment is not activated. On other
    machines paths are theirs, and what `PYSPARK_PYTHON` or `spark.pyspark.python` say holds anywhere.
    """
    master = str(context.master)
    here = master == "local" or master.startswith(("local[", "local-cluster["))
    said = os.environ.get("PYSPARK_PYTHON") or context.getConf().get("spark.pyspark.python")
    if here and not said and sys.executable and context.pythonExec == "python3":
        context.pythonExec = sys.executable


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
