"""Workers that are already there: inside a `with` block the second run starts below processes that the first left.

Whatever the first run's functions did, the second finds what it would find in new processes.
"""

from __future__ import annotations

import os
import pickle
import signal
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from no_training import leave_processes
from observing import each_event
from plain_loop import check_run, logged
from small_driver import CONFIGURATIONS, SEED, small_recipe
from small_search import FEATURES, keras_model_fn, small_dataset, torch_model_fn

from cerebro_spark import runs
from cerebro_spark.backend.driver.parent_launcher import ParentLauncher
from cerebro_spark.backend.driver.parents import Parent
from cerebro_spark.backend.driver.worker_kinds import _is_a_librarys
from cerebro_spark.backend.local import LocalBackend
from cerebro_spark.data.dataset import Dataset
from cerebro_spark.errors import PreflightFailed
from cerebro_spark.events import Event, UnitFinished, WorkerLost
from cerebro_spark.trainer.base import Hooks
from cerebro_spark.trainer.resources import Resources
from cerebro_spark.trainer.spec import TrainerSpec

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]
SECONDS = 200.0


def parents_of(backend: LocalBackend) -> list[Parent]:
    launcher = backend._parents
    assert isinstance(launcher, ParentLauncher)
    return list(launcher._parents)


def pids_of(backend: LocalBackend) -> set[int | None]:
    return {parent.handle.pid for parent in parents_of(backend)}


def execute(
    dataset: Dataset, backend: LocalBackend, run: str, model_fn: Callable[..., Any] = torch_model_fn, **options: Any
) -> None:
    recipe = small_recipe(dataset, 1)
    trainer = TrainerSpec(Hooks(model_fn), seed=SEED, framework=options.pop("framework", "torch"))
    runs.execute(replace(recipe, trainer=trainer), dataset.store, backend, run, **options)


def test_the_second_run_comes_from_the_same_parents_to_the_bits_of_a_plain_loop(tmp_path: Path) -> None:
    dataset = small_dataset(tmp_path, partitions=3)
    with LocalBackend(num_workers=2, threads=1) as backend:
        execute(dataset, backend, "r1")
        before = pids_of(backend)
        assert len(before) == 2
        for run in ("r2", "r3"):
            execute(dataset, backend, run)
            assert pids_of(backend) == before
            assert not any(isinstance(event, WorkerLost) for event in logged(dataset.store, run))
            check_run(dataset, run, len(CONFIGURATIONS), 1, SEED)
        left = [parent.handle for parent in parents_of(backend)]
    assert all(handle.ended.is_set() for handle in left)
    assert backend._parents is None


def test_without_the_block_nothing_stays(tmp_path: Path) -> None:
    dataset = small_dataset(tmp_path)
    backend = LocalBackend(num_workers=1, threads=1)
    execute(dataset, backend, "r1")
    assert backend._parents is None
    with backend:
        execute(dataset, backend, "r2")
        assert len(parents_of(backend)) == 1
    execute(dataset, backend, "r3")
    assert backend._parents is None
    with LocalBackend(num_workers=1, threads=1, idle_timeout=0) as never:
        execute(dataset, never, "r4")
        assert never._parents is None


