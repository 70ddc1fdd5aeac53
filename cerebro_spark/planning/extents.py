"""How much a pilot trains: enough to tell, and no more than there is time for. PURE."""

from __future__ import annotations

from dataclasses import dataclass

# Trials for each worker of a pilot, if the search has as many: a worker then knows its next order before it is done.
_TRIALS_A_WORKER = 2
# Workers of a pilot up to which each trains two long units of a configuration: more train enough of them together.
_FEW_WORKERS = 4
# Seconds of a long unit of a pilot: what is shorter says little, what is longer tells no more.
_LEAST, _MOST = 0.05, 0.5


@dataclass(frozen=True, slots=True)
class Extent:
    """How much a pilot trains.

    Args:
        workers: How many workers get something to do.
        together: How many trials are under way at a time.
        batches: By epoch, how many batches a unit takes at most.
        seconds: About how long these trials take, besides their batches. Defaults to 0.0: no time.
    """

    workers: int
    together: int
    batches: tuple[int, ...]
    seconds: float = 0.0


def extent_of(
    workers: int, at_once: int, trials: int, configurations: int, batch: float, epoch: float, seconds: float
) -> Extent:
    """Return the extent of a pilot that takes about so many seconds: as small as it can be if that is not enough.

    Args:
        workers: How many workers the pilot has.
        at_once: How many of them are on a host.
        trials: How many trials the search has.
        configurations: How many configurations are to be measured.
        batch: The seconds of a batch.
        epoch: The seconds of an epoch of one trial on one worker, of next to no batches.
        seconds: The time that there is.

    >>> extent_of(workers=2, at_once=2, trials=16, configurations=1, batch=0.01, epoch=0.1, seconds=10.0)
    Extent(workers=2, together=4, batches=(12, 50, 12, 50), seconds=1.6)
    >>> extent_of(workers=2, at_once=2, trials=16, configurations=1, batch=0.01, epoch=20.0, seconds=10.0)
    Extent(workers=2, together=2, batches=(12, 50, 12), seconds=120.0)
    """
    together = max(workers, min(trials, _TRIALS_A_WORKER * workers))
    batches = _lengths(batch, seconds, at_once, max(together, configurations))
    whole = together * len(batches) * epoch
    if whole <= seconds:
        return Extent(workers, together, batches, whole)
    # The first unit of a worker warms up, so that three tell what short and long ones take.
    least = batches[:3]
    return Extent(workers, workers, least, workers * len(least) * epoch)


def _lengths(batch: float, seconds: float, at_once: int, configurations: int) -> tuple[int, ...]:
    """Return the batches of a pilot's epochs, long and short in turn, such that it takes about so many seconds.

    >>> _lengths(batch=0.01, seconds=10.0, at_once=2, configurations=4)
    (12, 50, 12, 50)
    >>> _lengths(batch=0.01, seconds=10.0, at_once=16, configurations=16)
    (5, 21, 5)
    """
    rounds = -(-max(at_once, configurations) // at_once)
    long = min(max(seconds / (3.0 * at_once * rounds), _LEAST), _MOST)
    most = max(8, min(round(long / max(batch, 1e-6)), 4000))
    few = max(2, most // 4)
    return (few, most, few, most) if at_once <= _FEW_WORKERS else (few, most, few)
