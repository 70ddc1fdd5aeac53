"""Says why a plan is as it is: each choice in a sentence, with its numbers. PURE."""

from __future__ import annotations

from collections.abc import Sequence

from cerebro_spark.planning.sizes import duration, size
from cerebro_spark.planning.values import Demand, Estimate, Option, Setting, Wish, Workload

# Who takes this much longer, as a share, gains nothing.
_NOTHING = 0.03


def reasons(
    estimates: Sequence[Estimate], demand: Demand, workload: Workload, wish: Wish, unmeasured: Sequence[Setting] = ()
) -> list[str]:
    """Return the sentences of a plan.

    Args:
        estimates: What the options come to, best first.
        demand: What the search asks for.
        workload: What it trains on.
        wish: What the user wants.
        unmeasured: The settings that there was no time to measure. Defaults to `()`: none.
    """
    best = estimates[0]
    said = [
        _headline(best),
        *_wishes(estimates, wish),
        *_workers(estimates, demand, workload),
        *_threads(estimates),
        *_groups(best),
    ]
    option = best.option
    if workload.partitions is not None:
        said.append(f"The data set has {workload.partitions} training partitions already: a run never changes that.")
    else:
        said.append(f"{_many(option.partitions, 'partition')}: one for each worker, so that each holds its own rows.")
    if option.memory is not None:
        said.append(f"{size(option.memory)} of memory for each worker: measured, and 15 % beyond that.")
    if best.guessed:
        said.append("Some structures were not measured: what they take is guessed from those that are most like them.")
    if best.failed >= 1:
        said.append(
            f"About {best.failed:.0f} of {_many(demand.trials, 'trial')} will fail, since workers die so often:"
            " a higher `max_kills` of the search lets more of them through."
        )
    if not best.dry_runs:
        said.append("There was no time to run the search dry: these are bounds, and it will take longer.")
    elif best.scale > 1:
        said.append(f"The search is large: one that is {best.scale:.0f} times smaller was run dry in its place.")
    if unmeasured:
        missed = ", ".join(f"{_many(one.at_once, 'worker')} with {_many(one.threads, 'thread')}" for one in unmeasured)
        said.append(f"There was no time to measure {missed} on a host: give more of it with seconds=.")
    return said


def _headline(best: Estimate) -> str:
    option = best.option
    return (
        f"{_many(option.workers, 'worker')} with {_many(option.threads, 'thread')} each:"
        f" about {duration(best.seconds)}, most likely between {duration(best.low)} and {duration(best.high)},"
        f" busy {best.utilisation:.0%} of the time{_costs(best)}."
    )


def _wishes(estimates: Sequence[Estimate], wish: Wish) -> list[str]:
    best, said = estimates[0], []
    if wish.deadline is not None:
        within = duration(wish.deadline)
        if best.high <= wish.deadline:
            fewer = [one for one in estimates if one.option.workers < best.option.workers and one.dry_runs]
            late = min((one for one in fewer if one.high > wish.deadline), key=lambda one: one.seconds, default=None)
            beside = f": with {_many(late.option.workers, 'worker')} it may take {duration(late.high)}" if late else ""
            said.append(f"You need {_many(best.option.workers, 'worker')} to be done within {within}{beside}.")
        else:
            said.append(
                f"Nothing here is surely done within {within}: the best possible takes about {duration(best.seconds)}."
                " More hosts, fewer trials or fewer epochs would help."
            )
    if wish.budget is not None and best.cost is not None:
        if best.cost <= wish.budget:
            said.append(f"It costs {best.cost:.2f} of the {wish.budget:g} that it may cost.")
        else:
            least = min(one.cost for one in estimates if one.cost is not None)
            said.append(f"No option costs at most {wish.budget:g}: the cheapest costs {least:.2f}.")
    return said


def _workers(estimates: Sequence[Estimate], demand: Demand, workload: Workload) -> list[str]:
    best, said = estimates[0], []
    more = [one for one in estimates if one.option.workers > best.option.workers]
    useless = [one for one in more if one.seconds > (1 - _NOTHING) * best.seconds]
    if useless and len(useless) == len(more):
        said.append(f"More than {_many(best.option.workers, 'worker')} gain nothing{_limit(best, demand, workload)}.")
    fewer = [one for one in estimates if one.option.workers < best.option.workers]
    if fewer:
        near = max(fewer, key=lambda one: (one.option.workers, -one.seconds))
        times = near.seconds / best.seconds
        said.append(
            f"{_many(near.option.workers, 'worker').capitalize()} would take {times:.1f} times as long,"
            f" {duration(near.seconds)}."
        )
    if not more and best.option.workers >= demand.trials * best.option.group:
        said.append(
            f"There are {_many(demand.trials, 'trial')}, and a trial is on {_at_once(best.option)} at a time: more"
            f" workers than {'trials' if best.option.group == 1 else 'that'} gain nothing."
        )
    return said


def _limit(best: Estimate, demand: Demand, workload: Workload) -> str:
    if best.option.workers >= demand.trials * best.option.group:
        return f": a trial is on {_at_once(best.option)} at a time"
    if workload.partitions is not None and best.option.workers >= workload.partitions:
        return ": a partition is on one worker at a time"
    return ""


def _at_once(option: Option) -> str:
    return "one worker" if option.group == 1 else f"at most {_many(option.group, 'worker')}"


def _groups(best: Estimate) -> list[str]:
    """Return what there is to say of workers that train a trial together."""
    option, found = best.option, best.efficiency
    if option.group == 1:
        return []
    said = f"At most {option.group}" if option.group_auto else f"{option.group}"
    if found is None:
        return [f"{said} workers train a trial together; how well was not measured."]
    together = f"{option.group} workers together do {option.group * found:.1f} times the work of one, as was measured"
    if option.group_auto:
        together += ": they do so where workers would idle otherwise, and only where it pays"
    return [f"{said} workers train a trial together. {together.capitalize()}."]


def _threads(estimates: Sequence[Estimate]) -> list[str]:
    best = estimates[0]
    cores = best.option.workers * best.option.threads
    others = [
        one
        for one in estimates
        if one.option.threads != best.option.threads and one.option.workers * one.option.threads == cores
    ]
    if not others:
        return []
    other = min(others, key=lambda one: one.seconds)
    return [
        f"The same {_many(cores, 'core')} as {_many(other.option.workers, 'worker')} with"
        f" {_many(other.option.threads, 'thread')} each would take {duration(other.seconds)}."
    ]


def _costs(best: Estimate) -> str:
    return "" if best.cost is None else f", for {best.cost:.2f}"


def _many(count: int, what: str) -> str:
    """Return a count with its noun.

    >>> _many(1, "worker"), _many(3, "worker")
    ('1 worker', '3 workers')
    """
    return f"{count} {what}" if count == 1 else f"{count} {what}s"
