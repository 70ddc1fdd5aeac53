"""Checks whether the state of a scheduler is consistent. It never changes anything."""

from __future__ import annotations

import numpy as np

from cerebro_spark.errors import SchedulingError
from cerebro_spark.events import RunUnit
from cerebro_spark.scheduling.records import Evaluation, TrialRecord, WorkerRecord
from cerebro_spark.scheduling.state import State


def audit(state: State) -> None:
    """Raise SchedulingError where two parts of the state contradict each other."""
    queued = [(attempt, worker.id) for worker in state.workers.values() for attempt in worker.queue]
    given = [(attempt, worker) for attempt, order in state.assignments.items() for worker in order.workers]
    _demand(sorted(queued) == sorted(given), "every assignment is in the queues of its workers, once, and in no other")
    _demand(sorted(state.assignments) == sorted(state.orders), "every assignment is part of an order")
    for order in state.assignments.values():
        _audit_group(state, order)
    for trial in state.trials.values():
        _audit_trial(state, trial)
        _demand(trial.status == "stopped" or trial.id not in state.halted, f"{trial.id} is stopped if it is halted")
    for worker in state.workers.values():
        _audit_worker(state, worker)
    in_doubt = any(worker.doubters for worker in state.workers.values())
    _demand(not in_doubt or bool(state.holdings.available()), "another worker does the work of those in doubt")
    holders = state.board.holds.sum(axis=0)
    _demand(bool((holders == state.board.holders).all()), "holders are counted right")


def _audit_trial(state: State, trial: TrialRecord) -> None:
    board, row = state.board, trial.row
    training = [a for a in state.assignments.values() if a.unit.trial == trial.id and a.unit.kind == "train"]
    _demand(len(training) <= 1, f"{trial.id} is in at most one training unit")
    running = training[0].attempt if training else None
    _demand(trial.attempt == running, f"{trial.id} knows its training unit")
    _demand(bool(board.active[row]) or not board.free[row], f"{trial.id} is free only if it is active")
    if trial.leader is not None:
        _audit_follower(state, trial, state.trials[trial.leader])
    elif trial.followers:
        _audit_leader(state, trial)
    else:
        _demand(board.is_training(row) == bool(training), f"{trial.id} is free or not")
        if board.active[row] and trial.status == "training":
            counted = int(board.todo[row].sum()) + trial.step + sum(len(a.unit.partitions) for a in training)
            _demand(counted == board.columns, f"{trial.id}: done, running and open units make up its epoch")
            _demand(trial.until - trial.epoch == board.later[row], f"{trial.id} has the right number of epochs left")
            _demand(int(board.open[row]) == int(board.todo[row].sum()), f"{trial.id}'s open units are counted right")
    kept = state.retention
    _demand(all(c is None or c in kept for c in (trial.latest, trial.best, trial.reported)), f"{trial.id} is kept")
    _demand(all(e.checkpoint in kept for e in trial.evaluations.values()), f"{trial.id}'s evaluated epochs are kept")
    for evaluation in trial.evaluations.values():
        _audit_evaluation(state, trial, evaluation)
    if training:
        _demand(training[0].parent == trial.latest, f"{trial.id} trains from its latest checkpoint")


def _audit_group(state: State, order: RunUnit) -> None:
    """Each member of a group has a partition of its own, and nobody is in a group and in a bundle."""
    unit, trial = order.unit, state.trials[order.unit.trial]
    _demand(len(order.workers) == len(unit.partitions), f"{unit} has a worker for each partition")
    _demand(len(set(order.workers)) == len(order.workers), f"{unit} has each worker once")
    _demand(len(set(unit.partitions)) == len(unit.partitions), f"{unit} has each partition once")
    _demand(not order.partners or unit.kind == "train", f"{unit} is trained if it has a group")
    _demand(not order.partners or state.orders[order.attempt].width == 1, f"{unit} is in a group, or in a bundle")
    _demand(not order.partners or not (trial.followers or trial.leader), f"{trial.id} is in a group, or in a bundle")


