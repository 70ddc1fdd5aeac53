"""How many evaluations of one kin are worth being given out together, as it is learnt. PURE.

What holds for training units does not hold for evaluations: other parts of a model, and no optimizer, take part.
"""

from __future__ import annotations

from cerebro_spark.scheduling.records import OrderRecord

# A smaller gain is not worth it: the first report would only come later.
_LEAST_GAIN = 1.05
# So many orders of a width are compared with evaluations alone: the first ones include what is done once a width.
_ENOUGH = 3


class EvaluationWidths:
    """The greatest width by kin.

    >>> widths = EvaluationWidths(limit=8)
    >>> widths.learn(OrderRecord(1, [], "mlp", 4, [(row, 1.0, 1) for row in range(4)]), 1.0)
    >>> widths.most("mlp"), widths.most("cnn")
    (1, 8)

    Args:
        limit: How many may go together at most, whatever their kin.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._most: dict[str, int] = {}
        self._shortest: dict[tuple[str, int], float] = {}
        self._orders: dict[tuple[str, int], int] = {}

    def most(self, kin: str) -> int:
        """Return how many evaluations of this kin may go together."""
        return self._most.get(kin, self._limit)

    def learn(self, order: OrderRecord, scale: float) -> None:
        """An order is over: if fewer were computed at once than were ordered, order no more than that again.

        If that many at once are hardly faster than one after another, each goes by itself again. Where an evaluation
        failed, nothing can be said: the others may have been computed together after all.

        Args:
            order: The order, none of whose units is open.
            scale: The rows of the partition times the slowness of the worker.
        """
        if len(order.results) < order.width:
            return
        done = max(width for _, _, width in order.results)
        self._measure(order, done, scale)
        if order.width == 1:
            return
        if self._gains_nothing(order.kin, done):
            done = 1
        if done < order.width:
            self._most[order.kin] = done

    def _measure(self, order: OrderRecord, width: int, scale: float) -> None:
        key = order.kin, width
        shares = [seconds for _, seconds, at_once in order.results if at_once == width]
        share = sum(shares) / len(shares) / scale
        self._shortest[key] = min(share, self._shortest.get(key, share))
        self._orders[key] = self._orders.get(key, 0) + 1

    def _gains_nothing(self, kin: str, width: int) -> bool:
        """Whether it is known that evaluations of this kin are hardly faster at this width than by themselves."""
        alone = self._shortest.get((kin, 1))
        if alone is None or width == 1 or self._orders[kin, width] < _ENOUGH:
            return False
        return alone < _LEAST_GAIN * self._shortest[kin, width]
