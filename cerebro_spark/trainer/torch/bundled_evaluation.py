"""Evaluates the members of a bundle side by side on a GPU. What cannot be evaluated so is evaluated one by one."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

import numpy as np
import torch

from cerebro_spark.trainer.base import EvaluatedMember, Member
from cerebro_spark.trainer.feed import Feed
from cerebro_spark.trainer.torch.batches import Tensors
from cerebro_spark.trainer.torch.branches import Branches
from cerebro_spark.trainer.torch.built_model import BuiltTorchModel
from cerebro_spark.trainer.torch.bundle_metrics import BundleMetrics
from cerebro_spark.trainer.torch.bundled import BundledTraining, first_line, trains_by_graphs
from cerebro_spark.trainer.torch.graph_evaluation import BATCHES_TO_COMPARE, GraphEvaluation
from cerebro_spark.trainer.torch.graphs import end_broken_recording
from cerebro_spark.trainer.torch.metrics import MetricCollector
from cerebro_spark.trainer.torch.places import PlacedStructure
from cerebro_spark.trainer.torch.seating import Numbered, Seated
from cerebro_spark.trainer.torch.settings import using_settings
from cerebro_spark.trainer.torch.stacked.bundling import feed_of
from cerebro_spark.trainer.torch.state_copy import StateCopy
from cerebro_spark.trainer.unit_errors import blaming_trial, unsaved_change

_log = logging.getLogger(__name__)

Evaluated = EvaluatedMember | Exception


class BundledEvaluation(BundledTraining):
    """The part of a PyTorch trainer that evaluates bundles on a GPU."""

    def evaluate_together(self, members: Sequence[Member]) -> list[Evaluated]:
        if not self._has_graphs:
            return super().evaluate_together(members)
        outcomes: dict[int, Evaluated] = {}
        left = list(enumerate(members))
        while left:
            signature, group = self._find_evaluated(left)
            if len(group) > 1:
                outcomes.update(self._evaluate_group(signature, group))
            else:
                index, member = left[0]
                outcomes[index] = self._evaluate_member(member)
            left = [item for item in left if item[0] not in outcomes]
        return [outcomes[index] for index in range(len(members))]

    # Who can be evaluated side by side

    @property
    def _has_graphs(self) -> bool:
        return self.device.type == "cuda"

    def _find_evaluated(self, left: Sequence[Numbered]) -> tuple[str, list[Numbered]]:
        """Return the members with the structure and the rows of the first one, if that can be evaluated by graphs."""
        feed = left[0][1].feed
        own_loop = self.hooks.eval_fn is None and self.hooks.input_fn is None
        if len(left) < 2 or not own_loop or not isinstance(feed, Feed) or not len(feed.order):
            return "", []
        signature = self._find_signature(left[0][1])
        model = self.models.get(signature)
        if model is None or not self._evaluates_by_graphs(model) or not self._has_right_labels(model, feed):
            return "", []
        limit = self._bundled[signature].evaluated if signature in self._bundled else len(left)
        if limit < 2:
            return "", []
        alike = [item for item in left if _has_rows_of(feed, item[1])]
        return signature, [item for item in alike if self._find_signature(item[1]) == signature][:limit]

    def _evaluates_by_graphs(self, model: BuiltTorchModel) -> bool:
        """Whether evaluations of a model are worth a try of graphs: its training is."""
        return trains_by_graphs(model)

    # A unit

    def _evaluate_group(self, signature: str, group: Sequence[Numbered]) -> dict[int, Evaluated]:
        """Evaluate members side by side. If that fails for all of them, each is evaluated alone."""
        structure = self._find_places(signature)
        try:
            with using_settings(self._settings_of(signature)):
                return self._run_evaluation(structure, group)
        except Exception as error:  # whatever it is: a member that is at fault fails again when it is evaluated alone
            self._current = None
            end_broken_recording(self.device)
            structure.narrow_evaluation(len(group) // 2 if isinstance(error, torch.cuda.OutOfMemoryError) else 1)
            torch.cuda.empty_cache()
            most, reason = structure.evaluated, first_line(error)
            _log.info("%d trials are evaluated side by side from now on, not %d: %s", most, len(group), reason)
            return {}

    def _run_evaluation(self, structure: PlacedStructure, group: Sequence[Numbered]) -> dict[int, Evaluated]:
        began = time.perf_counter()
        self._current = None
        seated, errors = self._seat(structure, group)
        outcomes: dict[int, Evaluated] = {**errors}
        if not seated:
            return outcomes
        for each in seated:
            self._begin_unit(each.current.model, training=False)
        before = StateCopy([each.current.model for each in seated])
        metrics = self._measure_all(self._find_evaluation(structure, seated), seated)
        if not before.restore_statistics():
            for each in seated:
                each.place.held = None  # its next unit reads its checkpoint again
        share = (time.perf_counter() - began) / len(seated)
        for each, collector in zip(seated, metrics.collectors, strict=True):
            calls_user = not metrics.counts_only_losses
            outcomes[each.number] = self._end_evaluation(each, collector, calls_user, len(seated), share)
        return outcomes

    def _find_evaluation(self, structure: PlacedStructure, seated: Sequence[Seated]) -> GraphEvaluation:
        """Return the evaluation of so many members, with graphs for all shapes of batches."""
        evaluation = structure.evaluations.get(len(seated))
        if evaluation is None:
            models = [each.place.model for each in seated]
            branches = self._make_branches(len(seated))
            evaluation = GraphEvaluation(models, self._compute_loss, branches)
            structure.keep_evaluation(len(seated), evaluation)
        evaluation.begin()
        feed = feed_of(seated[0].member)
        for size in sorted(set(feed.sizes)):
            if not evaluation.is_recorded(*self._sample_batches(feed, size, 1)):
                self._record(evaluation, self._sample_batches(feed, size, BATCHES_TO_COMPARE), seated)
        return evaluation

    def _make_branches(self, count: int) -> Branches:
        return Branches(count, self.device)

    def _record(self, evaluation: GraphEvaluation, batches: Sequence[Tensors], seated: Sequence[Seated]) -> None:
        """Record the evaluation of batches of one shape. Raises ValueError if something is not repeated by a graph."""
        self._lend_generators(evaluation.branches.generators, [each.current for each in seated])
        with self._outer_generators():
            evaluation.record(batches)
        changes = [self._discard_changed(each.current.model) for each in seated]
        for change in changes:
            if change is not None:
                raise ValueError(f"{change} while it was evaluated")

    def _sample_batches(self, feed: Feed, size: int, count: int) -> list[Tensors]:
        """Return the first batches of a feed that have this size."""
        ends = np.cumsum(feed.sizes)[np.array(feed.sizes) == size][:count]
        rows = np.concatenate([feed.order[end - size : end] for end in ends])
        return list(self._batches.load(Feed(feed.arrays, rows, batch_size=size, key=feed.key)))

    def _measure_all(self, evaluation: GraphEvaluation, seated: Sequence[Seated]) -> BundleMetrics:
        """Evaluate all batches of a partition, which the members share."""
        feed = feed_of(seated[0].member)
        metrics = self._make_metrics(seated)
        self._lend_generators(evaluation.branches.generators, [each.current for each in seated])
        with torch.no_grad():
            for batch in self._batches.load(feed):
                metrics.add(evaluation.measure(batch))
            metrics.end(feed.sizes)
        return metrics

    def _end_evaluation(
        self, seated: Seated, collector: MetricCollector, calls_user: bool, width: int, share: float
    ) -> Evaluated:
        """Return what was found of a member."""
        began = time.perf_counter()
        _, member, place, current = seated
        try:
            with blaming_trial(member.unit, current.params, self.columns):
                metrics = collector.collect()
            # Graphs run no Python code; metrics of the user's do.
            change = self._discard_changed(current.model) if calls_user else None
            if change is not None:
                raise unsaved_change(change, member.unit, current.params, self._remedy)
            self._current = current
            values = self._finish_member(member, metrics)
        except Exception as error:
            place.held = None
            return error
        finally:
            self._current = None
        return EvaluatedMember(metrics, values, width, share + time.perf_counter() - began)


def _has_rows_of(feed: Feed, member: Member) -> bool:
    """Whether a member is evaluated on the same batches as a feed has."""
    own = member.feed
    if not isinstance(own, Feed) or own.arrays is not feed.arrays or own.sizes != feed.sizes:
        return False
    return own.order is feed.order or np.array_equal(own.order, feed.order)
