"""Gives the members of a bundle their places on a GPU. What a place holds already is not read again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from cerebro_spark.trainer.base import Hooks, Member, Resources
from cerebro_spark.trainer.feed import Columns
from cerebro_spark.trainer.framework_trainer import CurrentTrial
from cerebro_spark.trainer.sharing.snapshot import StateChange
from cerebro_spark.trainer.torch.built_model import BuiltTorchModel, loss_buffers
from cerebro_spark.trainer.torch.bundle_metrics import BundleMetrics
from cerebro_spark.trainer.torch.graphs import GraphedSteps
from cerebro_spark.trainer.torch.metrics import MetricCollector
from cerebro_spark.trainer.torch.model_checks import is_metric_object
from cerebro_spark.trainer.torch.places import Current, Place, PlacedStructure, assign_places
from cerebro_spark.trainer.torch.settings import Settings
from cerebro_spark.trainer.torch.stacked.training import StackedTraining
from cerebro_spark.types import Metrics

Numbered = tuple[int, Member]
"""A member, with its place in the order of the bundle."""


class Seated(NamedTuple):
    """A member whose state is in its place.

    Attributes:
        number: Its place in the order of the bundle.
        member: The member.
        place: The place.
        current: Its trial.
    """

    number: int
    member: Member
    place: Place
    current: Current


class Seating(StackedTraining):
    """The part of a PyTorch trainer that keeps places for the members of bundles."""

    def __init__(self, hooks: Hooks, columns: Columns, *, seed: int = 0, resources: Resources | None = None) -> None:
        super().__init__(hooks, columns, seed=seed, resources=resources)
        self._bundled: dict[str, PlacedStructure] = {}
        """What is kept for bundles, by the signature of the structure; the one that was used last comes last."""

    def _find_signature(self, member: Member) -> str:
        """Return the signature of the model of a member; "" if it cannot be built, which its own unit will say."""
        model, _ = self.models.find_build(member.params)
        if model is None:
            try:
                model, _ = self._find_model(member.unit.trial, member.params)
            except Exception:
                return ""
        return self.models.signature_of(model)

    def _settings_of(self, signature: str) -> Settings:
        """Return what all models of a structure have set otherwise than the process."""
        model = self.models.get(signature)
        return {} if model is None else model.settings

    def _find_places(self, signature: str) -> PlacedStructure:
        """Return what is kept for the bundles of a structure; it is now the one that was used last."""
        structure = self._bundled.pop(signature, None) or PlacedStructure()
        self._bundled[signature] = structure
        return structure

    def _seat(self, structure: PlacedStructure, group: Sequence[Numbered]) -> tuple[list[Seated], dict[int, Exception]]:
        """Have the first places take on the states of all members, each in one of them.

        Returns:
            The members in the order of their places, and the errors of those that could not be read, which have none.
        """
        errors: dict[int, Exception] = {}
        while left := [item for item in group if item[0] not in errors]:
            places = [self._find_place(structure, number, member) for number, (_, member) in enumerate(left)]
            numbers = assign_places(places, [member for _, member in left])
            seated: dict[int, Seated] = {}
            for (index, member), number in zip(left, numbers, strict=True):
                try:
                    current = self._take_on(places[number], member)
                    seated[number] = Seated(index, member, places[number], current)
                except Exception as error:
                    errors[index] = error
            if len(seated) == len(left):
                return [seated[number] for number in range(len(left))], errors
            # A place was left empty: the others move up, most of them without being read again.
        return [], errors

    def _find_place(self, structure: PlacedStructure, number: int, member: Member) -> Place:
        if number == len(structure.places):
            built, generators = self._call_model_fn(member.unit.trial, member.params)
            self._make_room(built.nbytes)
            self._prepare(built, member.params)
            if any(_tensor_places(built) & _tensor_places(place.model) for place in structure.places):
                raise ValueError("`model_fn` gives all trials the same tensors")
            built.snapshot = self._take_snapshot(built)
            current = CurrentTrial(member.unit.trial, member.params, built, generators)
            structure.places.append(Place(built, GraphedSteps(built, self._compute_loss), built=current))
        return structure.places[number]

    def _make_room(self, size: int) -> None:
        """Give up what is kept for other structures until a model of this size fits, or only the last one is left."""
        while len(self._bundled) > 1 and size + sum(s.nbytes for s in self._bundled.values()) > self.models.budget:
            del self._bundled[next(iter(self._bundled))]

    def _take_on(self, place: Place, member: Member) -> Current:
        """Have a place take on the state of a member, unless it holds it."""
        if place.held is not None and place.holds(member):
            return place.held
        first, place.held, place.built = place.built, None, None
        unit, params = member.unit, member.params
        if member.source is None:
            if first is not None and first.trial == unit.trial:
                return first
            built, generators = self._call_model_fn(unit.trial, params)
            self._move_state(built, place.model)
            built.close()
            return CurrentTrial(unit.trial, params, place.model, generators)
        numbers = self._find_model(unit.trial, params)[1] if member.warm_start else None
        current = self._read_checkpoint(unit.trial, params, member.source, member.digest, place.model, numbers)
        current.digest = "" if member.warm_start else member.digest
        place.hold(current)
        return current

    def _make_metrics(self, seated: Sequence[Seated]) -> BundleMetrics:
        """Return the collectors of all members, which have metric objects of their own."""
        objects = [
            id(each) for own in seated for each in own.place.model.model.metrics.values() if is_metric_object(each)
        ]
        is_own = len(set(objects)) == len(objects)
        make: Callable[[BuiltTorchModel, Metrics | None], MetricCollector]
        make = self._make_collector if is_own else self._copy_collector
        return BundleMetrics([make(each.place.model, each.member.carried) for each in seated])

    def _lend_generators(self, generators: Sequence[torch.Generator], currents: Sequence[Current]) -> None:
        """Put generators into the states of trials."""
        with self._outer_generators():
            for current, generator in zip(currents, generators, strict=True):
                generator.set_state(self._find_generator_state(current))

    def _find_generator_state(self, current: Current) -> torch.Tensor:
        """Return the state of a trial's generator of the GPU; the generators of the process may change."""
        if "cuda" in current.generators:
            return torch.from_numpy(np.array(current.generators["cuda"]))
        self._restore_generators(current.generators)
        return torch.cuda.get_rng_state(self.device)

    def _discard_changed(self, model: BuiltTorchModel) -> StateChange | None:
        change = super()._discard_changed(model)
        if change is not None:
            self._clear_places()  # whatever is at fault, a model or a function that all share
        return change

    def _drop_models(self) -> None:
        super()._drop_models()
        self._clear_places()

    def _clear_places(self) -> None:
        """Use no place again."""
        for structure in self._bundled.values():
            structure.clear()


def _tensor_places(model: BuiltTorchModel) -> set[int]:
    """Return where the tensors of a model are, on its device."""
    parts = [*model.model.module.parameters(), *model.model.module.buffers(), *loss_buffers(model.model.loss).values()]
    return {part.data_ptr() for part in parts if part.numel()}
