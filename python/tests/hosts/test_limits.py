"""What hosts of a test have of their own: disks that are full, memory that is used up, clocks that jump."""

from __future__ import annotations

import errno
import os
import secrets
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cerebro_spark.data.prepare import prepare
from hosts.limits import Clock, Disk, Memory, make_clocks, why_no_memory_limits

NO_ROOT = "" if os.geteuid() == 0 else "disks and limits of memory need root"
NO_LIMITS = NO_ROOT or why_no_memory_limits()
pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]
needs_root = pytest.mark.skipif(bool(NO_ROOT), reason=NO_ROOT or "possible here")
needs_limits = pytest.mark.skipif(bool(NO_LIMITS), reason=NO_LIMITS or "possible here")
MIB = 1 << 20
HOLD = "import sys; held = bytearray(int(sys.argv[1])); print('held', flush=True); sys.stdin.read()"
# A worker's part, in one process: it loads a partition, and trains an epoch on it.
TRAIN = """
import resource, sys
from pathlib import Path
from cerebro_spark.data.dataset import Dataset
from cerebro_spark.data.loading.cache import Cache
from cerebro_spark.host_memory import count_memory
from cerebro_spark.store import open_store
from cerebro_spark.trainer import Columns, ColumnSpec, Feed, Hooks, Resources
from cerebro_spark.trainer.torch.trainer import TorchTrainer
from cerebro_spark.types import Unit
from small_search import torch_model_fn
import torch

store, folder, memory = sys.argv[1:]
dataset = Dataset.open(open_store(store))
(partition,) = dataset.train
width = dataset.columns[0].shape[0]

def model_fn(params):
    from cerebro_spark.trainer import TorchModel
    net = torch.nn.Sequential(torch.nn.Linear(width, 1), torch.nn.Flatten(0))
    return TorchModel(net, torch.optim.SGD(net.parameters(), lr=1e-4), torch.nn.MSELoss())

columns = Columns({"features": ColumnSpec("float32", (width,))}, {"label": ColumnSpec("float32")})
trainer = TorchTrainer(Hooks(model_fn), columns, resources=Resources(threads=1, device="cpu"))
with Cache(Path(folder) / "disk", memory_folder=Path(memory)) as cache:
    arrays = cache.load(dataset, partition)
    trainer.build("t0", {"batch_size": 256})
    trainer.train(Unit("t0", 1, partition.id), Feed(arrays, batch_size=256))
print(count_memory(), sum(array.nbytes for array in arrays.values()), flush=True)
"""


def run_in(memory: Memory, command: list[str], **options: Any) -> subprocess.Popen[str]:
    """Start a command as a part of a group."""
    started: list[subprocess.Popen[str]] = []

    def start() -> None:
        memory.join()
        pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
        started.append(subprocess.Popen(command, text=True, **pipes, **options))

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    return started[0]


@needs_root
def test_a_disk_is_full_until_it_is_freed(tmp_path: Path) -> None:
    with Disk(tmp_path / "disk", megabytes=4) as disk:
        disk.fill()
        with pytest.raises(OSError, match=os.strerror(errno.ENOSPC)):
            (disk.folder / "more").write_bytes(b"x")
        disk.free()
        (disk.folder / "more").write_bytes(b"x" * MIB)
    assert not (disk.folder / "more").exists()


@needs_limits
def test_the_kernel_kills_a_victim_when_memory_is_used_up() -> None:
    with Memory(f"cs-{secrets.token_hex(4)}", megabytes=200) as memory:
        command = [sys.executable, "-c", HOLD, str(20 * MIB)]
        with run_in(memory, command) as victim, run_in(memory, command) as other:
            for process in (victim, other):
                assert process.stdout is not None
                assert process.stdout.readline() == "held\n"
            assert memory.exhaust([victim.pid]) == 1
            assert victim.wait(30) == -9
            assert other.poll() is None
            other.kill()


def test_a_clock_jumps_and_waits_do_not_change(tmp_path: Path) -> None:
    library = make_clocks(tmp_path)
    if library is None:
        pytest.skip("there is no compiler for a library of clocks")
    clock = Clock(tmp_path / "clock", library)
    code = (
        "import sys, time\n"
        "for _ in sys.stdin:\n"
        "    began = time.monotonic(); time.sleep(0.05)\n"
        "    print(time.time(), time.monotonic() - began, flush=True)"
    )
    environment = {**os.environ, **clock.loading}
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        seen = []
        for ahead in (0, 3600, -3600, 0):
            clock.jump(ahead)
            process.stdin.write("look\n")
            process.stdin.flush()
            shown, waited = map(float, process.stdout.readline().split())
            seen.append(shown)
            assert 0.05 <= waited < 5
    hours = np.diff(seen) / 3600
    np.testing.assert_allclose(hours, [1, -2, 1], atol=0.01)


@pytest.mark.rare
@needs_limits
def test_a_partition_may_be_larger_than_the_memory_of_its_worker(tmp_path: Path) -> None:
    x = np.random.default_rng(0).normal(size=(150_000, 1024)).astype("float32")
    prepare({"x": x, "y": x[:, 0]}, store=str(tmp_path / "store"), features="x", label="y", partitions=1)
    tests = Path(__file__).resolve().parents[1]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(tests), str(tests.parents[1])])}
    with Memory(f"cs-{secrets.token_hex(4)}", megabytes=560) as memory:
        shared = f"/dev/shm/cs-{secrets.token_hex(4)}"
        command = [sys.executable, "-c", TRAIN, str(tmp_path / "store"), str(tmp_path / "cache"), shared]
        with run_in(memory, command, env=environment) as process:
            said, errors = process.communicate(timeout=240)
        assert process.returncode == 0, errors
        assert memory.deaths == 0
    limit, size = map(int, said.split())
    assert limit == 560 * MIB < size


def test_nobody_waits_for_a_group_that_cannot_be(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr("hosts.limits._MEMORY_GROUPS", tmp_path / "none")
    looked: Callable[[], str] = why_no_memory_limits
    assert "the kernel has no groups of processes with a limit" in looked()
