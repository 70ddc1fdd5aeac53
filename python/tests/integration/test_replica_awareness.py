"""Units run where their blocks are, on three hosts with a Spark worker and a data node each, also when one is gone."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from counting_store import CountingStore, Entry, entries
from hadoop.cluster import HadoopCluster
from sparks import SparkHouse
from standalone import StandaloneCluster
from trial_models import CONFIGURATIONS
from whole_runs import EPOCHS, PARTITIONS, RUN, Told, check_against_plain_loop, check_complete, rows, run_to_end

from cerebro_spark.backend.local import LocalBackend
from cerebro_spark.backend.spark import SparkBackend
from cerebro_spark.data.cluster import find_replica_hosts
from cerebro_spark.data.dataset import Dataset
from cerebro_spark.data.prepare import prepare
from cerebro_spark.events import Event, UnitFinished, WorkerLost
from cerebro_spark.store import paths
from cerebro_spark.store.base import Store
from cerebro_spark.store.hdfs import HdfsStore
from cerebro_spark.turns import Turn

pytestmark = [pytest.mark.jvm, pytest.mark.hadoop, pytest.mark.slow, pytest.mark.timeout(1200)]
A, B, C = HOSTS = ["127.0.0.2", "127.0.0.3", "127.0.0.4"]
# Two replicas of each partition, so that no host has all and any one can be missed. Whatever the speeds that the run
# measures, each share of at least one partition a host can be had near the blocks, here from three hosts...
RING = [(A, B), (B, C), (C, A), (A, B)]
# ...and here also from A and C alone.
WITHOUT_B = [(A, B), (B, C), (A, B, C), (A, B, C)]


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory, hadoop_cluster: HadoopCluster) -> Iterator[StandaloneCluster]:
    with StandaloneCluster(tmp_path_factory.mktemp("standalone"), HOSTS) as cluster:
        yield cluster


@pytest.fixture
def session(standalone: StandaloneCluster, spark_house: SparkHouse) -> Iterator[Any]:
    yield spark_house.session(standalone.url, **standalone.settings)
    spark_house.close()  # its executors would hold the places of the next


def lay_out(session: Any, cluster: HadoopCluster, dataset: Dataset, layout: Sequence[Sequence[str]]) -> Dataset:
    """Write the partitions again, each to the hosts that the layout says; HDFS itself would choose any two."""
    jvm, gateway = session._jvm, session.sparkContext._gateway
    root = dataset.store.url
    for index, partition in enumerate(dataset.partitions):
        hosts = layout[index % len(layout)]
        favored = gateway.new_array(jvm.java.net.InetSocketAddress, len(hosts))
        for at, host in enumerate(hosts):
            # The name node knows all data nodes by the address they call from, and tells them apart by their ports.
            favored[at] = jvm.java.net.InetSocketAddress("127.0.0.1", cluster.data_ports[host])
        (file,) = partition.files
        path = jvm.org.apache.hadoop.fs.Path(f"{root}/{file}")
        system = path.getFileSystem(session._jsc.hadoopConfiguration())
        builder = system.createFile(path).overwrite(True).replication(len(hosts)).favoredNodes(favored)
        content = dataset.store.read(file)
        stream = builder.build()
        stream.write(bytearray(content))
        stream.close()
        folder = root.removeprefix(cluster.url)
        assert cluster.wait_replicated(f"{folder}/{file}", len(hosts)) == [sorted(hosts)]
    return dataset.with_hosts(find_replica_hosts(session, dataset))


def prepared(store: Store) -> Dataset:
    return prepare(rows(), store=store, features="x", label="y", validation=0.25, partitions=PARTITIONS, seed=3)


def far_units(told: Told, units: Sequence[UnitFinished], hosts: Mapping[str, Sequence[str]]) -> list[str]:
    """The units that ran on a host without their partition's blocks."""
    at = told.hosts
    return [f"{e.unit} on {at[e.worker]}" for e in units if at[e.worker] not in hosts[e.unit.partition]]


def test_every_unit_runs_where_its_blocks_are_and_bytes_are_those_of_the_formula(
    session: Any, hadoop_cluster: HadoopCluster, tmp_path: Path
) -> None:
    ledger = tmp_path / "ledger"
    store = CountingStore(f"{hadoop_cluster.url}/near", hadoop_cluster.settings, str(ledger))
    dataset = lay_out(session, hadoop_cluster, prepared(store), RING)
    told = run_to_end("torch", dataset, store, SparkBackend(session, 3))
    check_complete(told, dataset)
    assert set(told.hosts.values()) == set(HOSTS)
    assert far_units(told, told.units, {p.id: p.hosts for p in dataset.partitions}) == []
    check_bytes(told, dataset, entries(ledger))


