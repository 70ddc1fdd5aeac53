"""Figures 10 and 11 of the Cerebro paper by byte counts: what crosses the network when models hop, and when data does.

    python -m benchmarks.remote_bytes [--json FILE] [--picture [FOLDER]]

The real placement and scheduler run in virtual time on a worker a host. Bytes count as remote when they are not on the
host that needs them: a partition that a worker loads, a checkpoint that it reads, each copy of one that it writes. In
an object store nothing is on any host. In HDFS the first copy lies with the writer, as its name node does it, and the
others on hosts drawn from a seed. Beside it stands task parallelism: a trial stays on its worker, which reads all data
in every epoch, or has room for all and reads it once. It counts; it measures no time.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np

from cerebro_spark.backend.base import Backend
from cerebro_spark.backend.simulated import SimulatedBackend, SimulatedWorker, World
from cerebro_spark.engine import Engine
from cerebro_spark.eventlog import DiscardingLog
from cerebro_spark.events import Action, Event, LoadPartition, RunUnit, Settings, UnitFinished
from cerebro_spark.search import FixedSearch
from cerebro_spark.types import Checkpoint, Partition

IMAGES = Path(__file__).resolve().parent.parent / "docs" / "images"
GB = 10**9
SCALES = (62.5, 125.0, 250.0, 500.0)
REPLICATIONS = (1, 2, 3, 8)


@dataclass(frozen=True)
class Setting:
    """A search over data in a store. The defaults are the paper's: ImageNet, 8 configurations, 5 epochs, 8 workers.

    `replication` is that of HDFS on the workers' hosts, for data and checkpoints; None is an object store elsewhere. A
    checkpoint is that of a ResNet-50 with Adam: 25.6 million weights, and two moments of each.
    """

    workers: int = 8
    trials: int = 8
    epochs: int = 5
    data_bytes: int = 250 * GB
    model_bytes: int = 307_000_000
    replication: int | None = None
    validation: int = 0


@dataclass
class Remote:
    """Bytes that crossed the network. `hops` are checkpoints that were read on another host than they were written."""

    data: int = 0
    written: int = 0
    read: int = 0
    hops: int = 0

    @property
    def total(self) -> int:
        return self.data + self.written + self.read


class CountingBackend(Backend):
    """A simulated cluster with a store, in which every load, read and write is looked at."""

    def __init__(self, setting: Setting, partitions: Sequence[Partition], seed: int) -> None:
        self.remote = Remote()
        self._setting = setting
        self._partitions = {partition.id: partition for partition in partitions}
        self._copies: dict[int, tuple[str, ...]] = {}  # of the checkpoint that an attempt wrote: where they lie
        self._writer: dict[int, str] = {}
        self._chance = np.random.default_rng([seed, 3])
        workers = [SimulatedWorker(f"w{i}", host=host) for i, host in enumerate(hosts_of(setting))]
        self._host = {worker.id: worker.host for worker in workers}
        world = World(lambda params: 1.0, lambda params: setting.model_bytes, jitter=0.05)
        self._cluster = SimulatedBackend(workers, world, seed)
        self.num_workers = self._cluster.num_workers

    def start(self, partitions: Sequence[Partition], at: float = 0.0) -> None:
        self._cluster.start(partitions, at)

    def submit(self, action: Action) -> None:
        if isinstance(action, LoadPartition):
            partition = self._partitions[action.partition]
            self.remote.data += partition.bytes * (self._host[action.worker] not in partition.hosts)
        elif isinstance(action, RunUnit) and action.parent is not None:
            parent, host = action.parent, self._host[action.worker]
            self.remote.read += parent.bytes * (host not in self._copies[parent.attempt])
            self.remote.hops += self._writer[parent.attempt] != host
        self._cluster.submit(action)

    def events(self) -> list[Event]:
        facts = self._cluster.events()
        for fact in facts:
            if isinstance(fact, UnitFinished) and fact.checkpoint is not None:
                self._note_write(self._host[fact.worker], fact.checkpoint)
        return facts

    def wake(self) -> None:
        self._cluster.wake()

    def now(self) -> float:
        return self._cluster.now()

    def close(self) -> None:
        self._cluster.close()

    def _note_write(self, host: str, checkpoint: Checkpoint) -> None:
        places = blocks_at(self._setting, host, self._chance)
        self._copies[checkpoint.attempt], self._writer[checkpoint.attempt] = places, host
        self.remote.written += checkpoint.bytes * ((self._setting.replication or 1) - (host in places))


def hosts_of(setting: Setting) -> list[str]:
    return [f"host{i}" for i in range(setting.workers)]


def blocks_at(setting: Setting, writer: str, chance: np.random.Generator) -> tuple[str, ...]:
    """Where the copies of what this host writes come to lie: here first, then anywhere else; or nowhere near."""
    if setting.replication is None:
        return ()
    others = [host for host in hosts_of(setting) if host != writer]
    return (writer, *chance.choice(others, setting.replication - 1, replace=False).tolist())


def partitions_of(setting: Setting, seed: int) -> tuple[Partition, ...]:
    """One partition a worker, written by a task on its host."""
    chance = np.random.default_rng([seed, 4])
    size = setting.data_bytes // setting.workers
    train = [
        Partition(f"p{i:02d}", bytes=size, hosts=blocks_at(setting, host, chance))
        for i, host in enumerate(hosts_of(setting))
    ]
    validation = [
        Partition(f"v{i:02d}", "validation", hosts=blocks_at(setting, hosts_of(setting)[i % setting.workers], chance))
        for i in range(setting.validation)
    ]
    return (*train, *validation)


def hopping(setting: Setting, seed: int = 0) -> Remote:
    """The whole search by model hopping: every order and fact of a run is counted.

    >>> small = Setting(workers=2, trials=2, epochs=1, data_bytes=100, model_bytes=1)
    >>> hopping(small)  # 4 units write, all but the first of each trial read, nothing is on a host
    Remote(data=100, written=4, read=2, hops=2)
    """
    partitions = partitions_of(setting, seed)
    backend = CountingBackend(setting, partitions, seed)
    search = FixedSearch([{"n": i} for i in range(setting.trials)], setting.epochs)
    Engine(search, Settings(partitions, workers=setting.workers, seed=seed), backend, DiscardingLog()).run()
    return backend.remote


def staying(setting: Setting, seed: int = 0, keeps: bool = False) -> Remote:
    """The same by task parallelism: trials go to workers in turn, and each writes one checkpoint, at its end.

    A worker that `keeps` what it has read holds all data after a trial's first epoch.

    >>> staying(Setting(workers=2, trials=2, epochs=3, data_bytes=100, model_bytes=1)).data
    600
    """
    remote = Remote()
    hosts, partitions = hosts_of(setting), [p for p in partitions_of(setting, seed) if p.split == "train"]
    kept: dict[str, set[str]] = {host: set() for host in hosts}
    for trial in range(setting.trials):
        host = hosts[trial % len(hosts)]
        for _ in range(setting.epochs):
            for partition in partitions:
                if host not in partition.hosts and partition.id not in kept[host]:
                    remote.data += partition.bytes
                    if keeps:
                        kept[host].add(partition.id)
        copies = setting.replication or 1
        remote.written += setting.model_bytes * (copies - (setting.replication is not None))
    return remote


def formulas(setting: Setting) -> Mapping[str, int]:
    """What the paper's reasoning gives, with checkpoints that go through the store, as in its section 4.3."""
    k, m, p, s = setting.epochs, setting.model_bytes, setting.workers, setting.trials
    units, copies = k * m * p * s, setting.replication
    data = setting.data_bytes
    if copies is None:
        return {
            "hopping, data": data,
            "hopping, written": units,
            "hopping, read": units - m * s + k * m * s * setting.validation,
            "staying, data": k * s * data,
            "staying and keeping, data": min(p, s) * data,
        }
    return {
        "hopping, data": 0,
        "hopping, written": units * (copies - 1),
        "hopping, read at most": units - m * s + k * m * s * setting.validation,
        "staying, data": k * s * data * (p - copies) // p,
        "staying and keeping, data": min(p, s) * data * (p - copies) // p,
    }


