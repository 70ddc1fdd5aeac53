"""Models that strategies train, and models that they cannot. Nothing here asserts."""

from __future__ import annotations

import random
from collections.abc import Callable, Mapping
from io import BytesIO
from typing import Any

import numpy as np
import torch
from torch import nn

from cerebro_spark.trainer import Columns, ColumnSpec, Feed, Hooks, Resources, TorchModel
from cerebro_spark.trainer.checkpoints.reading import open_checkpoint
from cerebro_spark.trainer.torch.trainer import TorchTrainer
from cerebro_spark.types import Unit

COLUMNS = Columns({"x": ColumnSpec("float32", (5, 8))}, {"y": ColumnSpec("float32")})
PARAMS = {"lr": 0.01}


class Transformer(nn.Module):
    """Blocks in a list, with dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 16)
        self.blocks = nn.ModuleList(nn.TransformerEncoderLayer(16, 2, 32, 0.2, batch_first=True) for _ in range(3))
        self.last = nn.Linear(16, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        for block in self.blocks:
            x = block(x)
        result: torch.Tensor = self.last(x).mean((1, 2))
        return result


class Cnn(nn.Module):
    """Layers in a sequence, which update statistics and write into their inputs."""

    def __init__(self) -> None:
        super().__init__()
        self.features = nn.Sequential(
            nn.Conv1d(5, 8, 3, padding=1),
            nn.BatchNorm1d(8),
            nn.ReLU(inplace=True),
            nn.Conv1d(8, 8, 3, padding=1),
            nn.BatchNorm1d(8, momentum=None),
            nn.ReLU(inplace=True),
            nn.Dropout(0.1),
            nn.Flatten(),
        )
        self.last = nn.Linear(64, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.last(self.features(x)).squeeze(1)
        return result


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(40, 32),
        nn.ReLU(),
        nn.Dropout(0.3),
        nn.Linear(32, 16),
        nn.ReLU(),
        nn.Linear(16, 1),
        nn.Flatten(0),
    )


class Blocks(nn.Module):
    """Two blocks of a class of one's own."""

    def __init__(self, block: Callable[[], nn.Module]) -> None:
        super().__init__()
        self.blocks = nn.ModuleList(block() for _ in range(2))
        self.last = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block(x)
        result: torch.Tensor = self.last(x).mean((1, 2))
        return result


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.linear = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x + torch.tanh(self.linear(x))


class HostNoise(Block):
    """Draws from the generators of Python and NumPy, and so leaves itself out now and then."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if random.random() < 0.3 else super().forward(x) * float(1 + 0.1 * np.random.rand())


class CountingBuffer(Block):
    """What it computes depends on how often it has computed."""

    seen: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen = self.seen + 1
        return super().forward(x) / self.seen


class SpectralBlock(Block):
    def __init__(self) -> None:
        super().__init__()
        nn.utils.parametrizations.spectral_norm(self.linear)


class FrozenNorm(Block):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.norm.eval()
        result = super().forward(self.norm(x))
        self.norm.train(self.training)
        return result


class TakesKeywords(nn.Module):
    """Blocks that are called with keywords, None and tuples."""

    class Part(Block):
        def forward(self, x: torch.Tensor, *, mask: Any = None, scales: Any = ()) -> torch.Tensor:
            result: torch.Tensor = nn.functional.dropout(super().forward(x), 0.2) * scales[0]
            return result if mask is None else result + mask

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second = self.Part(), self.Part()
        self.last = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x=x, mask=None, scales=(x.mean(), 2))
        x = self.second(x, scales=(x.mean(), 2), mask=x.sum())
        result: torch.Tensor = self.last(x).mean((1, 2))
        return result


class ExtraState(Block):
    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        return super().forward(x)

    def get_extra_state(self) -> Any:
        return self.calls

    def set_extra_state(self, state: Any) -> None:
        self.calls = state


class Hooked(Block):
    def __init__(self) -> None:
        super().__init__()
        self.linear.register_forward_hook(_double)


def _double(module: nn.Module, inputs: Any, output: torch.Tensor) -> torch.Tensor:
    return output * 2


class WritesIntoInput(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x.mul_(0.5))


class TakesLists(Blocks):
    class Part(Block):
        def forward(self, given: list[torch.Tensor]) -> torch.Tensor:  # type: ignore[override]
            return super().forward(given[0])

    def __init__(self) -> None:
        super().__init__(self.Part)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for block in self.blocks:
            x = block([x])
        result: torch.Tensor = self.last(x).mean((1, 2))
        return result


class Shift(Block):
    """Its gradients need nothing of what it is given."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(x + self.linear.bias)


