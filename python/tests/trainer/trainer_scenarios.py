"""What tests let a framework's own process do: each function takes and returns JSON. Nothing here asserts."""

from __future__ import annotations

import gc
import importlib
import io
import os
import random
import resource
import warnings
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from trainer_data import Case, columns, feed

from cerebro_spark.errors import CerebroError
from cerebro_spark.trainer import Feed, Trainer
from cerebro_spark.trainer.framework_trainer import FrameworkTrainer
from cerebro_spark.types import Metrics, Unit

cases: dict[str, Case] = {}
trainer_class: Any = None


def start(framework: str) -> None:
    global trainer_class
    kind = "torch" if framework == "torch" else "keras"
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        module = importlib.import_module(f"cerebro_spark.trainer.{kind}.trainer")
        table = importlib.import_module(f"trainer_cases_{kind}")
        cases.update({**table.CASES, **table.PROBES})
    trainer_class = module.TorchTrainer if kind == "torch" else module.KerasTrainer
    assert framework == trainer_class.framework
    warnings.simplefilter("error")
    # PyTorch's own SequentialLR calls its parts in a way that PyTorch warns of.
    warnings.filterwarnings("ignore", "The epoch parameter in", UserWarning)
    # NumPy 2 finds Keras' variables old-fashioned, where Keras itself reads them.
    warnings.filterwarnings("ignore", "__array__ implementation doesn't accept a copy", DeprecationWarning, r"keras\b")


_trainers: dict[str, FrameworkTrainer[Any]] = {}


def trainer_of(case: str, fresh: bool = False, **resources: Any) -> FrameworkTrainer[Any]:
    """One trainer a case, kept, as a worker keeps its own for a whole run."""
    if fresh or case not in _trainers:
        chosen = cases[case]
        owned = replace(chosen.resources(), **resources)
        _trainers[case] = trainer_class(chosen.hooks(), columns(chosen.data), seed=7, resources=owned)
    return _trainers[case]


UNITS = [Unit("t1", 1, "0"), Unit("t1", 1, "1"), Unit("t1", 2, "0")]


def train_unit(trainer: Trainer, case: str, index: int) -> dict[str, float]:
    unit = UNITS[index]
    batches = feed(cases[case].data, int(unit.partition), unit.epoch)
    return trainer.finish(trainer.train(unit, batches))


def straight(case: str, target: str, last: int = 2) -> Any:
    """All units in one process without a checkpoint in between."""
    trainer = trainer_of(case, fresh=True)
    trainer.build("t1", {})
    metrics = [train_unit(trainer, case, index) for index in range(last + 1)]
    return trainer.save(Path(target)).digest, metrics


def initial(case: str, target: str) -> Any:
    trainer = trainer_of(case)
    trainer.build("t1", {})
    return trainer.save(Path(target)).digest


def hop(case: str, index: int, source: str, target: str, digest: str) -> Any:
    """One unit from a checkpoint to the next."""
    trainer = trainer_of(case)
    trainer.load("t1", {}, Path(source), digest=digest)
    metrics = train_unit(trainer, case, index)
    trainer.evaluate(Unit("t1", 1, "0", "eval"), feed(cases[case].data, 0))
    return trainer.save(Path(target)).digest, metrics


def digest_of(trainer: Trainer) -> str:
    return trainer.save(io.BytesIO()).digest


def bytes_of(trainer: Trainer) -> bytes:
    file = io.BytesIO()
    trainer.save(file)
    return file.getvalue()


TRIALS = [{"lr": rate, "decay": decay} for rate in (0.1, 0.01, 0.001, 0.0001) for decay in (0.0, 0.5)]


def shared_and_alone() -> Any:
    """Eight trials taking turns on one worker, and each of them on a worker of its own."""
    together = trainer_of("numbers", fresh=True)
    states: dict[int, bytes] = {}
    for epoch in (1, 2):
        for index, params in enumerate(TRIALS):
            if epoch == 1:
                together.build(f"t{index}", params)
            else:
                together.load(f"t{index}", params, states[index])
            together.train(Unit(f"t{index}", epoch, "0"), feed("tabular", 0, epoch))
            states[index] = bytes_of(together)
    digests = []
    for index, params in enumerate(TRIALS):
        together.load(f"t{index}", params, states[index])
        digests.append(digest_of(together))
    counts = {"builds": together.builds, "models": len(together.models), "traces": getattr(together, "traces", 0)}
    alone = []
    for index, params in enumerate(TRIALS):
        trainer = trainer_of("numbers", fresh=True)
        trainer.build(f"t{index}", params)
        for epoch in (1, 2):
            trainer.train(Unit(f"t{index}", epoch, "0"), feed("tabular", 0, epoch))
        alone.append(digest_of(trainer))
    return {**counts, "together": digests, "alone": alone}


