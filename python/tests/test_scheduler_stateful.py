"""Any order of events: the scheduler keeps the rules, repeats itself, and comes to an end."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import pytest
from auditor import Auditor
from fast_tier import drawn
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule
from snapshots import snapshot

from cerebro_spark.dispatch import POLICIES
from cerebro_spark.events import (
    Action,
    Blame,
    Event,
    GatheringBegan,
    GatheringEnded,
    LimitOrder,
    LoadPartition,
    LossExplained,
    PartitionLoaded,
    PartitionLost,
    RetireWorker,
    RunUnit,
    SearchEnded,
    Settings,
    TellSearch,
    TrialStopped,
    UnitFailed,
    UnitFinished,
    WorkAdded,
    WorkerJoined,
    WorkerLost,
    WorkerRetiring,
)
from cerebro_spark.scheduler import MopScheduler
from cerebro_spark.types import Checkpoint, Metrics, Objective, Partition, Work

EXAMPLES = int(os.environ.get("CEREBRO_STATEFUL_EXAMPLES", "0")) or drawn(50)
WORKERS = [f"w{i}" for i in range(4)]


class SchedulerMachine(RuleBasedStateMachine):
    """Plays search and backend against a scheduler, fairly and unfairly."""

    @initialize(
        train=st.integers(1, 4),
        validation=st.integers(0, 2),
        workers=st.integers(1, 3),
        replicas=st.integers(1, 2),
        policy=st.sampled_from(list(POLICIES)),
        queue_ahead=st.integers(0, 1),
        serial=st.booleans(),
        fuse=st.sampled_from([1, 2, 3, 8]),
        seed=st.integers(0, 3),
        rules=st.fixed_dictionaries(
            {
                "quarantine": st.sampled_from([None, 60.0]),
                "kill_rule": st.sampled_from(["in a row", "hosts", "chance"]),
                "unit_timeout": st.sampled_from([None, 9.0]),
                "least_timeout": st.sampled_from([None, 5.0]),
                "fuse_evaluations": st.sampled_from([True, True, False]),
            }
        ),
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
        seed: int,
        rules: dict[str, Any],
    ) -> None:
        parts = [Partition(f"p{i}", rows=10 + i) for i in range(train)]
        parts += [Partition(f"v{i}", "validation") for i in range(validation)]
        self.settings = Settings(
            tuple(parts),
            workers,
            replicas,
            policy,
            seed,
            queue_ahead,
            serial_evaluation=serial,
            objective=Objective("loss", "min"),
            fuse=fuse,
            **rules,
        )
        self.scheduler = MopScheduler(self.settings)
        self.auditor = Auditor(self.settings)
        self.events: list[Event] = []
        self.actions: list[list[Action]] = []
        self.orders: dict[int, RunUnit] = {}
        self.limits: dict[int, float | None] = {}
        self.widths: dict[int, int] = {}
        self.loads: list[LoadPartition] = []
        self.works: dict[str, int] = {}
        self.stopped: set[str] = set()
        self.past: list[UnitFinished] = []
        self.lost_orders: list[RunUnit] = []
        self.reports: dict[str, Checkpoint] = {}
        self.ended = False
        self.now = 0.0
        self.failed_loads: dict[str, int] = {}
        self.away: list[str] = []
        self.let_go: list[str] = []
        self.wanted_to_go: set[str] = set()

    # -- the search

    @precondition(lambda self: not self.ended and len(self.works) < 12)
    @rule(epochs=st.integers(1, 3), many=st.integers(1, 5), layers=st.sampled_from([1, 1, 1, 2]))
    def ask_for_new_trials(self, epochs: int, many: int, layers: int) -> None:
        for _ in range(many):
            trial = f"t{len(self.works)}"
            self.works[trial] = epochs
            params = {"lr": 0.1 * len(self.works), "layers": layers}
            self.feed(WorkAdded(self.now, Work(trial, params, epochs)))

    @precondition(lambda self: not self.ended and self.works)
    @rule(data=st.data(), more=st.integers(1, 2), layers=st.sampled_from([1, 1, 2]))
    def ask_for_more(self, data: st.DataObject, more: int, layers: int) -> None:
        trial = data.draw(st.sampled_from(sorted(self.works)))
        if trial not in self.auditor.failed and trial not in self.stopped:
            self.works[trial] += more
            self.feed(WorkAdded(self.now, Work(trial, {"lr": 0.2, "layers": layers}, self.works[trial])))

    @precondition(lambda self: not self.ended and len(self.reports) >= 2)
    @rule(data=st.data())
    def exploit_another_trial(self, data: st.DataObject) -> None:
        trial = data.draw(st.sampled_from(sorted(self.reports)))
        source = data.draw(st.sampled_from(sorted(self.reports)))
        record = self.scheduler.state.trials[trial]
        if record.status == "paused" and source not in self.auditor.failed and source not in self.stopped:
            self.works[trial] += 1
            self.feed(WorkAdded(self.now, Work(trial, {}, self.works[trial], self.reports[source])))

    @precondition(lambda self: self.works)
    @rule(data=st.data())
    def stop_trial(self, data: st.DataObject) -> None:
        trial = data.draw(st.sampled_from(sorted(self.works)))
        self.stopped.add(trial)
        self.feed(TrialStopped(self.now, trial))

    @precondition(lambda self: not self.ended)
    @rule()
    def end_search(self) -> None:
        self.ended = True
        self.feed(SearchEnded(self.now))

    # -- the workers

    @rule(worker=st.sampled_from(WORKERS), keeps=st.booleans(), speed=st.sampled_from([None, 1.0, 3.0]))
    def join(self, worker: str, keeps: bool, speed: float | None) -> None:
        holds = (self.settings.partitions[0].id,) if keeps else ()
        self.forget(worker)
        self.feed(WorkerJoined(self.now, worker, host=worker, speed=speed, holds=holds))

    @rule(worker=st.sampled_from(WORKERS), blames=st.booleans(), running=st.sampled_from([None, 1, 7]))
    def lose(self, worker: str, blames: bool, running: int | None) -> None:
        self.forget(worker)
        self.feed(WorkerLost(self.now, worker, "killed", blames, running))

    @rule(worker=st.sampled_from(WORKERS))
    def explain_a_loss(self, worker: str) -> None:
        self.feed(LossExplained(self.now, worker, "its machine was taken away"))

    @precondition(lambda self: self.orders)
    @rule(data=st.data(), times=st.integers(2, 5))
    def kill(self, data: st.DataObject, times: int) -> None:
        """A trial kills whoever trains it, for a while; each comes again."""
        trial = self.orders[self.draw_running(data)].unit.trial
        for _ in range(times):
            order = next((self.orders[a] for a in self.running() if self.orders[a].unit.trial == trial), None)
            if order is not None:
                self.forget(order.worker)
                self.feed(WorkerLost(self.now, order.worker, "killed", running=order.attempt))
                self.scheduler.check_invariants()
                self.forget(order.worker)
                self.feed(WorkerJoined(self.now, order.worker, host=order.worker))

    @rule(worker=st.sampled_from(WORKERS))
    def retire(self, worker: str) -> None:
        self.wanted_to_go.add(worker)
        self.feed(WorkerRetiring(self.now, worker))

    @precondition(lambda self: self.away)
    @rule()
    def return_after_a_while(self) -> None:
        """Somebody takes the place of one that was let go, on the same host."""
        place, _, life = self.away.pop(0).partition(".")
        name = f"{place}.{int(life or 0) + 1}"
        self.forget(name)
        self.feed(WorkerJoined(self.now, name, host=place))

    @rule()
    def stop_waiting_for_workers(self) -> None:
        self.feed(GatheringEnded(self.now))

    @rule(workers=st.integers(1, 3))
    def wait_for_other_workers(self, workers: int) -> None:
        self.feed(GatheringBegan(self.now, workers))

    @precondition(lambda self: self.loads)
    @rule(data=st.data())
    def load(self, data: st.DataObject) -> None:
        order = self.loads.pop(data.draw(st.integers(0, len(self.loads) - 1)))
        self.failed_loads.pop(order.partition, None)
        self.feed(PartitionLoaded(self.now, order.worker, order.partition))

    @precondition(lambda self: any(self.failed_loads.get(load.partition, 0) < 2 for load in self.loads))
    @rule(data=st.data())
    def fail_to_load(self, data: st.DataObject) -> None:
        """A third time in a row would end the run."""
        able = [index for index, load in enumerate(self.loads) if self.failed_loads.get(load.partition, 0) < 2]
        order = self.loads.pop(data.draw(st.sampled_from(able)))
        self.failed_loads[order.partition] = self.failed_loads.get(order.partition, 0) + 1
        self.feed(PartitionLost(self.now, order.worker, order.partition, "disk"))

    # -- units

    @precondition(lambda self: self.orders)
    @rule(data=st.data(), seconds=st.sampled_from([0.5, 1.0, 4.0]), together=st.sampled_from([True, True, False]))
    def finish(self, data: st.DataObject, seconds: float, together: bool) -> None:
        """A unit ends; of a bundle perhaps only this one, whatever becomes of the others."""
        attempt = self.draw_running(data)
        width = self.widths[self.auditor.leading[attempt]] if together else 1
        self.feed(self.finished(self.orders.pop(attempt), seconds, width))

    @precondition(lambda self: self.orders)
    @rule(data=st.data(), width=st.sampled_from([9, 9, 9, 9, 2, 1]))
    def finish_all(self, data: st.DataObject, width: int) -> None:
        """All that a worker was told in one order end well."""
        drawn = self.draw_running(data)
        width = min(width, self.widths[self.auditor.leading[drawn]])
        for attempt in self.bundle_of(drawn):
            order = self.orders.pop(attempt, None)
            if order is not None:
                self.feed(self.finished(order, 1.0, width))
                self.scheduler.check_invariants()

    @precondition(lambda self: self.orders or self.loads)
    @rule(steps=st.integers(4, 16))
    def go_well_for_a_while(self, steps: int) -> None:
        """Partitions are loaded, and all that is ordered together is computed together: epochs come to their ends."""
        for _ in range(steps):
            if self.loads:
                order = self.loads.pop(0)
                self.failed_loads.pop(order.partition, None)
                self.feed(PartitionLoaded(self.now, order.worker, order.partition))
            elif self.orders:
                bundle = self.bundle_of(self.running()[0])
                for attempt in bundle:
                    self.feed(self.finished(self.orders.pop(attempt), 1.0, self.widths[self.auditor.leading[attempt]]))
            self.scheduler.check_invariants()

    @precondition(lambda self: self.orders)
    @rule(data=st.data(), blame=st.sampled_from(["trial", "worker"]))
    def fail(self, data: st.DataObject, blame: Blame) -> None:
        order = self.orders.pop(self.draw_running(data))
        self.feed(UnitFailed(self.now, order.worker, order.unit, order.attempt, "boom", blame))

    @precondition(lambda self: self.orders)
    @rule(data=st.data(), times=st.integers(2, 4))
    def break_down(self, data: st.DataObject, times: int) -> None:
        """A worker fails at whatever it is told for a while."""
        worker = self.orders[self.draw_running(data)].worker
        self.fail_again_and_again(lambda order: order.worker == worker, times)

    @precondition(lambda self: self.orders)
    @rule(data=st.data(), times=st.integers(2, 6))
    def fall_ill(self, data: st.DataObject, times: int) -> None:
        """A trial fails wherever it is for a while, and its workers take the blame."""
        trial = self.orders[self.draw_running(data)].unit.trial
        self.fail_again_and_again(lambda order: order.unit.trial == trial, times)

    @precondition(lambda self: self.past)
    @rule(data=st.data())
    def report_twice(self, data: st.DataObject) -> None:
        self.feed(data.draw(st.sampled_from(self.past)))

    @precondition(lambda self: self.lost_orders)
    @rule(data=st.data())
    def report_from_the_dead(self, data: st.DataObject) -> None:
        order = self.lost_orders.pop(data.draw(st.integers(0, len(self.lost_orders) - 1)))
        self.feed(self.finished(order, 1.0))

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
        self.auditor.complete(whole)

    # -- tools

    def feed(self, event: Event) -> None:
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

    def draw_running(self, data: st.DataObject) -> int:
        return int(data.draw(st.sampled_from(self.running())))

    def running(self) -> list[int]:
        """A worker runs its orders in turn: only units of its first one can end, in any order."""
        first: dict[str, int] = {}
        for attempt, order in sorted(self.orders.items()):
            first.setdefault(order.worker, self.auditor.leading[attempt])
        leading = set(first.values())
        return sorted(attempt for attempt in self.orders if self.auditor.leading[attempt] in leading)

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
        metrics = self.measure(order)
        event = UnitFinished(self.now, order.worker, unit, order.attempt, seconds, checkpoint, metrics, width=width)
        if order.attempt in self.auditor.outstanding:
            self.past.append(event)
        return event

    def measure(self, order: RunUnit) -> Metrics:
        """Trials take turns in having plain metrics, metrics that add up, and metrics that go from unit to unit."""
        plain = Metrics({"loss": float(order.attempt % 7)}, {"loss": 1.0})
        kind = int(order.unit.trial[1:]) % 3
        seen = order.carry.carried.get("rows", 0) if kind == 2 and order.carry else 0
        return [
            plain,
            Metrics(plain.sums, plain.weights, {"auc": (1.0, 2.0)}),
            Metrics(plain.sums, plain.weights, {}, {"rows": seen + 1}),
        ][kind]

    def check_carry(self, order: RunUnit) -> None:
        """Whoever needs it gets what was measured before; whoever goes in series goes alone."""
        unit, kind = order.unit, int(order.unit.trial[1:]) % 3
        beside = [o for o in self.auditor.outstanding.values() if o.unit[:2] == unit[:2] and o.unit.kind == unit.kind]
        if kind == 2:
            assert beside == [order], "metrics that can only be updated go in series"
            done = sum(u[:2] == unit[:2] and u.kind == unit.kind for u in self.auditor.finished)
            assert (order.carry.carried["rows"] if order.carry else 0) == done
        if kind == 1 and order.final:
            assert beside == [order], "the last unit waits for all others"
            done = sum(u[:2] == unit[:2] and u.kind == unit.kind for u in self.auditor.finished)
            assert (order.carry.states["auc"] if order.carry else (0.0, 0.0)) == (float(done), 2.0 * done)

    def check_return(self, action: RetireWorker) -> None:
        """Who is let go for its failures is replaced, ever later on one host; who shall go is not."""
        if action.back_after is None:
            assert self.settings.quarantine is None or action.worker in self.wanted_to_go
            return
        assert self.settings.quarantine is not None
        host = action.worker.partition(".")[0]
        times = sum(other.partition(".")[0] == host for other in self.let_go)
        assert action.back_after == self.settings.quarantine * 2 ** min(times, 6)
        self.let_go.append(action.worker)
        self.away.append(action.worker)

    def check_limit(self, action: RunUnit | LoadPartition | LimitOrder) -> None:
        """What the settings say holds; what is learnt is never short; who wants no limit gets none."""
        said, least = self.settings.unit_timeout, self.settings.least_timeout
        if said is not None:
            assert action.limit == said
        elif least is None:
            assert action.limit is None
        else:
            assert action.limit is None or action.limit >= least
        if isinstance(action, LimitOrder) and action.attempt is not None:
            assert self.limits[action.attempt] is None, "it had none"
            leading = self.auditor.leading
            assert any(leading[attempt] == action.attempt for attempt in self.orders), "it is under way"

    def forget(self, worker: str) -> None:
        self.lost_orders += [order for order in self.orders.values() if order.worker == worker]
        self.orders = {a: order for a, order in self.orders.items() if order.worker != worker}
        self.loads = [load for load in self.loads if load.worker != worker]


pytestmark = pytest.mark.timeout(1500)
TestScheduler = SchedulerMachine.TestCase
TestScheduler.settings = settings(
    max_examples=EXAMPLES, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
