"""Finds out by trying whether what users' functions do depends on state that they keep. It knows no framework."""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from cerebro_spark.trainer.sharing.generators import find_caches, is_generator
from cerebro_spark.trainer.sharing.inspection import Inspection
from cerebro_spark.trainer.sharing.snapshot import ObjectSnapshot, StateChange
from cerebro_spark.trainer.sharing.user_code import CACHED, NAMESPACES, is_users

Outcome = Mapping[str, str]
"""What came of a trial run, each part as text, by its name: "the weights", "the loss"."""

FILLED = "a filled one"
"""What a cache is after a build on which later ones depend, for error messages."""

_REPEATS = 2
_MAX_ITEMS = 10_000
_MAX_BYTES = 1 << 16
_LOOKED_INTO = (dict, list, set, type, types.FunctionType, types.MethodType, partial, CACHED, *NAMESPACES)


def find_dependence(before: Callable[[], Outcome], after: Callable[[], Outcome]) -> str:
    """Return the name of a part that `before()` and `after()` give differently, each time; "" if there is none.

    Parts that differ by themselves (a duration, sums on a GPU) tell nothing: whatever differs is tried again.

    >>> find_dependence(lambda: {"the loss": "1.0"}, lambda: {"the loss": "2.0"})
    'the loss'
    """
    outcomes = [(before(), after())]
    if outcomes[0][0] == outcomes[0][1]:
        return ""
    outcomes += [(before(), after()) for _ in range(_REPEATS)]
    for name in {**outcomes[0][0], **outcomes[0][1]}:
        was, now = ({outcome.get(name) for outcome in side} for side in zip(*outcomes, strict=True))
        if len(was) == len(now) == 1 and was != now:
            return name
    return ""


class GrowthWatch:
    """Watches the lists and dicts that functions add to. What they do must not depend on what was added.

    That is tried when a container has grown for the first time, and each time its growth has doubled since: also a
    function that goes by the last ten items is found, and a log costs next to nothing.

    Args:
        snapshot: A snapshot of the functions that lets containers grow, as they were given.
    """

    def __init__(self, snapshot: ObjectSnapshot) -> None:
        self._given = snapshot.copy()
        self._now = snapshot
        self._tried: dict[str, int] = {}

    def list_grown(self) -> list[str]:
        """Return the paths of the containers that are to be tried, innermost first."""
        grown = self._given.measure_growth(self._now)
        due = [path for path, added in grown.items() if added >= max(1, 2 * self._tried.get(path, 0))]
        return sorted(due, key=len, reverse=True)

    def find_steering(self, tries: Sequence[Callable[[], Outcome]]) -> tuple[StateChange, str] | None:
        """Return a container whose growth changes what comes of one of the `tries`, and what it changes; None if none.

        The containers are left as they were found.
        """
        grown = self.list_grown()
        try:
            for try_out in tries:
                begin_with = partial(self._begin_with, try_out)
                differs = find_dependence(partial(begin_with, None), begin_with)
                if differs:
                    alone = (path for path in grown if find_dependence(partial(begin_with, path), begin_with))
                    return self._given.describe_growth(self._now, next(alone, grown[0])), differs
        finally:
            self._now.restore()
        self._tried |= self._given.measure_growth(self._now)
        return None

    def _begin_with(self, try_out: Callable[[], Outcome], given: str | None = "") -> Outcome:
        """Try with everything as it is now, but the container at the path `given`: all of them if it is None."""
        self._now.restore()
        if given != "":
            self._given.restore(given)
        return try_out()

    def put_back(self) -> None:
        """Put everything back as it was given, in place."""
        self._given.restore()


class BuildWatch:
    """Watches what `model_fn` changes outside of the model. What it builds must not depend on that.

    That is tried at the first build that changes anything, and at the second, fourth, eighth, ... of such builds.

    Args:
        model_fn: The function.
    """

    def __init__(self, model_fn: Any) -> None:
        self._model_fn = model_fn
        self._given = self._now = self._take_snapshot()
        self._changes = 0
        self._caches = find_caches(model_fn)
        self._misses: list[int] = []
        self._fills = 0

    def begin(self) -> None:
        """Called before a build. What units have changed meanwhile, such as a metric that trials share, may stay."""
        self._misses = [cached.cache_info().misses for cached in self._caches]
        if self._now.find_change() is not None:
            self._given = self._now = self._take_snapshot()

    def find_steering(self, try_out: Callable[[], Outcome]) -> tuple[StateChange, str] | None:
        """Return, after a build, a change that changes what comes of `try_out()`, and what it changes; None if none.

        If there is one, everything is put back as it was before the build; if not, it is left as it was found.
        """
        if self._now.find_change() is None:
            return None
        before, self._now = self._now, self._take_snapshot()
        change = self._given.find_change()
        self._changes += 1
        if change is None or self._changes & (self._changes - 1):
            return None
        begin_with = partial(self._begin_with, try_out)
        differs = find_dependence(partial(begin_with, self._given), partial(begin_with, self._now))
        if not differs:
            self._now.restore()
            return None
        self._now.restore()
        before.restore()
        self._now, self._changes = before, 0
        return change, differs

    def find_steering_cache(
        self, built: Callable[[], Outcome], try_out: Callable[[], Outcome]
    ) -> tuple[StateChange, str] | None:
        """Return, after a build, a cache that it filled and that changes what is built next; None if there is none.

        A cached function that draws random numbers draws them in the first build only, and all later ones differ. If
        there is such a function, the caches are left empty.

        Args:
            built: Returns what was built.
            try_out: Builds it once more, and returns what came of that.
        """
        filled = [each for each, was in zip(self._caches, self._misses, strict=True) if each.cache_info().misses > was]
        if not filled:
            return None
        self._fills += 1
        if self._fills & (self._fills - 1):
            return None
        again = try_out()
        if "the error" in again or again == built():
            return None  # what models must not share is refused by a rule of its own
        differs = find_dependence(partial(_begin_empty, filled, try_out), try_out)
        if not differs:
            return None
        alone = (each for each in filled if find_dependence(partial(_begin_empty, [each], try_out), try_out))
        steering = next(alone, filled[0])
        _begin_empty(filled, dict)
        self._fills = 0
        name = steering.__qualname__
        return StateChange(name, name, "an empty cache", FILLED), differs

    def _begin_with(self, try_out: Callable[[], Outcome], state: ObjectSnapshot) -> Outcome:
        # Everything else that can be reached now is put back as well.
        self._now.restore()
        state.restore()
        return try_out()

    def _take_snapshot(self) -> ObjectSnapshot:
        return ObjectSnapshot(lambda: {"model_fn": self._model_fn}, lambda: _leave_out_data, strict=True)


def _begin_empty(caches: Sequence[Any], try_out: Callable[[], Outcome]) -> Outcome:
    """Empty caches, and try."""
    for cached in caches:
        cached.cache_clear()
    return try_out()


def _leave_out_data(value: Any) -> Inspection | None:
    """Inspect data, and objects of libraries, without looking inside; None for all others."""
    kind = type(value)
    is_data = is_generator(value) or (hasattr(kind, "dtype") and getattr(value, "nbytes", _MAX_BYTES + 1) > _MAX_BYTES)
    is_long = isinstance(value, dict | list | tuple | set | frozenset) and len(value) > _MAX_ITEMS
    is_librarys = hasattr(value, "__dict__") and not is_users(kind.__module__) and not isinstance(value, _LOOKED_INTO)
    return Inspection(f"a {kind.__name__}") if is_data or is_long or is_librarys else None