class WritesIntoHidden(Blocks):
    """A block does not keep what it is given, but would be computed from it again."""

    def __init__(self) -> None:
        super().__init__(Shift)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + torch.zeros_like(x)
        hidden = self.blocks[1](self.blocks[0](x))
        x.add_(1.0)  # after a block was given it
        result: torch.Tensor = self.last(hidden).mean((1, 2)) + x.mean()
        return result


class LargeCounter(Block):
    seen: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(1 << 17))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen.add_(1)
        return super().forward(x)


TABLE: dict[int, str] = {}


class FillsTable(Block):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        TABLE[len(TABLE)] = "a row"
        return super().forward(x)


class FlippedNorm(Block):
    """Computes statistics, but says that it does not."""

    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.norm.train()
        result = super().forward(self.norm(x))
        self.norm.eval()
        return result


class WeightNormed(Block):
    def __init__(self) -> None:
        super().__init__()
        nn.utils.parametrizations.weight_norm(self.linear)


class DropBlock(Block):
    def __init__(self) -> None:
        super().__init__()
        self.drop = nn.Dropout(0.5)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(self.drop(x))


class OftenOff(Blocks):
    """Has its blocks evaluate now and then, and train afterwards."""

    calls: torch.Tensor

    def __init__(self) -> None:
        super().__init__(DropBlock)
        self.register_buffer("calls", torch.zeros(()))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        for block in self.blocks:
            x = block.train(bool(self.calls % 3))(x)
            block.train()
        result: torch.Tensor = self.last(x).mean((1, 2))
        return result


class StopsInTheMiddle(DropBlock):
    """Has another mode at the place up to which its gradients need it again."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.drop(x)
        self.drop.eval()
        result = torch.tanh(self.linear(self.drop(x))) * 1
        self.drop.train()
        return result


class GradientPenalty(Blocks):
    """Its loss has gradients of gradients in it."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        given = hidden = x.detach().requires_grad_()
        for block in self.blocks:
            hidden = block(hidden)
        output: torch.Tensor = self.last(hidden).mean((1, 2))
        (slope,) = torch.autograd.grad(output.sum(), given, create_graph=True)
        return output + slope.square().sum((1, 2))


class InDicts(nn.Module):
    """Its blocks are in dicts and lists of modules, which cannot be called."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.ModuleDict({"a": DropBlock(), "b": WeightNormed()})
        self.second = nn.ModuleDict({"a": DropBlock()})
        self.lists: Any = nn.ModuleList(nn.ModuleList(nn.Linear(8, 8) for _ in range(2)) for _ in range(2))
        self.last = nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.second["a"](self.first["b"](self.first["a"](x)))
        for layers in self.lists:
            x = layers[1](torch.tanh(layers[0](x)))
        result: torch.Tensor = self.last(x).mean((1, 2))
        return result


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.linear = nn.LSTM(8, 8, num_layers=2, batch_first=True), nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.linear(self.lstm(x)[0])
        return result


class HiddenNoise(Block):
    """Draws from a generator that nothing can put back."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * float(1 + np.random.default_rng().random())


class RoundsOtherwise(Block):
    """Adds up in another order each time, as some kernels do."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x) * float(1 + 1e-6 * np.random.default_rng().random())


class LeavesAside(Block):
    """Leaves a part of the loss where the model takes it away."""

    def __init__(self) -> None:
        super().__init__()
        self.aside: Any = None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.sigmoid(self.linear(x))
        self.aside = hidden.mean()
        return x + torch.tanh(hidden) * hidden


class TakesAway(Blocks):
    def __init__(self) -> None:
        super().__init__(LeavesAside)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        beside: Any = 0.0
        block: Any
        for block in self.blocks:
            x, beside = block(x), beside + block.aside
            block.aside = None
        result: torch.Tensor = self.last(x).mean((1, 2)) + beside
        return result


class WritesParameter(Blocks):
    """Makes a weight smaller in each pass, outside of its blocks."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.last.weight.mul_(0.9)
        return super().forward(x)