def closures() -> Any:
    """Two trials whose layer is made inside model_fn and closes over their params."""
    trainer = trainer_of("closure", fresh=True)
    digests = []
    for name, factor in (("t1", 1.0), ("t1", 3.0)):
        trainer.build(name, {"factor": factor})
        trainer.train(Unit(name, 1, "0"), feed("tabular", 0))
        digests.append(digest_of(trainer))
    return {"models": len(trainer.models), "digests": digests}


def sharing(table: str, case: str) -> Any:
    """Two trials that differ in one number, in turn on one worker, and the second on a worker of its own."""
    together, alone = trainer_of(table, fresh=True), trainer_of(table, fresh=True)
    digests = []
    for trainer, v in ((together, 0.5), (together, 0.05), (alone, 0.05)):
        trainer.build("t1", {"case": case, "v": v})
        trainer.train(UNITS[0], feed("tabular", 0))
        digests.append(digest_of(trainer))
    return {"models": len(together.models), "digests": digests}


def saved_by_keras(target: str) -> Any:
    """A trained model with weight decay, saved and loaded by Keras itself, trained further there and here."""
    import keras

    trainer = trainer_of("adamw", fresh=True)
    trainer.build("t1", {})
    trainer.train(UNITS[0], feed("tabular", 0))
    mine = trainer.model()
    mine.save(target)
    theirs = keras.models.load_model(target)
    rows = feed("tabular", 1).arrays
    for model in (mine, theirs):
        model.fit(rows["features"], rows["label"], batch_size=30, shuffle=False, verbose=0)
    same = [bool((a == b).all()) for a, b in zip(mine.get_weights(), theirs.get_weights(), strict=True)]
    return {"decay": theirs.optimizer.weight_decay, "steps": int(theirs.optimizer.iterations), "same": all(same)}


def empty_partition() -> Any:
    trainer = trainer_of("adam", fresh=True)
    trainer.build("t1", {})
    rows = {name: array[:0] for name, array in feed("tabular", 0).arrays.items()}
    metrics = trainer.train(UNITS[0], Feed(rows))
    return [dict(metrics.sums), dict(metrics.weights)]


def kept_arrays(case: str) -> Any:
    """Two units on one partition, with room for its tensors and without: what is kept, and what comes of it."""
    seen = {}
    for budget in (0, 1 << 30):
        trainer = trainer_of(case, fresh=True, data_memory=budget)
        trainer.build("t1", {})
        partition = feed(cases[case].data, 0)
        again = Feed(partition.arrays, partition.order, batch_size=partition.batch_size, key="p0")
        for epoch in (1, 2):
            trainer.train(Unit("t1", epoch, "p0"), again)
        backend = vars(trainer)["_backend"]
        kept = len(getattr(backend, "_kept", {}))
        trainer.forget("p0")
        seen[str(budget)] = [trainer.save(io.BytesIO()).digest, kept, len(getattr(backend, "_kept", {}))]
    return seen


def mapped_unit(case: str, folder: str) -> list[str]:
    """Train and evaluate rows of 400 MB or more that are mapped from files, where there is room for 200 MB more.

    Returns the digests after the same rows of a small partition, and after that.
    """
    small, digests = feed(cases[case].data, 0), []
    large = {}
    for name, array in small.arrays.items():
        shape = (16_000_000, *array.shape[1:])
        written = np.lib.format.open_memmap(f"{folder}/{name}.npy", "w+", array.dtype, shape)  # type: ignore[no-untyped-call]
        written[: len(array)] = array
        large[name] = np.load(f"{folder}/{name}.npy", mmap_mode="r")
    for arrays, room in ((small.arrays, 1 << 40), (large, 200 << 20)):
        trainer = trainer_of(case, fresh=True)
        trainer.build("t1", {})
        before = resource.getrlimit(resource.RLIMIT_DATA)
        resource.setrlimit(resource.RLIMIT_DATA, (data_bytes() + room, before[1]))
        try:
            partition = Feed(arrays, small.order, batch_size=small.batch_size, key="p0")
            trainer.train(Unit("t1", 1, "p0"), partition)
            trainer.evaluate(Unit("t1", 1, "p0", "eval"), partition)
        finally:
            resource.setrlimit(resource.RLIMIT_DATA, before)
        digests.append(trainer.save(io.BytesIO()).digest)
    return digests


