"""Which of the estimates is best for what the user wants. PURE."""

from __future__ import annotations

from collections.abc import Sequence

from cerebro_spark.planning.values import Estimate, Wish

# Who takes so much longer, as a share, is as good: fewer workers are then better.
_AS_GOOD = 0.05


def ranked(estimates: Sequence[Estimate], wish: Wish) -> list[Estimate]:
    """Return the estimates, best first.

    With a deadline, those that meet it come first, the fewest workers first; with a budget, those within it, the
    fastest first. Otherwise the fastest, but fewer workers where more gain next to nothing. Options that there was no
    time to run dry come last.

    Args:
        estimates: What the options come to.
        wish: What the user wants.
    """
    if not estimates:
        return []
    # Of others only a bound is known: they may take any longer.
    known = [estimate for estimate in estimates if estimate.dry_runs] or estimates
    fastest = min(estimate.seconds for estimate in known)

    def key(estimate: Estimate) -> tuple[float, ...]:
        unknown = float(not estimate.dry_runs)
        cores = estimate.option.workers * estimate.option.threads
        late = float(wish.deadline is not None and estimate.high > wish.deadline)
        dear = float(wish.budget is not None and (estimate.cost or 0.0) > wish.budget)
        slow = estimate.seconds > (1 + _AS_GOOD) * fastest
        if wish.deadline is not None and not late:
            return (unknown, dear, 0.0, cores, estimate.seconds)
        if slow:
            return (unknown, dear, 1.0 + late, estimate.seconds, cores)
        return (unknown, dear, 1.0 + late, fastest, cores, estimate.seconds)

    return sorted(estimates, key=key)
