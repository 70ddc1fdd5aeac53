"""The user's functions, and whether they are still what they were when they came. It never calls them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import cloudpickle

from cerebro_spark.trainer.feed import Batch
from cerebro_spark.trainer.sharing.footprint import Change, Footprint, Look
from cerebro_spark.user_modules import UserModules, collect_modules

Params = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Hooks:
    """The user's functions, as `api.md` names them. Only `model_fn` is needed."""

    model_fn: Callable[[Params], Any]
    input_fn: Callable[[Batch, Params], Batch] | None = None
    train_fn: Callable[[Any, Iterable[Batch], Params], Any] | None = None
    eval_fn: Callable[[Any, Iterable[Batch], Params], Any] | None = None
    # The user's own modules that came with the functions; None for functions of this process.
    modules: UserModules | None = None

    def __reduce__(self) -> tuple[Any, ...]:
        functions = (self.model_fn, self.input_fn, self.train_fn, self.eval_fn)
        modules = self.modules if self.modules is not None else collect_modules(functions)
        # The modules come first: once unpickled they can be imported, and the functions after them need that.
        return _receive_hooks, (modules, *functions)

    def __setstate__(self, state: Sequence[Any]) -> None:
        """Take over the fields that earlier releases pickled."""
        for index, known in enumerate(dataclasses.fields(self)):
            object.__setattr__(self, known.name, state[index] if index < len(state) else known.default)


def _receive_hooks(modules: UserModules, model_fn: Any, input_fn: Any, train_fn: Any, eval_fn: Any) -> Hooks:
    return Hooks(model_fn, input_fn, train_fn, eval_fn, modules)


class WatchedHooks:
    """Hooks with a footprint of what they hold on to: closures, attributes, globals. Lists and dicts there may grow: a
    function may keep a log.

    Once a unit has changed that, `renew` unpacks them anew, as a new worker would. What stays changed even so (a
    global of a module that is imported, not sent) makes every unit after it fail, until the process ends.
    """

    def __init__(self, hooks: Hooks, look: Callable[[], Look]) -> None:
        self._look = look
        self._packed = _packed(hooks)
        self._footprint = self._taken(hooks)
        self.hooks = hooks

    def change(self) -> Change | None:
        """What of the functions' own a unit has changed, if anything."""
        return self._footprint.change()

    def renew(self) -> None:
        """Begin again with the functions as they came, if they can be had."""
        if self._packed is None:
            return
        fresh: Hooks = cloudpickle.loads(self._packed)
        footprint = self._taken(fresh)
        if self._footprint.difference(footprint) is None:
            self.hooks, self._footprint = fresh, footprint

    def _taken(self, hooks: Hooks) -> Footprint:
        own = {"input_fn": hooks.input_fn, "train_fn": hooks.train_fn, "eval_fn": hooks.eval_fn}
        given = {name: function for name, function in own.items() if function}
        return Footprint(lambda: given, self._look, growing=True)


def _packed(hooks: Hooks) -> bytes | None:
    if hooks.input_fn is None and hooks.train_fn is None and hooks.eval_fn is None:
        return None
    try:
        data: bytes = cloudpickle.dumps(hooks)
    except Exception:
        return None  # made in this process and never sent: they cannot be had again
    return data
