"""Which worker is to train on a partition that several hold, so that each has about as many. PURE."""

from __future__ import annotations

import numpy as np

from cerebro_spark.scheduling.board import Board, Ints


def choose_homes(board: Board) -> Ints:
    """For each partition one of its holders, or -1, so that no worker is home to more than its share if that can be."""
    if board.holders.max(initial=0) <= 1:
        return np.where(board.holders > 0, board.holds.argmax(axis=0), -1).astype(np.int64)
    held = int((board.holders > 0).sum())
    share = -(-held // max(int(board.holds.any(axis=1).sum()), 1))
    guests: dict[int, list[int]] = {int(w): [] for w in np.flatnonzero(board.holds.any(axis=1))}

    def seat(column: int, tried: set[int]) -> bool:
        for worker in sorted(guests, key=lambda w: len(guests[w])):
            if worker in tried or not board.holds[worker, column]:
                continue
            tried.add(worker)
            if len(guests[worker]) < share:
                guests[worker].append(column)
                return True
            for other in guests[worker]:
                if seat(other, tried):
                    guests[worker].remove(other)
                    guests[worker].append(column)
                    return True
        return False

    for column in np.flatnonzero(board.holders):
        if not seat(int(column), set()):
            least = min(np.flatnonzero(board.holds[:, column]), key=lambda w: len(guests[int(w)]))
            guests[int(least)].append(int(column))
    found = np.full(board.columns, -1, dtype=np.int64)
    for worker, columns in guests.items():
        found[columns] = worker
    return found
