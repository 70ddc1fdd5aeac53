"""Trains three models on a GPU with little memory by each strategy, and by "auto". It installs nothing.

    python benchmarks/strategies.py [--memory 12] [--steps 20] [--models 768x12-b16,2048x16-b4] [--json FILE]

torch, numpy, safetensors, cloudpickle, pandas and pyarrow are all that must be there. Each try has a process of its
own, whose memory of the GPU is capped. A step's time is that of a long unit less that of a short one; the time to
choose is that of a first unit less that of another one with as many steps.
"""

from __future__ import annotations

import argparse
import json
import logging
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

MODELS = {"768x12-b16": (768, 12, 16), "768x12-b128": (768, 12, 128), "2048x16-b4": (2048, 16, 4)}
STRATEGIES = ("plain", "recompute", "offload", "offload+recompute", "auto")
TOKENS, WORDS, WARM_UP, FEW = 512, 1000, 24, 4
GIB = 1 << 30


def make_model_fn(width: int, layers: int) -> Callable[[Any], Any]:
    import torch
    from torch import nn

    from cerebro_spark.trainer import TorchModel

    class Transformer(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(WORDS, width)
            self.blocks = nn.ModuleList(
                nn.TransformerEncoderLayer(width, width // 64, 4 * width, 0.0, batch_first=True, norm_first=True)
                for _ in range(layers)
            )
            self.head = nn.Linear(width, WORDS)

        def forward(self, words: torch.Tensor) -> torch.Tensor:
            hidden: torch.Tensor = self.embedding(words)
            for block in self.blocks:
                hidden = block(hidden)
            logits: torch.Tensor = self.head(hidden)
            return logits.float()

    def loss(output: torch.Tensor, label: torch.Tensor) -> torch.Tensor:
        each = nn.functional.cross_entropy(output.flatten(0, 1), label.flatten().long(), reduction="none")
        return each.view(len(output), -1).mean(1)

    def model_fn(params: Any) -> TorchModel:
        module = Transformer()
        return TorchModel(module, torch.optim.AdamW(module.parameters(), lr=params["lr"]), loss)

    return model_fn


def run_one(name: str, strategy: str, memory: float, steps: int) -> dict[str, Any]:
    """Train a few units by a strategy, in this process."""
    import numpy as np
    import torch

    from cerebro_spark.errors import CerebroError
    from cerebro_spark.trainer import Columns, ColumnSpec, Feed, Hooks, Resources
    from cerebro_spark.trainer.torch.trainer import TorchTrainer
    from cerebro_spark.types import Unit

    logging.basicConfig(level=logging.INFO, stream=sys.stderr, format="    %(message)s")
    width, layers, size = MODELS[name]
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction(min(1.0, memory * GIB / total))
    words = np.random.default_rng(0).integers(WORDS, size=(size * max(WARM_UP, FEW + steps), TOKENS)).astype("int32")
    columns = Columns({"words": ColumnSpec("int32", (TOKENS,))}, {"label": ColumnSpec("int32", (TOKENS,))})
    resources = Resources(precision="bfloat16", strategy=strategy)  # type: ignore[arg-type]
    trainer = TorchTrainer(Hooks(make_model_fn(width, layers)), columns, resources=resources)
    params = {"lr": 1e-4}

    def train(epoch: int, batches: int) -> float:
        torch.cuda.synchronize()
        began = time.perf_counter()
        rows = words[: size * batches]
        losses.append(trainer.train(Unit("t0", epoch, "p0"), Feed({"words": rows, "label": rows}, batch_size=size)))
        torch.cuda.synchronize()
        return time.perf_counter() - began

    found: dict[str, Any] = {"model": name, "strategy": strategy}
    losses: list[Any] = []
    try:
        trainer.build("t0", params)
        first = train(1, FEW)
        # What one unit of so many batches takes once all is known.
        found["choose_s"] = max(0.0, first - train(1, FEW))
        train(1, WARM_UP)  # so many that graphs are chosen or left
        torch.cuda.reset_peak_memory_stats()
        few = train(1, FEW)
        found["step_ms"] = 1000 * (train(1, FEW + steps) - few) / steps
        found["peak_gib"] = torch.cuda.max_memory_allocated() / GIB
        found["loss"] = losses[1].values()["loss"]
    except CerebroError as error:
        found["error"] = str(error).splitlines()[0][:300]
    found["picked"] = trainer.strategy
    found["tries"] = [
        {"strategy": each.strategy, "reason": each.reason[:200], "s": each.seconds, "left_gib": each.left / GIB}
        for each in trainer.failed_tries
    ]
    return found


def show(found: dict[str, Any]) -> None:
    cells = [f"{found['model']:<12} {found['strategy']:<18} {found.get('picked') or '-':<18}"]
    for key, form in (("step_ms", "{:9.1f}"), ("peak_gib", "{:9.2f}"), ("choose_s", "{:9.1f}"), ("loss", "{:12.7f}")):
        cells.append(form.format(found[key]) if key in found else f"{'-':>9}")
    tries = "; ".join(f"{t['strategy']} {t['s']:.1f}s left {t['left_gib']:.3f} GiB" for t in found.get("tries", []))
    print(" ".join(cells), tries or found.get("error", ""), flush=True)


def judge(results: list[dict[str, Any]]) -> None:
    """Say whether "auto" picked the fastest strategy of each model, how soon, and what failed tries left behind."""
    for name in dict.fromkeys(found["model"] for found in results):
        own = [found for found in results if found["model"] == name]
        timed = {found["strategy"]: found["step_ms"] for found in own if "step_ms" in found}
        auto = next((found for found in own if found["strategy"] == "auto"), {})
        fixed = {strategy: ms for strategy, ms in timed.items() if strategy != "auto"}
        best = min(fixed, key=lambda strategy: fixed[strategy]) if fixed else "none"
        left = max((each["left_gib"] for found in own for each in found.get("tries", [])), default=0.0)
        verdict = "best" if auto.get("picked") == best else "NOT the best"
        print(
            f"{name}: auto picked {auto.get('picked')!r}, the fastest is {best!r}: {verdict}; chosen in"
            f" {auto.get('choose_s', float('nan')):.1f} s (at most 60); at most {left:.3f} GiB left (at most 0.1)"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--memory", type=float, default=12.0, help="GiB of the GPU that a process may have")
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--models", default=",".join(MODELS))
    parser.add_argument("--strategies", default=",".join(STRATEGIES))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--one", nargs=2, metavar=("MODEL", "STRATEGY"), help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.one:
        print(json.dumps(run_one(given.one[0], given.one[1], given.memory, given.steps)))
        return
    heads = f"{'ms/step':>9} {'peak GiB':>9} {'choose s':>9} {'loss':>12}"
    print(f"{'model':<12} {'strategy':<18} {'picked':<18} {heads} tries")
    results: list[dict[str, Any]] = []
    for name in given.models.split(","):
        for strategy in given.strategies.split(","):
            command = [sys.executable, __file__, "--one", name, strategy]
            command += ["--memory", str(given.memory), "--steps", str(given.steps)]
            done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
            last = (done.stdout.strip().splitlines() or [""])[-1]
            lost = {"model": name, "strategy": strategy, "error": f"the process ended with {done.returncode}"}
            results.append(json.loads(last) if last.startswith("{") else lost)
            show(results[-1])
            if given.json:
                given.json.write_text(json.dumps(results, indent=1))
    judge(results)


if __name__ == "__main__":
    main()
