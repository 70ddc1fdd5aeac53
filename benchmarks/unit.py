"""Measures units against each framework's own loop, hops, and large checkpoints. It uses only data it makes.

    python benchmarks/unit.py [--json FILE] [--rounds 5] [--threads 1] [--large]

Each framework runs in a process of its own; within it the plain loop and the unit take turns, so that both see the same
machine. A ratio is the median of the rounds' ratios.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from cerebro_spark.trainer import Columns, ColumnSpec, Feed, Hooks, Resources, TorchModel
from cerebro_spark.types import Unit

BATCH = 256


def data(kind: str) -> tuple[dict[str, np.ndarray[Any, Any]], Columns]:
    rng = np.random.default_rng(0)
    shape = (100_000, 64) if kind == "mlp" else (10_000, 1, 28, 28)
    features = rng.normal(size=shape).astype("float32")
    label = (features.reshape(len(features), -1)[:, :8].sum(1) > 0).astype("float32")
    columns = Columns({"features": ColumnSpec("float32", shape[1:])}, {"label": ColumnSpec("float32")})
    return {"features": features, "label": label}, columns


def seconds(work: Callable[[], Any]) -> float:
    start = time.perf_counter()
    work()
    return time.perf_counter() - start


def compare(plain: Callable[[], Any], unit: Callable[[], Any], rounds: int) -> dict[str, float]:
    plain(), unit()
    pairs = [(seconds(plain), seconds(unit)) for _ in range(rounds)]
    return {
        "plain_s": statistics.median(a for a, _ in pairs),
        "unit_s": statistics.median(b for _, b in pairs),
        "ratio": statistics.median(b / a for a, b in pairs),
    }


def hop(trainer: Any, params: dict[str, Any], folder: Path, rounds: int = 20) -> dict[str, float]:
    """Save and load where the model was seen before, but another trial's state is in it."""
    saves, loads, size = [], [], 0
    for index in range(rounds):
        path = folder / f"{index}.safetensors"
        start = time.perf_counter()
        saved = trainer.save(path)
        middle = time.perf_counter()
        trainer.load(f"another-{index}", params, path, digest=saved.digest)
        loads.append(time.perf_counter() - middle)
        saves.append(middle - start)
        size = saved.bytes
    both = [a + b for a, b in zip(saves, loads, strict=True)]
    return {
        "mb": size / 1e6,
        "save_ms": 1e3 * statistics.median(saves),
        "load_ms": 1e3 * statistics.median(loads),
        "hop_ms": 1e3 * statistics.median(both),
        "worst_ms": 1e3 * max(both),
    }


