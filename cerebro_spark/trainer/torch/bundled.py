"""Trains the members of a bundle side by side on a GPU. What cannot be trained so is trained one by one."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from io import BytesIO

import torch

from cerebro_spark.trainer.base import Hooks, Member, Resources, TrainedMember
from cerebro_spark.trainer.checkpoints.digest import DIGEST
from cerebro_spark.trainer.checkpoints.writing import write_checkpoint
from cerebro_spark.trainer.feed import Columns, Feed
from cerebro_spark.trainer.torch.auto_steps import BATCHES_TO_SETTLE, AutoSteps
from cerebro_spark.trainer.torch.built_model import BuiltTorchModel
from cerebro_spark.trainer.torch.bundle_metrics import BundleMetrics
from cerebro_spark.trainer.torch.graph_bundle import GraphBundle
from cerebro_spark.trainer.torch.graphs import end_broken_recording
from cerebro_spark.trainer.torch.metrics import MetricCollector
from cerebro_spark.trainer.torch.places import PlacedStructure
from cerebro_spark.trainer.torch.seating import Numbered, Seated, Seating
from cerebro_spark.trainer.torch.settings import using_settings
from cerebro_spark.trainer.torch.stacked.bundling import feed_of
from cerebro_spark.trainer.torch.stacked.training import Outcome
from cerebro_spark.trainer.unit_errors import blaming_trial, check_loss, unsaved_change
from cerebro_spark.types import DigestName

_log = logging.getLogger(__name__)


class BundledTraining(Seating):
    """The part of a PyTorch trainer that trains bundles on a GPU."""

    def __init__(self, hooks: Hooks, columns: Columns, *, seed: int = 0, resources: Resources | None = None) -> None:
        super().__init__(hooks, columns, seed=seed, resources=resources)
        self._tried: set[str] = set()
        """The signatures of structures of which it was found out how they train, as far as their units allow."""

    def train_together(self, members: Sequence[Member], digest: DigestName = DIGEST) -> list[Outcome]:
        if self.device.type != "cuda":
            return super().train_together(members, digest)
        outcomes: dict[int, Outcome] = {}
        left = list(enumerate(members))
        while left:
            signature, group = self._find_group(left)
            if len(group) > 1:
                outcomes.update(self._train_group_by_graph(signature, group, digest))
            else:
                index, member = left[0]
                outcomes[index] = self._train_member(member, digest)
            left = [item for item in left if item[0] not in outcomes]
        return [outcomes[index] for index in range(len(members))]

    # Who can be trained side by side

    def _find_group(self, left: Sequence[Numbered]) -> tuple[str, list[Numbered]]:
        """Return the members that have the structure of the first one, if that is known to train by graphs."""
        signature = self._find_signature(left[0][1])
        if signature and len(left) > 1:
            self._settle(signature, left[0][1])
        model = self.models.get(signature)
        feed = left[0][1].feed
        if not isinstance(feed, Feed) or self.hooks.input_fn is not None:
            return "", []  # batches of `input_fn` are made one by one, by each trial's own generators
        if model is None or not trains_by_graphs(model) or not self._has_right_labels(model, feed):
            return "", []
        limit = self._bundled[signature].limit if signature in self._bundled else len(left)
        group = [item for item in left if self._find_signature(item[1]) == signature]
        return signature, group[:limit]

    def _settle(self, signature: str, member: Member) -> None:
        """Find out whether a structure trains by graphs, by steps of a member that are not kept."""
        model, feed = self.models.get(signature), member.feed
        if model is None or signature in self._tried or not isinstance(feed, Feed):
            return
        self._tried.add(signature)
        if isinstance(model.steps, AutoSteps) and model.steps.is_settled:
            return
        some = feed.order[: BATCHES_TO_SETTLE * feed.batch_size]
        first = Feed(feed.arrays, some, batch_size=feed.batch_size, key=feed.key, smallest=feed.smallest)
        self._train_member(replace(member, feed=first, final=False), DIGEST)  # if it fails, so will its own unit
        self._current = None

    # A unit

    def _train_group_by_graph(
        self, signature: str, group: Sequence[Numbered], digest: DigestName
    ) -> dict[int, Outcome]:
        """Train members side by side. If that fails for all of them, each is trained alone."""
        structure = self._find_places(signature)
        try:
            with using_settings(self._settings_of(signature)):
                return self._run_bundle(structure, group, digest)
        except Exception as error:  # whatever it is: a member that is at fault fails again when it trains alone
            self._current = None
            end_broken_recording(self.device)
            structure.narrow(len(group) // 2 if isinstance(error, torch.cuda.OutOfMemoryError) else 1)
            torch.cuda.empty_cache()
            reason = first_line(error)
            _log.info("%d trials train side by side from now on, not %d: %s", structure.limit, len(group), reason)
            return {}

    def _run_bundle(
        self, structure: PlacedStructure, group: Sequence[Numbered], digest: DigestName
    ) -> dict[int, Outcome]:
        began = time.perf_counter()
        self._current = None
        entered, errors = self._enter(structure, group)
        outcomes: dict[int, Outcome] = {**errors}
        if not entered:
            return outcomes
        metrics = self._take_bundled_steps(structure, entered)
        share = (time.perf_counter() - began) / len(entered)
        for seated, collector in zip(entered, metrics.collectors, strict=True):
            outcomes[seated.number] = self._leave(seated, collector, digest, len(entered), share)
        return outcomes

    def _enter(
        self, structure: PlacedStructure, group: Sequence[Numbered]
    ) -> tuple[list[Seated], dict[int, Exception]]:
        """Give all members their places, and begin their units; return those that failed with their errors."""
        errors: dict[int, Exception] = {}
        while True:
            entered, unread = self._seat(structure, [item for item in group if item[0] not in errors])
            errors |= unread
            failed = self._begin_training(entered)
            errors |= failed
            if not failed:
                return entered, errors

    def _begin_training(self, entered: Sequence[Seated]) -> dict[int, Exception]:
        """Begin the units of members, so that their places no longer hold what was read; return what fails."""
        errors: dict[int, Exception] = {}
        for number, member, place, current in entered:
            place.held = None
            try:
                if current.epoch and member.unit.epoch > current.epoch:
                    self._end_epochs(current.model, member.unit.epoch - current.epoch)
                self._begin_unit(current.model, training=True)
            except Exception as error:
                errors[number] = error
        return errors

    def _take_bundled_steps(self, structure: PlacedStructure, entered: Sequence[Seated]) -> BundleMetrics:
        width = len(entered)
        places = [seated.place for seated in entered]
        if width not in structure.bundles:
            weigh = [place.model.loss.weigh for place in places]
            structure.bundles[width] = GraphBundle([place.steps for place in places], weigh, self.device)
        bundle = structure.bundles[width]
        currents = [seated.current for seated in entered]
        metrics = self._make_metrics(entered)
        self._lend_generators(bundle.generators, currents)
        with bundle.unit():
            self._run_steps(bundle, entered, metrics)
            for current in currents:
                current.model.model.optimizer.zero_grad()
        for current, generator in zip(currents, bundle.generators, strict=True):
            current.generators = {**current.generators, "cuda": generator.get_state().numpy()}
        return metrics

    def _run_steps(self, bundle: GraphBundle, entered: Sequence[Seated], metrics: BundleMetrics) -> None:
        """Take all steps of a unit, of all members."""
        feeds = [feed_of(seated.member) for seated in entered]
        batches = self._batches.load_on_device(feeds)
        if batches is None:
            raise ValueError("their partition is not kept on the GPU")
        models = [seated.current.model.model for seated in entered]
        by_batch = models[0].scheduler_step == "batch" and models[0].lr_scheduler is not None
        for batch in batches:
            metrics.add(bundle.take(batch))
            if by_batch:
                for model in models:
                    model.lr_scheduler.step()
                bundle.check_numbers()
        metrics.end(feeds[0].sizes)

    def _leave(
        self, seated: Seated, collector: MetricCollector, digest: DigestName, width: int, share: float
    ) -> Outcome:
        """Return what came of a member. Its place holds what it leaves."""
        began, file = time.perf_counter(), BytesIO()
        _, member, place, current = seated
        try:
            with blaming_trial(member.unit, current.params, self.columns):
                metrics = collector.collect()
                check_loss(metrics, member.unit, current.params)
            change = self._discard_changed(current.model)
            if change is not None:
                raise unsaved_change(change, member.unit, current.params, self._remedy)
            current.epoch, current.units = member.unit.epoch, current.units + 1
            saved = write_checkpoint(file, *self._contents(current), digest)
            self._current = current
            values = self._finish_member(member, metrics)
        except Exception as error:
            return error
        finally:
            self._current = None
        current.digest = saved.digest
        place.hold(current)
        seconds = share + time.perf_counter() - began
        return TrainedMember(metrics, values, file, saved, width, seconds, "graph", "plain")


def trains_by_graphs(model: BuiltTorchModel) -> bool:
    """Whether training by graphs was chosen for a model, so that bundles of it train side by side."""
    steps = model.steps
    return isinstance(steps, AutoSteps) and steps.is_settled and steps.kind == "graph" and steps.graphed.is_whole


def first_line(error: Exception) -> str:
    """Return the first line of an error.

    >>> first_line(ValueError("no room\\nat all")), first_line(KeyError())
    ('no room', 'KeyError')
    """
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