def test_without_the_block_a_lost_worker_is_replaced_from_the_parent_it_had(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cerebro_spark.backend.driver.pool._SECONDS_FOR_LAST_WORDS", 60.0)
    dataset = small_dataset(tmp_path)
    backend = LocalBackend(num_workers=1, threads=1)
    parents: dict[str, int | None] = {}

    @each_event
    def strike(event: Event) -> None:
        if isinstance(event, UnitFinished) and event.worker not in parents:
            (parent,) = parents_of(backend)
            parents[event.worker] = parent.handle.pid
            if len(parents) == 1:
                os.kill(backend._run.pool.handles[event.worker].pid or 0, signal.SIGKILL)

    execute(dataset, backend, "r1", observers=[strike])
    check_run(dataset, "r1", len(CONFIGURATIONS), 1, SEED)
    assert len(parents) == 2
    assert len(set(parents.values())) == 1
    assert backend._parents is None


# -- nothing of one run is found by the next


def state_of_process() -> dict[str, Any]:
    """All of this process that a user's function could have changed, as far as it is known how to ask."""
    import gc
    import locale
    import random
    import warnings

    import numpy as np
    import torch

    return {
        "environment": dict(os.environ),
        "folder": os.getcwd(),
        "module path": [path for path in sys.path if not _is_a_librarys(path)],
        "recursion": sys.getrecursionlimit(),
        "switches": sys.getswitchinterval(),
        "hooks": (sys.excepthook is sys.__excepthook__, sys.gettrace(), sys.getprofile()),
        "collector": (gc.isenabled(), gc.get_threshold()),
        "warnings": [str(each) for each in warnings.filters],
        "locale": locale.setlocale(locale.LC_ALL),
        "signals": {number: str(signal.getsignal(number)) for number in signal.valid_signals()},
        "priority": os.getpriority(os.PRIO_PROCESS, 0),
        "cores": os.sched_getaffinity(0),
        "threads": sorted(thread.name for thread in threading.enumerate() if thread.name.startswith("left")),
        "numpy": (np.geterr(), np.get_printoptions()),
        "default dtype": str(torch.get_default_dtype()),
        "default device": str(torch.get_default_device()),
        "torch threads": (torch.get_num_threads(), torch.get_num_interop_threads()),
        "torch seed": torch.initial_seed(),
        "torch generator": torch.get_rng_state().tolist(),
        "deterministic": torch.are_deterministic_algorithms_enabled(),
        "anomalies": torch.is_anomaly_enabled(),
        "gradients": torch.is_grad_enabled(),
        "precision": torch.get_float32_matmul_precision(),
        "cudnn": (torch.backends.cudnn.benchmark, torch.backends.mkldnn.enabled),
        "denormals": float(torch.tensor([1e-40]) * 1.0),
        "patched": "patched" in torch.nn.Linear.forward.__name__,
        "hooks of modules": len(torch.nn.modules.module._global_forward_hooks),
        "left in a library": hasattr(torch, "left_here"),
        "left in builtins": "left_here" in vars(import_module("builtins")),
        "left in random": random.getstate()[1][:3] == random.Random(7).getstate()[1][:3],
        "left in numpy": str(np.random.get_state()) == str(np.random.RandomState(7).get_state()),
        "left modules": sorted(name for name in sys.modules if name.startswith("left_")),
    }


def change_everything() -> None:
    """Leave this process as no function should."""
    import gc
    import random
    import types
    import warnings

    import numpy as np
    import torch

    os.environ["LEFT_HERE"] = "1"
    os.environ["OMP_NUM_THREADS"] = "3"
    os.chdir("/")
    sys.path.insert(0, "/left/here")
    sys.setrecursionlimit(4321)
    sys.setswitchinterval(0.5)
    gc.set_threshold(9, 9, 9)
    gc.disable()
    warnings.simplefilter("ignore")
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    threading.Thread(target=threading.Event().wait, name="left", daemon=True).start()
    np.seterr(all="ignore")
    np.set_printoptions(precision=2)
    torch.set_default_dtype(torch.float64)
    torch.set_default_device("meta")
    torch.manual_seed(99)
    torch.use_deterministic_algorithms(True)
    torch.autograd.set_detect_anomaly(True)
    torch.set_grad_enabled(False)
    torch.set_float32_matmul_precision("medium")
    torch.backends.cudnn.benchmark = True
    torch.set_flush_denormal(True)
    torch.nn.modules.module.register_module_forward_hook(lambda *_: None)
    vars(torch)["left_here"] = True
    vars(import_module("builtins"))["left_here"] = True
    sys.modules["left_module"] = types.ModuleType("left_module")

    def patched(self: Any, value: Any) -> Any:
        raise RuntimeError("of the run before")

    setattr(torch.nn.Linear, "forward", patched)  # noqa: B010 (types do not allow it otherwise)
    random.seed(7)
    np.random.seed(7)


class Spoiling:
    """A `model_fn` that leaves its process as no function should, and fails."""

    def __call__(self, params: Mapping[str, Any]) -> Any:
        change_everything()
        raise RuntimeError("spoilt")


class Looking:
    """A `model_fn` that notes how it finds its process before it builds anything.

    Args:
        folder: Where it notes that, once a process.
    """

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def __call__(self, params: Mapping[str, Any]) -> Any:
        place = self._folder / str(os.getpid())
        if not place.exists():
            place.write_bytes(pickle.dumps(state_of_process()))
        return torch_model_fn(params)


def looked(folder: Path) -> list[dict[str, Any]]:
    return [pickle.loads(file.read_bytes()) for file in sorted(folder.iterdir())]


def test_a_run_finds_its_processes_as_if_they_were_new(tmp_path: Path) -> None:
    dataset = small_dataset(tmp_path)
    new, kept = tmp_path / "new", tmp_path / "kept"
    for folder in (new, kept):
        folder.mkdir()
    execute(dataset, LocalBackend(num_workers=1, threads=1), "r1", Looking(new))
    with LocalBackend(num_workers=1, threads=1) as backend:
        with pytest.raises(PreflightFailed, match="spoilt"):
            execute(dataset, backend, "r2", Spoiling())
        before = pids_of(backend)
        execute(dataset, backend, "r3", Looking(kept))
        assert pids_of(backend) == before
    (expected,), (found,) = looked(new), looked(kept)
    assert found == expected
    assert found["default dtype"] == "torch.float32"


OWN_MODULE = """
SIZE = {size}

def model_fn(params):
    import torch
    import cerebro_spark as cs
    module = torch.nn.Sequential(torch.nn.Linear({features}, SIZE), torch.nn.Linear(SIZE, 1), torch.nn.Flatten(0))
    return cs.TorchModel(module, torch.optim.SGD(module.parameters(), lr=0.1), torch.nn.BCEWithLogitsLoss())
"""


@contextmanager
def own_module(folder: Path, size: int) -> Iterator[Any]:
    (folder / "kept_own.py").write_text(OWN_MODULE.format(size=size, features=FEATURES))
    sys.modules.pop("kept_own", None)
    sys.path.insert(0, str(folder))
    try:
        yield import_module("kept_own")
    finally:
        sys.path.remove(str(folder))
        sys.modules.pop("kept_own", None)


def test_a_module_of_the_users_that_has_changed_is_the_new_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "dont_write_bytecode", True)  # both sources are written within one second
    dataset = small_dataset(tmp_path)
    with LocalBackend(num_workers=1, threads=1) as backend:
        sizes = {}
        for run, size in (("r1", 3), ("r2", 5)):
            with own_module(tmp_path, size) as module:
                model_fn = module.model_fn
                execute(dataset, backend, run, model_fn)
            finished = [event for event in logged(dataset.store, run) if isinstance(event, UnitFinished)]
            sizes[run] = max(event.checkpoint.bytes for event in finished if event.checkpoint is not None)
        assert sizes["r1"] < sizes["r2"]
        assert len(parents_of(backend)) == 1


