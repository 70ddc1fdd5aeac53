"""Training units of Keras and PyTorch models. Importing this package must never load a framework."""

from cerebro_spark.trainer.base import Hooks, Resources, SavedCheckpoint, Trainer
from cerebro_spark.trainer.feed import Columns, ColumnSpec, Feed
from cerebro_spark.trainer.torch.model import TorchModel

__all__ = ["ColumnSpec", "Columns", "Feed", "Hooks", "Resources", "SavedCheckpoint", "TorchModel", "Trainer"]