def _audit_evaluation(state: State, trial: TrialRecord, evaluation: Evaluation) -> None:
    """Each partition is measured, under way or waiting, and only once."""
    name = f"the evaluation of {trial.id} after epoch {evaluation.epoch}"
    mine = (trial.id, evaluation.epoch, "eval")
    running = [a for a in state.assignments.values() if (a.unit.trial, a.unit.epoch, a.unit.kind) == mine]
    _demand(len(running) == evaluation.running, f"{name} counts its units right")
    partitions = [*evaluation.todo, *evaluation.measured, *(a.unit.partition for a in running)]
    _demand(len(partitions) == len(set(partitions)), f"{name} has each partition once")
    widths = [state.orders[a.attempt].width for a in running]
    _demand(max(widths, default=1) <= state.settings.fuse, f"{name} is in no order that is too large")


def _audit_follower(state: State, trial: TrialRecord, leader: TrialRecord) -> None:
    """A follower keeps step with its leader, whose row stands for both."""
    _demand(leader.leader is None, f"{leader.id} leads, and follows nobody")
    _demand(leader.followers.count(trial.id) == 1, f"{trial.id} is in exactly one bundle")
    _demand(not trial.followers, f"{trial.id} follows, and leads nobody")
    _demand(not state.board.active[trial.row], f"{trial.id} follows, and its own row is not active")
    _demand(not trial.alone and not leader.alone, f"{trial.id} is in a bundle, and not to be alone")
    _demand(_visited(state, trial) == _visited(state, leader), f"{trial.id} keeps step with {leader.id}")


def _audit_leader(state: State, leader: TrialRecord) -> None:
    board, row = state.board, leader.row
    members = [leader, *(state.trials[name] for name in leader.followers)]
    _demand(all(member.leader == leader.id for member in members[1:]), f"{leader.id} is known to those it leads")
    _demand(len(members) <= state.settings.fuse, f"the bundle of {leader.id} is not too large")
    out = [state.orders[member.attempt].number for member in members if member.attempt is not None]
    _demand(len(set(out)) <= 1, f"the bundle of {leader.id} runs one unit at a time")
    _demand(board.is_training(row) == bool(out), f"the bundle of {leader.id} is free or not")
    _demand(int(board.open[row]) == int(board.todo[row].sum()), f"{leader.id}'s open units are counted right")
    if not out:
        _demand(len({member.kin for member in members}) == 1, f"the bundle of {leader.id} is of one kin")
        _demand(int(board.open[row]) + leader.step == board.columns, f"{leader.id}: done and open make up its epoch")
        left = max(member.until - member.epoch for member in members)
        _demand(left == board.later[row], f"the bundle of {leader.id} has the right number of epochs left")


def _visited(state: State, trial: TrialRecord) -> set[str]:
    """The partitions of its epoch that a trial has done or is at; none if these are all, as in its next epoch."""
    running = () if trial.attempt is None else state.assignments[trial.attempt].unit.partitions
    visited = {*trial.trained, *running}
    return set() if len(visited) == state.board.columns else visited


def _audit_worker(state: State, worker: WorkerRecord) -> None:
    board = state.board
    idle = worker.live and not worker.retiring and not worker.queue
    _demand(bool(board.idle[worker.row]) == idle, f"{worker.id} is idle or not")
    _demand(bool(board.live[worker.row]) == worker.live, f"{worker.id} is there or not")
    held = {column for partition, column in state.columns.items() if partition in worker.holds}
    _demand(set(np.flatnonzero(board.holds[worker.row])) == held, f"{worker.id} holds what its record says")
    orders = {state.orders[attempt].number for attempt in worker.queue}
    _demand(len(orders) <= 1 + state.settings.queue_ahead, f"{worker.id} runs one bundle at a time")
    _demand(
        worker.live or not (worker.queue or worker.holds or worker.loading), f"{worker.id} is dead and holds nothing"
    )
    _demand(not worker.doubters or (worker.live and worker.retiring), f"{worker.id} is set aside if it is in doubt")


def _demand(holds: bool, rule: str) -> None:
    if not holds:
        raise SchedulingError(f"an invariant is broken: {rule}")
