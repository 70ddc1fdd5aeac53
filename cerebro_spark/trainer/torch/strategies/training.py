"""Trains units by the first strategy that fits into the memory of the device, and goes on with that one.

A unit that runs out of memory is begun again, from the state that it began with, by the next strategy.
"""

from __future__ import annotations

import logging
import time
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any, BinaryIO

import torch

from cerebro_spark.errors import ConfigurationError, TrialFailed
from cerebro_spark.trainer.base import Hooks, Params, Resources
from cerebro_spark.trainer.checkpoints.tree import Tree
from cerebro_spark.trainer.checkpoints.writing import write_checkpoint
from cerebro_spark.trainer.feed import Batch, Columns, Feed
from cerebro_spark.trainer.framework_trainer import CurrentTrial
from cerebro_spark.trainer.group import GroupRefused, GroupTrained, Seat
from cerebro_spark.trainer.torch.auto_steps import AutoSteps
from cerebro_spark.trainer.torch.built_model import BuiltTorchModel
from cerebro_spark.trainer.torch.bundled_evaluation import BundledEvaluation
from cerebro_spark.trainer.torch.pilot import Generators
from cerebro_spark.trainer.torch.seating import Numbered
from cerebro_spark.trainer.torch.strategies import blocks, host_state
from cerebro_spark.trainer.torch.strategies.choice import Choice, FailedTry
from cerebro_spark.trainer.torch.strategies.comparing import Comparison
from cerebro_spark.trainer.torch.strategies.host_state import HostedOptimizer, place_state
from cerebro_spark.trainer.torch.strategies.ladder import offloads, recomputes, rungs_from, rungs_of, shards
from cerebro_spark.trainer.torch.strategies.memory import (
    causes_of,
    collect_memory,
    is_out_of_device_memory,
    used_bytes,
)
from cerebro_spark.trainer.torch.strategies.recomputing import Recomputing
from cerebro_spark.trainer.torch.strategies.refusal import StrategyRefused
from cerebro_spark.trainer.torch.strategies.shard_rules import find_obstacle as find_shard_obstacle
from cerebro_spark.trainer.torch.strategies.steps import StrategySteps
from cerebro_spark.types import Metrics, Strategy, TrialId, Unit

_log = logging.getLogger(__name__)

_WORTH_FREEING = 64
"""What others keep on a device is given up for a trial if it is more than one part in so many of its memory."""
_OUT_OF_MEMORY = "out of memory"