def data_bytes() -> int:
    """The bytes that this process has of what its RLIMIT_DATA is about: all that is no file."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(1024 * int(line.split()[1]) for line in lines if line.startswith("VmData"))


def error_of(case: str) -> str:
    try:
        trainer_of(case, fresh=True).build("t1", {})
    except CerebroError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def device_error(name: str) -> str:
    """What a trainer says that shall compute there; the machine has no GPU."""
    try:
        trainer_of("numbers", fresh=True, device=name)
    except CerebroError as error:
        return f"{type(error).__name__}: {error}"
    return "no error"


def other_optimizers(folder: str) -> Any:
    """The messages for checkpoints of other optimizers and of a model with more layers, saved to files."""
    messages = {}
    for name in ("adam", "rmsprop", "batchnorm"):
        path = Path(folder) / f"{name}.safetensors"
        other = trainer_of(name, fresh=True)
        other.build("t1", {})
        other.save(path)
        trainer = trainer_of("sgd_momentum", fresh=True)
        try:
            trainer.load("t1", {}, path)
        except CerebroError as error:
            messages[name] = f"{type(error).__name__}: {error}"
    return messages


def small_memory() -> Any:
    """A budget for one model only, and two architectures (a schedule is baked into the graph) taking turns."""
    trainer = trainer_of("numbers", fresh=True, model_memory=1)
    wide = trainer_of("numbers", fresh=True)
    runs = []
    for one in (trainer, wide):
        states: dict[str, bytes] = {}
        for epoch in (1, 2):
            for name, params in (("t0", TRIALS[0]), ("t1", {**TRIALS[0], "schedule": True})):
                if epoch == 1:
                    one.build(name, params)
                else:
                    one.load(name, params, states[name])
                one.train(Unit(name, epoch, "0"), feed("tabular", 0, epoch))
                states[name] = bytes_of(one)
        runs.append([state.hex() for state in states.values()])
    return {"models": [len(trainer.models), len(wide.models)], "same": runs[0] == runs[1]}


def split_metrics(case: str, cuts: list[int]) -> Any:
    """A trained model measured over all rows at once, and over uneven parts in turn."""
    trainer = trainer_of(case, fresh=True)
    trainer.build("t1", {})
    kind = cases[case].data
    trainer.train(UNITS[0], feed(kind, 0))
    whole = feed(kind, 1).arrays
    before = digest_of(trainer)
    at_once = trainer.finish(trainer.evaluate(Unit("t1", 1, "v", "eval"), Feed(whole, batch_size=16)))
    parts: list[Metrics] = []
    for start, stop in zip([0, *cuts], [*cuts, 90], strict=True):
        rows = Feed({name: array[start:stop] for name, array in whole.items()}, batch_size=7)
        parts.append(trainer.evaluate(Unit("t1", 1, "v", "eval"), rows, parts[-1] if parts else None))
    prediction = {name: list(array.shape) for name, array in trainer.predict(Feed(whole, batch_size=16)).items()}
    unchanged = digest_of(trainer) == before
    merged = trainer.finish(Metrics.merge(parts))
    return {"whole": at_once, "parts": merged, "unchanged": unchanged, "prediction": prediction}


def batches_like_feed(case: str) -> Any:
    digests = []
    for as_batches in (False, True):
        trainer = trainer_of(case, fresh=True)
        trainer.build("t1", {})
        whole = feed(cases[case].data, 0)
        trainer.train(UNITS[0], iter(whole) if as_batches else whole)
        digests.append(digest_of(trainer))
    return digests


def failing(params: dict[str, Any]) -> Any:
    """The error of one trial, and whether the next one on this worker trains as if nothing had been."""
    trainer = trainer_of("failure", fresh=True)
    trainer.build("good", {"lr": 0.01})
    trainer.train(Unit("good", 1, "0"), feed("tabular", 0))
    state = bytes_of(trainer)
    trainer.train(Unit("good", 1, "1"), feed("tabular", 1))
    expected = digest_of(trainer)
    error = "no error"
    try:
        trainer.build("bad", params)
        for epoch in range(1, 20):
            trainer.train(Unit("bad", epoch, "0"), feed("tabular", 0))
    except CerebroError as raised:
        error = f"{type(raised).__name__}: {raised}"
    trainer.load("good", {"lr": 0.01}, state)
    trainer.train(Unit("good", 1, "1"), feed("tabular", 1))
    return {"error": error, "unharmed": digest_of(trainer) == expected}


def warm_start() -> Any:
    """A trial goes on from another's checkpoint with its own numbers; the same numbers change nothing."""
    trainer = trainer_of("numbers", fresh=True)
    old, new = {"lr": 0.1, "decay": 0.01}, {"lr": 0.025, "decay": 0.3}
    rates = []
    digests = []
    trainer.build("t0", old)
    trainer.train(Unit("t0", 1, "0"), feed("tabular", 0))
    state = bytes_of(trainer)
    for params in (old, new):
        trainer.load("t1", params, state, warm_start=True)
        optimizer = trainer.model().optimizer
        if hasattr(optimizer, "param_groups"):
            rates.append([optimizer.param_groups[0]["lr"], optimizer.param_groups[0]["weight_decay"]])
        else:
            rates.append([float(optimizer.learning_rate), float(optimizer.get_config()["weight_decay"])])
        trainer.train(Unit("t1", 2, "0"), feed("tabular", 0, 2))
        digests.append(digest_of(trainer))
    trainer.load("t0", old, state)
    trainer.train(Unit("t0", 2, "0"), feed("tabular", 0, 2))
    return {"rates": rates, "same": digests[0] == digest_of(trainer), "differs": digests[0] != digests[1]}


