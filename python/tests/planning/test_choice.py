"""Which option is best for what the user wants, and what is said about it."""

from __future__ import annotations

from pathlib import Path

import pytest

import cerebro_spark as cs
from cerebro_spark.backend.machines import Cluster
from cerebro_spark.planning.choice import ranked
from cerebro_spark.planning.options import list_options
from cerebro_spark.planning.reasons import reasons
from cerebro_spark.planning.spark_conf import spark_conf
from cerebro_spark.planning.values import Demand, Estimate, Option, Setting, Wish, Workload
from cerebro_spark.tune import planned

NONE = Wish()
ROWS = Workload(train=1000, validation=0, bytes=0)
EIGHT = Demand(({"lr": 0.1},) * 8, (1,) * 8)


def estimate(workers: int, seconds: float, threads: int = 1, wish: Wish = NONE) -> Estimate:
    option = Option(workers, threads, 1, workers)
    cost = wish.cost(workers, seconds)
    return Estimate(option, seconds, 0.9 * seconds, 1.1 * seconds, 0.9, 0.8 * seconds, cost, 16)


def best(estimates: list[Estimate], wish: Wish = NONE) -> int:
    return ranked(estimates, wish)[0].option.workers


def test_the_fastest_is_best_but_fewer_workers_where_more_gain_next_to_nothing() -> None:
    assert best([estimate(1, 100), estimate(2, 55), estimate(4, 30)]) == 4
    assert best([estimate(1, 100), estimate(2, 55), estimate(4, 54), estimate(8, 53)]) == 2


def test_a_deadline_takes_as_few_workers_as_meet_it() -> None:
    all_four = [estimate(1, 100), estimate(2, 55), estimate(4, 30), estimate(8, 20)]
    assert best(all_four, Wish(deadline=70)) == 2
    assert best(all_four, Wish(deadline=58)) == 4  # two workers would be late in some cases
    assert best(all_four, Wish(deadline=200)) == 1
    assert best(all_four, Wish(deadline=5)) == 8  # the best possible


def test_a_budget_takes_the_fastest_within_it() -> None:
    wish = Wish(budget=0.06, price=1.0)
    all_three = [estimate(1, 100, wish=wish), estimate(4, 40, wish=wish), estimate(8, 30, wish=wish)]
    assert best(all_three, wish) == 4
    tight = Wish(budget=0.001, price=1.0)
    assert best(all_three, tight) == 8  # nothing is within it


def said(estimates: list[Estimate], wish: Wish = NONE, demand: Demand = EIGHT, rows: Workload = ROWS) -> str:
    return " ".join(reasons(ranked(estimates, wish), demand, rows, wish))


def test_each_choice_is_said_with_its_numbers() -> None:
    text = said([estimate(2, 55), estimate(4, 30), estimate(8, 20), estimate(4, 40, threads=2)])
    assert "8 workers with 1 thread each: about 20 s, most likely between 18 s and 22 s" in text
    assert "4 workers would take 1.5 times as long, 30 s." in text
    assert "The same 8 cores as 4 workers with 2 threads each would take 40 s." in text
    assert "a trial is on one worker at a time: more workers than trials gain nothing" in text


def test_more_workers_that_gain_nothing_are_said() -> None:
    text = said([estimate(2, 55), estimate(4, 54.5), estimate(8, 54)])
    assert "More than 2 workers gain nothing" in text


def test_deadlines_that_can_and_cannot_be_met_are_said() -> None:
    all_three = [estimate(1, 100), estimate(2, 55), estimate(4, 30)]
    assert "You need 2 workers to be done within 1 min 10 s: with 1 worker it may take 1 min 50 s." in said(
        all_three, Wish(deadline=70)
    )
    assert "Nothing here is surely done within 5.0 s: the best possible takes about 30 s." in said(
        all_three, Wish(deadline=5)
    )


def test_costs_and_budgets_are_said() -> None:
    wish = Wish(budget=0.06, price=1.0)
    assert "It costs 0.04 of the 0.06 that it may cost." in said([estimate(4, 40, wish=wish)], wish)
    tight = Wish(budget=0.001, price=1.0)
    assert "No option costs at most 0.001: the cheapest costs 0.04." in said([estimate(4, 40, wish=tight)], tight)


def test_partitions_that_are_there_are_kept() -> None:
    text = said([estimate(4, 30)], rows=Workload(1000, 0, 0, partitions=4))
    assert "The data set has 4 training partitions already" in text


def test_spark_gets_an_executor_a_host_with_room_for_its_workers() -> None:
    conf = spark_conf(Option(workers=6, threads=2, hosts=3, partitions=6, memory=2 << 30))
    assert conf == {
        "spark.executor.instances": "3",
        "spark.executor.cores": "4",
        "spark.executor.memory": "1024m",
        "spark.task.cpus": "2",
        "spark.executor.memoryOverhead": "4096m",
    }
    assert str(conf).startswith("--num-executors 3 --executor-cores 4 --executor-memory 1024m --conf spark.task.cpus=2")
    assert "spark.executor.memory" not in spark_conf(Option(1, 1, 1, 1))


def test_options_of_which_only_a_bound_is_known_come_last() -> None:
    bounded = Estimate(Option(8, 1, 1, 8), 10.0, 10.0, float("inf"), 1.0, 10.0)
    assert best([estimate(4, 30), bounded, estimate(2, 55)]) == 4
    assert best([bounded]) == 8


def test_a_gpu_has_one_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for number in range(2):
        (tmp_path / f"0000:0{number}:00.0").mkdir()
    monkeypatch.setattr(planned, "_GPUS", tmp_path)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    assert planned.count_gpus(cs.LocalBackend()) == 2
    assert planned.count_gpus(cs.LocalBackend(devices=["cuda:0"])) == 1
    host = Cluster(1, 16)
    both = planned._settings(cs.LocalBackend(), host, host, cs.Resources(), workers=8)
    assert both == [Setting(8, 2), Setting(8, 1)]
    assert planned._settings(cs.LocalBackend(), host, host, cs.Resources(device="cpu"), 8)[0] == Setting(1, 8)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "")
    assert planned.count_gpus(cs.LocalBackend()) == 0


def test_replicas_are_as_many_as_the_search_asks_for() -> None:
    options = list_options(Cluster(1, 4), [1], Workload(1000, 0, 0), trials=8, replicas=2)
    assert [(option.workers, option.replicas) for option in options] == [(4, 2), (2, 2), (1, 1)]
