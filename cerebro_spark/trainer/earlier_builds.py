"""Remembers the arrays of the models that a process has built, to see which a later model shares. It copies none."""

from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Literal, NamedTuple

from cerebro_spark.errors import ConfigurationError

_LISTED = 3


class BuiltArray(NamedTuple):
    """A parameter, buffer or variable of a built model.

    Attributes:
        name: What it is called in the model, such as "0.weight".
        array: The object.
        trained: Whether training changes it by all means: an optimizer has it.
    """

    name: str
    array: Any
    trained: bool


class _Known(NamedTuple):
    array: weakref.ref[Any]
    fingerprint: str | None  # None if it is trained


class EarlierBuilds:
    """The arrays of the models that were built in a process, for as long as these live.

    A later model may share an array that nothing has changed, such as a frozen encoder or the class weights of a loss.
    If it were trained, a trial would start from what another one has learned.

    Args:
        fingerprint: `fingerprint(array)` returns a text that is another one for other values.
        remedy: What a user can do. It completes the sentence of the error.

    >>> class Array(list): ...
    >>> builds = EarlierBuilds(repr, "make a copy")
    >>> shared = Array([1.0])
    >>> builds.note([BuiltArray("table", shared, trained=False)])
    >>> builds.refuse_shared([BuiltArray("table", shared, trained=False)])
    >>> shared[0] = 2.0
    >>> builds.refuse_shared([BuiltArray("table", shared, trained=False)])
    Traceback (most recent call last):
    ...
    cerebro_spark.errors.ConfigurationError: an earlier call of model_fn gave its model the same `table`, which has
    changed since: a trial would start from what another one has learned. make a copy
    """

    def __init__(self, fingerprint: Callable[[Any], str], remedy: str) -> None:
        self._fingerprint = fingerprint
        self._remedy = remedy
        self._known: dict[int, _Known] = {}

    def has(self, array: Any) -> bool:
        """Whether an earlier model has this array."""
        return self._find(array) is not None

    def note(self, arrays: Iterable[BuiltArray]) -> None:
        """Remember the arrays of a model as they are when it is built. Those that are known stay as they are known."""
        for each in arrays:
            if self.has(each.array):
                continue
            key = id(each.array)
            fingerprint = None if each.trained else self._fingerprint(each.array)
            self._known[key] = _Known(weakref.ref(each.array, self._forgetting(key)), fingerprint)

    def refuse_shared(self, arrays: Iterable[BuiltArray]) -> None:
        """Raise ConfigurationError if a new model has arrays of an earlier one that are trained, or have changed."""
        found = dict(self._list_unsafe(arrays))
        if not found:
            return
        names = [f"`{name}`" for name in found]
        more = f" and {len(names) - _LISTED} more" if len(names) > _LISTED else ""
        why = "which are trained" if "trained" in found.values() else "which have changed since"
        why = why if len(names) > 1 else why.replace("are", "is").replace("have", "has")
        raise ConfigurationError(
            f"an earlier call of model_fn gave its model the same {', '.join(names[:_LISTED])}{more}, {why}: a trial"
            f" would start from what another one has learned. {self._remedy}"
        )

    def _list_unsafe(self, arrays: Iterable[BuiltArray]) -> Iterator[tuple[str, Literal["trained", "changed"]]]:
        for each in arrays:
            known = self._find(each.array)
            if known is None:
                continue
            if each.trained or known.fingerprint is None:
                yield each.name, "trained"
            elif self._fingerprint(each.array) != known.fingerprint:
                yield each.name, "changed"

    def _find(self, array: Any) -> _Known | None:
        known = self._known.get(id(array))
        return known if known is not None and known.array() is array else None

    def _forgetting(self, key: int) -> Callable[[Any], None]:
        known = self._known

        def forget(gone: Any) -> None:
            if key in known and known[key].array is gone:
                del known[key]

        return forget
