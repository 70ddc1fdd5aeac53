"""What a search returns: tables, models, predictions, charts, and a copy to keep. It never changes the run."""

from cerebro_spark.result.result import Result, load_result
from cerebro_spark.result.tables import BestTrial

__all__ = ["BestTrial", "Result", "load_result"]
