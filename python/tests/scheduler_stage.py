"""A stage on which a scheduler is played: it begins, hears, is judged, and is repeated at the end."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import initialize, invariant
from scheduler_books import SchedulerBooks
from snapshots import snapshot

from cerebro_spark.commands import Command
from cerebro_spark.dispatch import POLICIES
from cerebro_spark.events import (
    Action,
    AnswerCommand,
    CommandAnswered,
    CommandReceived,
    Event,
    GatheringEnded,
    LimitOrder,
    LoadPartition,
    PartitionLoaded,
    RetireWorker,
    RunUnit,
    SearchEnded,
    Settings,
    TellSearch,
    UnitFailed,
    UnitFinished,
    WithdrawUnit,
    WorkAdded,
    WorkCommanded,
    WorkerJoined,
)
from cerebro_spark.scheduler import MopScheduler
from cerebro_spark.types import Checkpoint, Objective, Partition, Work

WORKERS = [f"w{i}" for i in range(4)]


class SchedulerStage(SchedulerBooks):
    """Plays search and backend, as far as several rules need it; see `scheduler_rules.py`."""

    @initialize(
        train=st.integers(1, 4),
        validation=st.sampled_from([1, 2, 1, 2, 1, 2, 0]),
        workers=st.integers(1, 3),
        replicas=st.integers(1, 2),
        policy=st.sampled_from(list(POLICIES)),
        queue_ahead=st.integers(0, 1),
        serial=st.booleans(),
        fuse=st.sampled_from([8, 3, 2, 8, 3, 2, 8, 1]),
        group=st.sampled_from([1, 2, 3, 8]),
        group_auto=st.booleans(),
        seed=st.integers(0, 3),
        rules=st.fixed_dictionaries(
            {
                "quarantine": st.sampled_from([None, 60.0]),
                "kill_rule": st.sampled_from(["in a row", "hosts", "chance"]),
                "unit_timeout": st.sampled_from([None, 9.0]),
                "least_timeout": st.sampled_from([None, 5.0]),
                "fuse_evaluations": st.sampled_from([*[True] * 6, False]),
                "keep_last": st.sampled_from([True, True, False]),
            }
        ),
        opening=st.sampled_from(["together", "together", "together", "well", "nothing"]),
    )
    def begin(
        self,
        train: int,
        validation: int,
        workers: int,
        replicas: int,
        policy: str,
        queue_ahead: int,
        serial: bool,
        fuse: int,
        group: int,
        group_auto: bool,
        seed: int,
        rules: dict[str, Any],
        opening: str,
    ) -> None:
        parts = [Partition(f"p{i}", rows=10 + i) for i in range(train)]
        parts += [Partition(f"v{i}", "validation") for i in range(validation)]
        self.open(
            Settings(
                tuple(parts),
                workers,
                replicas,
                policy,
                seed,
                queue_ahead,
                serial_evaluation=serial,
                objective=Objective("loss", "min"),
                fuse=fuse,
                group=group,
                group_auto=group_auto,
                **rules,
            )
        )
        if opening != "nothing":
            self.open_well(workers, until_together=opening == "together")

    def open_well(self, workers: int, until_together: bool) -> None:
        """Begin with as many workers as are awaited and some trials, and let the first units end well."""
        for worker in WORKERS[:workers]:
            self.feed(WorkerJoined(self.now, worker, host=worker))
        self.ask_for_trials(2 * workers + 1, epochs=2, layers=1)
        self.go_well(40 if until_together else 12, until_together)

    @invariant()
    def books_balance(self) -> None:
        if hasattr(self, "scheduler"):
            self.scheduler.check_invariants()

    # -- the end

    def teardown(self) -> None:
        if not hasattr(self, "scheduler"):
            return
        self.drain()
        again = MopScheduler(self.settings)
        assert [again.handle(event) for event in self.events] == self.actions, "same events, same actions"
        assert snapshot(again) == snapshot(self.scheduler)

    def drain(self) -> None:
        """Play fair from now on: all that was asked for is trained, once, and the run ends."""
        self.feed(GatheringEnded(self.now))
        if not any(w.live and not w.retiring for w in self.scheduler.state.workers.values()):
            self.forget("w9")
            self.feed(WorkerJoined(self.now, "w9", host="w9"))
        if not self.ended:
            self.ended = True
            self.feed(SearchEnded(self.now))
        if self.auditor.idle:
            self.say(Command("unpause", f"c{self.said}"))
        for _ in range(2000):
            if self.loads:
                order = self.loads.pop(0)
                self.feed(PartitionLoaded(self.now, order.worker, order.partition))
            elif self.orders:
                self.feed(self.finished(self.orders.pop(min(self.orders)), 1.0))
            else:
                break
            self.scheduler.check_invariants()
        assert self.scheduler.finished, "the run comes to an end"
        whole = {t: n for t, n in self.works.items() if t not in self.auditor.failed | self.stopped}
        if not self.auditor.over:
            self.auditor.complete(whole)

    # -- tools

    def tell(self, command: Command) -> None:
        """Tell the run something about a trial."""
        if self.say(command) and command.verb == "stop_trial":
            self.stopped.add(command.trial)

    def say(self, command: Command) -> bool:
        """Tell the run something, and play the engine's part; return whether it was done."""
        self.said += 1
        (answer,) = (one for one in self.feed(CommandReceived(self.now, command)) if isinstance(one, AnswerCommand))
        assert answer.reason
        if answer.work is not None:
            self.works[answer.work.trial] = answer.work.until_epoch
            self.stopped.discard(answer.work.trial)
            self.feed(WorkCommanded(self.now, answer.work, command=command.id))
        elif answer.done and command.verb == "resume_trial":
            self.stopped.discard(command.trial)
        self.feed(CommandAnswered(self.now, command.id, answer.done, answer.reason))
        return answer.done

    def feed(self, event: Event) -> list[Action]:
        self.now += 0.25
        self.auditor.before(event)
        actions = self.scheduler.handle(event)
        self.auditor.after(actions)
        self.events.append(event)
        self.actions.append(list(actions))
        for action in actions:
            if isinstance(action, (RunUnit, LoadPartition, LimitOrder)):
                self.check_limit(action)
            if isinstance(action, RunUnit):
                self.limits[action.attempt] = action.limit
                self.widths[action.attempt] = len(action.members)
                for member in action.members:
                    self.orders[member.attempt] = member
                    self.check_carry(member)
            elif isinstance(action, LoadPartition):
                self.loads.append(action)
            elif isinstance(action, RetireWorker):
                self.loads = [load for load in self.loads if load.worker != action.worker]
                self.check_return(action)
            elif isinstance(action, TellSearch) and action.report.checkpoint:
                self.reports[action.report.trial] = action.report.checkpoint
            elif isinstance(action, WithdrawUnit):
                assert action.attempt not in self.running(), "it runs"
                self.withdrawn.append(action.attempt)
        return actions

    def ask_for_trials(self, many: int, epochs: int, layers: int) -> None:
        for _ in range(many):
            trial = f"t{len(self.works)}"
            self.works[trial] = epochs
            params = {"lr": 0.1 * len(self.works), "layers": layers}
            self.feed(WorkAdded(self.now, Work(trial, params, epochs)))

    def go_well(self, steps: int, until_together: bool = False) -> None:
        """Partitions are loaded, and all that is ordered together is computed together: epochs come to their ends.

        Those that go together take less time, so that it goes on like that.

        Args:
            steps: For so many loads and orders.
            until_together: Whether to stop when evaluations of several trials are under way as one order.
        """
        for _ in range(steps):
            if until_together and self.evaluated_together():
                return
            if self.loads:
                order = self.loads.pop(0)
                self.failed_loads.pop(order.partition, None)
                self.feed(PartitionLoaded(self.now, order.worker, order.partition))
            elif self.orders:
                for attempt in self.bundle_of(self.running()[0]):
                    width = self.widths[self.auditor.leading[attempt]]
                    self.feed(self.finished(self.orders.pop(attempt), 2.0 / (1 + width), width))
            self.scheduler.check_invariants()

    def evaluated_together(self) -> list[int]:
        """The attempts that are evaluations of several trials in one order."""
        leading = self.auditor.leading
        return [a for a, o in self.orders.items() if o.unit.kind == "eval" and self.widths[leading[a]] > 1]

    def to_be_evaluated(self) -> list[str]:
        """The trials that have trained all that was asked for, and are not evaluated yet."""
        trials = self.scheduler.state.trials.values()
        return sorted(trial.id for trial in trials if trial.status == "paused" and trial.evaluations)

    def draw_running(self, data: st.DataObject) -> int:
        return int(data.draw(st.sampled_from(self.running())))

    def running(self) -> list[int]:
        """A worker runs its orders in turn: only units of its first one can end, in any order."""
        first: dict[str, int] = {}
        for attempt, order in sorted(self.orders.items()):
            for worker in order.workers:
                first.setdefault(worker, self.auditor.leading[attempt])
        leading = self.auditor.leading
        return sorted(a for a, o in self.orders.items() if all(first[name] == leading[a] for name in o.workers))

    def bundle_of(self, attempt: int) -> list[int]:
        leading = self.auditor.leading
        return [other for other in sorted(self.orders) if leading[other] == leading[attempt]]

    def fail_again_and_again(self, fails: Callable[[RunUnit], bool], times: int) -> None:
        for _ in range(times):
            attempt = next((attempt for attempt in self.running() if fails(self.orders[attempt])), None)
            if attempt is not None:
                order = self.orders.pop(attempt)
                self.feed(UnitFailed(self.now, order.worker, order.unit, attempt, "boom", "worker"))
                self.scheduler.check_invariants()

    def finished(self, order: RunUnit, seconds: float, width: int = 1) -> UnitFinished:
        unit = order.unit
        train = unit.kind == "train"
        checkpoint = Checkpoint(unit.trial, unit.epoch, order.step, order.attempt, 8) if train else None
        metrics, partners = self.measure(order), order.partners
        what = (unit, order.attempt, seconds, checkpoint, metrics)
        event = UnitFinished(self.now, order.worker, *what, width=width, partners=partners)
        if order.attempt in self.auditor.outstanding:
            self.past.append(event)
        return event

    def forget(self, worker: str) -> None:
        self.lost_orders += [order for order in self.orders.values() if worker in order.workers]
        self.orders = {a: order for a, order in self.orders.items() if worker not in order.workers}
        self.loads = [load for load in self.loads if load.worker != worker]
