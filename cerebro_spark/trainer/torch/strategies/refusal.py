"""What is raised where a strategy cannot be exact. It decides nothing."""

from __future__ import annotations

from cerebro_spark.errors import ConfigurationError


class StrategyRefused(ConfigurationError):
    """A model cannot train by a strategy and learn the same; the message says which part of it is at fault."""
