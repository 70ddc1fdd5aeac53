"""Handles of live runs: what can be seen of a run while it goes on, and told to it."""

from cerebro_spark.live.attached import AttachedRun
from cerebro_spark.live.handle import RunHandle
from cerebro_spark.live.live_view import Answer
from cerebro_spark.live.run import Run

__all__ = ["Answer", "AttachedRun", "Run", "RunHandle"]