def counts(setting: Setting) -> dict[str, Any]:
    """Everything of one setting, counted."""
    hop, stay, keep = hopping(setting), staying(setting), staying(setting, keeps=True)
    return {
        "setting": asdict(setting),
        "hopping": {**asdict(hop), "total": hop.total},
        "staying": {**asdict(stay), "total": stay.total},
        "keeping": {**asdict(keep), "total": keep.total},
        "times_less": stay.total / hop.total if hop.total else None,
        "formulas": formulas(setting),
    }


def figure_10(base: Setting) -> list[dict[str, Any]]:
    return [counts(replace(base, data_bytes=int(scale * GB), replication=None)) for scale in SCALES]


def figure_11(base: Setting) -> list[dict[str, Any]]:
    return [counts(replace(base, replication=copies)) for copies in REPLICATIONS]


def check() -> list[tuple[str, str, int, int]]:
    """Count at a small size, beside the formulas: (store, what, formula, counted)."""
    found = []
    for name, copies in (("S3", None), ("HDFS, 1 copy", 1), ("HDFS, 2 copies", 2)):
        setting = Setting(4, 8, 3, data_bytes=4_000, model_bytes=10, replication=copies)
        hop = hopping(setting)
        counted = {"data": hop.data, "written": hop.written, "read": hop.read, "read at most": hop.read}
        others = {
            "staying, data": staying(setting).data,
            "staying and keeping, data": staying(setting, keeps=True).data,
        }
        for what, expected in formulas(setting).items():
            found.append((name, what, expected, others.get(what, counted.get(what.removeprefix("hopping, "), 0))))
    return found