def check_bytes(told: Told, dataset: Dataset, ledger: Sequence[Entry]) -> None:
    """Through a shared store: kmp|S| written, kmp|S| read for hops less m|S|, because a trial begins with no
    checkpoint, and kmv|S| read for evaluation on v partitions. A worker reads also what it has just written.
    """
    folder = paths.checkpoint_folder(RUN)
    moved = [entry for entry in ledger if entry.name.startswith(folder) and entry.pid != os.getpid()]
    written = [entry for entry in moved if entry.kind == "write"]
    read = [entry for entry in moved if entry.kind == "read"]
    k, m, p, v = EPOCHS, len(CONFIGURATIONS), len(dataset.train), len(dataset.validation)
    chains: dict[str, list[UnitFinished]] = {}
    for event in told.trained:
        chains.setdefault(event.unit.trial, []).append(event)
    names = {t: [paths.checkpoint(RUN, e.checkpoint) for e in chain if e.checkpoint] for t, chain in chains.items()}
    sizes = {entry.name: entry.bytes for entry in written}
    assert sizes == {paths.checkpoint(RUN, c): c.bytes for e in told.trained if (c := e.checkpoint)}
    hops = [name for chain in names.values() for name in chain[:-1]]
    ends = [name for chain in names.values() for name in chain[p - 1 :: p] for _ in range(v)]
    assert sorted(entry.name for entry in read) == sorted(hops + ends)
    assert all(entry.bytes == sizes[entry.name] for entry in read)

    state = sum(sizes[chain[0]] for chain in names.values()) / m  # |S|, an average over trials of two sizes
    assert sum(sizes.values()) == pytest.approx(k * m * p * state, rel=0.005)
    assert sum(sizes[name] for name in hops) == pytest.approx((k * m * p - m) * state, rel=0.005)
    assert sum(sizes[name] for name in ends) == pytest.approx(k * m * v * state, rel=0.005)
    assert (len(written), len(hops), len(ends)) == (k * m * p, k * m * p - m, k * m * v)


class Outage:
    """Takes a host away in the middle of a run: its Spark worker with the executor, and its data node."""

    def __init__(self, standalone: StandaloneCluster | None, hadoop: HadoopCluster, host: str, after: int) -> None:
        self._standalone, self._hadoop, self._host, self._after = standalone, hadoop, host, after
        self._units = 0

    def __call__(self, turn: Turn) -> None:
        for event in turn.events:
            self._see(event)

    def _see(self, event: Event) -> None:
        self._units += isinstance(event, UnitFinished)
        if self._units == self._after and isinstance(event, UnitFinished):
            self._hadoop.datanodes[HOSTS.index(self._host)].kill()
            if self._standalone is not None:
                self._standalone.workers[self._host].kill()

    def mend(self) -> None:
        self._hadoop.revive(self._hadoop.datanodes[HOSTS.index(self._host)])
        if self._standalone is not None:
            self._standalone.workers[self._host].start()
            self._standalone.wait_alive(len(HOSTS))


def test_when_a_host_is_gone_units_still_run_where_their_blocks_are(
    session: Any, standalone: StandaloneCluster, hadoop_cluster: HadoopCluster, tmp_path: Path
) -> None:
    store = HdfsStore(f"{hadoop_cluster.url}/outage", options=hadoop_cluster.settings)
    dataset = lay_out(session, hadoop_cluster, prepared(store), WITHOUT_B)
    outage = Outage(standalone, hadoop_cluster, B, after=25)
    try:
        told = run_to_end("torch", dataset, store, SparkBackend(session, 3), [outage])
    finally:
        outage.mend()
    check_complete(told, dataset)
    check_against_plain_loop(told, "torch", dataset, tmp_path)
    (lost,) = [at for at, event in enumerate(told.events) if isinstance(event, WorkerLost)]
    after = [event for event in told.events[lost:] if isinstance(event, UnitFinished)]
    assert len(after) > 20
    assert {told.hosts[event.worker] for event in after} == {A, C}
    assert far_units(told, told.units, {p.id: p.hosts for p in dataset.partitions}) == []


def test_a_run_goes_on_when_a_data_node_dies(hadoop_cluster: HadoopCluster, tmp_path: Path) -> None:
    store = HdfsStore(f"{hadoop_cluster.url}/one-less", options=hadoop_cluster.settings)
    dataset = prepared(store)
    for partition in dataset.partitions:
        hadoop_cluster.wait_replicated(f"/one-less/{partition.files[0]}", 2)
    outage = Outage(None, hadoop_cluster, B, after=20)
    try:
        told = run_to_end("torch", dataset, store, LocalBackend(2, threads=1), [outage])
    finally:
        outage.mend()
    check_complete(told, dataset)
    check_against_plain_loop(told, "torch", dataset, tmp_path)