def test_other_threads_environment_or_folder_make_new_processes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = small_dataset(tmp_path)
    with LocalBackend(num_workers=1, threads=1) as backend:
        seen: list[int | None] = []

        def run_once(threads: int) -> None:
            (parent,) = leave_processes(backend, dataset, Resources(threads=threads))
            seen.append(parent.handle.pid)

        run_once(threads=1)
        run_once(threads=2)
        monkeypatch.setenv("CEREBRO_KEPT", "1")
        run_once(threads=2)
        monkeypatch.chdir(tmp_path)
        run_once(threads=2)
        run_once(threads=2)
    assert len(set(seen[:4])) == 4
    assert seen[3] == seen[4]


def test_keras_workers_are_new_processes_that_loaded_it_ahead(tmp_path: Path) -> None:
    dataset = small_dataset(tmp_path)
    with LocalBackend(num_workers=1, threads=1) as backend:
        execute(dataset, backend, "r1", keras_model_fn, framework="keras")
        before = pids_of(backend)
        execute(dataset, backend, "r2", keras_model_fn, framework="keras")
        assert pids_of(backend) == before
    metrics = [
        sorted(
            (event.unit, tuple(event.values.items()))
            for event in logged(dataset.store, run)
            if isinstance(event, UnitFinished) and event.values
        )
        for run in ("r1", "r2")
    ]
    assert [unit for unit, _ in metrics[0]] == [unit for unit, _ in metrics[1]]


