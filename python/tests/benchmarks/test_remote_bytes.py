"""The byte counts against the formulas, and against what a reader can count on one hand."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import remote_bytes
from benchmarks.remote_bytes import Remote, Setting, formulas, hopping, partitions_of, staying

pytestmark = pytest.mark.slow

SMALL = Setting(workers=4, trials=8, epochs=3, data_bytes=4_000, model_bytes=10)
STORES = [None, 1, 2, 3, 4]


@pytest.mark.parametrize("replication", STORES)
@pytest.mark.parametrize("seed", range(3))
def test_hopping_moves_what_the_formula_says(replication: int | None, seed: int) -> None:
    setting = replace(SMALL, replication=replication)
    counted, expected = hopping(setting, seed), formulas(setting)
    assert counted.data == expected["hopping, data"]
    assert counted.written == expected["hopping, written"]
    if replication is None:
        assert counted.read == expected["hopping, read"]
    else:
        assert counted.read <= expected["hopping, read at most"]


@pytest.mark.parametrize("replication", STORES)
def test_staying_reads_what_the_formula_says(replication: int | None) -> None:
    setting = replace(SMALL, replication=replication)
    expected = formulas(setting)
    assert staying(setting).data == expected["staying, data"]
    assert staying(setting, keeps=True).data == expected["staying and keeping, data"]


def test_evaluation_reads_a_checkpoint_for_every_validation_partition() -> None:
    plain, evaluated = hopping(SMALL), hopping(replace(SMALL, validation=2))
    assert evaluated.written == plain.written
    assert evaluated.read - plain.read == 3 * 8 * 2 * 10  # epochs x trials x partitions x bytes


def test_with_one_copy_only_hops_are_read_from_elsewhere() -> None:
    counted = hopping(replace(SMALL, replication=1))
    assert counted.read == counted.hops * 10
    assert 0 < counted.hops < 3 * 8 * 4


def test_each_further_copy_saves_reads_and_costs_writes() -> None:
    found = [hopping(replace(SMALL, replication=copies)) for copies in (1, 2, 3, 4)]
    reads, writes = [each.read for each in found], [each.written for each in found]
    assert reads == sorted(reads, reverse=True)
    assert reads[-1] == 0  # a copy on every host
    assert writes == [0, 960, 1920, 2880]


def test_copies_of_a_partition_are_on_hosts_of_their_own() -> None:
    for partition in partitions_of(replace(SMALL, replication=3), seed=1):
        assert len(set(partition.hosts)) == 3
    assert all(partition.hosts == () for partition in partitions_of(SMALL, seed=1))


def test_the_same_seed_gives_the_same_count() -> None:
    setting = replace(SMALL, replication=2)
    assert hopping(setting, 5) == hopping(setting, 5)


def test_all_is_the_sum_of_its_parts() -> None:
    assert Remote(data=1, written=2, read=4, hops=8).total == 7


def test_the_command_prints_tables_and_writes_numbers_and_a_picture(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    numbers = tmp_path / "found.json"
    monkeypatch.setattr("sys.argv", ["remote_bytes", "--json", str(numbers), "--picture", str(tmp_path / "images")])
    assert remote_bytes.main() == 0
    printed = capsys.readouterr().out
    assert "## Figure 10" in printed
    assert "## Figure 11" in printed
    found = json.loads(numbers.read_text())
    assert [row["setting"]["replication"] for row in found["figure_11"]] == [1, 2, 3, 8]
    # What the paper reports, and where it ends: with all data on every host task parallelism reads nothing.
    assert all(row["times_less"] > 8 for row in found["figure_10"])
    assert [row["times_less"] > 1 for row in found["figure_11"]] == [True, True, True, False]
    assert (tmp_path / "images" / "remote-bytes.svg").exists()


def test_a_count_off_the_formula_fails_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["remote_bytes"])
    monkeypatch.setattr(remote_bytes, "check", lambda: [("S3", "hopping, data", 4_000, 3_999)])
    assert remote_bytes.main() == 1
