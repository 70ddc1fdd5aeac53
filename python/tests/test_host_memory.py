"""How much memory a process may have, by what the kernel says of its control groups."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cerebro_spark.host_memory import count_memory

MACHINE = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
MIB = 1 << 20


def group(folder: Path, limit: str, file: str = "memory.max") -> None:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / file).write_text(limit + "\n")


def own(folder: Path, *lines: str) -> Path:
    said = folder / "own"
    said.write_text("".join(f"{line}\n" for line in lines))
    return said


def test_without_groups_it_is_that_of_the_machine(tmp_path: Path) -> None:
    assert count_memory(tmp_path, tmp_path / "nothing") == MACHINE
    assert count_memory(tmp_path, own(tmp_path, "0::/", "4:memory:/a", "7:cpu,cpuacct:/a")) == MACHINE


def test_the_least_limit_above_a_process_holds(tmp_path: Path) -> None:
    group(tmp_path / "pods", str(900 * MIB))
    group(tmp_path / "pods/one", "max")
    group(tmp_path / "pods/one/inner", str(1000 * MIB))
    assert count_memory(tmp_path, own(tmp_path, "0::/pods/one/inner")) == 900 * MIB
    group(tmp_path / "pods/one", str(300 * MIB))
    assert count_memory(tmp_path, own(tmp_path, "0::/pods/one/inner")) == 300 * MIB


@pytest.mark.parametrize("path", ["/yarn/container_1", "/somewhere/outside"])
def test_groups_of_the_first_version_count_too(tmp_path: Path, path: str) -> None:
    """In a container its own group may be mounted where the root was, under a path that is not there."""
    group(tmp_path / "memory", str(1 << 62), "memory.limit_in_bytes")
    group(tmp_path / "memory/yarn/container_1", str(200 * MIB), "memory.limit_in_bytes")
    found = count_memory(tmp_path, own(tmp_path, "5:devices:/x", f"4:memory:{path}"))
    assert found == (200 * MIB if path.startswith("/yarn") else MACHINE)
    group(tmp_path / "memory", str(100 * MIB), "memory.limit_in_bytes")
    assert count_memory(tmp_path, own(tmp_path, f"4:memory:{path}")) == 100 * MIB
