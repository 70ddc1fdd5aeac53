"""Placement: complete, even, close to the blocks, and calm."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cerebro_spark.placement import WorkerProfile, place, share_out
from cerebro_spark.types import Partition


def partitions(count: int, hosts: list[tuple[str, ...]] | None = None) -> list[Partition]:
    return [Partition(f"p{i}", hosts=hosts[i] if hosts else ()) for i in range(count)]


def loads(placed: dict[str, tuple[str, ...]], profiles: list[WorkerProfile]) -> dict[str, int]:
    counted = Counter(worker for holders in placed.values() for worker in holders)
    return {profile.worker: counted[profile.worker] for profile in profiles}


@given(st.integers(1, 20), st.lists(st.sampled_from([0.5, 1.0, 2.0]), min_size=1, max_size=8), st.integers(1, 4))
def test_every_partition_has_its_copies_on_different_workers(count: int, speeds: list[float], replicas: int) -> None:
    profiles = [WorkerProfile(f"w{i}", speed=speed) for i, speed in enumerate(speeds)]
    placed = place(partitions(count), profiles, replicas)
    for holders in placed.values():
        assert len(set(holders)) == len(holders) == min(replicas, len(profiles))
    if count * min(replicas, len(profiles)) >= len(profiles):
        assert min(loads(placed, profiles).values()) >= 1, "nobody is left without work"


@given(st.integers(1, 40), st.integers(1, 8), st.integers(1, 3))
def test_equal_workers_hold_equally_many(count: int, workers: int, replicas: int) -> None:
    profiles = [WorkerProfile(f"w{i}") for i in range(workers)]
    counted = loads(place(partitions(count), profiles, replicas), profiles).values()
    assert max(counted) - min(counted) <= 1


def test_faster_workers_hold_more() -> None:
    profiles = [WorkerProfile("slow", speed=1.0), WorkerProfile("fast", speed=3.0)]
    assert loads(place(partitions(8), profiles), profiles) == {"slow": 2, "fast": 6}


@pytest.mark.parametrize(
    ("total", "speeds", "expected"),
    [
        (4, [1, 1, 1, 1], [1, 1, 1, 1]),
        (4, [10, 1, 1, 1], [1, 1, 1, 1]),
        (6, [2, 1], [4, 2]),
        (1, [1, 5], [0, 1]),
        (0, [1], [0]),
    ],
)
def test_shares(total: int, speeds: list[float], expected: list[int]) -> None:
    assert share_out(total, speeds) == expected


@given(st.data())
def test_what_is_held_stays_where_it_is_when_nobody_came_or_went(data: st.DataObject) -> None:
    count, workers, replicas = data.draw(st.integers(1, 12)), data.draw(st.integers(1, 5)), data.draw(st.integers(1, 3))
    profiles = [WorkerProfile(f"w{i}") for i in range(workers)]
    placed = place(partitions(count), profiles, replicas)
    again = place(partitions(count), profiles, replicas, placed)
    assert {p: set(h) for p, h in again.items()} == {p: set(h) for p, h in placed.items()}


@given(st.integers(2, 8), st.integers(1, 3), st.integers(0, 7))
def test_only_what_a_lost_worker_held_moves(workers: int, each: int, lost: int) -> None:
    profiles = [WorkerProfile(f"w{i}") for i in range(workers)]
    before = place(partitions(workers * each), profiles)
    gone = f"w{lost % workers}"
    left = [profile for profile in profiles if profile.worker != gone]
    after = place(partitions(workers * each), left, 1, before)
    moved = [p for p in before if after[p] != before[p]]
    assert moved == [p for p, holders in before.items() if holders == (gone,)]


def test_a_newcomer_takes_its_share_and_no_more() -> None:
    profiles = [WorkerProfile("w0"), WorkerProfile("w1")]
    before = place(partitions(6), profiles)
    after = place(partitions(6), [*profiles, WorkerProfile("w2")], 1, before)
    assert loads(after, [*profiles, WorkerProfile("w2")]) == {"w0": 2, "w1": 2, "w2": 2}
    assert sum(after[p] != before[p] for p in before) == 2


def test_blocks_decide_as_far_as_shares_allow() -> None:
    hosts = [("b",), ("a", "b"), ("c",)]
    profiles = [WorkerProfile("w0", "a"), WorkerProfile("w1", "b"), WorkerProfile("w2", "c")]
    placed = place(partitions(3, hosts), profiles)
    assert placed == {"p0": ("w1",), "p1": ("w0",), "p2": ("w2",)}, "a greedy choice would give p1 to w1 and p0 away"


@given(st.data())
def test_a_local_placement_is_found_whenever_there_is_one(data: st.DataObject) -> None:
    workers = data.draw(st.integers(1, 6))
    order = data.draw(st.permutations(range(workers)))
    extra = [data.draw(st.sets(st.integers(0, workers - 1), max_size=2)) for _ in range(workers)]
    hosts = [tuple(f"h{h}" for h in sorted({order[i], *extra[i]})) for i in range(workers)]
    placed = place(partitions(workers, hosts), [WorkerProfile(f"w{i}", f"h{i}") for i in range(workers)])
    assert all(f"h{placed[f'p{i}'][0][1:]}" in hosts[i] for i in range(workers))


def test_nobody_there() -> None:
    assert place(partitions(2), []) == {"p0": (), "p1": ()}