class StrategyTraining(BundledEvaluation):
    """The part of a PyTorch trainer that trains by a strategy."""

    def __init__(self, hooks: Hooks, columns: Columns, *, seed: int = 0, resources: Resources | None = None) -> None:
        super().__init__(hooks, columns, seed=seed, resources=resources)
        self._choices: dict[Any, Choice] = {}
        self._compared: set[str] = set()
        """The signatures of models that learn the same if they are computed again."""
        self._in_force: Choice | None = None
        self._has_said_alone = False
        self._shardable: set[str] = set()
        """The signatures of models whose parts let them be at several workers."""
        self._sharing: CurrentTrial[BuiltTorchModel] | None = None
        """The trial that a group is training."""
        self._way_back: Callable[[], None] | None = None
        """Has the current trial take on the state again that it has now."""
        self.failed_tries: list[FailedTry] = []

    @abstractmethod
    def _capture_draws(self) -> Tree:
        """Return the states of the generators alone."""

    @abstractmethod
    def _restore_draws(self, tree: Tree) -> None:
        """Put the generators into these states."""

    # The life of a trial

    def build(self, trial: TrialId, params: Params) -> None:
        self._way_back = None
        self._make_room_for(partial(super().build, trial, params))
        self._note_way_back(partial(self.build, trial, params))

    def load(
        self,
        trial: TrialId,
        params: Params,
        source: Path | BinaryIO | bytes,
        *,
        digest: str = "",
        warm_start: bool = False,
    ) -> None:
        self._way_back = None
        read = partial(super().load, trial, params, source, digest=digest, warm_start=warm_start)
        self._make_room_for(read, in_model_of=params)
        self._note_way_back(partial(self.load, trial, params, source, digest=digest, warm_start=warm_start))

    def train(self, unit: Unit, feed: Feed | Iterable[Batch], carried: Metrics | None = None) -> Metrics:
        current = self._require_unchanged()
        self._require_shardable(current)
        choice = self._find_choice(current, feed)
        self._require_possible(choice, current.model, unit)
        while True:
            way_back, self._way_back = self._way_back or self._keep_state(current, choice), None
            metrics = self._try(choice, unit, feed, carried, current.model)
            if metrics is not None:
                break
            del current  # what failed may have given up its model
            assert way_back is not None
            way_back()
            current = self._require_current()
        choice.has_trained = True
        self._say(choice)
        self._say_alone(choice)
        self.strategy = choice.strategy if self._has_choice else ""
        return metrics

    def evaluate(self, unit: Unit, feed: Feed | Iterable[Batch], carried: Metrics | None = None) -> Metrics:
        self._way_back = None  # it may hold a whole checkpoint
        return super().evaluate(unit, feed, carried)

    # Which strategy

    @property
    def _has_own_memory(self) -> bool:
        return self.device.type == "cuda"

    @property
    def _has_choice(self) -> bool:
        return self._has_own_memory or self.resources.strategy not in ("auto", "plain") or bool(self.strategies)

    def _rungs_for(self, trial: TrialId) -> tuple[Strategy, ...]:
        rungs = rungs_of(self.resources.strategy, self._has_own_memory)
        known = self.strategies.get(trial, "")
        return rungs_from(rungs, rungs_of(known, self._has_own_memory)[0]) if known else rungs

    def _find_choice(self, current: CurrentTrial[BuiltTorchModel], feed: Feed | Iterable[Batch]) -> Choice:
        size = feed.batch_size if isinstance(feed, Feed) else 0
        return self._find_choice_of(current.trial, current.model, size)

    def _find_choice_of(self, trial: TrialId, model: BuiltTorchModel, size: int) -> Choice:
        rungs = self._rungs_for(trial)
        key = self.models.signature_of(model), size, rungs
        if key not in self._choices:
            name = f"{type(model.model.module).__name__} with batches of {size}"
            self._choices[key] = Choice(name, rungs)
        return self._choices[key]

    def _require_possible(self, choice: Choice, model: BuiltTorchModel, unit: Unit) -> None:
        """Leave out strategies that cannot be tried. Raises ConfigurationError if none is left."""
        obstacle = self._find_obstacle(model, choice.strategy) if not choice.has_trained else ""
        if obstacle:
            self._climb(choice, model, obstacle, unit)

    def _find_obstacle(self, model: BuiltTorchModel, strategy: Strategy) -> str:
        """Return why a strategy cannot be tried with a model; "" if it can."""
        if strategy != "plain" and self.hooks.train_fn is not None:
            return "its train_fn takes the steps"
        module, obstacle = model.model.module, ""
        if recomputes(strategy):
            obstacle = blocks.find_obstacle(module, blocks.find_blocks(module))
        if offloads(strategy) and not obstacle:
            obstacle = host_state.find_obstacle(model)
        return obstacle

    def _climb(self, choice: Choice, model: BuiltTorchModel, reason: str, unit: Unit) -> None:
        """Go on to the next strategy. Raises an error that says what was tried if there is none."""
        before = choice.rungs
        choice.climb(reason, partial(self._find_obstacle, model))
        if choice.rungs:
            return
        tried, choice.rungs, choice.reasons = choice.explain(), before, []
        if _OUT_OF_MEMORY in tried:
            raise TrialFailed(
                f"trial {unit.trial} failed in epoch {unit.epoch} on partition {unit.partition}: {choice.name} does not"
                f" fit into the memory of {self.device} by any strategy that it may use ({tried}): make the model or"
                " its batches smaller, or leave out `strategy` in Resources for 'auto'"
            )
        raise ConfigurationError(
            f"strategy is {self.resources.strategy!r}, but trial {unit.trial} cannot train so and learn the same:"
            f" {choice.name} cannot use {tried}. Use 'plain', or 'auto', which leaves out what a model cannot use"
        )

    def _say(self, choice: Choice) -> None:
        if choice.is_logged or (choice.strategy == "plain" and not choice.reasons):
            return
        choice.is_logged = True
        why = choice.explain() or "it was asked for, or used before"
        _log.info(
            "%s trains by strategy %r (%s): its steps are not recorded, and it trains by itself, in no bundle or group",
            choice.name,
            choice.strategy,
            why,
        )

    def _say_alone(self, choice: Choice) -> None:
        """Say, once, that a model that was to be in parts was trained as a whole."""
        if shards(self.resources.strategy) and not self._has_said_alone:
            self._has_said_alone = True
            _log.info(
                "%s trains as a whole by strategy %r in a unit for which there is one worker: it is in parts where"
                " several workers of one host have a partition each on which the trial has yet to train",
                choice.name,
                choice.strategy,
            )

    # Tries

    def _try(
        self,
        choice: Choice,
        unit: Unit,
        feed: Feed | Iterable[Batch],
        carried: Metrics | None,
        model: BuiltTorchModel,
    ) -> Metrics | None:
        """Train a unit by the present strategy; None if another one is to be tried."""
        began, used, self._in_force = time.perf_counter(), used_bytes(self.device), choice
        try:
            return super().train(unit, feed, carried)
        except Exception as error:
            reason = _find_reason(error)
            if not reason or not isinstance(feed, Feed) or (reason == _OUT_OF_MEMORY and not self._has_own_memory):
                raise
        finally:
            self._in_force = None
        # Only now nothing refers to what the error has seen.
        strategy = choice.strategy
        if reason != _OUT_OF_MEMORY or not self._can_go_on(choice, model):
            self._give_up(model)
            self._climb(choice, model, reason, unit)
        else:
            self._give_up(model)
        del model
        collect_memory(self.device)
        left = used_bytes(self.device) - used
        self.failed_tries.append(FailedTry(strategy, reason, time.perf_counter() - began, max(0, left)))
        return None

    def _can_go_on(self, choice: Choice, model: BuiltTorchModel) -> bool:
        """Whether the same strategy may fit after all: without what others keep, or without graphs."""
        if not choice.made_room:
            choice.made_room = True
            if self._free_others(model):
                return True
        steps = model.steps
        if choice.strategy == "plain" and not choice.eagerly and isinstance(steps, AutoSteps) and steps.has_tried:
            choice.eagerly = not steps.is_settled or steps.kind == "graph"
            return choice.eagerly
        return False

    def _free_others(self, model: BuiltTorchModel) -> bool:
        """Give up what is kept on the device for other trials; return whether it was worth it."""
        if self.device.type != "cuda":
            return False
        places = sum(structure.nbytes for structure in self._bundled.values())
        held = self._batches.nbytes + places + self.models.nbytes_beside(model)
        if held * _WORTH_FREEING < torch.cuda.get_device_properties(self.device).total_memory:
            return False
        self._batches.keep_none()
        self._bundled.clear()
        self.models.keep_only(model)
        return True

    def _give_up(self, model: BuiltTorchModel) -> None:
        """Free what a try has made on the device. The state of the trial is read again."""
        model.steps = None
        model.model.optimizer.zero_grad()
        model.model.module.zero_grad()
        model.model.optimizer.state.clear()

    # The way back

    def _note_way_back(self, way_back: Callable[[], None]) -> None:
        self._way_back = way_back if self._has_own_memory else None

    def _keep_state(self, current: CurrentTrial[BuiltTorchModel], choice: Choice) -> Callable[[], None] | None:
        """Return a way back to a state that has no checkpoint; None where nothing new is tried."""
        if choice.has_trained or len(choice.rungs) < 2:
            return partial(self._stay_lost, current.trial)
        state = BytesIO()
        write_checkpoint(state, *self._contents(current))
        return partial(self.load, current.trial, current.params, state.getvalue())

    def _stay_lost(self, trial: TrialId) -> None:
        raise TrialFailed(
            f"trial {trial} ran out of memory on {self.device}, by a strategy that it was told to use or that had"
            " fitted before: let this worker have the device for itself"
        )

    def _make_room_for(self, enter: Callable[[], None], in_model_of: Params | None = None) -> None:
        """Have a trial entered; if there is no memory for it, once more when others have given up theirs."""
        try:
            enter()
            return
        except Exception as error:
            if not self._has_own_memory or _find_reason(error) != _OUT_OF_MEMORY:
                raise
        model = None if in_model_of is None else self.models.find_build(in_model_of)[0]
        if model is not None:
            self._give_up(model)
            model.keeps_state_on_host = model.keeps_state_on_host or not host_state.find_obstacle(model)
            self._free_others(model)
        else:
            self._drop_models()
            self._bundled.clear()
        del model
        collect_memory(self.device)
        enter()

    # Steps

    def _make_strategy_steps(self, model: BuiltTorchModel) -> StrategySteps | None:
        """Return what takes the steps of the unit that trains, where that is not as if there were no strategies."""
        choice = self._in_force
        strategy = "plain" if choice is None else choice.strategy
        hosts = offloads(strategy) and self._has_own_memory
        if hosts or model.keeps_state_on_host:
            place_state(model, hosts)
        if strategy == "plain" and (choice is None or not choice.eagerly):
            return None
        recomputing, check = None, None
        if recomputes(strategy):
            recomputing = Recomputing(blocks.find_blocks(model.model.module), self.device)
            check = self._make_check(model, recomputing)
        hosted = HostedOptimizer(model.model.optimizer, model.parameters, self.device) if hosts else None
        as_for_graphs = bool(self.resources.compile) and self.device.type == "cuda"
        return StrategySteps(model, self._compute_loss, as_for_graphs, recomputing, hosted, check)

    def _make_check(self, model: BuiltTorchModel, recomputing: Recomputing) -> Callable[[Any], None] | None:
        """Return what compares the gradients of a first batch; None if that was done for models of this structure."""
        signature = self.models.signature_of(model)
        if signature in self._compared:
            return None

        def check(tensors: Any) -> None:
            generators = Generators(self._capture_draws, self._restore_draws)
            Comparison(model, self._compute_loss, recomputing, generators).require_same(tensors)
            if signature:
                self._compared.add(signature)

        return check

    # Who trains together

    def _refuse_search(self) -> str | None:
        asked = [self.resources.strategy, *self.strategies.values()]
        strategy = next((each for each in asked if recomputes(each)), None)
        return super()._refuse_search() if strategy is None else f"strategy is {strategy!r}"

    def _find_group(self, left: Sequence[Numbered]) -> tuple[str, list[Numbered]]:
        signature, group = super()._find_group(left)
        model, feed = self.models.get(signature), left[0][1].feed
        if model is None or not isinstance(feed, Feed):
            return signature, group
        plain = [m for m in group if self._is_plain(m[1].unit.trial, model, feed.batch_size)]
        return (signature, plain) if plain[:1] == group[:1] else ("", [])

    def _is_plain(self, trial: TrialId, model: BuiltTorchModel, size: int) -> bool:
        choice = self._find_choice_of(trial, model, size)
        return choice.strategy == "plain" and not choice.eagerly

    def _require_shardable(self, current: CurrentTrial[BuiltTorchModel]) -> None:
        """Raise ConfigurationError if the trial is to be in parts, and cannot, as far as that is seen without trying.

        Units of one worker do so too: then it is found in the rehearsal, and before a group has waited for anybody.
        """
        signature = self.models.signature_of(current.model)
        if not shards(self.resources.strategy) or (signature and signature in self._shardable):
            return
        obstacle = "its train_fn takes the steps" if self.hooks.train_fn is not None else ""
        obstacle = obstacle or find_shard_obstacle(current.model)
        if obstacle:
            raise _refuse_shard(f"trial {current.trial} cannot be in parts and learn the same: {obstacle}")
        self._shardable.add(signature)

    def _lend_rows(self) -> Any:
        """Return rows that may stand in where a member has none. They look like rows, and nothing is learnt of them."""
        assert self._sharing is not None, "a group trains"
        return self._batches.load_batch(self._sample(self._sharing.params))

    def _require_fit(self, current: CurrentTrial[BuiltTorchModel], unit: Unit, feed: Feed) -> None:
        choice = self._find_choice(current, feed)
        if choice.strategy != "plain" and not shards(self.resources.strategy):
            raise GroupRefused(f"its strategy is {choice.strategy!r}, and groups train by 'plain' alone so far")
        super()._require_fit(current, unit, feed)

    def train_in_group(self, unit: Unit, feed: Feed, seat: Seat) -> GroupTrained:
        in_parts = shards(self.resources.strategy)
        self._sharing = self._require_unchanged()
        self._require_shardable(self._sharing)
        try:
            done = super().train_in_group(unit, feed, seat)
        except GroupRefused as error:
            if not in_parts:
                raise
            raise _refuse_shard(str(error)) from None
        except Exception as error:
            if _find_reason(error) != _OUT_OF_MEMORY:
                raise
        else:
            own: Strategy = "plain" if self._has_choice else ""
            self.strategy = "shard" if in_parts else own
            return done
        finally:
            self._sharing = None
        collect_memory(self.device)
        if in_parts:
            raise TrialFailed(
                f"trial {unit.trial} failed in epoch {unit.epoch}: its model in {len(seat.rows)} parts does not fit"
                f" into the memory of {self.device}: have more workers in a group by workers_per_trial, or use"
                " strategy 'offload+recompute'"
            )
        raise GroupRefused(f"no group can train trial {unit.trial}: a member has run out of memory on its device")


def _refuse_shard(why: str) -> ConfigurationError:
    return ConfigurationError(
        f"strategy is 'shard', but {why}. Use 'auto', by which a worker trains as much of a model as fits"
    )


def _find_reason(error: BaseException) -> str:
    """Return why a strategy is given up after an error; "" if the error has nothing to do with it."""
    for each in causes_of(error):
        if isinstance(each, StrategyRefused):
            return str(each)
        if is_out_of_device_memory(each):
            return _OUT_OF_MEMORY
    return ""
