"""Measures units on a GPU against the plain PyTorch loop, and hops of large checkpoints. It installs nothing.

    python benchmarks/gpu_unit.py [--json FILE] [--rounds 5] [--device cuda:0]

numpy, torch, safetensors, pyarrow and cloudpickle are all that must be there. Plain loop and unit take turns; both keep
the data on the GPU, gather there, and wait for the GPU once at the end.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

import numpy as np
import torch
from torch import nn

from cerebro_spark.trainer import Columns, ColumnSpec, Feed, Hooks, Resources, TorchModel
from cerebro_spark.trainer.torch.trainer import TorchTrainer
from cerebro_spark.types import Unit


class Block(nn.Module):
    """A residual block as ResNet-18 has them."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.first = nn.Sequential(
            nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs), nn.ReLU(inplace=True)
        )
        self.second = nn.Sequential(nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False), nn.BatchNorm2d(outputs))
        same = stride == 1 and inputs == outputs
        self.skip: nn.Module = nn.Identity() if same else nn.Sequential(
            nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs)
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.relu(self.second(self.first(x)) + self.skip(x))


def resnet18() -> nn.Module:
    blocks: list[nn.Module] = []
    width = 64
    for outputs, stride in ((64, 1), (128, 2), (256, 2), (512, 2)):
        blocks += [Block(width, outputs, stride), Block(outputs, outputs, 1)]
        width = outputs
    stem = [nn.Conv2d(3, 64, 3, 1, 1, bias=False), nn.BatchNorm2d(64), nn.ReLU(inplace=True)]
    return nn.Sequential(*stem, *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(512, 10))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 64), nn.ReLU(), nn.Linear(64, 10))


KINDS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...], int, int, Any]] = {
    "resnet18 bf16": (resnet18, (3, 32, 32), 20_480, 256, "bfloat16"),
    "resnet18 fp32": (resnet18, (3, 32, 32), 10_240, 256, None),
    "mlp": (mlp, (64,), 409_600, 1024, None),
}


def data(shape: tuple[int, ...], rows: int) -> tuple[dict[str, np.ndarray[Any, Any]], Columns]:
    rng = np.random.default_rng(0)
    arrays: dict[str, np.ndarray[Any, Any]] = {
        "x": rng.standard_normal((rows, *shape), dtype="float32"),
        "y": rng.integers(0, 10, rows),
    }
    return arrays, Columns({"x": ColumnSpec("float32", shape)}, {"y": ColumnSpec("int64")})


def plain_loop(
    make: Callable[[], nn.Module], arrays: dict[str, np.ndarray[Any, Any]], size: int, precision: Any, device: Any
) -> Any:
    torch.manual_seed(0)
    module = make().to(device)
    optimizer, loss_fn = torch.optim.Adam(module.parameters(), lr=1e-3), nn.CrossEntropyLoss()
    x, y = (torch.from_numpy(arrays[name]).to(device) for name in ("x", "y"))
    autocast = nullcontext() if precision is None else torch.autocast(device.type, dtype=torch.bfloat16)

    def plain(order: np.ndarray[Any, Any]) -> float:
        module.train()
        total = torch.zeros((), device=device)
        for rows in torch.from_numpy(order).to(device).split(size):
            with autocast:
                loss = loss_fn(module(x[rows]), y[rows])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach()
        return float(total)

    return plain


