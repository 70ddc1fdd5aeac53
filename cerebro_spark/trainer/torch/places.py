"""The places of bundles: built models that remember which members' states they hold. It computes nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from cerebro_spark.trainer.framework_trainer import CurrentTrial
from cerebro_spark.trainer.members import Member
from cerebro_spark.trainer.sharing.signature import compute_signature
from cerebro_spark.trainer.torch.built_model import BuiltTorchModel
from cerebro_spark.trainer.torch.graphs import GraphedSteps

if TYPE_CHECKING:
    from cerebro_spark.trainer.torch.graph_bundle import GraphBundle
    from cerebro_spark.trainer.torch.graph_evaluation import GraphEvaluation

Current = CurrentTrial[BuiltTorchModel]

_NO_LIMIT = 1 << 30
# Graphs of evaluations that are kept of one structure, by width: each has the memory of its outputs.
_KEPT_EVALUATIONS = 4


@dataclass(slots=True)
class Place:
    """A built model for one member of a bundle, besides the one that trials share when they train alone.

    Attributes:
        model: The built model.
        steps: Its training steps.
        held: The trial whose state the model has, exactly that of the checkpoint with its digest. None as soon as the
            state is another one, or may be.
        built: The trial for which the model was built, as long as no other state was asked for.
    """

    model: BuiltTorchModel
    steps: GraphedSteps
    held: Current | None = None
    built: Current | None = None

    def hold(self, current: Current) -> None:
        """Remember that the model has the state of the checkpoint of this trial, if its digest is known."""
        self.held = current if current.digest else None

    def holds(self, member: Member) -> bool:
        """Whether the model has the state that a member starts from, so that nothing need be read."""
        held = self.held
        if held is None or member.source is None or member.warm_start or not member.digest:
            return False
        if (held.trial, held.digest) != (member.unit.trial, member.digest):
            return False
        return compute_signature(held.params) == compute_signature(member.params)


def assign_places(places: Sequence[Place], members: Sequence[Member]) -> list[int]:
    """Return the number of the place of each member: one that holds its state, or else the first that is left.

    Args:
        places: As many places as there are members, or more.
        members: The members.
    """
    free = list(range(len(places)))
    taken: dict[int, int] = {}
    for index, member in enumerate(members):
        own = next((number for number in free if places[number].holds(member)), None)
        if own is not None:
            taken[index] = own
            free.remove(own)
    rest = iter(free)
    return [taken[index] if index in taken else next(rest) for index in range(len(members))]


@dataclass(slots=True)
class PlacedStructure:
    """What is kept for the bundles of one structure.

    Attributes:
        places: Places for members.
        bundles: The training steps of the first places, by their number.
        evaluations: The evaluations of the first places, by their number.
        limit: The most members that train side by side.
        evaluated: The most members that are evaluated side by side.
    """

    places: list[Place] = field(default_factory=list)
    bundles: dict[int, GraphBundle] = field(default_factory=dict)
    evaluations: dict[int, GraphEvaluation] = field(default_factory=dict)
    limit: int = _NO_LIMIT
    evaluated: int = _NO_LIMIT

    @property
    def nbytes(self) -> int:
        return sum(place.model.nbytes for place in self.places)

    def narrow(self, limit: int) -> None:
        """Train fewer members side by side from now on."""
        self.limit = max(1, limit)
        self.clear()

    def narrow_evaluation(self, limit: int) -> None:
        """Evaluate fewer members side by side from now on."""
        self.evaluated = max(1, limit)
        self.clear()

    def clear(self) -> None:
        """Give up all places: in the middle of a unit, they may have been changed by it."""
        self.bundles.clear()
        self.evaluations.clear()
        self.places.clear()

    def keep_evaluation(self, width: int, made: GraphEvaluation) -> None:
        """Keep an evaluation. The oldest go if there are too many."""
        self.evaluations[width] = made
        while len(self.evaluations) > _KEPT_EVALUATIONS:
            del self.evaluations[next(iter(self.evaluations))]
