"""All that can happen to a scheduler, fairly and unfairly, as rules of a state machine."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule
from scheduler_stage import WORKERS, SchedulerStage

from cerebro_spark.commands import Command
from cerebro_spark.events import (
    Blame,
    CostEstimated,
    GatheringBegan,
    GatheringEnded,
    GroupGaveUp,
    LossExplained,
    PartitionLoaded,
    PartitionLost,
    SearchEnded,
    TrialStopped,
    UnitFailed,
    UnitWithdrawn,
    WorkAdded,
    WorkerJoined,
    WorkerLost,
    WorkerRetiring,
)
from cerebro_spark.types import Work


class SearchRules(SchedulerStage):
    """A search asks for trials, for more of them, and stops some."""

    @precondition(lambda self: not self.ended and len(self.works) < 12)
    @rule(epochs=st.integers(1, 3), many=st.integers(1, 5), layers=st.sampled_from([1, 1, 1, 2]))
    def ask_for_new_trials(self, epochs: int, many: int, layers: int) -> None:
        self.ask_for_trials(many, epochs, layers)

    @precondition(lambda self: not self.ended and self.works)
    @rule(data=st.data(), more=st.integers(1, 2), layers=st.sampled_from([1, 1, 2]))
    def ask_for_more(self, data: st.DataObject, more: int, layers: int) -> None:
        trial = data.draw(st.sampled_from(sorted(self.works)))
        if trial not in self.auditor.failed | self.auditor.taken_over and trial not in self.stopped:
            self.works[trial] += more
            self.feed(WorkAdded(self.now, Work(trial, {"lr": 0.2, "layers": layers}, self.works[trial])))

    @precondition(lambda self: self.works)
    @rule(data=st.data(), seconds=st.sampled_from([0.1, 1.0, 30.0]))
    def time_some_batches(self, data: st.DataObject, seconds: float) -> None:
        self.feed(CostEstimated(self.now, data.draw(st.sampled_from(sorted(self.works))), seconds))

    @precondition(lambda self: not self.ended and len(self.reports) >= 2)
    @rule(data=st.data())
    def exploit_another_trial(self, data: st.DataObject) -> None:
        trial = data.draw(st.sampled_from(sorted(self.reports)))
        source = data.draw(st.sampled_from(sorted(self.reports)))
        record = self.scheduler.state.trials[trial]
        mine = record.status == "paused" and trial not in self.auditor.taken_over
        if mine and source not in self.auditor.failed and source not in self.stopped:
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


class PeopleRules(SchedulerStage):
    """People give commands, and workers give back what these withdraw."""

    @precondition(lambda self: self.works)
    @rule(
        data=st.data(),
        verb=st.sampled_from(["stop_trial", "stop_trial", "resume_trial", "clone"]),
        epochs=st.none() | st.integers(1, 2),
        warm=st.booleans(),
    )
    def tell_about_a_trial(self, data: st.DataObject, verb: Any, epochs: int | None, warm: bool) -> None:
        trial = data.draw(st.sampled_from(sorted(self.works)))
        if verb != "clone" or len(self.works) < 12:
            self.tell(Command(verb, f"c{self.said}", trial=trial, epochs=epochs, warm_start=warm))

    @precondition(lambda self: self.to_be_evaluated())
    @rule(data=st.data(), steps=st.integers(0, 3))
    def stop_what_is_to_be_evaluated_for_a_while(self, data: st.DataObject, steps: int) -> None:
        """A trial is stopped that has trained all its epochs, and then goes on."""
        trial = data.draw(st.sampled_from(self.to_be_evaluated()))
        self.tell(Command("stop_trial", f"c{self.said}", trial=trial))
        self.go_well(steps)
        self.tell(Command("resume_trial", f"c{self.said}", trial=trial))

    @rule()
    def pause(self) -> None:
        able = not (self.scheduler.finished or self.auditor.idle or self.auditor.over)
        assert self.say(Command("pause", f"c{self.said}")) == able

    @precondition(lambda self: self.auditor.idle)
    @rule()
    def unpause(self) -> None:
        self.say(Command("unpause", f"c{self.said}"))

    @rule(chance=st.integers(0, 30))
    def end(self, chance: int) -> None:
        if chance == 0:
            self.say(Command("end", f"c{self.said}"))
            self.ended = True

    @precondition(lambda self: self.withdrawn)
    @rule(data=st.data())
    def give_back(self, data: st.DataObject) -> None:
        """A worker gives back what it has not begun; of what it has begun it says nothing."""
        attempt = self.withdrawn.pop(data.draw(st.integers(0, len(self.withdrawn) - 1)))
        if attempt in self.orders and attempt not in self.running():
            order = self.orders.pop(attempt)
            self.widths[self.auditor.leading[attempt]] -= 1
            self.feed(UnitWithdrawn(self.now, order.worker, order.unit, attempt))


class WorkerRules(SchedulerStage):
    """Workers come, load, die, and go."""

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


class UnitRules(SchedulerStage):
    """Units end well or badly, at once or one after another, and are reported late or twice."""

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
        self.go_well(steps)

    @precondition(lambda self: (self.orders or self.loads) and not self.evaluated_together())
    @rule()
    def go_well_until_evaluations_go_together(self) -> None:
        self.go_well(24, until_together=True)

    @precondition(lambda self: self.orders)
    @rule(data=st.data(), blame=st.sampled_from(["trial", "worker"]))
    def fail(self, data: st.DataObject, blame: Blame) -> None:
        order = self.orders.pop(self.draw_running(data))
        worker = data.draw(st.sampled_from(order.workers))
        self.feed(UnitFailed(self.now, worker, order.unit, order.attempt, "boom", blame))

    @precondition(lambda self: any(order.partners for order in self.orders.values()))
    @rule(data=st.data(), lasting=st.sampled_from([False, False, True]))
    def give_up_a_group(self, data: st.DataObject, lasting: bool) -> None:
        """A member of a group says that another one does not answer, or that no group can train the trial."""
        attempt = data.draw(st.sampled_from([a for a, order in self.orders.items() if order.partners]))
        order = self.orders.pop(attempt)
        worker = data.draw(st.sampled_from(order.workers))
        self.feed(GroupGaveUp(self.now, worker, order.unit, attempt, "no answer", lasting))

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

    @precondition(lambda self: self.evaluated_together())
    @rule(data=st.data(), how=st.sampled_from(["failure", "fault", "death", "stop"]))
    def disturb_evaluations_that_go_together(self, data: st.DataObject, how: str) -> None:
        """One of them fails by its own or its worker's fault, loses its worker, or is a trial that a person stops."""
        attempt = data.draw(st.sampled_from(self.evaluated_together()))
        order = self.orders[attempt]
        if how == "death":
            self.forget(order.worker)
            self.feed(WorkerLost(self.now, order.worker, "killed", running=attempt))
        elif how == "stop":
            self.tell(Command("stop_trial", f"c{self.said}", trial=order.unit.trial))
        elif attempt in self.running():
            del self.orders[attempt]
            blame: Blame = "trial" if how == "failure" else "worker"
            self.feed(UnitFailed(self.now, order.worker, order.unit, attempt, "boom", blame))

    @precondition(lambda self: self.past)
    @rule(data=st.data())
    def report_twice(self, data: st.DataObject) -> None:
        self.feed(data.draw(st.sampled_from(self.past)))

    @precondition(lambda self: self.lost_orders)
    @rule(data=st.data())
    def report_from_the_dead(self, data: st.DataObject) -> None:
        order = self.lost_orders.pop(data.draw(st.integers(0, len(self.lost_orders) - 1)))
        self.feed(self.finished(order, 1.0))
