"""A plan as users have it: the best option, all of them as a table, the reasons, a picture."""

from __future__ import annotations

import base64
import html
import io
import math
from collections.abc import Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from cerebro_spark import gantt
from cerebro_spark.planning.choice import ranked
from cerebro_spark.planning.comparison import Comparison, compare
from cerebro_spark.planning.planner import Planned
from cerebro_spark.planning.reasons import reasons
from cerebro_spark.planning.sizes import duration
from cerebro_spark.planning.spark_conf import SparkConf, spark_conf
from cerebro_spark.planning.values import Estimate, Option, Wish
from cerebro_spark.planning.watch import PlanWatch
from cerebro_spark.run_view import RunView
from cerebro_spark.scheduling.kin import kin_of
from cerebro_spark.trainer.feed import batch_size_of

if TYPE_CHECKING:
    import pandas as pd


class Plan:
    """How to run a search, how long it will take and what it will cost. `search.plan(data)` makes one.

    Args:
        planned: What was measured and simulated.

    Attributes:
        why: Each choice in a sentence with its numbers.
    """

    def __init__(self, planned: Planned) -> None:
        self._planned = planned
        self.why: list[str] = reasons(
            planned.estimates, planned.demand, planned.workload, planned.wish, planned.unmeasured
        )

    @property
    def best(self) -> Option:
        """The best option.

        It has `workers`, `threads`, `memory` (bytes a worker), `partitions`, `replicas`, `group` and `width`.
        """
        return self.estimate.option

    @property
    def estimate(self) -> Estimate:
        """What the best option comes to: `seconds`, between `low` and `high`, `utilisation`, `cost`."""
        return self._planned.estimates[0]

    @property
    def table(self) -> pd.DataFrame:
        """All options, best first, with the seconds that they take, most likely between `low` and `high`."""
        import pandas as pd

        rows = [_row(estimate) for estimate in self._planned.estimates]
        table = pd.DataFrame(rows)
        return table.drop(columns="cost") if self._planned.wish.price is None else table

    def unit_seconds(self, params: Mapping[str, Any]) -> float | None:
        """Return how long a worker of the best option trains a trial on one partition.

        Args:
            params: The params of the trial.

        Returns:
            The seconds; None if no trial of this structure was measured.
        """
        planned, option = self._planned, self.best
        if kin_of(params) not in planned.profile.configurations:
            return None
        batches = math.ceil(planned.workload.train / option.partitions / batch_size_of(params))
        return planned.factor * planned.profile.cost("train", params).of(batches)

    def compare(self, view: RunView) -> Comparison:
        """Hold the plan against a run that followed it.

        Args:
            view: The run, which is over.

        Returns:
            What was planned, what it took, and why they differ.
        """
        return compare(self._planned, view)

    def watch(self) -> PlanWatch:
        """Hold the plan against a run while that goes on. `fit(data, plan=plan)` does so by itself.

        Returns:
            An observer for that run.
        """
        return PlanWatch(self._planned)

    def spark_conf(self) -> SparkConf:
        """Say what to tell Spark, so that it has room for the workers.

        Returns:
            A dict of settings; as text it is a line of options of spark-submit.
        """
        return spark_conf(self.best)

    def plot(self) -> Any:
        """Draw how long the search takes with how many workers.

        A star marks the best option, a dotted line the knee: more workers than there gain less than 5 %.

        Returns:
            A figure of matplotlib.
        """
        figure_class, _ = gantt.matplotlib_parts()
        figure = figure_class(figsize=(8, 4.2), dpi=100, layout="constrained")
        axes = figure.add_subplot()
        for threads in sorted({one.option.threads for one in self._planned.estimates}):
            own = [one for one in self._planned.estimates if one.option.threads == threads and one.dry_runs]
            own.sort(key=lambda one: one.option.workers)
            at = [one.option.workers for one in own]
            name = f"{threads} thread{'s' * (threads > 1)} a worker"
            (line,) = axes.plot(at, [one.seconds for one in own], marker="o", label=name)
            axes.fill_between(
                at, [one.low for one in own], [one.high for one in own], alpha=0.15, color=line.get_color()
            )
        best = self.estimate
        axes.plot([best.option.workers], [best.seconds], marker="*", markersize=15, color="black", zorder=4)
        axes.annotate(
            f"{best.option.workers} x {best.option.threads}: {duration(best.seconds)}",
            (best.option.workers, best.seconds),
            xytext=(8, 12),
            textcoords="offset points",
        )
        knee = ranked(self._planned.estimates, Wish())[0].option.workers
        axes.axvline(knee, linestyle=":", color="grey", zorder=1, label=f"the knee: {knee} workers")
        axes.set_xlabel("workers")
        axes.set_ylabel("seconds")
        axes.set_ylim(bottom=0)
        axes.xaxis.get_major_locator().set_params(integer=True)
        axes.legend(frameon=False, fontsize=9)
        for side in ("top", "right"):
            axes.spines[side].set_visible(False)
        return figure

    def __repr__(self) -> str:
        return "\n".join([*self.why, "", self.table.to_string(index=False, float_format=lambda value: f"{value:.3g}")])

    def _repr_html_(self) -> str:
        said = "".join(f"<li>{html.escape(sentence)}</li>" for sentence in self.why)
        return f"<div><ul>{said}</ul>{self._picture()}{self.table.to_html(index=False, border=0)}</div>"

    def _picture(self) -> str:
        """Return the plot as a part of a page; nothing where it cannot be drawn, for want of matplotlib."""
        if find_spec("matplotlib") is None:
            return ""
        drawn = io.BytesIO()
        self.plot().savefig(drawn, format="png")
        words = html.escape(self.why[0], quote=True)
        return f'<img alt="{words}" src="data:image/png;base64,{base64.b64encode(drawn.getvalue()).decode()}">'


def _row(estimate: Estimate) -> dict[str, Any]:
    option = estimate.option
    return {
        "workers": option.workers,
        "threads": option.threads,
        "hosts": option.hosts,
        "partitions": option.partitions,
        "replicas": option.replicas,
        "group": option.group,
        "width": option.width,
        "memory": option.memory,
        "seconds": estimate.seconds,
        "low": estimate.low,
        "high": estimate.high,
        "utilisation": estimate.utilisation,
        "cost": estimate.cost,
        "dry_runs": estimate.dry_runs,
    }