class Scaled(Block):
    scale: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("scale", torch.ones(8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return torch.tanh(self.linear(x) * self.scale) * torch.tanh(x + self.linear.bias)


class ChangesLater(Blocks):
    """From its third pass on, changes what its blocks have computed with, when they have."""

    calls: torch.Tensor

    def __init__(self, change: Callable[[Any], None]) -> None:
        super().__init__(Scaled)
        self.register_buffer("calls", torch.zeros(()))
        self.change = change

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result = super().forward(x)
        self.calls += 1
        if self.calls > 2:
            self.change(self.blocks[0])
        return result


def _change_buffer(block: Any) -> None:
    block.scale = block.scale * 0.5


@torch.no_grad()
def _change_parameter(block: Any) -> None:
    block.linear.bias.mul_(0.5)


class NoBlocks(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(40, 8), nn.Linear(8, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.last(torch.relu(self.first(x.flatten(1)))).squeeze(1)
        return result


EXACT: dict[str, Callable[[], nn.Module]] = {
    "transformer": Transformer,
    "cnn": Cnn,
    "mlp": mlp,
    "host noise": lambda: Blocks(HostNoise),
    "counting buffer": lambda: Blocks(CountingBuffer),
    "spectral norm": lambda: Blocks(SpectralBlock),
    "frozen norm": lambda: Blocks(FrozenNorm),
    "keywords": TakesKeywords,
    "flipped norm": lambda: Blocks(FlippedNorm),
    "weight norm": lambda: Blocks(WeightNormed),
    "often off": OftenOff,
    "stops in the middle": lambda: Blocks(StopsInTheMiddle),
    "gradient penalty": lambda: GradientPenalty(DropBlock),
    "dicts": InDicts,
    "recurrent": lambda: Blocks(Recurrent),
}

REFUSED: dict[str, tuple[Callable[[], nn.Module], str]] = {
    "extra state": (lambda: Blocks(ExtraState), "its ExtraState keeps extra state"),
    "hooks": (lambda: Blocks(Hooked), "its Linear 'blocks.0.linear' has hooks"),
    "lists": (TakesLists, "is given a list"),
    "input": (lambda: Blocks(WritesIntoInput), "'blocks.0' is given is changed in place"),
    "hidden": (WritesIntoHidden, "is changed in place|cannot be computed again"),
    "large buffer": (lambda: Blocks(LargeCounter), "its LargeCounter changes its buffer 'seen' of 131072 elements"),
    "table": (lambda: Blocks(FillsTable), "TABLE, which gets more items"),
    "hidden noise": (lambda: Blocks(HiddenNoise), "its gradients would not be the same"),
    "taken away": (TakesAway, "`LeavesAside.aside`, which is tensor.* instead of None when it is computed again"),
    "parameter": (lambda: WritesParameter(Block), "its forward writes into its parameter 'last.weight'"),
    "later buffer": (lambda: ChangesLater(_change_buffer), "the buffer 'scale' of its Scaled is written to or exch"),
    "later parameter": (lambda: ChangesLater(_change_parameter), "the parameter 'bias' of its Linear is written to"),
    "no blocks": (NoBlocks, "it has no blocks that could be computed again"),
}


def model_fn_of(make: Callable[[], nn.Module], optimizer: str = "AdamW") -> Callable[[Any], TorchModel]:
    def model_fn(params: Mapping[str, float]) -> TorchModel:
        module = make()
        made = getattr(torch.optim, optimizer)(module.parameters(), lr=params["lr"])
        return TorchModel(module, made, nn.MSELoss(), clip_norm=1.0)

    return model_fn


def make_feed(seed: int = 0, rows: int = 50) -> Feed:
    rng = np.random.default_rng(seed)
    arrays = {"x": rng.normal(size=(rows, 5, 8)).astype("float32"), "y": rng.normal(size=rows).astype("float32")}
    return Feed(arrays, rng.permutation(rows), batch_size=16)


def make_trainer(
    make: Callable[[], nn.Module], strategy: str, kind: type[TorchTrainer] = TorchTrainer, **others: Any
) -> TorchTrainer:
    resources = Resources(**{"device": "cpu", "threads": 1, "strategy": strategy, **others})
    return kind(Hooks(model_fn_of(make)), COLUMNS, seed=3, resources=resources)


def save(trainer: TorchTrainer) -> bytes:
    file = BytesIO()
    trainer.save(file)
    return file.getvalue()


def read(checkpoint: bytes) -> dict[str, Any]:
    """Return all that is in a checkpoint, its generators too."""
    with open_checkpoint(checkpoint) as reader:
        arrays = {name: (reader.spec(name), bytes(reader.read(name))) for name in reader.names()}
        return {**arrays, "": repr(reader.meta)}


def train(trainer: TorchTrainer, units: int = 2, trial: str = "t0") -> tuple[dict[str, Any], list[Any]]:
    """Train units of a new trial; return its checkpoint and the metrics."""
    trainer.build(trial, PARAMS)
    metrics = [trainer.train(Unit(trial, epoch, "p0"), make_feed(epoch)).values() for epoch in range(1, units + 1)]
    return read(save(trainer)), metrics
