"""What is written down while a scheduler is played against any events, and what must be true of its orders."""

from __future__ import annotations

from auditor import Auditor
from hypothesis.stateful import RuleBasedStateMachine

from cerebro_spark.events import Action, Event, LimitOrder, LoadPartition, RetireWorker, RunUnit, Settings, UnitFinished
from cerebro_spark.scheduler import MopScheduler
from cerebro_spark.types import Checkpoint, Metrics


class SchedulerBooks(RuleBasedStateMachine):
    """A scheduler, who audits it, what it was told, and what it ordered."""

    def open(self, settings: Settings) -> None:
        """Begin with a new scheduler."""
        self.settings = settings
        self.scheduler = MopScheduler(settings)
        self.auditor = Auditor(settings)
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
        self.withdrawn: list[int] = []
        self.said = 0

    def measure(self, order: RunUnit) -> Metrics:
        """Trials take turns in having plain metrics, metrics that add up, and metrics that go from unit to unit."""
        plain = Metrics({"loss": float(order.attempt % 7)}, {"loss": 1.0})
        kind, parts = kind_of(order.unit.trial), len(order.unit.partitions)
        seen = order.carry.carried.get("rows", 0) if kind == 2 and order.carry else 0
        return [
            plain,
            Metrics(plain.sums, plain.weights, {"auc": (1.0 * parts, 2.0 * parts)}),
            Metrics(plain.sums, plain.weights, {}, {"rows": seen + parts}),
        ][kind]

    def check_carry(self, order: RunUnit) -> None:
        """Whoever needs it gets what was measured before; whoever goes in series goes alone."""
        unit, kind = order.unit, kind_of(order.unit.trial)
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


def kind_of(trial: str) -> int:
    """A clone measures what its origin measures."""
    return int(trial[1:].partition("-")[0]) % 3