def torch_module(kind: str) -> Any:
    from torch import nn

    if kind == "mlp":
        return nn.Sequential(
            nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 1), nn.Flatten(0)
        )
    return nn.Sequential(
        nn.Conv2d(1, 16, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Conv2d(16, 32, 3), nn.ReLU(), nn.MaxPool2d(2),
        nn.Flatten(), nn.Linear(800, 1), nn.Flatten(0),
    )  # fmt: skip


def torch_fn(kind: str) -> Callable[[Any], TorchModel]:
    def model_fn(params: Any) -> TorchModel:
        import torch

        module = torch_module(kind)
        return TorchModel(module, torch.optim.Adam(module.parameters(), lr=params["lr"]), torch.nn.BCEWithLogitsLoss())

    return model_fn


def keras_fn(kind: str) -> Callable[[Any], Any]:
    return lambda params: keras_model(kind, params["lr"])


def torch_plain(kind: str, arrays: dict[str, np.ndarray[Any, Any]]) -> Callable[[], float]:
    import torch

    module = torch_module(kind)
    optimizer, loss_fn = torch.optim.Adam(module.parameters(), lr=1e-3), torch.nn.BCEWithLogitsLoss()
    features, label = torch.from_numpy(arrays["features"]), torch.from_numpy(arrays["label"])

    def plain() -> float:
        module.train()
        total = 0.0
        for rows in torch.randperm(len(label)).split(BATCH):
            optimizer.zero_grad()
            loss = loss_fn(module(features[rows]), label[rows])
            loss.backward()
            optimizer.step()
            total += loss.item() * len(rows)
        return total

    return plain


def keras_model(kind: str, rate: float) -> Any:
    import keras
    from keras import layers

    if kind == "mlp":
        parts = [layers.Dense(256, activation="relu"), layers.Dense(64, activation="relu")]
    else:
        parts = [
            layers.Permute((2, 3, 1)), layers.Conv2D(16, 3, activation="relu"), layers.MaxPooling2D(),
            layers.Conv2D(32, 3, activation="relu"), layers.MaxPooling2D(), layers.Flatten(),
        ]  # fmt: skip
    model = keras.Sequential([*parts, layers.Dense(1, activation="sigmoid")])
    model.compile(optimizer=keras.optimizers.Adam(rate), loss="binary_crossentropy")
    return model


def measure(framework: str, rounds: int, threads: int, folder: Path) -> dict[str, Any]:
    results: dict[str, Any] = {}
    for kind in ("mlp", "cnn"):
        arrays, columns = data(kind)
        resources = Resources(threads=threads, device="cpu")
        if framework == "torch":
            from cerebro_spark.trainer.torch.trainer import TorchTrainer

            trainer: Any = TorchTrainer(Hooks(torch_fn(kind)), columns, resources=resources)
            plain: Callable[[], Any] = torch_plain(kind, arrays)
        else:
            from cerebro_spark.trainer.keras.trainer import KerasTrainer

            trainer = KerasTrainer(Hooks(keras_fn(kind)), columns, resources=resources)
            model = keras_model(kind, 1e-3)

            def plain(model: Any = model, arrays: Any = arrays) -> None:
                model.fit(arrays["features"], arrays["label"], batch_size=BATCH, shuffle=True, verbose=0)

        params = {"lr": 1e-3}
        trainer.build("t1", params)
        rng = np.random.default_rng(1)

        def unit(trainer: Any = trainer, arrays: Any = arrays, rng: Any = rng) -> None:
            order = rng.permutation(len(arrays["label"]))
            trainer.train(Unit("t1", 1, "train-00000"), Feed(arrays, order, batch_size=BATCH, key="train-00000"))

        results[kind] = compare(plain, unit, rounds)
        if kind == "mlp":
            results["hop"] = hop(trainer, params, folder)
    return results


def large_trainer(framework: str) -> Any:
    """A trainer of models with 100 M parameters and Adam."""
    columns = Columns({"x": ColumnSpec("float32", (5000,))}, {"y": ColumnSpec("float32")})
    resources = Resources(device="cpu")
    if framework == "keras":
        from cerebro_spark.trainer.keras.trainer import KerasTrainer

        def keras_fn(params: Any) -> Any:
            import keras

            model = keras.Sequential([keras.layers.Dense(5000, use_bias=False) for _ in range(4)])
            model.compile(optimizer="adam", loss=lambda label, output: output)
            return model

        return KerasTrainer(Hooks(keras_fn), columns, resources=resources)
    import torch

    from cerebro_spark.trainer.torch.trainer import TorchTrainer

    def torch_fn(params: Any) -> TorchModel:
        module = torch.nn.Sequential(*[torch.nn.Linear(5000, 5000, bias=False) for _ in range(4)], torch.nn.Flatten(0))
        return TorchModel(module, torch.optim.Adam(module.parameters()), lambda output, label: output.mean())

    return TorchTrainer(Hooks(torch_fn), columns, resources=resources)


def large(framework: str, folder: Path) -> dict[str, float]:
    """The state of a 100 M-parameter model with Adam against a plain sequential write and read of as many bytes.

    Both reads come from the disk: what the system keeps of the files in memory is dropped before.
    """
    trainer = large_trainer(framework)
    trainer.build("t1", {})
    arrays = {"x": np.ones((1, 5000), "float32"), "y": np.ones(1, "float32")}
    trainer.train(Unit("t1", 1, "p"), Feed(arrays))
    path, plain = folder / "large.safetensors", folder / "plain"
    before = _memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    save = seconds(lambda: trainer.save(path))
    size = path.stat().st_size
    save_peak = _memory("VmHWM") - before
    chunk = memoryview(bytearray(os.urandom(1 << 22)))

    def write() -> None:
        with open(plain, "wb", buffering=0) as file:
            for _ in range(size // len(chunk)):
                file.write(chunk)
            os.fsync(file.fileno())

    def read() -> None:
        with open(plain, "rb", buffering=0) as file:
            while file.readinto(chunk):
                pass

    plain_write = seconds(write)
    before = _memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")
    _drop_from_memory(path)
    load = seconds(lambda: trainer.load("t2", {}, path))
    load_peak = _memory("VmHWM") - before
    _drop_from_memory(plain)
    plain_read = seconds(read)
    return {
        "gb": size / 1e9, "save_gb_s": size / save / 1e9, "plain_write_gb_s": size / plain_write / 1e9,
        "load_gb_s": size / load / 1e9, "plain_read_gb_s": size / plain_read / 1e9,
        "save_extra_memory": save_peak / size, "load_extra_memory": load_peak / size,
    }  # fmt: skip


def _drop_from_memory(path: Path) -> None:
    with open(path, "rb") as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)


def _memory(field: str) -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(field))
    return int(line.split()[1]) * 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--large", action="store_true", help="also measure a 1.2 GB checkpoint")
    parser.add_argument("--part", choices=["keras", "torch", "large-keras", "large-torch"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(dir=os.environ.get("TMPDIR")) as folder:
        if options.part and options.part.startswith("large-"):
            print(json.dumps(large(options.part.removeprefix("large-"), Path(folder))))
            return
        if options.part:
            print(json.dumps(measure(options.part, options.rounds, options.threads, Path(folder))))
            return
    parts = ["keras", "torch", *(["large-keras", "large-torch"] if options.large else [])]
    results = {part: _in_process(part, options) for part in parts}
    _print(results)
    if options.json:
        options.json.write_text(json.dumps(results, indent=2))


def _in_process(part: str, options: argparse.Namespace) -> dict[str, Any]:
    command = [
        sys.executable,
        __file__,
        "--part",
        part,
        "--rounds",
        str(options.rounds),
        "--threads",
        str(options.threads),
    ]
    environment = {**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"}
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True, env=environment)
    return dict(json.loads(done.stdout.splitlines()[-1]))


def _print(results: dict[str, Any]) -> None:
    print("| what | plain s | unit s | ratio |\n|---|---|---|---|")
    for framework in ("keras", "torch"):
        for kind in ("mlp", "cnn"):
            row = results[framework][kind]
            print(f"| {framework} {kind} | {row['plain_s']:.3f} | {row['unit_s']:.3f} | {row['ratio']:.2f} |")
    print("\n| hop | MB | save ms | load ms | together ms | worst ms |\n|---|---|---|---|---|---|")
    for framework in ("keras", "torch"):
        hop_ = results[framework]["hop"]
        numbers = " | ".join(f"{hop_[key]:.1f}" for key in ("save_ms", "load_ms", "hop_ms", "worst_ms"))
        print(f"| {framework} | {hop_['mb']:.2f} | {numbers} |")
    if "large-torch" not in results:
        return
    keys = ["save_gb_s", "plain_write_gb_s", "load_gb_s", "plain_read_gb_s", "save_extra_memory", "load_extra_memory"]
    print(f"\n| state | GB | {' | '.join(keys)} |\n|---|---|{'---|' * len(keys)}")
    for framework in ("keras", "torch"):
        row = results[f"large-{framework}"]
        print(f"| {framework} | {row['gb']:.2f} | {' | '.join(f'{row[key]:.2f}' for key in keys)} |")


if __name__ == "__main__":
    main()
