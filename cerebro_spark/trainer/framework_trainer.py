"""What the trainers of all frameworks have in common: the life of a trial, step by step. It knows no framework."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO, Generic

import numpy as np

from cerebro_spark.errors import CerebroError, ConfigurationError
from cerebro_spark.trainer.base import Hooks, Params, Resources, SavedCheckpoint
from cerebro_spark.trainer.checkpoints.arrays import MemorySource, StateArray, read_array
from cerebro_spark.trainer.checkpoints.digest import DIGEST, compute_digest, digest_name
from cerebro_spark.trainer.checkpoints.fit import checking_fit
from cerebro_spark.trainer.checkpoints.randomness import derive_seed
from cerebro_spark.trainer.checkpoints.reading import open_checkpoint
from cerebro_spark.trainer.checkpoints.tree import Tree, flatten, unflatten
from cerebro_spark.trainer.checkpoints.writing import write_checkpoint
from cerebro_spark.trainer.dependence_errors import depends_on_builds, depends_on_growth
from cerebro_spark.trainer.feed import Array, Batch, Columns, Feed
from cerebro_spark.trainer.framework_steps import FrameworkSteps, StateBefore
from cerebro_spark.trainer.hook_results import OnePass, check_batches, check_rows, describe_metrics, read_metrics
from cerebro_spark.trainer.label_rules import LabelChecks
from cerebro_spark.trainer.sharing.built_model import M, ModelCache
from cerebro_spark.trainer.sharing.dependence import GrowthWatch, Outcome
from cerebro_spark.trainer.sharing.hooks import WatchedHooks, own_params
from cerebro_spark.trainer.sharing.process import SharedProcess
from cerebro_spark.trainer.sharing.signature import compute_signature
from cerebro_spark.trainer.sharing.snapshot import StateChange
from cerebro_spark.trainer.unit_errors import blaming_trial, check_loss, replaced_function, unsaved_change
from cerebro_spark.types import DigestName, Metrics, TrialId, Unit


@dataclass(slots=True)
class CurrentTrial(Generic[M]):
    """The trial whose state a trainer holds.

    `digest` is that of a checkpoint with this state, as far as it is known. Once something was `measured`, it is the
    digest from before: whether measuring has changed the state is only checked when the trial goes on, by the digest or
    by the copy of the state `before`.
    """

    trial: TrialId
    params: Params
    model: M
    generators: Tree
    epoch: int = 0
    units: int = 0
    digest: str = ""
    measured: bool = False
    before: StateBefore | None = None


class FrameworkTrainer(FrameworkSteps[M]):
    """A trainer made of the few steps that differ between frameworks; subclasses define these.

    `builds` counts the calls of `model_fn`, `models` are the built models that are kept.
    """

    def __init__(self, hooks: Hooks, columns: Columns, *, seed: int = 0, resources: Resources | None = None) -> None:
        self._watched_hooks = WatchedHooks(hooks, self._make_inspector)
        self.columns = columns
        self.seed = seed
        self.resources = resources or Resources()
        self.models: ModelCache[M] = ModelCache(self.resources.model_memory)
        self.builds = 0
        self._label_checks = LabelChecks(columns.labels, columns.weight)
        self._current: CurrentTrial[M] | None = None
        self._claim_resources()
        self._process = SharedProcess(self._libraries())

    @property
    def hooks(self) -> Hooks:
        return self._watched_hooks.hooks

    # The life of a trial

    def build(self, trial: TrialId, params: Params) -> None:
        self._current = None
        built, generators = self._call_model_fn(trial, params)
        model = self._share(params, built)
        if model is not built:
            self._move_state(built, model)
            built.close()
        self._current = CurrentTrial(trial, params, model, generators)

    def load(
        self,
        trial: TrialId,
        params: Params,
        source: Path | BinaryIO | bytes,
        *,
        digest: str = "",
        warm_start: bool = False,
    ) -> None:
        if not warm_start and self.holds(trial, digest) and self._has_params(params):
            return
        self._current = None
        model, hyperparameters = self._find_model(trial, params)
        current = self._read_checkpoint(trial, params, source, digest, model, hyperparameters if warm_start else None)
        current.digest = "" if warm_start else digest
        self._current = current

    def save(self, target: Path | BinaryIO, digest: DigestName = DIGEST) -> SavedCheckpoint:
        current = self._require_unchanged()
        saved = write_checkpoint(target, *self._contents(current), digest)
        current.digest = saved.digest
        return saved

    def holds(self, trial: TrialId, digest: str) -> bool:
        current = self._current
        if current is None or not digest or (current.trial, current.digest) != (trial, digest):
            return False
        return not self._has_moved(current)

    def train(self, unit: Unit, feed: Feed | Iterable[Batch], carried: Metrics | None = None) -> Metrics:
        current = self._require_unchanged()
        self._current = None
        current.digest = ""
        with self._guarded(current, unit), self._own_generators(current):
            if current.epoch and unit.epoch > current.epoch:
                self._end_epochs(current.model, unit.epoch - current.epoch)
            self._begin_unit(current.model, training=True)
            metrics = self._run_unit(current, self.hooks.train_fn, self._train, feed, carried)
            check_loss(metrics, unit, current.params)
        self._check_growth(current, unit, feed)
        current.epoch, current.units = unit.epoch, current.units + 1
        self._current = current
        return metrics

    def evaluate(self, unit: Unit, feed: Feed | Iterable[Batch], carried: Metrics | None = None) -> Metrics:
        current = self._require_current()
        self._current = None
        with self._guarded(current, unit), self._own_generators(current, keep=False), self._measuring(current):
            self._begin_unit(current.model, training=False)
            metrics = self._run_unit(current, self.hooks.eval_fn, self._evaluate, feed, carried)
        self._check_growth(current, unit, feed)
        self._current = current
        return metrics

    def predict(self, feed: Feed | Iterable[Batch]) -> dict[str, Array]:
        current = self._require_current()
        with self._own_generators(current, keep=False), self._measuring(current):
            batches = check_batches(self._map_batches(feed, current.params), self.columns.inputs)
            parts = list(self._predict(current.model, batches))
        return {name: np.concatenate([part[name] for part in parts]) for name in (parts[0] if parts else ())}

    def finish(self, metrics: Metrics) -> dict[str, float]:
        return {**metrics.values(), **self._finish(self._require_current().model, metrics)}

    def model(self) -> Any:
        return self._require_current().model.model

    # Built models

    def _call_model_fn(self, trial: TrialId, params: Params) -> tuple[M, Tree]:
        self.builds += 1
        self._watched_hooks.builds.begin()
        self._process.note()
        with blaming_trial(trial, params, self.columns), self._outer_generators():
            try:
                built = self._build(params, derive_seed(self.seed, trial))
                generators = self._capture_generators()
            finally:
                self._watched_hooks.restore_generators()
                patch = self._process.put_back()
            found = None if patch else self._find_steering(trial, params, built, generators)
        error = replaced_function(patch, trial, params) if patch is not None else None
        error = depends_on_builds(*found, trial, params) if found is not None else error
        if error is not None:
            built.close()
            raise error
        return built, generators

    def _find_steering(
        self, trial: TrialId, params: Params, built: M, generators: Tree
    ) -> tuple[StateChange, str] | None:
        """Return something outside of a model that was built, on which the next one would depend; None if nothing."""
        builds, build_again = self._watched_hooks.builds, partial(self._try_build, trial, params)
        found = builds.find_steering(build_again)
        if found is None:
            found = builds.find_steering_cache(partial(self._describe, built, generators), build_again)
        return found

    def _try_build(self, trial: TrialId, params: Params) -> Outcome:
        """Build a model once more, and return what it is."""
        try:
            built = self._build(params, derive_seed(self.seed, trial))
            generators = self._capture_generators()
        except Exception as error:
            return {"the error": repr(error)}
        finally:
            self._watched_hooks.restore_generators()
        outcome = self._describe(built, generators)
        built.close()
        return outcome

    def _describe(self, built: M, generators: Tree) -> Outcome:
        """Return what a model is that was built just now, and where the generators were after that."""
        json, arrays = flatten({"model": built.state()}, self._wrap_array)
        drawn, states = flatten({"drawn": generators}, self._wrap_array)
        return {
            "the model's structure": self._sign(built),
            "the first weights": compute_digest(arrays, json),
            "what its steps draw at random": compute_digest(states, drawn),
        }

    def _share(self, params: Params, built: M) -> M:
        """Return the kept model that is like `built`; if there is none, keep this one."""
        signature = self._sign(built)
        self.models.note_build(params, signature, built.hyperparameters())
        kept = self.models.get(signature)
        if kept is not None:
            return kept
        self._prepare(built, params)
        built.snapshot = self._take_snapshot(built)
        built.growth = GrowthWatch(built.snapshot)
        self.models.put(signature, built)
        return built

    def _move_state(self, built: M, model: M) -> None:
        """Have a model take on the state of another one."""
        json, arrays = flatten({"model": built.state()}, self._wrap_array)
        model.restore(MemorySource(arrays, json))

    def _read_checkpoint(
        self, trial: TrialId, params: Params, source: Path | BinaryIO | bytes, digest: str, model: M, numbers: Any
    ) -> CurrentTrial[M]:
        """Have a model take on the state of a checkpoint, with the hyperparameters `numbers` unless these are None."""
        with open_checkpoint(source, digest=digest) as reader, checking_fit(reader, self.framework):
            model.restore(reader, numbers)
            generators = unflatten(reader.meta["rng"], lambda name: read_array(reader, name))
            counters = reader.meta["counters"]
        return CurrentTrial(trial, params, model, generators, counters["epoch"], counters["units"])

    def _find_model(self, trial: TrialId, params: Params) -> tuple[M, Any]:
        """Return the model that these params build, kept or new, and their hyperparameters."""
        model, hyperparameters = self.models.find_build(params)
        if model is None:
            built, _ = self._call_model_fn(trial, params)
            model = self._share(params, built)
            if model is not built:
                built.close()
            _, hyperparameters = self.models.find_build(params)
        return model, hyperparameters

    # The current trial

    def _require_current(self) -> CurrentTrial[M]:
        if self._current is None:
            raise CerebroError("no trial is current in this trainer: call build or load first")
        return self._current

    def _require_unchanged(self) -> CurrentTrial[M]:
        """Return the current trial, to be trained or saved."""
        current = self._require_current()
        if self._has_moved(current):
            self._current = None
            raise CerebroError(
                f"evaluating or predicting has changed the state of trial {current.trial}: load its checkpoint again"
            )
        return current

    def _has_params(self, params: Params) -> bool:
        return compute_signature(params) == compute_signature(self._require_current().params)

    def _has_moved(self, current: CurrentTrial[M]) -> bool:
        """Whether measuring has changed the state."""
        if current.measured:
            current.measured = not self._is_as_before(current)
        if not current.measured:
            current.before = None
        return current.measured

    def _is_as_before(self, current: CurrentTrial[M]) -> bool:
        if current.before is not None:
            return current.before.is_current()
        return compute_digest(*self._contents(current), digest_name(current.digest)) == current.digest

    def _contents(self, current: CurrentTrial[M]) -> tuple[list[StateArray], Any]:
        """The whole training state: the arrays and the JSON part of a checkpoint."""
        json, arrays = flatten({"model": current.model.state(), "rng": current.generators}, self._wrap_array)
        meta = {
            **json,
            "framework": self.framework,
            "versions": self._versions(),
            "trial": current.trial,
            "counters": {"epoch": current.epoch, "units": current.units},
        }
        return arrays, meta

    # The steps of a unit

    def _run_unit(
        self,
        current: CurrentTrial[M],
        function: Callable[[Any, Iterable[Batch], Params], Any] | None,
        own_loop: Callable[[M, Feed | Iterable[Batch], Metrics | None], Metrics],
        feed: Feed | Iterable[Batch],
        carried: Metrics | None,
    ) -> Metrics:
        """Run a unit by the user's function, or without one by the trainer's own loop."""
        if function is None:
            mapped = self._map_feed(feed, current.params)
            checked = self._label_checks.check(self._label_rules(current.model), mapped)
            return own_loop(current.model, checked, carried)
        batches = OnePass(self._map_batches(feed, current.params), feed)
        with self._watch_function(current.model, function):
            return read_metrics(function(current.model.model, batches, own_params(current.params)))

    def _has_right_labels(self, model: M, feed: Feed) -> bool:
        """Whether the losses of a model are made for the labels of a partition."""
        try:
            self._label_checks.check(self._label_rules(model), feed)
        except ConfigurationError:
            return False
        return True

    def _check_growth(self, current: CurrentTrial[M], unit: Unit, feed: Feed | Iterable[Batch]) -> None:
        """Fail a unit if anything depends on what it has added to lists and dicts of the functions, or of the model."""
        for growth in (self._watched_hooks.growth, current.model.growth):
            batch = next(iter(feed), None) if growth is not None and growth.list_grown() else None
            if growth is None or batch is None:
                continue
            state = BytesIO()
            write_checkpoint(state, *self._contents(current))
            with self._guarded(current, unit):
                found = growth.find_steering(self._list_tries(current, state.getvalue(), batch))
                self._go_back(current, state.getvalue())
            if found is not None:
                growth.put_back()
                self._watched_hooks.reset()
                self._drop_models()
                raise depends_on_growth(*found, unit, current.params)

    def _list_tries(self, current: CurrentTrial[M], state: bytes, batch: Batch) -> list[Callable[[], Outcome]]:
        """Return what trains a batch from a state, and what evaluates it; both return what came of it."""
        hooks = self.hooks

        def run(training: bool) -> Outcome:
            function, own = (hooks.train_fn, self._train) if training else (hooks.eval_fn, self._evaluate)
            self._go_back(current, state)
            with self._own_generators(current, keep=False):
                self._begin_unit(current.model, training)
                try:
                    metrics = self._run_unit(current, function, own, [batch], None)
                except Exception as error:
                    return {"the error": repr(error)}
            outcome = {"the state of the trial": compute_digest(*self._contents(current))} if training else {}
            return outcome | {f"`{name}`": text for name, text in describe_metrics(metrics).items()}

        return [partial(run, True), partial(run, False)]

    def _go_back(self, current: CurrentTrial[M], state: bytes) -> None:
        """Have the model of the current trial take on a state that it had."""
        self._read_checkpoint(current.trial, current.params, state, "", current.model, None)
        current.model.snapshot.normalize()

    def _map_feed(self, feed: Feed | Iterable[Batch], params: Params) -> Feed | Iterable[Batch]:
        """Apply `input_fn`. Without one the feed stays whole, for frameworks that gather batches themselves."""
        if self.hooks.input_fn is None:
            return feed
        return check_batches(self._map_batches(feed, params), self.columns.names)

    def _map_batches(self, feed: Feed | Iterable[Batch], params: Params) -> Iterator[Batch]:
        input_fn = self.hooks.input_fn
        if input_fn is None:
            yield from feed
            return
        own = own_params(params)  # once for all batches of a unit
        for batch in feed:
            yield check_rows(batch, input_fn(batch, own), self.columns.names)

    def _sample(self, params: Params) -> Batch:
        """Two rows that look like what a step gets, to build models with."""
        return next(iter(self._map_feed([self.columns.zeros(2)], params)))

    @contextmanager
    def _outer_generators(self) -> Iterator[None]:
        """Put the generators of the process back after a block."""
        outer = self._capture_generators()
        try:
            yield
        finally:
            self._restore_generators(outer)

    @contextmanager
    def _own_generators(self, current: CurrentTrial[M], *, keep: bool = True) -> Iterator[None]:
        """Use the trial's generators for a block; `keep` their states after it."""
        with self._outer_generators():
            self._restore_generators(current.generators)
            yield
            if keep:
                current.generators = self._capture_generators()

    @contextmanager
    def _measuring(self, current: CurrentTrial[M]) -> Iterator[None]:
        """Put back, after a block, what measuring changes by itself."""
        if not current.measured:
            current.before = self._copy_state(current.model)
        if current.before is None:
            current.digest = current.digest or compute_digest(*self._contents(current))
        current.measured = True
        copies = current.model.copy_statistics()
        try:
            yield
        finally:
            current.model.restore_statistics(copies)
            current.model.snapshot.normalize()

    @contextmanager
    def _guarded(self, current: CurrentTrial[M], unit: Unit) -> Iterator[None]:
        """Blame the trial for errors of the block, and fail the unit if it changed what no checkpoint saves."""
        finished = False
        self._process.note()
        try:
            with blaming_trial(unit, current.params, self.columns):
                yield
            finished = True
        finally:
            patch = self._undo_patches()
            change = self._discard_changed(current.model) or patch
            if change is not None and finished:
                raise unsaved_change(change, unit, current.params, self._remedy)

    def _discard_changed(self, model: M) -> StateChange | None:
        """Return the first unsaved change that a unit left; drop the model, or renew the functions, that have one."""
        change = model.snapshot.find_change()
        if change is not None:
            model.snapshot.restore()
            self.models.drop(model)
        of_hooks = self._watched_hooks.find_change()
        if of_hooks is not None:
            self._watched_hooks.renew()
            self._drop_models()
        return change or of_hooks

    def _undo_patches(self) -> StateChange | None:
        """Put back what a unit has changed of the process; return the first function of a library that it replaced."""
        patch = self._process.put_back()
        if patch is not None:
            self._drop_models()
        return patch

    def _drop_models(self) -> None:
        """Keep no built model: what all of them share has changed."""
        self.models.clear()
