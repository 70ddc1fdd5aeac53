"""What the members of a group tell each other at the end of a unit. It compares, and decides nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from cerebro_spark.trainer.group import Group
from cerebro_spark.types import Metrics


@dataclass(frozen=True, slots=True)
class MemberNote:
    """What one member has to say.

    Attributes:
        digest: A digest of what it learned.
        metrics: The metrics of its own rows.
        prepared: The seconds that it took to build or load the trial, and to see whether a group can train it.
        problem: Why the unit was not trained exactly; "" if it was.

    >>> note = MemberNote("xxh3:00", Metrics({"loss": 0.1}, {"loss": 3.0}, {"auc": (1.0, float("inf"))}), 0.5, "")
    >>> MemberNote.unpack(note.pack()) == note
    True
    """

    digest: str
    metrics: Metrics
    prepared: float
    problem: str

    def pack(self) -> bytes:
        """Return it as bytes. Numbers come out as they went in, to the last bit."""
        measured = self.metrics
        plain = {**asdict(self), "metrics": [measured.sums, measured.weights, measured.states]}
        return json.dumps(plain).encode()

    @staticmethod
    def unpack(data: bytes) -> MemberNote:
        """Return the note that these bytes are."""
        plain = json.loads(data)
        sums, weights, states = plain["metrics"]
        metrics = Metrics(sums, weights, {name: tuple(state) for name, state in states.items()})
        return MemberNote(plain["digest"], metrics, plain["prepared"], plain["problem"])


def merge_notes(notes: Sequence[MemberNote]) -> Metrics:
    """Return the metrics of all members together, added up by rank."""
    return Metrics.merge(note.metrics for note in notes)


def find_difference(group: Group, parts: Mapping[str, str]) -> str:
    """Return the name of the first part of a state in which members differ. All members call it at a time.

    Args:
        group: The links.
        parts: This member's digest of each part.
    """
    first, *others = (json.loads(data) for data in group.gather(json.dumps(dict(parts)).encode()))
    names = {**first, **{name: digest for other in others for name, digest in other.items()}}
    return next(
        (repr(name) for name in names if any(other.get(name) != first.get(name) for other in others)), "no place"
    )