def misfits(foreign: str) -> Any:
    """The messages for checkpoints that cannot be loaded."""
    trainer = trainer_of("sgd_momentum", fresh=True)
    trainer.build("t1", {})
    own = bytes_of(trainer)
    other = trainer_of("cnn", fresh=True)
    other.build("t1", {})
    sources = {"foreign": bytes.fromhex(foreign), "architecture": bytes_of(other), "truncated": own[:-1]}
    messages = {}
    for name, source in sources.items():
        try:
            trainer.load("t1", {}, source)
        except CerebroError as error:
            messages[name] = f"{type(error).__name__}: {error}"
    try:
        trainer.load("t1", {}, own, digest="0" * 32)
    except CerebroError as error:
        messages["digest"] = f"{type(error).__name__}: {error}"
    return messages


def sample(case: str) -> str:
    trainer = trainer_of(case, fresh=True)
    trainer.build("t1", {})
    return bytes_of(trainer).hex()


def process_untouched(case: str) -> Any:
    """Whether the process's own generators and settings are as they were after a trial's life."""
    random.seed(3)
    expected = random.random()
    random.seed(3)
    trainer = trainer_of(case, fresh=True)
    trainer.build("t1", {})
    trainer.train(UNITS[0], feed(cases[case].data, 0))
    return random.random() == expected


def resident_megabytes(units: int) -> list[float]:
    """The process's memory after each tenth of that many units of three trials taking turns."""
    trainer = trainer_of("numbers", fresh=True)
    trials = [*TRIALS[:2], {**TRIALS[0], "schedule": True}]
    states = []
    for index, params in enumerate(trials):
        trainer.build(f"t{index}", params)
        states.append(bytes_of(trainer))
    sizes = []
    for unit in range(units):
        index = unit % len(trials)
        trainer.load(f"t{index}", trials[index], states[index])
        trainer.train(Unit(f"t{index}", 1, "0"), feed("tabular", unit, rows=300))
        states[index] = bytes_of(trainer)
        if (unit + 1) % (units // 10) == 0:
            gc.collect()
            pages = int(Path("/proc/self/statm").read_text().split()[1])
            sizes.append(pages * os.sysconf("SC_PAGESIZE") / 2**20)
    return sizes


def _memory(field: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def checkpoint_memory(target: str) -> Any:
    """How much memory above what was in use a save and a load of a large state take, as a share of its size."""
    trainer = trainer_of("large", fresh=True)
    trainer.build("t1", {})
    trainer.train(UNITS[0], feed("tabular", 0))
    shares = []
    for work in (lambda: trainer.save(Path(target)), lambda: trainer.load("t2", {}, Path(target))):
        gc.collect()
        Path("/proc/self/clear_refs").write_text("5")
        before = _memory("VmRSS")
        work()
        shares.append((_memory("VmHWM") - before) / Path(target).stat().st_size)
    _trainers.pop("large")
    return {"shares": shares, "megabytes": Path(target).stat().st_size / 1e6}