# -- what is shown

HEAD = (
    "hopping: data GB | checkpoints written GB | checkpoints read GB | in all GB | "
    "task-parallel, reads each epoch GB | times more | task-parallel, keeps all GB |"
)


def row(first: str, found: Mapping[str, Any]) -> str:
    hop = found["hopping"]
    numbers = [hop["data"], hop["written"], hop["read"], hop["total"], found["staying"]["total"]]
    times = "-" if found["times_less"] is None else f"{found['times_less']:,.3g}"
    shown = [f"{number / GB:,.1f}" for number in numbers]
    return f"| {first} | {' | '.join(shown)} | {times} | {found['keeping']['total'] / GB:,.1f} |"


def show(found: Mapping[str, Any]) -> None:
    base = found["figure_11"][0]["setting"]
    print(
        f"\n{base['trials']} trials, {base['epochs']} epochs, {base['workers']} workers with a partition each,"
        f" {base['data_bytes'] / GB:g} GB where not said otherwise, checkpoints of {base['model_bytes'] / 1e6:g} MB."
    )
    print(f"\n## Figure 10: data and checkpoints in S3\n\n| data GB | {HEAD}\n|{'---|' * 8}")
    for each in found["figure_10"]:
        print(row(f"{each['setting']['data_bytes'] / GB:g}", each))
    print(f"\n## Figure 11: data and checkpoints in HDFS on the workers\n\n| copies | {HEAD}\n|{'---|' * 8}")
    for each in found["figure_11"]:
        print(row(str(each["setting"]["replication"]), each))
    print(
        "\n## The count at a small size, beside the formulas\n\n| store | what | formula | counted |\n|---|---|---|---|"
    )
    for store, what, expected, counted in found["check"]:
        print(f"| {store} | {what} | {expected:,} | {counted:,} |")


def draw(found: Mapping[str, Any], folder: Path) -> None:
    import matplotlib

    matplotlib.use("Agg")
    import matplotlib.pyplot as plt

    figure, axes = plt.subplots(1, 2, figsize=(10, 3.6), sharey=True)
    sides: tuple[tuple[Any, str, str, Callable[[Any], str]], ...] = (
        (axes[0], "figure_10", "data in S3, GB", lambda s: f"{s['data_bytes'] / GB:g}"),
        (axes[1], "figure_11", "copies in HDFS", lambda s: str(s["replication"])),
    )
    for axis, name, title, first in sides:
        rows = found[name]
        place = np.arange(len(rows))
        for offset, who, said in ((-0.2, "hopping", "models hop"), (0.2, "staying", "task-parallel, reads each epoch")):
            heights = [max(each[who]["total"] / GB, 0.1) for each in rows]
            axis.bar(place + offset, heights, 0.38, label=said)
        axis.set_xticks(place, [first(each["setting"]) for each in rows])
        axis.set_xlabel(title)
        axis.set_yscale("log")
        for side in ("top", "right"):
            axis.spines[side].set_visible(False)
    axes[0].set_ylabel("remote GB, whole search")
    axes[0].legend(frameon=False, fontsize=8)
    figure.tight_layout()
    folder.mkdir(parents=True, exist_ok=True)
    with matplotlib.rc_context({"svg.hashsalt": "remote-bytes"}):
        figure.savefig(folder / "remote-bytes.svg", metadata={"Date": None})
    plt.close(figure)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path, help="also write all counts to this file")
    parser.add_argument(
        "--picture", type=Path, nargs="?", const=IMAGES, metavar="FOLDER", help="write remote-bytes.svg there"
    )
    options = parser.parse_args()
    found: dict[str, Any] = {"figure_10": figure_10(Setting()), "figure_11": figure_11(Setting()), "check": check()}
    show(found)
    if options.json:
        options.json.write_text(json.dumps(found, indent=1))
    if options.picture:
        draw(found, options.picture)
    wrong = [each for each in found["check"] if each[3] > each[2] or ("at most" not in each[1] and each[3] != each[2])]
    for store, what, expected, counted in wrong:
        print(f"{store}: {what} is {counted}, but by the formula {expected}", file=sys.stderr)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
