"""Trackers for CSV files, TensorBoard and MLflow: `trackers=[...]` of any search. They watch, and never hold up a run.

What a tracker raises is caught where it is called (see `base.py`): one warning, and the run goes on without it.
"""

from cerebro_spark.tune.trackers.base import Tracker, Tracking
from cerebro_spark.tune.trackers.csv import CSVTracker
from cerebro_spark.tune.trackers.mlflow import MLflowTracker
from cerebro_spark.tune.trackers.tensorboard import TensorBoardTracker

__all__ = ["CSVTracker", "MLflowTracker", "TensorBoardTracker", "Tracker", "Tracking"]
