"""On a GPU: strategies leave the same bits with less memory; "auto" finds the first that fits. Skipped without one."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

if not Path("/dev/nvidia0").exists():
    pytest.skip("needs an NVIDIA GPU, and this machine has none", allow_module_level=True)

import torch
from strategy_models import EXACT, PARAMS, make_feed, make_trainer, read, save, train
from torch import nn

from cerebro_spark.errors import TrialFailed
from cerebro_spark.trainer import Columns, ColumnSpec, Feed, Hooks, Resources, TorchModel
from cerebro_spark.trainer.base import Member
from cerebro_spark.trainer.torch.built_model import BuiltTorchModel
from cerebro_spark.trainer.torch.strategies.host_state import HostedOptimizer, place_state
from cerebro_spark.trainer.torch.strategies.memory import collect_memory
from cerebro_spark.trainer.torch.trainer import TorchTrainer
from cerebro_spark.types import Unit

GPU: Any = {"device": "cuda"}
MIB = 1 << 20


@pytest.fixture(autouse=True)
def repeatable() -> Iterator[None]:
    """Kernels that leave the same bits each time, and a clean device after each test."""
    cudnn = torch.backends.cudnn
    before = cudnn.deterministic, cudnn.benchmark
    cudnn.deterministic, cudnn.benchmark = True, False
    yield
    cudnn.deterministic, cudnn.benchmark = before
    torch.cuda.set_per_process_memory_fraction(1.0)
    collect_memory(torch.device("cuda"))


def cap(extra: int) -> None:
    """Let this process have so many bytes more than its tensors have now."""
    collect_memory(torch.device("cuda"))
    total = torch.cuda.get_device_properties(0).total_memory
    torch.cuda.set_per_process_memory_fraction((torch.cuda.memory_reserved() + extra) / total)


@pytest.mark.parametrize("precision", [None, "bfloat16"])
@pytest.mark.parametrize("strategy", ["recompute", "offload", "offload+recompute"])
@pytest.mark.parametrize("name", EXACT)
def test_every_strategy_leaves_the_bits_of_plain_eager_steps(name: str, strategy: str, precision: Any) -> None:
    # Without graphs, in which kernels may be chosen otherwise.
    plain = make_trainer(EXACT[name], "plain", compile=False, precision=precision, **GPU)
    other = make_trainer(EXACT[name], strategy, compile=False, precision=precision, **GPU)
    assert train(other) == train(plain)
    assert other.strategy == strategy


@pytest.mark.parametrize("strategy", ["recompute", "offload", "offload+recompute"])
def test_also_with_the_kernels_that_graphs_record(strategy: str) -> None:
    plain = make_trainer(EXACT["transformer"], "plain", **GPU)
    other = make_trainer(EXACT["transformer"], strategy, **GPU)
    assert train(other, 4) == train(plain, 4)
    assert (other.strategy, other.steps) == (strategy, "eager")


@pytest.mark.parametrize("settings", [{}, {"fused": True}, {"amsgrad": True, "foreach": True}])
def test_many_pieces_on_several_streams_leave_the_bits_of_one_step(settings: Any) -> None:
    device = torch.device("cuda", torch.cuda.current_device())

    def run(pieces: bool) -> tuple[Any, torch.Tensor]:
        torch.manual_seed(0)
        module = Deep(1024, 6).to(device)
        optimizer = torch.optim.AdamW(module.parameters(), lr=0.01, **settings)
        model = BuiltTorchModel(TorchModel(module, optimizer, nn.MSELoss()), device, None)
        hosted = HostedOptimizer(optimizer, model.parameters, device, piece=6 << 20)
        for _ in range(30):
            optimizer.zero_grad()
            module(torch.randn(16, 64, device=device)).square().mean().backward()
            if pieces:
                place_state(model, on_host=True)
                hosted.step(optimizer.step)
            else:
                optimizer.step()
        hosted.finish()
        state = [value.cpu() for each in optimizer.state.values() for value in each.values()]
        weights = torch.cat([each.detach().cpu().reshape(-1) for each in module.parameters()])
        return torch.cat([each.reshape(-1) for each in state]), weights

    for one, other in zip(run(True), run(False), strict=True):
        assert torch.equal(one, other)


def test_a_trial_hops_between_strategies() -> None:
    first = make_trainer(EXACT["transformer"], "offload+recompute", compile=False, **GPU)
    second = make_trainer(EXACT["transformer"], "plain", compile=False, **GPU)
    train(first, 1)
    second.load("t0", PARAMS, save(first))
    second.train(Unit("t0", 2, "p0"), make_feed(2))
    first.load("t0", PARAMS, save(second))
    first.evaluate(Unit("t0", 2, "v0", "eval"), make_feed(9))
    first.load("t0", PARAMS, save(second))
    first.train(Unit("t0", 3, "p0"), make_feed(3))
    assert read(save(first)) == train(second, 3, "t0")[0]


class Deep(nn.Module):
    """A lot of activations, or a lot of parameters."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.first = nn.Linear(64, width)
        self.blocks = nn.ModuleList(
            nn.Sequential(nn.Linear(width, width), nn.GELU(), nn.Linear(width, width), nn.GELU()) for _ in range(layers)
        )
        self.last = nn.Linear(width, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = x + block(x)
        result: torch.Tensor = self.last(x).squeeze(1)
        return result


# Deep models of random rows: with a larger rate their loss explodes.
GENTLE = {**PARAMS, "lr": 1e-6}


def deep_trainer(width: int, layers: int, strategy: str, **others: Any) -> TorchTrainer:
    def model_fn(params: Any) -> TorchModel:
        module = Deep(width, layers)
        return TorchModel(module, torch.optim.AdamW(module.parameters(), lr=params["lr"]), nn.MSELoss())

    columns = Columns({"x": ColumnSpec("float32", (64,))}, {"y": ColumnSpec("float32")})
    resources = Resources(**{"device": "cuda", "strategy": strategy, **others})
    return TorchTrainer(Hooks(model_fn), columns, seed=3, resources=resources)


def deep_feed(size: int, batches: int = 4) -> Feed:
    rng = np.random.default_rng(0)
    rows = size * batches
    arrays = {"x": rng.normal(size=(rows, 64)).astype("float32"), "y": rng.normal(size=rows).astype("float32")}
    return Feed(arrays, batch_size=size)


def peak_of(width: int, layers: int, size: int, strategy: str) -> int:
    """Return the bytes that a unit needs, beyond those before it was built."""
    collect_memory(torch.device("cuda"))
    before = torch.cuda.memory_reserved()
    made = deep_trainer(width, layers, strategy)
    made.build("t0", GENTLE)
    made.train(Unit("t0", 1, "p0"), deep_feed(size))
    collect_memory(torch.device("cuda"))
    torch.cuda.reset_peak_memory_stats()
    made.train(Unit("t0", 2, "p0"), deep_feed(size))
    return torch.cuda.max_memory_reserved() - before


# Many activations: 12 blocks x 4 x 65536 x 256 floats. Many parameters: 12 x 2 x 3072 x 3072, and twice that as state.
ACTIVATIONS, PARAMETERS = (256, 12, 1 << 16), (3072, 12, 64)


def test_recomputing_needs_less_for_activations_and_offloading_for_state() -> None:
    assert peak_of(*ACTIVATIONS, "recompute") < 0.6 * peak_of(*ACTIVATIONS, "plain")
    assert peak_of(*PARAMETERS, "offload") < 0.8 * peak_of(*PARAMETERS, "plain")


@pytest.mark.parametrize(("shape", "picked"), [(ACTIVATIONS, "recompute"), (PARAMETERS, "offload")])
def test_auto_takes_the_first_that_fits(
    shape: tuple[int, int, int], picked: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    width, layers, size = shape
    needed = {strategy: peak_of(width, layers, size, strategy) for strategy in ("plain", picked)}
    plain = deep_trainer(width, layers, "plain")
    expected = digest_after(plain, size)
    del plain
    made = deep_trainer(width, layers, "auto")
    cap((needed["plain"] + needed[picked]) // 2)
    assert digest_after(made, size) == expected
    assert made.strategy == picked
    assert [each.strategy for each in made.failed_tries][:1] == ["plain"]
    assert max(each.left for each in made.failed_tries) <= 100 * MIB
    assert any(f"trains by strategy {picked!r}" in each.getMessage() for each in caplog.records)


def digest_after(made: TorchTrainer, size: int) -> dict[str, Any]:
    made.build("t0", GENTLE)
    for epoch in (1, 2):
        made.train(Unit("t0", epoch, "p0"), deep_feed(size))
        made.load("t0", GENTLE, save(made))
    return read(save(made))


def test_what_fits_by_no_strategy_fails_and_leaves_room() -> None:
    made = deep_trainer(256, 12, "auto")
    made.build("t0", GENTLE)
    cap(200 * MIB)
    with pytest.raises(TrialFailed, match="does not fit into the memory"):
        made.train(Unit("t0", 1, "p0"), deep_feed(1 << 19, 1))
    torch.cuda.set_per_process_memory_fraction(1.0)
    made.build("t1", GENTLE)
    made.train(Unit("t1", 1, "p0"), deep_feed(64))
    assert made.strategy == "plain"


def test_bundles_train_one_by_one() -> None:
    made = make_trainer(EXACT["mlp"], "recompute", **GPU)
    members = [Member(Unit(trial, 1, "p0"), PARAMS, make_feed(1)) for trial in ("t0", "t1")]
    outcomes = made.train_together(members)
    assert [(each.width, each.strategy) for each in outcomes if not isinstance(each, Exception)] == [
        (1, "recompute"),
        (1, "recompute"),
    ]


def test_state_on_the_host_is_in_memory_that_the_gpu_reads() -> None:
    made = deep_trainer(1024, 2, "offload")
    made.build("t0", PARAMS)
    made.train(Unit("t0", 1, "p0"), deep_feed(64))
    made.load("t0", PARAMS, save(made))
    made.train(Unit("t0", 2, "p0"), deep_feed(64))
    moments = [state[key] for state in made.model().optimizer.state.values() for key in ("exp_avg", "exp_avg_sq")]
    assert all(moment.device.type == "cpu" and moment.is_pinned() for moment in moments)
