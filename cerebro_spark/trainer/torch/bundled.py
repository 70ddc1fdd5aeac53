"""Trains the members of a bundle side by side on a GPU. What cannot be trained so is trained one by one."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from io import BytesIO
from typing import Any

import torch

from cerebro_spark.trainer.base import Hooks, Member, Resources, TrainedMember
from cerebro_spark.trainer.checkpoints.digest import DIGEST
from cerebro_spark.trainer.checkpoints.writing import write_checkpoint
from cerebro_spark.trainer.feed import Columns, Feed
from cerebro_spark.trainer.framework_trainer import CurrentTrial
from cerebro_spark.trainer.torch.auto_steps import BATCHES_TO_SETTLE, AutoSteps
from cerebro_spark.trainer.torch.built_model import BuiltTorchModel
from cerebro_spark.trainer.torch.graph_bundle import GraphBundle
from cerebro_spark.trainer.torch.graphs import GraphedSteps, end_broken_recording
from cerebro_spark.trainer.torch.metrics import MetricCollector, copy_output
from cerebro_spark.trainer.torch.stacked.training import Outcome, StackedTraining
from cerebro_spark.trainer.unit_errors import blaming_trial, check_loss, unsaved_change
from cerebro_spark.types import DigestName

_log = logging.getLogger(__name__)

Current = CurrentTrial[BuiltTorchModel]


@dataclass(slots=True)
class _Place:
    """A built model for one member of a bundle, besides the one that trials share when they train alone."""

    model: BuiltTorchModel
    steps: GraphedSteps


@dataclass(slots=True)
class _Structure:
    """What is kept for the bundles of one structure: places for members, and a graph for each number of them."""

    places: list[_Place]
    bundles: dict[int, GraphBundle]
    limit: int = 1 << 30

    @property
    def nbytes(self) -> int:
        return sum(place.model.nbytes for place in self.places)

    def narrow(self, limit: int) -> None:
        """Take fewer members from now on."""
        self.limit = max(1, limit)
        self.bundles.clear()
        self.places.clear()  # in the middle of a unit, they may have been changed by it


class BundledTraining(StackedTraining):
    """The part of a PyTorch trainer that trains bundles on a GPU."""

    def __init__(self, hooks: Hooks, columns: Columns, *, seed: int = 0, resources: Resources | None = None) -> None:
        super().__init__(hooks, columns, seed=seed, resources=resources)
        self._bundled: dict[str, _Structure] = {}
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

    def _find_group(self, left: Sequence[tuple[int, Member]]) -> tuple[str, list[tuple[int, Member]]]:
        """Return the members that have the structure of the first one, if that is known to train by graphs."""
        signature = self._find_signature(left[0][1])
        if signature and len(left) > 1:
            self._settle(signature, left[0][1])
        model = self.models.get(signature)
        # Batches of `input_fn` are made one by one, by each trial's own generators.
        gathers = isinstance(left[0][1].feed, Feed) and self.hooks.input_fn is None
        if model is None or not gathers or not _trains_by_graphs(model):
            return "", []
        limit = self._bundled[signature].limit if signature in self._bundled else len(left)
        group = [item for item in left if self._find_signature(item[1]) == signature]
        return signature, group[:limit]

    def _find_signature(self, member: Member) -> str:
        """Return the signature of the model of a member; "" if it cannot be built, which its own unit will say."""
        model, _ = self.models.find_build(member.params)
        if model is None:
            try:
                model, _ = self._find_model(member.unit.trial, member.params)
            except Exception:
                return ""
        return self.models.signature_of(model)

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
        self, signature: str, group: Sequence[tuple[int, Member]], digest: DigestName
    ) -> dict[int, Outcome]:
        """Train members side by side. If that fails for all of them, each is trained alone."""
        structure = self._bundled.pop(signature, None) or _Structure([], {})
        self._bundled[signature] = structure  # now the one that was used last
        try:
            return self._run_bundle(structure, group, digest)
        except Exception as error:  # whatever it is: a member that is at fault fails again when it trains alone
            self._current = None
            end_broken_recording(self.device)
            structure.narrow(len(group) // 2 if isinstance(error, torch.cuda.OutOfMemoryError) else 1)
            torch.cuda.empty_cache()
            reason = str(error).strip().splitlines()[:1] or [type(error).__name__]
            _log.info("%d trials train side by side from now on, not %d: %s", structure.limit, len(group), reason[0])
            return {}

    def _run_bundle(
        self, structure: _Structure, group: Sequence[tuple[int, Member]], digest: DigestName
    ) -> dict[int, Outcome]:
        began = time.perf_counter()
        self._current = None
        outcomes: dict[int, Outcome] = {}
        entered: list[tuple[int, Member, Current]] = []
        for index, member in group:
            place = self._find_place(structure, len(entered), member)
            try:
                entered.append((index, member, self._enter(place.model, member)))
            except Exception as error:
                outcomes[index] = error
        if not entered:
            return outcomes
        collectors = self._take_bundled_steps(structure, entered)
        share = (time.perf_counter() - began) / len(entered)
        for (index, member, current), collector in zip(entered, collectors, strict=True):
            outcomes[index] = self._leave(structure, member, current, collector, digest, len(entered), share)
        return outcomes

    def _find_place(self, structure: _Structure, number: int, member: Member) -> _Place:
        if number == len(structure.places):
            built, _ = self._call_model_fn(member.unit.trial, member.params)
            self._make_room(built.nbytes)
            self._prepare(built, member.params)
            built.snapshot = self._take_snapshot(built)
            structure.places.append(_Place(built, GraphedSteps(built, self._compute_loss)))
        return structure.places[number]

    def _make_room(self, size: int) -> None:
        """Give up what is kept for other structures until a model of this size fits, or only the last one is left."""
        while len(self._bundled) > 1 and size + sum(s.nbytes for s in self._bundled.values()) > self.models.budget:
            del self._bundled[next(iter(self._bundled))]

    def _enter(self, model: BuiltTorchModel, member: Member) -> Current:
        """Have a model take on the state of a member, and begin its unit."""
        unit, params = member.unit, member.params
        if member.source is None:
            built, generators = self._call_model_fn(unit.trial, params)
            self._move_state(built, model)
            built.close()
            current = CurrentTrial(unit.trial, params, model, generators)
        else:
            _, hyperparameters = self._find_model(unit.trial, params)
            numbers = hyperparameters if member.warm_start else None
            current = self._read_checkpoint(unit.trial, params, member.source, member.digest, model, numbers)
        if current.epoch and unit.epoch > current.epoch:
            self._end_epochs(model, unit.epoch - current.epoch)
        self._begin_unit(model, training=True)
        return current

    def _take_bundled_steps(
        self, structure: _Structure, entered: Sequence[tuple[int, Member, Current]]
    ) -> list[MetricCollector]:
        width = len(entered)
        places = structure.places[:width]
        if width not in structure.bundles:
            weigh = [place.model.loss.weigh for place in places]
            structure.bundles[width] = GraphBundle([place.steps for place in places], weigh, self.device)
        bundle = structure.bundles[width]
        currents = [current for _, _, current in entered]
        collectors = [self._make_collector(current.model, member.carried) for _, member, current in entered]
        self._lend_generators(bundle, currents)
        with bundle.unit():
            self._run_steps(bundle, currents, [member.feed for _, member, _ in entered], collectors)
            for current in currents:
                current.model.model.optimizer.zero_grad()
        for current, generator in zip(currents, bundle.generators, strict=True):
            current.generators = {**current.generators, "cuda": generator.get_state().numpy()}
        return collectors

    def _lend_generators(self, bundle: GraphBundle, currents: Sequence[Current]) -> None:
        """Put the generators of the members into the states of their trials."""
        with self._outer_generators():
            for current, generator in zip(currents, bundle.generators, strict=True):
                self._restore_generators(current.generators)
                generator.set_state(torch.cuda.get_rng_state(self.device))

    def _run_steps(
        self,
        bundle: GraphBundle,
        currents: Sequence[Current],
        feeds: Sequence[Any],
        collectors: Sequence[MetricCollector],
    ) -> None:
        """Take all steps of a unit, of all members."""
        batches = self._batches.load_on_device(feeds)
        if batches is None:
            raise ValueError("their partition is not kept on the GPU")
        schedulers = [own.lr_scheduler for own in (current.model.model for current in currents)]
        by_batch = currents[0].model.model.scheduler_step == "batch" and schedulers[0] is not None
        plain = all(collector.counts_only_losses for collector in collectors)
        sizes, losses, weights = feeds[0].sizes, [], []
        for batch in batches:
            result = bundle.take(batch)
            if plain:
                losses.append(result.losses.clone())
                weights.append(None if result.weights is None else result.weights.clone())
            else:
                for collector, one in zip(collectors, result.results, strict=True):
                    collector.add(*copy_output(one))
            del result  # before the next step is recorded, if that is to be
            if by_batch:
                for scheduler in schedulers:
                    scheduler.step()
                bundle.check_numbers()
        if plain and losses:
            _collect(collectors, losses, weights, sizes)

    def _leave(
        self,
        structure: _Structure,
        member: Member,
        current: Current,
        collector: MetricCollector,
        digest: DigestName,
        width: int,
        share: float,
    ) -> Outcome:
        """Return what came of a member."""
        began, file = time.perf_counter(), BytesIO()
        try:
            with blaming_trial(member.unit, current.params, self.columns):
                metrics = collector.collect()
                check_loss(metrics, member.unit, current.params)
            change = self._discard_changed(current.model)
            if change is not None:
                structure.places.clear()
                structure.bundles.clear()
                raise unsaved_change(change, member.unit, current.params, self._remedy)
            current.epoch, current.units = member.unit.epoch, current.units + 1
            saved = write_checkpoint(file, *self._contents(current), digest)
            self._current = current
            values = self._finish_member(member, metrics)
        except Exception as error:
            return error
        finally:
            self._current = None
        return TrainedMember(metrics, values, file, saved, width, share + time.perf_counter() - began, "graph")


def _trains_by_graphs(model: BuiltTorchModel) -> bool:
    steps = model.steps
    return isinstance(steps, AutoSteps) and steps.is_settled and steps.kind == "graph" and steps.graphed.is_whole


def _collect(
    collectors: Sequence[MetricCollector],
    losses: Sequence[torch.Tensor],
    weights: Sequence[torch.Tensor | None],
    sizes: Sequence[int],
) -> None:
    """Let each collector count the losses of its member."""
    table = torch.stack(list(losses), 1)
    counted = None if weights[0] is None else torch.stack([each for each in weights if each is not None], 1)
    for row, collector in enumerate(collectors):
        collector.add_all(table[row], None if counted is None else counted[row], sizes)
