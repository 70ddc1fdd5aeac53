"""When a live run will be done: the rest of it, simulated by the real engine from where it stands.

The rest is simulated in a process of its own, of low priority, beside the driver. It never changes the run.
"""

from cerebro_spark.forecast.values import Forecast

__all__ = ["Forecast"]
