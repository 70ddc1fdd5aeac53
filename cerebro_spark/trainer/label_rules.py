"""Which labels a loss is made for. From any others it would learn without an error. It knows no framework."""

from __future__ import annotations

import logging
import weakref
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from math import inf

import numpy as np

from cerebro_spark.errors import ConfigurationError
from cerebro_spark.rounding import count_rounded
from cerebro_spark.trainer.feed import Array, Batch, Feed

_log = logging.getLogger(__name__)

# What rounding may add to a probability.
_ROUNDING = 1e-5
# Values that are compared at once: labels may be large images on a disk.
_VALUES = 1 << 20
# Wrong labels that an error shows.
_EXAMPLES = 3
# Arrays that are known to be right: more than a worker has partitions in memory.
_KNOWN = 256


@dataclass(frozen=True, slots=True)
class LabelRule:
    """The labels that a loss is made for.

    Attributes:
        loss: The name of the loss.
        low: The least of them.
        high: The greatest of them.
        only: All of them, if these are few; then `low` and `high` do not matter.
        whole: Whether they are whole numbers. Several fractions a row are probabilities, to which this does not apply.
        ignored: A label that the loss leaves out, whatever the others are.
        instead: What a user can do, to complete "map them in the data or in input_fn".
    """

    loss: str
    low: float = -inf
    high: float = inf
    only: tuple[float, ...] = ()
    whole: bool = False
    ignored: float | None = None
    instead: str = "or use another loss"

    def find_wrong(self, labels: Array) -> Array:
        """Return those labels that the loss is not made for.

        >>> LabelRule("BCELoss", 0, 1).find_wrong(np.array([0, 1, 2, 1])).tolist()
        [2]
        """
        fractions = labels.dtype.kind == "f"
        if self.whole and fractions and labels[:1].size > 1:
            return labels[:0]
        if self.only:
            wrong = ~np.isin(labels, self.only)
        else:
            wrong = (labels < self.low - _ROUNDING) | (labels > self.high + _ROUNDING)
            if self.whole and fractions:
                wrong |= labels != np.floor(labels)
        if self.ignored is not None:
            wrong &= labels != self.ignored
        found: Array = labels[wrong & (labels == labels)]  # what is no number makes the loss none, which is said there
        return found

    def check(self, what: str, labels: Array, weights: Array | None = None) -> None:
        """Raise ConfigurationError if there are labels that the loss is not made for.

        Args:
            what: What they are called, for error messages.
            labels: The labels, a row an element of the first axis.
            weights: What each row weighs. Rows that weigh nothing may have any label. Defaults to None: all weigh.
        """
        examples, wrong, count = labels[:0].reshape(-1), 0, 0
        for rows in _split(labels):
            part = labels[rows] if weights is None else labels[rows][weights[rows].reshape(-1) != 0]
            found = self.find_wrong(part)
            examples = np.unique(np.append(examples, found))[:_EXAMPLES]
            wrong, count = wrong + found.size, count + part.size
        if wrong:
            said = ", ".join(f"{float(value):.7g}" for value in examples)
            raise ConfigurationError(
                f"{what} is {said} in some rows ({wrong:,} of {count:,} values), but {self.loss} is made"
                f" for {self.describe()}, and may learn from others without an error: map them in the data or in"
                f" input_fn, {self.instead}"
            )

    def below(self, classes: int) -> LabelRule:
        """Return this rule for so many classes."""
        return replace(self, high=classes - 1)

    def describe(self) -> str:
        """Return which labels there should be, in words."""
        if self.only:
            return "labels that are " + " or ".join(f"{value:g}" for value in self.only)
        kind = "class numbers" if self.whole else "labels"
        if self.high == inf:
            return f"{kind} of at least {self.low:g}"
        return f"{kind} from {self.low:g} to {self.high:g}"


def _split(labels: Array) -> Iterator[slice]:
    """Yield rows of labels, as many at a time as have few values together."""
    rows = max(1, _VALUES // max(1, labels[:1].size))
    for start in range(0, len(labels), rows):
        yield slice(start, start + rows)


class LabelChecks:
    """Checks the labels of units. An array that was right by a rule is not looked at again.

    Args:
        labels: The names of the labels.
        weight: The name of the sample weight, if any. Rows that weigh nothing may have any label.
    """

    def __init__(self, labels: Iterable[str], weight: str | None) -> None:
        self._labels = tuple(labels)
        self._weight = weight
        self._told: set[str] = set()
        self._right: OrderedDict[tuple[int, LabelRule | None], weakref.ref[Array]] = OrderedDict()

    def check(self, rules: Mapping[str, LabelRule], feed: Feed | Iterable[Batch]) -> Feed | Iterable[Batch]:
        """Return a feed whose labels are right; batches are checked as they come.

        Args:
            rules: The rules, by the names of the labels.
            feed: The feed.

        Raises:
            ConfigurationError: The loss is not made for a label.
        """
        if not isinstance(feed, Feed):
            return self._check_batches(rules, feed) if rules else feed
        for name in self._labels:
            self._check_array(name, rules.get(name), feed.arrays)
        return feed

    def _tell_rounded(self, name: str, rule: LabelRule | None, labels: Array) -> None:
        """Say, once, that there are whole numbers that a loss rounds, unless it takes them for class numbers."""
        if name in self._told or (rule is not None and rule.whole):
            return
        rows = sum(count_rounded(labels[part]) for part in _split(labels))
        if rows:
            self._told.add(name)
            _log.warning(
                "label %r has %d rows with whole numbers beyond 16777216 (2**24), which a loss that computes in float32"
                " rounds: subtract what they have in common, or scale them, in the data or in input_fn",
                name,
                rows,
            )

    def _check_array(self, name: str, rule: LabelRule | None, arrays: Mapping[str, Array]) -> None:
        labels = arrays[name]
        key = (id(labels), rule)
        known = self._right.get(key)
        if known is not None and known() is labels:
            return
        if rule is not None:
            self._check_rows(name, rule, arrays)
        self._tell_rounded(name, rule, labels)
        self._right[key] = weakref.ref(labels)
        if len(self._right) > _KNOWN:
            self._right.popitem(last=False)

    def _check_batches(self, rules: Mapping[str, LabelRule], batches: Iterable[Batch]) -> Iterator[Batch]:
        for batch in batches:
            for name, rule in rules.items():
                self._check_rows(name, rule, batch)
            yield batch

    def _check_rows(self, name: str, rule: LabelRule, columns: Mapping[str, Array]) -> None:
        weights = None if self._weight is None else np.asarray(columns[self._weight])
        rule.check(f"label {name!r}", np.asarray(columns[name]), weights)
