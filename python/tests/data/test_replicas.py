"""prepare, load and the replica map on real HDFS: three data nodes, of which one is killed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from numbered_rows import numbered, numbers

from cerebro_spark.data.cache import Cache
from cerebro_spark.data.foreign import open_dataset
from cerebro_spark.data.prepare import prepare, replica_hosts
from cerebro_spark.store.hdfs import HdfsStore

pytestmark = [pytest.mark.jvm, pytest.mark.hadoop, pytest.mark.slow]

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
    for partition in dataset.partitions:
        assert len(partition.hosts) == 2
        (expected,) = hadoop_cluster.block_hosts(f"/replicas/{partition.files[0]}")
        assert sorted(partition.hosts) == expected
    assert {host for partition in dataset.partitions for host in partition.hosts} == ADDRESSES

    hadoop_cluster.datanodes[0].kill()
    try:
        hadoop_cluster.wait_live(2)
        lost = "127.0.0.2"

        def forgotten() -> bool:
            return not any(lost in hosts for hosts in replica_hosts(spark, dataset).values())

        hadoop_cluster.wait_for(forgotten, f"no longer name {lost}")
        hosts = replica_hosts(spark, dataset)
        assert set(hosts) == {partition.id for partition in dataset.partitions}
        assert all(hosts.values())
        moved = dataset.with_hosts(hosts)
        with Cache(tmp_path / "cache", memory_folder=tmp_path / "memory") as cache:
            rows = [int(v) for partition in moved.partitions for v in cache.load(moved, partition)["label"]]
        assert sorted(rows) == list(range(3000))
    finally:
        hadoop_cluster.datanodes[0].start()
        hadoop_cluster.wait_live(3)


def test_a_file_of_many_blocks_lists_the_host_of_most_bytes_first(spark: Any, hadoop_cluster: Any) -> None:
    settings = {**hadoop_cluster.settings, "dfs.blocksize": "65536"}
    store = HdfsStore(f"{hadoop_cluster.url}/blocks", options=settings)
    dataset = prepare(numbered(40_000, 16), store=store, features="x", label="y", partitions=1)
    path = f"/blocks/{dataset.train[0].files[0]}"
    blocks = hadoop_cluster.block_hosts(path)
    hosts = replica_hosts(spark, dataset)["train-00000"]
    assert set(hosts) == {host for block in blocks for host in block}
    if len(blocks) > 1:
        held = [sum(host in block for block in blocks) for host in hosts]
        assert held[0] >= held[-1] - 1


def test_a_store_that_is_not_on_hdfs_has_no_replica_map(spark: Any, tmp_path: Path) -> None:
    dataset = prepare(numbered(10), store=str(tmp_path / "s"), features="x", label="y", partitions=1)
    assert replica_hosts(spark, dataset) == {}


def test_parquet_that_spark_wrote_to_hdfs_opens(spark: Any, hadoop_cluster: Any, tmp_path: Path) -> None:
    df = spark.range(0, 100, 1, 2).selectExpr("cast(id as float) x", "array(id, id) v", "id y")
    df.write.parquet(f"{hadoop_cluster.url}/plain")
    dataset = open_dataset(hdfs_store(hadoop_cluster, "plain"), features=["x", "v"], label="y")
    with Cache(tmp_path / "cache", memory_folder=tmp_path / "memory") as cache:
        arrays = [cache.load(dataset, partition) for partition in dataset.train]
    assert sorted(int(v) for part in arrays for v in part["label"]) == list(range(100))
    assert all((part["features"] == part["label"][:, None]).all() for part in arrays)
