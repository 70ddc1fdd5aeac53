"""The user's functions, and whether a unit has changed what they refer to. It never calls them."""

from __future__ import annotations

import copy
import dataclasses
import pickle
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cerebro_spark import pickling
from cerebro_spark.trainer.feed import Batch
from cerebro_spark.trainer.sharing.dependence import BuildWatch, GrowthWatch
from cerebro_spark.trainer.sharing.generators import find_generators
from cerebro_spark.trainer.sharing.inspection import Inspector
from cerebro_spark.trainer.sharing.restoring import Restore, keep_state
from cerebro_spark.trainer.sharing.snapshot import ObjectSnapshot, StateChange
from cerebro_spark.user_modules import UserModules, collect_modules

Params = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Hooks:
    """The user's functions.

    Attributes:
        model_fn: `model_fn(params)` returns a compiled Keras model or a TorchModel.
        input_fn: `input_fn(batch, params)` returns the batch that the model is given; None uses it as it is.
        train_fn: `train_fn(model, batches, params)` trains one unit and returns sums of metrics with the row count
            ("rows"), or Metrics; None uses the trainer's own loop.
        eval_fn: `eval_fn(model, batches, params)` evaluates one unit, and returns the same; None as of `train_fn`.
        modules: The user's own modules that the functions need; None where they were not looked for yet.
    """

    model_fn: Callable[[Params], Any]
    input_fn: Callable[[Batch, Params], Batch] | None = None
    train_fn: Callable[[Any, Iterable[Batch], Params], Any] | None = None
    eval_fn: Callable[[Any, Iterable[Batch], Params], Any] | None = None
    modules: UserModules | None = None

    @property
    def functions(self) -> tuple[Any, ...]:
        """The functions, with None for those that are not given."""
        return self.model_fn, self.input_fn, self.train_fn, self.eval_fn

    def with_modules(self) -> Hooks:
        """Return the same with the user's modules as they are now: all workers of a run get these, replacements too."""
        return self if self.modules is not None else dataclasses.replace(self, modules=collect_modules(self.functions))

    def __reduce__(self) -> tuple[Any, ...]:
        # The modules come first: once unpickled they can be imported, and the functions after them need that.
        return _receive_hooks, (self.with_modules().modules, *self.functions)

    def __setstate__(self, state: Sequence[Any]) -> None:
        """Take over the fields that earlier releases pickled."""
        for index, known in enumerate(dataclasses.fields(self)):
            object.__setattr__(self, known.name, state[index] if index < len(state) else known.default)


def _receive_hooks(modules: UserModules, model_fn: Any, input_fn: Any, train_fn: Any, eval_fn: Any) -> Hooks:
    return Hooks(model_fn, input_fn, train_fn, eval_fn, modules)


def own_params(params: Params) -> dict[str, Any]:
    """Return the params as one of the functions gets them: a deep copy, so that what it changes there reaches nobody.

    >>> params = {"lr": 0.1, "units": [3]}
    >>> own_params(params)["units"].append(4)
    >>> params
    {'lr': 0.1, 'units': [3]}
    """
    return copy.deepcopy(dict(params))


class WatchedHooks:
    """Hooks with a snapshot of what they refer to: closures, attributes, globals.

    Lists and dicts there may grow, since a function may keep a log, but nothing may depend on that (`growth`). Once a
    unit has changed anything else, `renew` unpickles the functions again, as a new worker would. What stays changed
    even then (a global of an imported module) makes every later unit fail, until the process ends. `builds` watches
    what `model_fn` changes.
    """

    def __init__(self, hooks: Hooks, inspector: Callable[[], Inspector]) -> None:
        self._inspector = inspector
        self._pickled = _pickle(hooks)
        self._use(hooks, self._take_snapshot(hooks))

    def _use(self, hooks: Hooks, snapshot: ObjectSnapshot) -> None:
        self.hooks = hooks
        self._snapshot = snapshot
        self._generators = _keep_generators(hooks)
        self.growth = GrowthWatch(snapshot)
        self.builds = BuildWatch(hooks.model_fn)

    def restore_generators(self) -> None:
        """Put back the generators that `model_fn` has of its own: the next model begins as the first one did."""
        for restore in self._generators:
            restore()

    def find_change(self) -> StateChange | None:
        """Return the first change that a unit has made to what the functions refer to, or None."""
        return self._snapshot.find_change()

    def reset(self) -> None:
        """Put back all lists and dicts to which the functions have added, and start again."""
        self.growth.put_back()
        self._use(self.hooks, self._take_snapshot(self.hooks))
        self.renew()

    def renew(self) -> None:
        """Start again with the functions as they were given, if they can be unpickled unchanged."""
        if self._pickled is None:
            return
        fresh: Hooks = pickle.loads(self._pickled)
        snapshot = self._take_snapshot(fresh)
        if self._snapshot.find_difference(snapshot) is None:
            self._use(fresh, snapshot)

    def _take_snapshot(self, hooks: Hooks) -> ObjectSnapshot:
        own = {"input_fn": hooks.input_fn, "train_fn": hooks.train_fn, "eval_fn": hooks.eval_fn}
        given = {name: function for name, function in own.items() if function}
        return ObjectSnapshot(lambda: given, self._inspector, growing=True)


def _keep_generators(hooks: Hooks) -> list[Restore]:
    found = find_generators(hooks.model_fn)
    return [restore for generator in found for restore in keep_state(generator, has_values=False)]


def _pickle(hooks: Hooks) -> bytes | None:
    """Return the pickled functions; None if only `model_fn` is given, or if they cannot be pickled."""
    if hooks.input_fn is None and hooks.train_fn is None and hooks.eval_fn is None:
        return None
    try:
        return pickling.dumps(hooks)
    except Exception:
        return None  # made in this process and never sent, so there is no other copy
