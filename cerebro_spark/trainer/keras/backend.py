"""What differs between the backends of Keras on which units run: TensorFlow and PyTorch."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Literal

import keras

from cerebro_spark.errors import ConfigurationError
from cerebro_spark.trainer.feed import Array, Batch, Columns, Feed
from cerebro_spark.trainer.group import Group, Meeting
from cerebro_spark.trainer.keras.built_model import BuiltKerasModel
from cerebro_spark.trainer.keras.settings import KERAS_SETTINGS
from cerebro_spark.trainer.resources import Resources
from cerebro_spark.trainer.sharing.process_settings import ProcessSettings, SettingTable

if TYPE_CHECKING:
    from cerebro_spark.trainer.keras.grouped_steps import GroupedSteps

Pass = Literal["train", "test"]

BACKEND: str = keras.backend.backend()
if BACKEND not in ("tensorflow", "torch"):
    raise ConfigurationError(
        f"Keras runs on {BACKEND!r} here, but units run on 'tensorflow' or 'torch': set KERAS_BACKEND to one of them"
    )


class KerasBackend(ABC):
    """Runs the steps of a model over a feed. `KerasTrainer` calls it, from one thread.

    `settings` are those that are put back after each unit; `libraries` are the modules and classes of the framework
    below Keras whose functions no trial may replace; `traces` counts the graphs that were traced.
    """

    settings: SettingTable = KERAS_SETTINGS
    libraries: Mapping[str, Any] = {}

    def __init__(self, columns: Columns, resources: Resources) -> None:
        self._columns = columns
        self._resources = resources
        self.traces = 0
        self._settings = ProcessSettings(self.settings)

    @abstractmethod
    def claim(self) -> None:
        """Set threads and device, once a process. Raises ConfigurationError if they cannot be had."""

    @property
    @abstractmethod
    def is_on_host(self) -> bool:
        """Whether models compute on CPUs."""

    @abstractmethod
    def run(self, model: BuiltKerasModel, kind: Pass, feed: Feed | Iterable[Batch]) -> None:
        """Run `train_step` or `test_step` for each batch of the feed."""

    @abstractmethod
    def load(self, batch: Batch) -> dict[str, Any]:
        """Return the columns of a batch as tensors."""

    @abstractmethod
    def differentiate(self, compute: Callable[[], Any], variables: Sequence[Any]) -> list[Array | None]:
        """Return the gradients of what a function computes by these variables; None by which it does not depend."""

    def set_mode(self, model: BuiltKerasModel, training: bool) -> None:  # noqa: B027 (TensorFlow has no such mode)
        """Tell the parts of a model whether they are in training."""

    @abstractmethod
    def join(self, meeting: Meeting) -> Group:
        """Return links to the other members of a group.

        Raises:
            GroupBroken: They cannot be had.
            GroupRefused: PyTorch, whose links they are, was built without them.
        """

    @abstractmethod
    def make_grouped_steps(self, model: BuiltKerasModel, group: Group) -> GroupedSteps:
        """Return the training steps of one member of a group."""

    def forget(self, key: str) -> None:  # noqa: B027 (not every backend keeps arrays)
        """Free the arrays of a partition that are kept between units."""

    def begin_unit(self) -> None:  # noqa: B027 (TensorFlow has no such mode)
        """Undo what a function of the user may have left in the last unit."""

    def seed_function(self, model: BuiltKerasModel) -> None:  # noqa: B027 (PyTorch's generators hop)
        """Seed generators that no checkpoint carries, by the state of the trial, before a function of the user."""

    def capture_settings(self) -> dict[str, Any]:
        """Return what `model_fn` set otherwise than the process, of settings that hop with a trial."""
        return {}

    def capture_generators(self) -> dict[str, Any]:
        """Return the states of generators that are the backend's own."""
        return {}

    def restore_generators(self, tree: Any) -> None:
        """Put the backend's own generators into these states, and Keras's settings back to the process's own."""
        self._settings.put_back()


def make_backend(columns: Columns, resources: Resources) -> KerasBackend:
    """Return the backend on which Keras runs in this process."""
    if BACKEND == "tensorflow":
        from cerebro_spark.trainer.keras.tensorflow_backend import TensorFlowBackend

        return TensorFlowBackend(columns, resources)
    from cerebro_spark.trainer.keras.torch_backend import TorchBackend

    return TorchBackend(columns, resources)