def compare(name: str, rounds: int, device: Any) -> dict[str, float]:
    make, shape, rows, size, precision = KINDS[name]
    arrays, columns = data(shape, rows)
    plain = plain_loop(make, arrays, size, precision, device)

    def model_fn(params: Any) -> TorchModel:
        module = make()
        return TorchModel(module, torch.optim.Adam(module.parameters(), lr=params["lr"]), nn.CrossEntropyLoss())

    trainer = TorchTrainer(Hooks(model_fn), columns, resources=Resources(device=str(device), precision=precision))
    trainer.build("t1", {"lr": 1e-3})

    def unit(order: np.ndarray[Any, Any]) -> float:
        feed = Feed(arrays, order, batch_size=size, key="train-00000")
        return trainer.train(Unit("t1", 1, "train-00000"), feed).values()["loss"]

    rng = np.random.default_rng(1)
    pairs = []
    for round_ in range(rounds + 2):
        order = rng.permutation(rows)
        times = [seconds(work, order, device) for work in ((plain, unit) if round_ % 2 else (unit, plain))]
        pairs.append(tuple(times) if round_ % 2 else tuple(reversed(times)))
    pairs = pairs[2:]
    speed = statistics.median(a / b for a, b in pairs)
    plain_s, unit_s = (statistics.median(pair[index] for pair in pairs) for index in (0, 1))
    return {"plain_rows_s": rows / plain_s, "unit_rows_s": rows / unit_s, "speed": speed}


def seconds(work: Callable[[np.ndarray[Any, Any]], float], order: np.ndarray[Any, Any], device: Any) -> float:
    _synchronize(device)
    start = time.perf_counter()
    work(order)
    _synchronize(device)
    return time.perf_counter() - start


def hop(megabytes: int, device: Any, folder: Path) -> dict[str, float]:
    """Save and load of a model whose state with Adam has that size, on a worker that has seen it before."""
    width = int((megabytes * 1e6 / 12 / 4) ** 0.5)
    columns = Columns({"x": ColumnSpec("float32", (width,))}, {"y": ColumnSpec("float32", (width,))})

    def model_fn(params: Any) -> TorchModel:
        module = nn.Sequential(*[nn.Linear(width, width, bias=False) for _ in range(4)])
        return TorchModel(module, torch.optim.Adam(module.parameters()), nn.MSELoss())

    trainer = TorchTrainer(Hooks(model_fn), columns, resources=Resources(device=str(device)))
    trainer.build("t1", {})
    rows = np.ones((8, width), "float32")
    trainer.train(Unit("t1", 1, "p"), Feed({"x": rows, "y": rows}))
    saves, loads, size = [], [], 0
    for index in range(6):
        path = folder / f"{megabytes}-{index}.safetensors"
        _synchronize(device)
        start = time.perf_counter()
        saved = trainer.save(path)
        middle = time.perf_counter()
        trainer.load("t2", {}, path)
        _synchronize(device)
        loads.append(time.perf_counter() - middle)
        saves.append(middle - start)
        size = saved.bytes
        path.unlink()
    return {
        "mb": size / 1e6,
        "save_ms": 1e3 * statistics.median(saves[1:]),
        "load_ms": 1e3 * statistics.median(loads[1:]),
    }


def _synchronize(device: Any) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--device", default="cuda:0" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--kinds", nargs="*", default=list(KINDS))
    options = parser.parse_args()
    device = torch.device(options.device)
    card = torch.cuda.get_device_name(device) if device.type == "cuda" else "no GPU"
    results: dict[str, Any] = {"card": card, "torch": torch.__version__, "units": {}, "hops": []}
    print(f"{card}, torch {torch.__version__}\n\n| model | plain rows/s | unit rows/s | speed |\n|---|---|---|---|")
    for name in options.kinds:
        row = results["units"][name] = compare(name, options.rounds, device)
        print(f"| {name} | {row['plain_rows_s']:.0f} | {row['unit_rows_s']:.0f} | {row['speed']:.3f} |", flush=True)
    print("\n| checkpoint | where | save ms | load ms |\n|---|---|---|---|")
    shared = Path("/dev/shm")
    for place in (None, *([str(shared)] if shared.is_dir() else [])):
        with tempfile.TemporaryDirectory(dir=place) as folder:
            for megabytes in (50, 500):
                row = hop(megabytes, device, Path(folder))
                results["hops"].append({**row, "where": "memory" if place else "disk"})
                where = results["hops"][-1]["where"]
                print(f"| {row['mb']:.0f} MB | {where} | {row['save_ms']:.0f} | {row['load_ms']:.0f} |", flush=True)
    if options.json:
        options.json.write_text(json.dumps(results, indent=2))


if __name__ == "__main__":
    main()