# -- processes that die, or are not needed any more


def test_a_parent_that_is_killed_between_two_runs_is_replaced_and_no_unit_is_blamed(tmp_path: Path) -> None:
    dataset = small_dataset(tmp_path, partitions=3)
    with LocalBackend(num_workers=2, threads=1) as backend:
        execute(dataset, backend, "r1")
        killed = parents_of(backend)[0].handle
        os.kill(killed.pid or 0, signal.SIGKILL)
        execute(dataset, backend, "r2")
        assert len(pids_of(backend) - {killed.pid}) == 2
    check_run(dataset, "r2", len(CONFIGURATIONS), 1, SEED)
    assert not any(isinstance(event, WorkerLost) for event in logged(dataset.store, "r2"))


@pytest.mark.parametrize("who", ["worker", "parent"])
def test_who_is_killed_in_the_second_run_is_replaced_and_nothing_is_lost(who: str, tmp_path: Path) -> None:
    dataset = small_dataset(tmp_path, partitions=3)
    killed: list[int] = []
    with LocalBackend(num_workers=2, threads=1) as backend:

        @each_event
        def strike(event: Event) -> None:
            if isinstance(event, UnitFinished) and not killed:
                handle = backend._run.pool.handles[event.worker]
                parent = next(
                    parent.handle for parent in parents_of(backend) if parent.work and parent.work.handle is handle
                )
                killed.append((handle if who == "worker" else parent).pid or 0)
                os.kill(killed[0], signal.SIGKILL)

        execute(dataset, backend, "r1")
        before = pids_of(backend)
        execute(dataset, backend, "r2", observers=[strike])
        assert pids_of(backend) & before == before - set(killed)
    check_run(dataset, "r2", len(CONFIGURATIONS), 1, SEED)
    assert sum(isinstance(event, WorkerLost) for event in logged(dataset.store, "r2")) == 1


def test_idle_processes_end_after_a_while_and_the_next_run_has_new_ones(tmp_path: Path) -> None:
    dataset = small_dataset(tmp_path)
    with LocalBackend(num_workers=1, threads=1, idle_timeout=0.01) as backend:
        seen = []
        for run in (lambda: leave_processes(backend, dataset), lambda: execute(dataset, backend, "r2")):
            run()
            launcher = backend._parents
            assert launcher is not None
            handles = [parent.handle for parent in parents_of(backend)]
            assert all(handle.ended.wait(SECONDS) for handle in handles)
            seen.append(launcher.held)
        assert seen == [0, 0]
    check_run(dataset, "r2", len(CONFIGURATIONS), 1, SEED)


DRIVER = """
    import os, signal, sys
    from pathlib import Path
    sys.path[:0] = {path!r}
    from small_search import small_dataset
    from small_driver import small_recipe
    from cerebro_spark import runs
    from cerebro_spark.backend.local import LocalBackend
    dataset = small_dataset(Path(sys.argv[1]))
    backend = LocalBackend(1, threads=1).__enter__()
    runs.execute(small_recipe(dataset, 1), dataset.store, backend, "r1")
    for parent in backend._parents._parents:
        print(parent.handle.pid, flush=True)
    os.kill(os.getpid(), signal.SIGKILL)
"""


def test_a_driver_that_dies_takes_its_processes_along(tmp_path: Path) -> None:
    code = textwrap.dedent(DRIVER.format(path=sys.path))
    driver = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)], stdout=subprocess.PIPE, timeout=SECONDS, check=False
    )
    assert driver.returncode == -signal.SIGKILL
    (pid,) = map(int, driver.stdout.split())
    # It is nobody's child here, so it is waited for by what the system says of it.
    with subprocess.Popen(["tail", f"--pid={pid}", "-f", "/dev/null"]) as waiting:
        assert waiting.wait(SECONDS) == 0
