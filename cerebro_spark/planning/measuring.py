"""Spends the time that there is for measuring: a small pilot first, then one with each setting while there is time."""

from __future__ import annotations

import secrets
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from typing import Any

from cerebro_spark.backend.base import Backend
from cerebro_spark.backend.job import Job
from cerebro_spark.planning.extents import Extent, extent_of
from cerebro_spark.planning.pilot import PilotRecord, run_pilot
from cerebro_spark.planning.profile import Profile
from cerebro_spark.planning.teamwork import Teamwork
from cerebro_spark.planning.values import Setting
from cerebro_spark.types import Objective

# The batches of units that say how long a batch takes, roughly; the first ones warm up.
_PROBE = (2, 6, 2)
# Evaluations of a pilot are as alike as its partitions are: few are enough.
_MOST_CHECKS = 2
# A pilot that has fewer seconds than this would tell nothing; the first may take as many if there are none.
_LEAST = 1.0
# Workers that begin after less than this share of the time that those of the probe took were there already.
_THERE = 0.5
MakeBackend = Callable[[Setting], AbstractContextManager[Backend]]


class Measurer:
    """Measures what units take, with pilots of real workers.

    Args:
        job: What the workers of a pilot work on; its data set has as many training partitions as there can be workers
            at once. Its run is a name that no run has.
        objective: What the search compares trials by.
        make_backend: Makes a backend for a pilot.
        hosts: On how many hosts the workers of a pilot are.
        fuse: How many trials may train together.
        group: How many workers may train a trial together.
        left: Says how many seconds are left for measuring.
    """

    def __init__(
        self,
        job: Job,
        objective: Objective,
        make_backend: MakeBackend,
        hosts: int,
        fuse: int,
        group: int,
        left: Callable[[], float],
    ) -> None:
        self._job = job
        self._objective = objective
        self._make_backend = make_backend
        self._hosts = hosts
        self._fuse = fuse
        self._group = group
        self._left = left

    def measure(
        self, settings: Sequence[Setting], configurations: Sequence[Mapping[str, Any]], trials: int
    ) -> dict[Setting, Profile]:
        """Run pilots, and return what they measured, by setting.

        All settings get as much time. Those that there is no time for are left out: where states are large, units take
        long however few their batches are. If none is left, the probe stands for them: one worker with one trial.

        Args:
            settings: What to measure with, the most important first.
            configurations: What is trained, the most important first.
            trials: How many trials the search has.
        """
        profiles: dict[Setting, Profile] = {}
        probe: Profile | None = None
        for place, setting in enumerate(settings):
            if probe is not None and self._left() < probe.record.lead + _LEAST:
                break
            with self._make_backend(setting) as backend:
                if probe is None:
                    probe = self._probe(setting.threads, backend, configurations[0])
                batch, epoch = probe.cost("train", configurations[0]).batch, probe.record.epoch_seconds
                workers = setting.at_once * self._hosts
                sizes = self._group_sizes(workers)
                share = self._left() / (len(settings) - place) / (1 + len(sizes))
                extent = extent_of(workers, setting.at_once, trials, len(configurations), batch, epoch, share)
                if extent.seconds <= max(self._left(), _LEAST):
                    profile = profiles[setting] = self._pilot(setting, backend, configurations, extent, share)
                    if profile.record.lead < _THERE * probe.record.lead:
                        # Its workers were there already, those of a run will not be.
                        profile.record.lead = probe.record.lead
                    profile.teamwork = self._measure_groups(setting, backend, configurations, extent, share, sizes)
        if not profiles and probe is not None:
            profiles[probe.setting] = probe
        return profiles

    def _group_sizes(self, workers: int) -> list[int]:
        """Return the sizes of groups to measure, the most important first: what others do lies between."""
        most = min(self._group, workers, len(self._job.dataset.train))
        return [size for size in sorted({2, most}, reverse=True) if size <= most and most > 1]

    def _measure_groups(
        self,
        setting: Setting,
        backend: Backend,
        configurations: Sequence[Mapping[str, Any]],
        extent: Extent,
        seconds: float,
        sizes: Sequence[int],
    ) -> Teamwork:
        """Run a pilot with groups of each size for which there is time."""
        records: dict[int, PilotRecord] = {}
        for size in sizes:
            if not records or self._left() > seconds:
                smaller = replace(extent, together=max(1, extent.workers // size))
                records[size] = self._record(setting, backend, configurations, smaller, seconds, group=size)
        return Teamwork(records)

    def _probe(self, threads: int, backend: Backend, configuration: Mapping[str, Any]) -> Profile:
        """Let one worker train a few batches, which say about how long a batch and an epoch take."""
        return self._pilot(Setting(threads, 1), backend, [configuration], Extent(1, 1, _PROBE), self._left())

    def _pilot(
        self,
        setting: Setting,
        backend: Backend,
        configurations: Sequence[Mapping[str, Any]],
        extent: Extent,
        seconds: float,
    ) -> Profile:
        """Run a pilot with one setting, in which every trial is trained by one worker at a time."""
        return Profile(setting, self._record(setting, backend, configurations, extent, seconds))

    def _record(
        self,
        setting: Setting,
        backend: Backend,
        configurations: Sequence[Mapping[str, Any]],
        extent: Extent,
        seconds: float,
        group: int = 1,
    ) -> PilotRecord:
        """Run a pilot with one setting; groups of workers train its trials."""
        whole, workers = self._job.dataset, extent.workers
        data = replace(whole, train=whole.train[:workers], validation=whole.validation[: min(workers, _MOST_CHECKS)])
        trainer = self._job.trainer.with_resources(threads=setting.threads)
        run = f"{self._job.run}-{secrets.token_hex(3)}"
        job = replace(self._job, run=run, dataset=data, trainer=trainer, batches=extent.batches)
        # Every worker is to be at work: the same configuration is trained more than once if there are few.
        count = max(extent.together, len(configurations))
        return run_pilot(
            job,
            self._objective,
            backend,
            [configurations[number % len(configurations)] for number in range(count)],
            together=extent.together,
            fuse=self._fuse if group == 1 else 1,
            group=group,
            seconds=seconds,
            ahead=extent.seconds,
        )
