"""prepare, load and the replica map on real HDFS: three data nodes, of which one is killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numbered_rows import numbered, numbers

from cerebro_spark.data.cluster import find_replica_hosts
from cerebro_spark.data.foreign import open_dataset
from cerebro_spark.data.loading.cache import Cache
from cerebro_spark.data.prepare import prepare
from cerebro_spark.store.hdfs import HdfsStore

pytestmark = [pytest.mark.jvm, pytest.mark.hadoop, pytest.mark.slow]

BLOCK = 1 << 16
ADDRESSES = {"127.0.0.2", "127.0.0.3", "127.0.0.4"}


def hdfs_store(cluster: Any, folder: str) -> HdfsStore:
    return HdfsStore(f"{cluster.url}/{folder}", options=cluster.settings)


def test_the_name_node_says_which_hosts_hold_a_partition_also_after_one_died(
    spark: Any, hadoop_cluster: Any, tmp_path: Path
) -> None:
    store = hdfs_store(hadoop_cluster, "replicas")
    df = spark.range(0, 3000, 1, 3).selectExpr("cast(id as float) x", "id y")
    dataset = prepare(df, store=store, features=["x"], label="y", validation=0.2, partitions=6, seed=1)
    assert numbers(dataset, "train", "validation") == list(range(3000))
    assert not [name for name in store.list() if "staging" in name]
    expected = {
        partition.id: hadoop_cluster.wait_replicated(f"/replicas/{partition.files[0]}", 2)[0]
        for partition in dataset.partitions
    }
    hosts = find_replica_hosts(spark, dataset)
    assert {partition: sorted(held) for partition, held in hosts.items()} == expected
    assert {host for held in hosts.values() for host in held} <= ADDRESSES, "which of them, the name node draws"
    for partition in dataset.partitions:  # as known when it was written: a second replica may not have been
        assert partition.hosts
        assert set(partition.hosts) <= set(expected[partition.id])

    hadoop_cluster.datanodes[0].kill()
    try:
        hadoop_cluster.wait_live(2)
        lost = "127.0.0.2"

        def forgotten() -> bool:
            return not any(lost in hosts for hosts in find_replica_hosts(spark, dataset).values())

        hadoop_cluster.wait_for(forgotten, f"no longer name {lost}")
        hosts = find_replica_hosts(spark, dataset)
        assert set(hosts) == {partition.id for partition in dataset.partitions}
        assert all(hosts.values())
        moved = dataset.with_hosts(hosts)
        with Cache(tmp_path / "cache", memory_folder=tmp_path / "memory") as cache:
            rows = [int(v) for partition in moved.partitions for v in cache.load(moved, partition)["label"]]
        assert sorted(rows) == list(range(3000))
    finally:
        hadoop_cluster.revive(hadoop_cluster.datanodes[0])


def test_a_file_of_many_blocks_lists_the_host_of_most_bytes_first(
    spark: Any, hadoop_cluster: Any, tmp_path: Path
) -> None:
    """Files of five blocks with one replica each: three hosts cannot all hold as much as each other."""
    rows = np.random.default_rng(0).random((20_000, 2))
    table = pa.table({"x": rows[:, 0], "y": rows[:, 1]})
    pq.write_table(table, tmp_path / "a.parquet", compression="none", use_dictionary=False)
    size = (tmp_path / "a.parquet").stat().st_size
    # Hadoop's own client: our store writes a blob of this size as one block.
    hadoop = spark._jvm.org.apache.hadoop
    settings = hadoop.conf.Configuration(spark._jsc.hadoopConfiguration())
    settings.set("dfs.blocksize", str(BLOCK))
    settings.set("dfs.replication", "1")
    system = hadoop.fs.FileSystem.newInstance(spark._jvm.java.net.URI(hadoop_cluster.url), settings)
    for number in range(4):
        system.copyFromLocalFile(
            hadoop.fs.Path(f"file://{tmp_path}/a.parquet"), hadoop.fs.Path(f"/blocks/part-{number}.parquet")
        )
    system.close()
    dataset = open_dataset(hdfs_store(hadoop_cluster, "blocks"), features=["x"], label="y")
    hosts = find_replica_hosts(spark, dataset)
    assert len(hosts) == 4
    for partition in dataset.train:
        blocks = hadoop_cluster.block_hosts(f"/blocks/{partition.files[0]}")
        assert len(blocks) == -(-size // BLOCK) == 5
        held = dict.fromkeys(ADDRESSES, 0)
        for at, (host,) in enumerate(blocks):
            held[host] += min(BLOCK, size - at * BLOCK)
        expected = sorted((host for host in held if held[host]), key=lambda host: (-held[host], host))
        assert list(hosts[partition.id]) == expected


def test_a_store_that_is_not_on_hdfs_has_no_replica_map(spark: Any, tmp_path: Path) -> None:
    dataset = prepare(numbered(10), store=str(tmp_path / "s"), features="x", label="y", partitions=1)
    assert find_replica_hosts(spark, dataset) == {}


def test_parquet_that_spark_wrote_to_hdfs_opens(spark: Any, hadoop_cluster: Any, tmp_path: Path) -> None:
    df = spark.range(0, 100, 1, 2).selectExpr("cast(id as float) x", "array(id, id) v", "id y")
    df.write.parquet(f"{hadoop_cluster.url}/plain")
    dataset = open_dataset(hdfs_store(hadoop_cluster, "plain"), features=["x", "v"], label="y")
    with Cache(tmp_path / "cache", memory_folder=tmp_path / "memory") as cache:
        arrays = [cache.load(dataset, partition) for partition in dataset.train]
    assert sorted(int(v) for part in arrays for v in part["label"]) == list(range(100))
    assert all((part["features"] == part["label"][:, None]).all() for part in arrays)
