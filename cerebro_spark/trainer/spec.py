"""All that makes a trainer, as one value that runs, workers and saved models carry. It loads no framework by itself."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, Literal

from cerebro_spark.trainer.base import Hooks, Resources, Trainer
from cerebro_spark.trainer.feed import Columns
from cerebro_spark.trainer.frameworks import choose_trainer

Framework = Literal["auto", "keras", "torch"] | type[Trainer]


@dataclass(frozen=True, slots=True)
class TrainerSpec:
    """A trainer before it is made.

    Attributes:
        hooks: The user's functions.
        seed: The seed of weights, dropout and the order of rows.
        framework: "keras" or "torch"; "auto" goes by the code of `model_fn`; a class is used as it is.
        resources: What the trainer may use of its machine.
    """

    hooks: Hooks
    seed: int = 0
    framework: Framework = "auto"
    resources: Resources = field(default_factory=Resources)

    @property
    def trainer_class(self) -> type[Trainer]:
        """The class of the trainer; reading it loads the framework."""
        return choose_trainer(self.hooks.model_fn, self.framework)

    def make_trainer(self, columns: Columns) -> Trainer:
        """Return a new trainer for data with these columns."""
        return self.trainer_class(self.hooks, columns, seed=self.seed, resources=self.resources)

    def with_modules(self) -> TrainerSpec:
        """Return the same with the modules that the functions need, as they are now."""
        return dataclasses.replace(self, hooks=self.hooks.with_modules())

    def with_resources(self, **changes: Any) -> TrainerSpec:
        """Return the same with some fields of `resources` changed."""
        return dataclasses.replace(self, resources=dataclasses.replace(self.resources, **changes))
