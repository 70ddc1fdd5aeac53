"""Strong scaling by virtual workers: the same search on 1 to 64 of them, with unit times that were measured here.

    python -m benchmarks.scaling [--json FILE] [--picture [FOLDER]] [--rows N ...]

First a small search runs on two processes of this machine, twice: over few large partitions and over many small ones.
From its units come the seconds a unit takes for a row, those it takes whatever its rows, and those between two units
(state saved and fetched, orders). Then the real scheduler runs in virtual time with p workers and p partitions of the
same rows. Nothing here is the speed of a real cluster: a network, and machines that differ, are not in it.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from cerebro_spark.simulation import Scenario, simulate

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
WORKERS = (1, 2, 4, 8, 16, 32, 64)
TRIALS = (8, 16, 64, 256)
ROWS = (100_000, 10_000_000)
EPOCHS = 2
FEATURES, MEASURED_ROWS = 64, 40_000
FEW, MANY = 2, 16


@dataclass(frozen=True)
class Times:
    """How long a unit takes on one core: `fixed + row * rows` seconds, and `between` until the next can begin.

    `spread` is how far units of one size are from one another, as half the width of an even spread of that deviation.

    >>> Times(row=1e-6, fixed=0.01, between=0.02, spread=0.1).unit(50_000)
    0.08
    """

    row: float
    fixed: float
    between: float
    spread: float

    def unit(self, rows: float) -> float:
        return self.row * rows + self.fixed + self.between


def fit(few: Sequence[float], many: Sequence[float], rows: tuple[float, float], gaps: Sequence[float]) -> Times:
    """The line through the medians of units of two sizes; medians, because the first units build their models.

    >>> fit([0.21, 0.21, 9.0], [0.03, 0.03, 0.03], (20_000, 2_000), [0.01])
    Times(row=1e-05, fixed=0.01, between=0.01, spread=0.0)
    """
    large, small = float(np.median(few)), float(np.median(many))
    row = max((large - small) / (rows[0] - rows[1]), 0.0)
    fixed = max(small - row * rows[1], 0.0)
    off = float(np.median(np.abs(np.asarray(few) - large))) / large
    # For an even spread the median deviation is half of its half-width.
    return Times(round(row, 12), round(fixed, 9), round(float(np.median(gaps)), 9), round(min(2 * off, 0.5), 4))


def measure() -> Times:
    """Two small searches on two processes, one thread each."""
    with tempfile.TemporaryDirectory() as folder:
        few, gaps_few = _units(Path(folder), FEW)
        many, gaps_many = _units(Path(folder), MANY)
    return fit(few, many, (MEASURED_ROWS / FEW, MEASURED_ROWS / MANY), [*gaps_few, *gaps_many])


def _units(folder: Path, partitions: int) -> tuple[list[float], list[float]]:
    """The seconds of all training units, and of the gaps between two units of one worker."""
    import cerebro_spark as cs
    from cerebro_spark import hp

    rng = np.random.default_rng(0)
    x = rng.normal(size=(MEASURED_ROWS, FEATURES)).astype("float32")
    y = (x[:, :8].sum(axis=1) > 0).astype("float32")
    dataset = cs.prepare(
        {"x": x, "y": y},
        store=str(folder / f"store-{partitions}"),
        features="x",
        label="y",
        partitions=partitions,
    )
    search = cs.GridSearch(
        model_fn,
        space={"lr": hp.choice([3e-4, 1e-3, 3e-3, 1e-2]), "batch_size": 256},
        backend=cs.LocalBackend(num_workers=2, threads=1),
        store=str(folder / f"store-{partitions}"),
        metric="loss",
        epochs=EPOCHS,
        progress=False,
    )
    units = search.fit(dataset).units
    trained = units[units.kind == "train"]
    return trained.seconds.tolist(), gaps(units[["worker", "start", "end"]].values.tolist())


def gaps(units: Sequence[tuple[str, float, float]]) -> list[float]:
    """How long each worker was without a unit between two of its own.

    >>> gaps([("w0", 0.0, 1.0), ("w1", 0.0, 3.0), ("w0", 1.5, 2.0)])
    [0.5]
    """
    found: list[float] = []
    ends: dict[str, float] = {}
    for worker, start, end in sorted(units, key=lambda each: each[1]):
        if worker in ends:
            found.append(max(start - ends[worker], 0.0))
        ends[worker] = end
    return found


def model_fn(params: dict[str, Any]) -> Any:
    import torch
    from torch import nn

    import cerebro_spark as cs

    module = nn.Sequential(
        nn.Linear(FEATURES, 128), nn.ReLU(), nn.Linear(128, 64), nn.ReLU(), nn.Linear(64, 1), nn.Flatten(0)
    )
    return cs.TorchModel(module, torch.optim.Adam(module.parameters(), lr=params["lr"]), nn.BCEWithLogitsLoss())


@cache
def in_units(trials: int, workers: int, spread: float) -> tuple[float, float]:
    """How many times a unit's time the search takes, and the share of it in which workers are busy.

    Seconds do not matter to the scheduler, only how times compare: so one simulation serves for all sizes of data.

    >>> in_units(4, 2, 0.0)
    (8.0, 1.0)
    """
    outcome = simulate(Scenario(trials=trials, workers=workers, epochs=EPOCHS, cost=1.0, jitter=spread))
    return outcome.makespan, outcome.utilisation


def scale(times: Times, rows: int, trials: int, workers: Sequence[int] = WORKERS) -> list[dict[str, float]]:
    """The search on ever more workers, `most` of which have anything to do at one time."""
    found: list[dict[str, float]] = []
    for p in workers:
        cost = times.unit(rows / p)
        units, busy = in_units(trials, p, times.spread)
        seconds = units * cost
        found.append(
            {
                "workers": p,
                "seconds": seconds,
                "unit_s": cost,
                "speedup": (found[0]["seconds"] if found else seconds) / seconds,
                "most": min(p, trials),
                "overhead": (times.fixed + times.between) / cost,
                "busy": busy,
            }
        )
    return found


def bend(found: Sequence[Mapping[str, float]], share: float = 0.8) -> str:
    """Where the speedup first falls below that share of the workers, and what is to blame.

    >>> bend([{"workers": 1, "speedup": 1.0, "most": 1, "overhead": 0.0, "busy": 1.0}])
    'not up to 1 workers'
    >>> row = {"workers": 16, "speedup": 7.9, "most": 8, "overhead": 0.01, "busy": 0.49}
    >>> bend([row])
    'at 16 workers: 8 trials keep 8 busy'
    """
    for each in found:
        if each["speedup"] < share * each["workers"]:
            at = f"at {each['workers']:.0f} workers"
            if each["most"] < each["workers"]:
                return f"{at}: {each['most']:.0f} trials keep {each['most']:.0f} busy"
            if 1 - each["busy"] > each["overhead"]:
                return f"{at}: workers wait {1 - each['busy']:.0%} of the time for trials that others still have"
            return f"{at}: {each['overhead']:.0%} of a unit does not shrink with its rows"
    return f"not up to {found[-1]['workers']:.0f} workers"


def all_of(times: Times, sizes: Sequence[int]) -> dict[str, Any]:
    return {str(rows): {str(trials): scale(times, rows, trials) for trials in TRIALS} for rows in sizes}


# -- what is shown


def show(times: Times, found: Mapping[str, Mapping[str, Any]]) -> None:
    print(
        f"\nMeasured here: {times.row * 1e6:.3f} us a row, {times.fixed * 1e3:.1f} ms a unit,"
        f" {times.between * 1e3:.1f} ms between units, spread {times.spread:.0%}. {EPOCHS} epochs, no evaluation."
    )
    for rows, by_trials in found.items():
        print(f"\n## {int(rows):,} rows: speedup over one worker\n")
        print("| workers (ideal) | unit s | does not shrink |", " | ".join(f"{n} trials" for n in by_trials), "|")
        print("|---|---|---|" + "---|" * len(by_trials))
        for place, p in enumerate(WORKERS):
            one = next(iter(by_trials.values()))[place]
            cells = " | ".join(f"{each[place]['speedup']:.1f}" for each in by_trials.values())
            print(f"| {p} | {one['unit_s']:.3f} | {one['overhead']:.0%} | {cells} |")
        print()
        for trials, each in by_trials.items():
            print(f"- {trials} trials bend {bend(each)}")


def draw(found: Mapping[str, Mapping[str, Any]], folder: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, len(found), figsize=(5 * len(found), 4), sharey=True, squeeze=False)
    for axis, (rows, by_trials) in zip(axes[0], found.items(), strict=True):
        axis.plot(WORKERS, WORKERS, color="grey", linestyle=":", label="ideal")
        for trials, each in by_trials.items():
            axis.plot(WORKERS, [one["speedup"] for one in each], marker="o", markersize=3, label=f"{trials} trials")
        axis.set_xscale("log", base=2)
        axis.set_yscale("log", base=2)
        axis.set_xticks(WORKERS, [str(p) for p in WORKERS])
        axis.set_yticks(WORKERS, [str(p) for p in WORKERS])
        axis.set_xlabel("virtual workers")
        axis.set_title(f"{int(rows):,} rows", fontsize=10)
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
    axes[0][0].set_ylabel("speedup over one worker")
    axes[0][0].legend(frameon=False, fontsize=8)
    figure.tight_layout()
    folder.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context({"svg.hashsalt": "scaling"}):
        figure.savefig(folder / "scaling.svg", metadata={"Date": None})
    plt.close(figure)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, help="also write all numbers to this file")
    parser.add_argument(
        "--picture", type=Path, nargs="?", const=IMAGES, metavar="FOLDER", help="write scaling.svg there"
    )
    parser.add_argument("--rows", type=int, nargs="+", default=list(ROWS), help="training rows of the search")
    options = parser.parse_args()
    times = measure()
    found = all_of(times, options.rows)
    show(times, found)
    if options.json:
        options.json.write_text(json.dumps({"times": asdict(times), "rows": found}, indent=1))
    if options.picture:
        draw(found, options.picture)
    return 0


if __name__ == "__main__":
    sys.exit(main())
