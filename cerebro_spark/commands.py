"""What a person tells a live run to do. These are values: whoever has them decides nothing, and can send them on."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from cerebro_spark.errors import ConfigurationError
from cerebro_spark.types import TrialId, WorkerId

Verb = Literal["stop_trial", "resume_trial", "clone", "add_workers", "remove_worker", "pause", "unpause", "end", "kill"]
VERBS: tuple[Verb, ...] = get_args(Verb)
_OF_TRIALS = ("stop_trial", "resume_trial", "clone")


@dataclass(frozen=True, slots=True)
class Command:
    """One order of one person.

    Args:
        verb: What to do, the name of a method of a live run.
        id: Unique in the run; a command that comes twice is obeyed once. Defaults to a new one.
        by: Who gave it, for people: "ann@laptop". Defaults to "".
        trial: The trial that it is about, for "stop_trial", "resume_trial" and "clone".
        epochs: For "resume_trial" and "clone", how many further epochs. Defaults to None: as far as the trial, or the
            one that is cloned, was to go.
        params: For "clone", the params that differ from those of the trial. Empty by default.
        warm_start: For "clone", whether it begins with the trial's weights. Defaults to True.
        workers: For "add_workers", how many. Defaults to 0.
        worker: For "remove_worker", its name. Defaults to "".

    Raises:
        ConfigurationError: If the verb is unknown, or it lacks what it needs.

    Examples:
        >>> Command("stop_trial", id="c1", trial="t7").trial
        't7'
    """

    verb: Verb
    id: str = field(default_factory=lambda: secrets.token_hex(8))
    by: str = ""
    trial: TrialId = ""
    epochs: int | None = None
    params: Mapping[str, Any] = field(default_factory=dict)
    warm_start: bool = True
    workers: int = 0
    worker: WorkerId = ""

    def __post_init__(self) -> None:
        if self.verb not in VERBS:
            raise ConfigurationError(f"{self.verb!r} is no command: there are {', '.join(VERBS)}")
        if self.verb in _OF_TRIALS and not self.trial:
            raise ConfigurationError(f"{self.verb} needs the id of a trial, such as 't3'")
        if self.epochs is not None and (type(self.epochs) is not int or self.epochs < 1):
            raise ConfigurationError(f"`epochs` is {self.epochs!r}, but must be a whole number of at least 1")
        if self.verb == "add_workers" and self.workers < 1:
            raise ConfigurationError(f"{self.workers} workers cannot be added: say at least 1")
        if self.verb == "remove_worker" and not self.worker:
            raise ConfigurationError("remove_worker needs the name of a worker, such as 'w1'")
