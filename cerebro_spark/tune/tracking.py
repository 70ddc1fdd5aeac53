"""The former address of `cerebro_spark.tune.trackers.Tracker`, for programs that import it from here."""

from cerebro_spark.tune.trackers.base import Tracker

__all__ = ["Tracker"]
