"""From many ways in which a run may go on to one forecast: an end, and the interval in which it lies. PURE.

Where nothing depends on what epochs measure, one simulation with expected times gives the end. It is called exact:
every simulated future asks for the same work. Otherwise the end is the median of several simulations with drawn curves.
The interval is that of simulations in which times vary and workers die as they did so far.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, median, stdev
from typing import NamedTuple

from cerebro_spark.commands import Command
from cerebro_spark.events import Event
from cerebro_spark.forecast.continuation import Continuation, SimulatedEnd, Simulation
from cerebro_spark.forecast.values import Forecast, label_of
from cerebro_spark.search import Search

Simulate = Callable[[Sequence[Simulation]], list[SimulatedEnd]]
"""Takes up the run as often as there are simulations, and brings it to its end in each of these ways."""

SIMULATIONS = 16
"""How many simulations make an interval."""
_AT_ONCE = 4
_FOR_A_QUESTION = 4
# How uncertain the end is, at least, that one simulation says (a logarithm).
_ONE_SIMULATION = 0.1
_Z = 1.645
"""Nine in ten ends are within so many standard deviations of the mean; one in twenty is outside at either side."""


def one_by_one(take_up: Callable[[], Continuation]) -> Simulate:
    """Return a way to simulate that takes up the run anew each time."""
    return lambda plans: [take_up().finish(plan) for plan in plans]


def forecast(
    events: Sequence[Event],
    search: Callable[[], Search],
    now: float | None = None,
    questions: Sequence[Command] = (),
    simulations: int = SIMULATIONS,
) -> Forecast:
    """Return the forecast of a run, with the run's own seconds instead of wall clocks.

    Args:
        events: All events of the run so far.
        search: Returns the search of the run, as it was before it was asked anything.
        now: The present, in seconds of the run. Defaults to None: when the last event happened.
        questions: Commands: what would be if each of them was given now? Defaults to `()`.
        simulations: How many make an interval.

    Raises:
        EventLogError: If this is not the log of a run, or not the search of this run.
    """
    run = Continuation(events, search(), now)
    simulate = one_by_one(lambda: Continuation(events, search(), now))
    return Forecaster(run, simulate, len(events), simulations).forecast(questions)


@dataclass(frozen=True, slots=True)
class Forecaster:
    """Makes the forecast of a run.

    Args:
        run: The run as it stands. It is not changed.
        simulate: Brings copies of it to their end.
        events: How many events of the run are known.
        simulations: How many make an interval.
        in_a_hurry: Whether there is no time for more simulations than there must be.
        early: Given what is known after the first simulation: the others may take long. Nobody by default.
    """

    run: Continuation
    simulate: Simulate
    events: int
    simulations: int = SIMULATIONS
    in_a_hurry: Callable[[], bool] = lambda: False
    early: Callable[[Forecast], None] = lambda forecast: None

    def forecast(self, questions: Sequence[Command] = (), likely: Sequence[Command] = ()) -> Forecast:
        """Return the forecast, with an answer to every question, and to likely ones as far as there is time.

        Args:
            questions: Commands: what would be if each of them was given now?
            likely: The same, of which nobody has asked yet.
        """
        blank = Forecast(self.run.now, self.events)
        if self.run.scheduler.finished:
            end = self.run.seen.now
            return replace(blank, done_at=end, low=end, high=end, exact=True)
        reason = self.run.unknown()
        if reason:
            return replace(blank, reason=reason)
        if self.run.seen.paused:
            going_on = self._estimate(blank, Command("unpause"))[0]
            return replace(blank, reason="the run is paused", what_if={"unpause": going_on})
        made, futures = self._estimate(blank)
        if not made.known:
            return made
        answers = {label_of(command): self._answer(made, futures, command) for command in questions}
        for command in likely:
            if label_of(command) not in answers and not self.in_a_hurry():
                answers[label_of(command)] = self._answer(made, futures, command)
        return replace(made, what_if=answers)

    def _estimate(self, blank: Forecast, command: Command | None = None) -> tuple[Forecast, _Futures]:
        """Return a forecast, after a command if there is one, and the futures that it was made of."""
        ends = self._ends([Simulation(0, command=command)])
        first = ends[0]
        if first.at is None:
            return replace(blank, reason=first.reason), _Futures({}, noisy=False)
        if command is None:
            self.early(self._say_early(blank, first.at))
        if not self.run.decided:
            ends |= self._ends([Simulation(1, command=command)])
        exact = len({end.asked for end in ends.values()}) == 1
        noisy = first.guessed or self.run.pace.varies
        plans = (
            [Simulation(seed, noisy, command) for seed in range(2, self.simulations + 2)] if noisy or not exact else []
        )
        drawn: dict[int, SimulatedEnd] = {}
        while plans and (not drawn or not self.in_a_hurry()):
            drawn |= self._ends(plans[:_AT_ONCE])
            plans = plans[_AT_ONCE:]
        known = [end.at for end in drawn.values() if end.at is not None]
        futures = _Futures({0: first}, noisy=False) if exact else _Futures(drawn, noisy)
        return _sum_up(blank, first.at, known, exact), futures

    def _say_early(self, blank: Forecast, at: float) -> Forecast:
        """Return a forecast from one simulation. Its interval is a guess."""
        left, factor = at - blank.made_at, math.exp(_Z * max(self.run.pace.drift, _ONE_SIMULATION))
        return replace(blank, done_at=at, low=blank.made_at + left / factor, high=blank.made_at + left * factor)

    def _ends(self, plans: Sequence[Simulation]) -> dict[int, SimulatedEnd]:
        return {plan.seed: end for plan, end in zip(plans, self.simulate(plans), strict=True)}

    def _answer(self, without: Forecast, futures: _Futures, command: Command) -> Forecast:
        """Answer a question: how much shorter or longer the same futures are with the command."""
        blank = Forecast(without.made_at, self.events)
        if command.verb == "pause":
            return replace(blank, reason="the run would stand still until it is let go on")
        known = {seed: end.at for seed, end in futures.ends.items() if end.at is not None}
        seeds = list(known)[-_FOR_A_QUESTION:]
        answers = self._ends([Simulation(seed, futures.noisy, command) for seed in seeds])
        now = without.made_at
        pairs = [(end.at, known[seed]) for seed, end in answers.items() if end.at is not None]
        if not pairs:
            why = next((end.reason for end in answers.values()), "no future of the run is known")
            return replace(blank, reason=why)
        factor = median((with_it - now) / max(without_it - now, 1e-9) for with_it, without_it in pairs)
        times = {name: now + (getattr(without, name) - now) * factor for name in ("done_at", "low", "high")}
        return replace(blank, exact=without.exact, **times)


class _Futures(NamedTuple):
    """Simulated ends by their seeds, and whether times varied in them."""

    ends: Mapping[int, SimulatedEnd]
    noisy: bool


def _sum_up(blank: Forecast, plain: float, drawn: Sequence[float], exact: bool) -> Forecast:
    """Make one forecast of the end with expected times, and of those that were drawn."""
    if not drawn:
        return replace(blank, done_at=plain, low=plain, high=plain, exact=exact)
    done = plain if exact else median(drawn)
    low, high = _interval([at - blank.made_at for at in drawn])
    return replace(
        blank, done_at=done, low=min(blank.made_at + low, done), high=max(blank.made_at + high, done), exact=exact
    )


def _interval(remaining: Sequence[float]) -> tuple[float, float]:
    """Return between what the remaining time lies nine times in ten, from some that were drawn.

    Their logarithms are taken for normally distributed. The fewer there are, the less is known of mean and spread, and
    the wider is the interval: it is Student's.

    >>> low, high = _interval([99.0, 100.0, 101.0])
    >>> 90 < low < 99 and 101 < high < 110
    True
    """
    logs = [math.log(max(seconds, 1e-6)) for seconds in remaining]
    free = max(len(logs) - 1, 1)
    quantile = _Z + (_Z**3 + _Z) / (4 * free) + (5 * _Z**5 + 16 * _Z**3 + 3 * _Z) / (96 * free**2)
    reach = quantile * (stdev(logs) if len(logs) > 1 else 0.0) * math.sqrt(1 + 1 / len(logs))
    return math.exp(fmean(logs) - reach), math.exp(fmean(logs) + reach)
