"""Which rows each member of a group gives to each global batch. Pure arithmetic: it sees no row and draws nothing.

The batches are those of one worker with all partitions: their sizes follow from all rows and the batch size. A member's
share of a batch is as its partition is to all rows, so all members have their last row in the last batch. All members
work out the same shares, each for itself.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from cerebro_spark.trainer.feed import Feed, batch_sizes


class Step(NamedTuple):
    """One step of a member.

    Attributes:
        rows: The rows that it gives; there may be none.
        total: The rows of the whole batch.
    """

    rows: int
    total: int

    @property
    def weight(self) -> float:
        """What the mean over this member's rows counts in the mean over the whole batch."""
        return self.rows / self.total


class Mixture:
    """The rows of all members, mixed evenly: row j of n lies at (2j - 1) / 2n of the way, at a tie by rank.

    So the first rows are Webster's apportionment. Of two numbers of first rows the larger one gives no member fewer,
    and the last one gives each its own: so what is between two of them can be a batch.

    Args:
        rows: The rows of each member's partition, by rank.

    >>> mixture = Mixture([1000, 999, 2])
    >>> mixture.count(64), mixture.count(1001), mixture.count(2001)
    ([32, 32, 0], [500, 500, 1], [1000, 999, 2])
    """

    def __init__(self, rows: Sequence[int]) -> None:
        self._rows = rows
        self._total = sum(rows)
        self._ranks = [rank for rank, own in enumerate(rows) if own]
        # Places as whole numbers: rounded ones could differ in their order from the counts below.
        common = math.lcm(*(rows[rank] for rank in self._ranks))
        self._spacing = {rank: common // rows[rank] for rank in self._ranks}

    def count(self, first: int) -> list[int]:
        """Return how many of the `first` rows are of each member."""
        total = self._total
        # All rows up to this part of the way: about as many as wanted, and few have to be left out or added.
        counts = [(2 * own * first + total) // (2 * total) if own else 0 for own in self._rows]
        for _ in range(sum(counts) - first):
            there = (rank for rank in self._ranks if counts[rank])
            counts[max(there, key=lambda rank: ((2 * counts[rank] - 1) * self._spacing[rank], rank))] -= 1
        for _ in range(first - sum(counts)):
            counts[min(self._ranks, key=lambda rank: ((2 * counts[rank] + 1) * self._spacing[rank], rank))] += 1
        return counts


def split_steps(rows: Sequence[int], batch_size: int, smallest: int, rank: int) -> list[Step]:
    """Return the steps of one member.

    Args:
        rows: The rows of each member's partition, by rank.
        batch_size: The rows of a global batch.
        smallest: The last global batch joins the one before it if it has fewer rows.
        rank: Which member.

    Returns:
        As many steps as there are global batches.

    >>> split_steps([5, 3], batch_size=4, smallest=1, rank=0)
    [Step(rows=3, total=4), Step(rows=2, total=4)]
    """
    sizes, mixture = batch_sizes(sum(rows), batch_size, smallest), Mixture(rows)
    own = [mixture.count(first)[rank] for first in accumulate(sizes, initial=0)]
    return [Step(after - before, size) for (before, after), size in zip(pairwise(own), sizes, strict=True)]


class ShareFeed(Feed):
    """The rows of a member as it gives them: a batch for each step to which it gives any.

    Args:
        feed: The rows of its partition in their order.
        steps: Its steps.
    """

    def __init__(self, feed: Feed, steps: Sequence[Step]) -> None:
        super().__init__(feed.arrays, feed.order, batch_size=feed.batch_size, key=feed.key, smallest=feed.smallest)
        self.steps = steps

    @property
    def sizes(self) -> list[int]:
        """The rows of each batch."""
        return [step.rows for step in self.steps if step.rows]
