"""Placement near the blocks: as near as even shares allow, at the start, when a worker is lost, when one comes."""

from __future__ import annotations

import itertools
from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from cerebro_spark.placement import WorkerProfile, place
from cerebro_spark.types import Partition

HOSTS = st.sets(st.sampled_from(["a", "b", "c"]), min_size=1, max_size=2)
LAYOUTS = st.lists(HOSTS, min_size=1, max_size=6)


def partitions(layout: list[set[str]]) -> list[Partition]:
    return [Partition(f"p{i}", hosts=tuple(sorted(hosts))) for i, hosts in enumerate(layout)]


def near(layout: list[set[str]], chosen: tuple[str, ...]) -> int:
    return sum(host in hosts for host, hosts in zip(chosen, layout, strict=True))


def most_near(layout: list[set[str]], hosts: str) -> int:
    """The best of all ways to share the partitions evenly, tried one by one."""

    def even(chosen: tuple[str, ...]) -> bool:
        counts = Counter(chosen)
        return max(counts[h] for h in hosts) - min(counts[h] for h in hosts) <= 1

    return max(near(layout, chosen) for chosen in itertools.product(hosts, repeat=len(layout)) if even(chosen))


def chosen_hosts(placed: dict[str, tuple[str, ...]], profiles: list[WorkerProfile]) -> tuple[str, ...]:
    host = {profile.worker: profile.host for profile in profiles}
    return tuple(host[holders[0]] for holders in placed.values())


@given(LAYOUTS, st.permutations(["a", "b", "c"]))
def test_no_even_placement_is_nearer(layout: list[set[str]], order: list[str]) -> None:
    profiles = [WorkerProfile(f"w{i}", host) for i, host in enumerate(order)]
    placed = place(partitions(layout), profiles)
    chosen = chosen_hosts(placed, profiles)
    counts = Counter(chosen)
    assert max(counts[host] for host in order) - min(counts[host] for host in order) <= 1
    assert near(layout, chosen) == most_near(layout, "abc")


@given(LAYOUTS, st.permutations(["a", "b", "c"]), st.sampled_from(["a", "b", "c"]))
def test_when_a_host_is_gone_all_is_near_again_wherever_it_can_be(
    layout: list[set[str]], order: list[str], gone: str
) -> None:
    profiles = [WorkerProfile(f"w{i}", host) for i, host in enumerate(order)]
    left = [profile for profile in profiles if profile.host != gone]
    before = place(partitions(layout), profiles)
    after = place(partitions(layout), left, 1, before)
    if near(layout, chosen_hosts(before, profiles)) == len(layout):
        assert near(layout, chosen_hosts(after, left)) == most_near(layout, "".join(profile.host for profile in left))
    assert place(partitions(layout), left, 1, after) == after


def test_what_is_held_makes_room_for_what_can_be_near_nowhere_else() -> None:
    layout = [{"b"}, {"b", "c"}, {"c"}, {"b"}]
    profiles = [WorkerProfile("w1", "b"), WorkerProfile("w2", "c")]
    after = place(partitions(layout), profiles, 1, {"p0": ("w0",), "p1": ("w1",), "p2": ("w2",), "p3": ("w0",)})
    assert after == {"p0": ("w1",), "p1": ("w2",), "p2": ("w2",), "p3": ("w1",)}


def test_a_newcomer_takes_what_is_near_it_from_whom_it_is_far() -> None:
    layout = [{"b"}, {"a", "b"}, {"c"}, {"a"}]
    profiles = [WorkerProfile("w1", "b"), WorkerProfile("w2", "c"), WorkerProfile("w0.1", "a")]
    before = {"p0": ("w1",), "p1": ("w1",), "p2": ("w2",), "p3": ("w2",)}
    after = place(partitions(layout), profiles, 1, before)
    assert after == before | {"p3": ("w0.1",)}


def test_a_newcomer_on_a_host_without_blocks_takes_its_share_all_the_same() -> None:
    layout = [{"b"}, {"b", "c"}, {"c"}]
    profiles = [WorkerProfile("w1", "b"), WorkerProfile("w2", "c"), WorkerProfile("w0.1", "d")]
    after = place(partitions(layout), profiles, 1, {"p0": ("w1",), "p1": ("w1",), "p2": ("w2",)})
    assert sorted(holders[0] for holders in after.values()) == ["w0.1", "w1", "w2"]
    assert after["p2"] == ("w2",)


SPEEDS = st.permutations([1.0, 1.1, 2.0])


@given(st.lists(st.sampled_from([{"a", "b"}, {"b", "c"}, {"a", "c"}]), min_size=4, max_size=6), SPEEDS, SPEEDS)
def test_a_change_of_speeds_leaves_all_near_wherever_it_can_be(
    layout: list[set[str]], before: list[float], after: list[float]
) -> None:
    slow, fast = (
        [WorkerProfile(f"w{h}", h, s) for h, s in zip("abc", speeds, strict=True)] for speeds in (before, after)
    )
    first = place(partitions(layout), slow)
    moved = place(partitions(layout), fast, 1, first)
    fresh = place(partitions(layout), fast)
    if near(layout, chosen_hosts(first, slow)) == near(layout, chosen_hosts(fresh, fast)) == len(layout):
        assert near(layout, chosen_hosts(moved, fast)) == len(layout)
    assert Counter(chosen_hosts(moved, fast)) == Counter(chosen_hosts(fresh, fast))


def test_a_fast_worker_gets_more_by_way_of_one_that_is_near_both() -> None:
    layout = [{"a", "b"}, {"b", "c"}, {"a", "c"}, {"a", "b"}]
    profiles = [WorkerProfile("w0", "a"), WorkerProfile("w1", "b"), WorkerProfile("w2", "c", 2.0)]
    after = place(partitions(layout), profiles, 1, {"p0": ("w0",), "p1": ("w1",), "p2": ("w2",), "p3": ("w0",)})
    assert after == {"p0": ("w1",), "p1": ("w2",), "p2": ("w2",), "p3": ("w0",)}
