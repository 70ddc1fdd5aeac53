"""Measures units of trials that are trained together against single units, by the number of trials. One thread.

    python -m benchmarks.bundles [--json FILE] [--rounds 3] [--batches 60] [--widths 2 8 32] [--models mlp ...]

Bundles and single units take turns and start from the same checkpoints; loading and saving count. A speed-up is that of
the fastest round of each. Every digest is compared. Times are those of the process (CPU seconds).
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn

from benchmarks.circumstances import circumstances
from cerebro_spark.trainer import Columns, ColumnSpec, Feed, Hooks, Resources, TorchModel
from cerebro_spark.trainer.base import Member, TrainedMember
from cerebro_spark.trainer.torch.trainer import TorchTrainer
from cerebro_spark.types import Unit

CLASSES = 10
COLUMNS = ("model", "members", "width", "single_ms", "together_ms", "speed_up", "first_s", "digests")


def mlp(inputs: int, hidden: Sequence[int], *after: Callable[[int], nn.Module]) -> nn.Module:
    layers: list[nn.Module] = []
    for size in hidden:
        layers += [nn.Linear(inputs, size), *(make(size) for make in after), nn.ReLU()]
        inputs = size
    return nn.Sequential(*layers, nn.Linear(inputs, CLASSES))


class Tokens(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(1000, 16), mlp(128, [64])

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(self.embedding(x).flatten(1))


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.inputs, self.head = nn.Linear(8, 32), nn.Linear(32, CLASSES)
        self.layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)

    def forward(self, x: torch.Tensor) -> Any:
        return self.head(self.layer(self.inputs(x)).mean(1))


def cnn(*after: Callable[[int], nn.Module]) -> nn.Module:
    layers: list[nn.Module] = []
    for inputs, outputs in ((1, 16), (16, 32)):
        convolution = nn.Conv2d(inputs, outputs, 3, padding=1)
        layers += [convolution, *(make(outputs) for make in after), nn.ReLU(), nn.MaxPool2d(2)]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(32 * 49, CLASSES))


MODELS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (lambda: mlp(64, [128, 64]), (64,)),
    "mlp-batchnorm": (lambda: mlp(64, [128, 64], nn.BatchNorm1d), (64,)),
    "mlp-layernorm": (lambda: mlp(64, [128, 64], nn.LayerNorm), (64,)),
    "mlp-dropout": (lambda: mlp(64, [128, 64], lambda size: nn.Dropout(0.3)), (64,)),
    "embeddings": (Tokens, (8,)),
    "transformer": (Transformer, (16, 8)),
    "wide-mlp": (lambda: mlp(256, [512, 512]), (256,)),
    "cnn": (cnn, (1, 28, 28)),
    "cnn-batchnorm": (lambda: cnn(nn.BatchNorm2d), (1, 28, 28)),
}


def make_data(name: str, rows: int) -> dict[str, np.ndarray[Any, Any]]:
    rng, shape = np.random.default_rng(0), (rows, *MODELS[name][1])
    whole = name == "embeddings"
    x = rng.integers(0, 1000, shape) if whole else rng.normal(size=shape).astype("float32")
    return {"x": x, "y": rng.integers(0, CLASSES, rows)}


def make_trainer(name: str, arrays: dict[str, np.ndarray[Any, Any]]) -> TorchTrainer:
    def model_fn(params: Any) -> TorchModel:
        module = MODELS[name][0]()
        optimizer = torch.optim.Adam(module.parameters(), lr=params["lr"], weight_decay=params["decay"])
        return TorchModel(module, optimizer, nn.CrossEntropyLoss())

    columns = Columns(
        {"x": ColumnSpec(str(arrays["x"].dtype), arrays["x"].shape[1:])}, {"y": ColumnSpec(str(arrays["y"].dtype))}
    )
    return TorchTrainer(Hooks(model_fn), columns, resources=Resources(device="cpu", threads=1))


class Bundle:
    """Some trials of one model, and their checkpoints."""

    def __init__(self, name: str, width: int, batch: int, batches: int) -> None:
        self._arrays = make_data(name, batch * batches)
        self._batch, self._width = batch, width
        self.trainer = make_trainer(name, self._arrays)
        self.states: list[Any] = [None] * width

    def members(self, epoch: int) -> list[Member]:
        made = []
        for number, state in enumerate(self.states):
            order = np.random.default_rng([number, epoch]).permutation(len(self._arrays["y"]))
            start = {} if state is None else {"source": state.checkpoint.getvalue(), "digest": state.saved.digest}
            params = {"lr": 1e-3 * (1 + number / 7), "decay": 1e-5 * number}
            feed = Feed(self._arrays, order, batch_size=self._batch, key="p")
            made.append(Member(Unit(f"t{number}", epoch, "p"), params, feed, **start))
        return made

    def alone(self, members: Sequence[Member]) -> list[Any]:
        return [outcome for member in members for outcome in self.trainer.train_together([member])]


def timed(work: Callable[[], list[Any]]) -> tuple[float, list[Any]]:
    began = time.process_time()
    outcomes = work()
    seconds = time.process_time() - began
    for outcome in outcomes:
        if not isinstance(outcome, TrainedMember):
            raise outcome
    return seconds, outcomes


def measure(name: str, width: int, options: argparse.Namespace) -> dict[str, Any]:
    bundle = Bundle(name, width, options.batch, options.batches)
    first, _ = timed(lambda: bundle.trainer.train_together(bundle.members(1)))
    together, alone, same, used = [], [], 0, 0
    for epoch in range(1, options.rounds + 2):
        members = bundle.members(epoch)
        seconds, outcomes = timed(lambda members=members: bundle.trainer.train_together(members))  # type: ignore[misc]
        single, wanted = timed(lambda members=members: bundle.alone(members))  # type: ignore[misc]
        same += sum(a.saved.digest == b.saved.digest for a, b in zip(outcomes, wanted, strict=True))
        bundle.states, used = wanted, outcomes[0].width
        together.append(seconds)
        alone.append(single)
    return {
        "model": name,
        "members": width,
        "width": used,
        "single_ms": 1e3 * min(alone) / width,
        "together_ms": 1e3 * min(together) / width,
        "speed_up": min(alone) / min(together),
        "first_s": first,
        "digests": f"{same} of {width * (options.rounds + 1)}",
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--json", type=Path)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--batches", type=int, default=60)
    parser.add_argument("--widths", type=int, nargs="+", default=[2, 4, 8, 16, 32])
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    options = parser.parse_args()
    print("| model | trials | at once | single unit ms | together ms | speed-up | first bundle s | equal digests |")
    print("|---|---|---|---|---|---|---|---|")
    rows = []
    for name in options.models:
        for width in options.widths:
            row = measure(name, width, options)
            rows.append(row)
            shown = (row[name] if isinstance(row[name], str | int) else f"{row[name]:.2f}" for name in COLUMNS)
            print("|", " | ".join(map(str, shown)), "|", flush=True)
    if options.json:
        options.json.write_text(json.dumps({**circumstances("benchmarks.bundles"), "rows": rows}, indent=2))


if __name__ == "__main__":
    main()
