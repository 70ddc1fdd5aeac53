"""The search that asks Hyperopt: it turns documents of Hyperopt into trials, and reports into documents.

It writes the documents as plain `fmin` does, and leaves none unfinished: one is RUNNING while its trial is trained,
then DONE; or ERROR or CANCEL, if the run ended earlier.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from cerebro_spark.errors import ConfigurationError
from cerebro_spark.tune.algorithms.tpe import point_document
from cerebro_spark.tune.libraries import needed_by
from cerebro_spark.tune.plugins.led import LedSearch, TrialProgress
from cerebro_spark.tune.spaces.bare import NAME, bare, named
from cerebro_spark.types import Objective, TrialId

with needed_by("CerebroTrials", "hyperopt", "hyperopt"):
    import hyperopt as hyperopt
    from hyperopt import base, pyll
    from hyperopt.utils import coarse_utcnow

# How both trainers begin the message about a function that returned no model.
NO_MODEL = "model_fn must return"


@dataclass(frozen=True, slots=True)
class Limits:
    """When `fmin` stops."""

    max_evals: int
    timeout: float | None = None
    loss_threshold: float | None = None
    early_stop_fn: Callable[..., Any] | None = None

    @property
    def early(self) -> bool:
        """Whether it may stop while trials are being trained."""
        return not (self.timeout is None and self.loss_threshold is None and self.early_stop_fn is None)


class FminSearch(LedSearch):
    """One call of `fmin`: asks `algo` for documents, and writes the outcome of their trials into them.

    `points` are tried before `algo` is asked; those that were finished are removed.
    """

    def __init__(
        self,
        trials: Any,
        points: list[dict[str, Any]],
        domain: Any,
        algo: Callable[..., Any],
        rstate: np.random.Generator,
        limits: Limits,
        objective: Objective,
        epochs: int,
        at_once: int,
        bar: Any,
    ) -> None:
        super().__init__(objective, epochs, at_once, limits.early, limits.timeout)
        self._trials, self._points, self._domain = trials, points, domain
        self._algo, self._rstate, self._limits, self._bar = algo, rstate, limits, bar
        self._documents: dict[TrialId, dict[str, Any]] = {}
        self._pending: dict[int, dict[str, Any]] = {}
        self._ended: list[dict[str, Any]] = [doc for doc in trials.trials if doc["state"] == base.JOB_STATE_DONE]
        self._early_stop_state: Any = []
        self._stopped = False

    # -- from documents to trials

    def propose(self) -> tuple[TrialId, Mapping[str, Any]] | None:
        document = self._new_document() if len(self._trials) < self._limits.max_evals else None
        if document is None:
            return None
        trial = f"t{document['tid']:04d}"
        self._documents[trial] = document
        document["state"] = base.JOB_STATE_RUNNING
        document["book_time"] = document["refresh_time"] = coarse_utcnow()
        return trial, params_of(base.spec_from_misc(document["misc"]), self._domain)

    def _new_document(self) -> dict[str, Any] | None:
        trials = self._trials
        (tid,) = trials.new_trial_ids(1)
        trials.refresh()
        if self._points:
            self._pending[tid] = self._points.pop(0)
            made = [point_document(tid, self._pending[tid], self._domain.params)]
        else:
            made = self._algo([tid], self._domain, trials, self._rstate.integers(2**31 - 1))
        if not made:
            self._stopped = True
            return None
        trials.insert_trial_docs(made)
        trials.refresh()
        document: dict[str, Any] = next(doc for doc in reversed(trials.trials) if doc["tid"] == made[0]["tid"])
        return document

    def enough(self) -> bool:
        return self._stopped or self.timed_out()

    # -- from a run that was interrupted to documents

    def described(self, trial: TrialId) -> Mapping[str, Any]:
        document = self._documents[trial]
        return {"tid": document["tid"], "point": plain(base.spec_from_misc(document["misc"]))}

    def remember(self, progress: TrialProgress, about: Mapping[str, Any]) -> bool:
        """Take a document that is there, unless it is of another run; else make it anew from its point."""
        tid, point = int(about["tid"]), dict(about["point"])
        self._trials._ids.update(range(tid + 1))  # new documents get the numbers above
        given = point in self._points
        if given:
            self._points.remove(point)
        else:
            self._rstate.integers(2**31 - 1)  # as it was drawn then: what is drawn next is new
        document = self._known_document(tid, progress.trial)
        if document is not None and document["state"] == base.JOB_STATE_DONE:
            return True
        if document is None:
            self._trials.insert_trial_docs([point_document(tid, point, self._domain.params)])
            document = next(doc for doc in reversed(self._trials._dynamic_trials) if doc["tid"] == tid)
        document["misc"].pop("error", None)
        document.update(state=base.JOB_STATE_RUNNING, refresh_time=coarse_utcnow())
        self._documents[progress.trial] = document
        if given:
            self._pending[tid] = point
        self._trials.refresh()
        return False

    def _known_document(self, tid: int, trial: TrialId) -> dict[str, Any] | None:
        found: dict[str, Any] | None = next((d for d in self._trials._dynamic_trials if d["tid"] == tid), None)
        run = self.run_id if found is None else found["result"].get("run_id", self.run_id)
        if run != self.run_id:
            raise ConfigurationError(
                f"these trials have {trial} of run {run} already, and run {self.run_id} has one too: go on with the"
                " trials of that run, or with new ones"
            )
        return found

    # -- from reports to documents

    def finished(self, progress: TrialProgress) -> None:
        loss = progress.best if self.objective.mode == "min" else -progress.best
        about = {"metrics": dict(progress.metrics), "epoch": progress.best_epoch}
        self._done(progress, {"status": base.STATUS_OK, "loss": loss, **about})

    def failed(self, progress: TrialProgress, error: str) -> None:
        if NO_MODEL in error:
            raise ConfigurationError(
                f"the function that fmin was given returned no model, with params {dict(progress.params)!r}. With"
                " CerebroTrials it builds a model and returns it; the loss is measured for it by `metric`, here"
                f" {self.objective.metric!r}:\n{error}"
            )
        self._done(progress, {"status": base.STATUS_FAIL, "error": error})

    def _done(self, progress: TrialProgress, result: dict[str, Any]) -> None:
        document = self._documents.pop(progress.trial)
        self._pending.pop(document["tid"], None)
        known = {"params": bare(progress.params), "trial": progress.trial, "run_id": self.run_id}
        document.update(state=base.JOB_STATE_DONE, refresh_time=coarse_utcnow(), result={**result, **known})
        self._trials.refresh()
        self._ended.append(document)
        losses = [loss for loss in self._trials.losses() if loss is not None]
        self._stopped = self._stopped or self._may_stop(losses)
        if losses:
            self._bar.postfix = f"best loss: {min(losses)}"
        self._bar.update(1)

    def _may_stop(self, losses: list[float]) -> bool:
        limits = self._limits
        if limits.loss_threshold is not None and losses and min(losses) < limits.loss_threshold:
            return True
        if limits.early_stop_fn is None:
            return False
        said = limits.early_stop_fn(ended_trials(self._ended), *self._early_stop_state)
        if isinstance(said, bool | np.bool_):
            return bool(said)
        if not (isinstance(said, tuple | list) and len(said) == 2 and isinstance(said[1], Iterable)):
            raise ConfigurationError(
                f"`early_stop_fn` returned {said!r}, but must return True, False, or (stop, state) with a list that is"
                " given to its next call"
            )
        stop, self._early_stop_state = said
        return bool(stop)

    def leave(self, state: int, why: str) -> None:
        """Finish all documents at the end of the run, and keep the points that were not finished for another run."""
        self._points[:0] = self._pending.values()
        self._pending = {}
        for document in self._documents.values():
            document.update(state=state, refresh_time=coarse_utcnow())
            document["misc"]["error"] = (str(state), why)
        self._documents = {}
        self._trials.refresh()


def ended_trials(documents: list[dict[str, Any]]) -> Any:
    """Return trials as an early_stop_fn expects them: in the order they ended, each with a loss, huge if it failed.

    Hyperopt's own function looks at the last document, which need not be the last to end if several trials are trained
    at a time; and it calculates with the loss, which therefore must be finite.
    """
    copies = [{**doc, "result": {"loss": sys.float_info.max, **doc["result"]}} for doc in documents]
    return base.trials_from_docs(copies, validate=False)


def params_of(spec: Mapping[str, Any], domain: Any) -> Mapping[str, Any]:
    """Return the params for numbers of Hyperopt, as plain Python values. What is no dict gets the name "value".

    >>> params_of({"lr": np.float64(0.1)}, base.Domain(None, hyperopt.hp.uniform("lr", 0, 1)))
    {'value': 0.1}
    """
    nodes = pyll.toposort(domain.expr)
    labels = {node: node.arg["label"].eval() for node in nodes if node.name == "hyperopt_param"}
    memo = {node: spec[label] for node, label in labels.items() if label in spec}
    try:
        params = plain(pyll.rec_eval(domain.expr, memo=memo, print_node_on_error=False))
    except Exception as error:
        missing = sorted(set(labels.values()) - set(spec))
        raise ConfigurationError(
            f"the space has no configuration for {dict(spec)!r}: {error}"
            + (f"; a value is missing for one of {', '.join(missing)}" if missing else "")
        ) from error
    if isinstance(params, dict) and set(params) == {NAME} and is_bare(domain):
        raise ConfigurationError(
            f"the space gives {params!r}, but {NAME!r} as the only name is what stands for a value that is no dict: use"
            " another name"
        )
    return named(params)


def is_bare(domain: Any) -> bool:
    """Return whether a configuration of the space may be no dict, but a number or a list."""
    return bool(domain.expr.name != "dict")


def plain(value: Any) -> Any:
    """Return a value of a space without NumPy's types.

    >>> plain({"layers": (np.int64(3), np.float32(0.5)), "kind": "cnn"})
    {'layers': (3, 0.5), 'kind': 'cnn'}
    """
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return value.tolist()
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return type(value)(plain(item) for item in value)
    return value


def checked_point(point: Mapping[str, Any], domain: Any) -> dict[str, Any]:
    """Return a point that the user gave. Raises ConfigurationError if the space does not have it."""
    unknown = sorted(set(point) - set(domain.params))
    if unknown:
        raise ConfigurationError(
            f"`points_to_evaluate` has {dict(point)!r}, but the space has no {', '.join(unknown)}: it has"
            f" {', '.join(sorted(domain.params))}"
        )
    params_of(point, domain)
    return dict(point)
