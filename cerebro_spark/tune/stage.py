"""The base class of searches where pyspark is not installed; `estimator_stage.py` has the one for where it is."""

from __future__ import annotations

from typing import Any

from cerebro_spark.errors import ConfigurationError


class PlainStage:
    """A search without Spark's params."""

    def _handed_over(self, result: Any) -> Any:
        return result

    def _with_params(self, params: Any) -> Any:
        """Raise ConfigurationError: without pyspark a search has no params."""
        raise ConfigurationError(
            f"`params` is {params!r}, but a search has Spark's params only where pyspark is installed: make another"
            " search with other arguments"
        )
