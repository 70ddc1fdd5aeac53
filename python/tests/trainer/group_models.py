"""PyTorch models that groups train exactly, and some that they must not. Each is a `model_fn`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.nn import functional
from torch.optim import lr_scheduler as schedulers
from torchmetrics.classification import BinaryAUROC

from cerebro_spark.trainer import TorchModel

ModelFn = Callable[[Any], TorchModel]


def make(
    module: Callable[[], Any], loss: Any = None, optimizer: Any = None, schedule: Any = None, **more: Any
) -> ModelFn:
    """Return a `model_fn`; it trains by SGD unless another `optimizer` is given."""

    def model_fn(params: Any) -> TorchModel:
        built = module()
        solver = optimizer(built.parameters()) if optimizer else torch.optim.SGD(built.parameters(), lr=0.1)
        given = {"lr_scheduler": schedule(solver)} if schedule else {}
        own = {name: metric() if isinstance(metric, type) else metric for name, metric in METRICS.items()}
        return TorchModel(built, solver, loss or nn.BCEWithLogitsLoss(), **{"metrics": own, **given, **more})

    return model_fn


def hits(output: Any, label: Any) -> Any:
    return (output.squeeze(-1) > 0) == (label > 0)


class Curve(BinaryAUROC):
    """A metric whose states add up."""

    def __init__(self) -> None:
        super().__init__(thresholds=20)


METRICS: dict[str, Any] = {"hits": hits}


def mlp(*middle: Any, out: int = 1) -> Any:
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), *middle, nn.Linear(16, out))


class Several(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body, self.click, self.price = nn.Linear(8, 8), nn.Linear(8, 1), nn.Linear(8, 1)

    def forward(self, wide: Any, deep: Any) -> Any:
        x = torch.relu(self.body(torch.cat([wide, deep], 1)))
        return {"click": self.click(x).squeeze(-1), "price": self.price(x).squeeze(-1)}


def several_loss(output: Any, label: Any) -> Any:
    click = functional.binary_cross_entropy_with_logits(output["click"], label["click"])
    return click + 0.5 * functional.mse_loss(output["price"], label["price"])


class Branching(nn.Module):
    """Has a part that no row uses, and one that few rows use."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.idle, self.rare = mlp(), nn.Linear(8, 1), nn.Linear(8, 1)

    def forward(self, x: Any) -> Any:
        far = x[:, 0] > 1.8
        out = self.body(x)
        if far.any():
            out = out + far[:, None] * self.rare(x)
        return out


class Frozen(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(8, 16), nn.Linear(16, 1)
        self.first.requires_grad_(False)

    def forward(self, x: Any) -> Any:
        return self.last(torch.tanh(self.first(x)))


class InBfloat16(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = mlp().bfloat16()

    def forward(self, x: Any) -> Any:
        return self.body(x.bfloat16()).float()


class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.head = nn.Linear(8, 1)

    def forward(self, tokens: Any) -> Any:
        x = self.embedding(tokens)
        return self.head(self.attention(x, x, x)[0].mean(1))


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.lstm, self.head = nn.Embedding(20, 6), nn.LSTM(6, 8, batch_first=True), nn.Linear(8, 1)

    def forward(self, tokens: Any) -> Any:
        return self.head(self.lstm(self.embedding(tokens))[0][:, -1])


def cnn() -> Any:
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.GroupNorm(2, 4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 3))


def momentum(parameters: Any) -> Any:
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9, nesterov=True, weight_decay=0.01)


def adam(parameters: Any) -> Any:
    return torch.optim.Adam(parameters, lr=0.01)


EXACT: dict[str, tuple[str, ModelFn]] = {
    "sgd": ("tabular", make(mlp, metrics={"hits": hits, "curve": Curve()})),
    "momentum": ("tabular", make(mlp, optimizer=momentum)),
    "adam": ("tabular", make(mlp, optimizer=adam)),
    "clip_norm": ("tabular", make(mlp, clip_norm=0.02)),
    "clip_value": ("tabular", make(mlp, clip_value=0.005)),
    "by_batch": ("tabular", make(mlp, schedule=lambda o: schedulers.ExponentialLR(o, 0.97), scheduler_step="batch")),
    "by_epoch": ("tabular", make(mlp, schedule=lambda o: schedulers.StepLR(o, 1, 0.3))),
    "weighted": ("weighted", make(mlp, nn.BCEWithLogitsLoss(reduction="none"))),
    "classes": ("classes", make(lambda: mlp(out=3), nn.CrossEntropyLoss(), metrics={})),
    "several": ("several", make(Several, several_loss, metrics={})),
    "cnn": ("images", make(cnn, nn.CrossEntropyLoss(), metrics={})),
    "attention": ("tokens", make(Attention)),
    "recurrent": ("tokens", make(Recurrent)),
    "branching": ("tabular", make(Branching)),
    "frozen": ("tabular", make(Frozen)),
    "penalty": (
        "tabular",
        make(mlp, lambda output, label: functional.mse_loss(output.squeeze(-1), label.float()) + 0.1),
    ),
    "float64": ("tabular", make(lambda: nn.Sequential(Widened(), mlp().double()))),
}


class ByToken(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(20, 6), nn.Linear(6, 3)

    def forward(self, tokens: Any) -> Any:
        return self.head(self.embedding(tokens)).transpose(1, 2)


class Widened(nn.Module):
    def forward(self, x: Any) -> Any:
        return x.double()


DROPOUT = make(lambda: mlp(nn.Dropout(0.5)))
BFLOAT16 = make(InBfloat16)


# What no group trains.


class Standardized(nn.Module):
    """Takes the mean of a batch without being a BatchNorm; while training only, or always."""

    def __init__(self, always: bool) -> None:
        super().__init__()
        self.body, self.always = mlp(), always

    def forward(self, x: Any) -> Any:
        return self.body(x - x.mean(0) if self.always or self.training else x)


class Remembering(nn.Module):
    """Keeps a mean of its batches in a buffer, which changes no output."""

    seen: torch.Tensor

    def __init__(self) -> None:
        super().__init__()
        self.body = mlp()
        self.register_buffer("seen", torch.zeros(8))

    def forward(self, x: Any) -> Any:
        if self.training:
            self.seen.lerp_(x.mean(0), 0.1)
        return self.body(x)


class Drifting(torch.optim.SGD):
    """An optimizer that adds noise, another at each member."""

    def step(self, closure: Any = None) -> Any:
        with torch.no_grad():
            for group in self.param_groups:
                for parameter in group["params"]:
                    parameter.add_(1e-3 * torch.randn_like(parameter))
        return super().step(closure)


class Scattered:
    """A metric that keeps rows."""

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        self.rows: list[float] = []

    def update(self, output: Any, label: Any) -> None:
        self.rows += output.squeeze(-1).tolist()

    def compute(self) -> float:
        return float(np.median(self.rows))


class Gated(nn.Module):
    """Weighs two experts, and while training gives a loss by how evenly a batch uses them; it may add noise."""

    def __init__(self, noise: float, drop: float = 0.0) -> None:
        super().__init__()
        self.gate, self.experts, self.noise, self.drop = nn.Linear(8, 2), nn.Linear(8, 2), noise, nn.Dropout(drop)

    def forward(self, x: Any) -> Any:
        scores = self.gate(x)
        if self.training and self.noise:
            scores = scores + self.noise * torch.randn_like(scores)
        shares = scores.softmax(1)
        uneven = shares.mean(0).square().sum() if self.training else torch.zeros(())
        return {"out": (shares * self.drop(self.experts(x))).sum(1), "uneven": uneven}


def balanced(output: Any, label: Any) -> Any:
    return functional.binary_cross_entropy_with_logits(output["out"], label.float()) + 0.1 * output["uneven"]


class SpreadInTraining(nn.Module):
    """A loss that compares rows, but only while training."""

    def forward(self, output: Any, label: Any) -> Any:
        loss = functional.mse_loss(output.squeeze(-1), label.float())
        return loss - output.var() if self.training else loss


def slightly_contrastive(output: Any, label: Any) -> Any:
    return functional.mse_loss(output.squeeze(-1), label.float()) - 1e-3 * output.var()


def root(output: Any, label: Any) -> Any:
    return functional.mse_loss(output.squeeze(-1), label.float()).sqrt()


def of_labels_that_count(output: Any, label: Any) -> Any:
    """The mean over rows whose label is not -1."""
    counts = (label >= 0).float()
    each = functional.binary_cross_entropy_with_logits(output.squeeze(-1), label.clamp(0).float(), reduction="none")
    return (each * counts).sum() / counts.sum()


def hooked(change: Callable[[Any], Any]) -> Callable[[], Any]:
    def module() -> Any:
        built = mlp()
        change(built)
        return built

    return module


def contrastive(output: Any, label: Any) -> Any:
    return functional.mse_loss(output.squeeze(-1), label.float()) + output.var()


def jitter(batch: Any, params: Any) -> Any:
    return {**batch, "features": batch["features"] + np.random.normal(size=batch["features"].shape).astype("float32")}


def centre(batch: Any, params: Any) -> Any:
    return {**batch, "features": batch["features"] - batch["features"].mean(0)}


def trim(batch: Any, params: Any) -> Any:
    """Leave out the last tokens, as far as no row has any there."""
    return {**batch, "tokens": batch["tokens"][:, : (batch["tokens"] > 0).sum(1).max()]}


class Squeezing(nn.Module):
    """Takes a batch of a single row for something else."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.head = nn.Conv2d(1, 8, 3), nn.Linear(8, 3)

    def forward(self, image: Any) -> Any:
        return self.head(self.conv(image).mean((2, 3), keepdim=True).squeeze()).log_softmax(1)


class Pooling(nn.Module):
    """Takes tokens of any number."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.head = nn.Embedding(20, 6), nn.Linear(6, 1)

    def forward(self, tokens: Any) -> Any:
        return self.head(self.embedding(tokens).mean(1))


def own_loop(model: Any, batches: Any, params: Any) -> Any:
    return {"loss": 0.0, "rows": sum(len(batch["label"]) for batch in batches)}


class ClipsInside(torch.autograd.Function):
    """Changes gradients on their way, by how large those of all rows are."""

    @staticmethod
    def forward(ctx: Any, x: Any) -> Any:
        return x.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0] / (1e-6 + gradients[0].norm())


class Clipping(nn.Module):
    """Clips gradients inside, always or while training only."""

    def __init__(self, always: bool = True) -> None:
        super().__init__()
        self.first, self.last, self.always = nn.Linear(8, 16), nn.Linear(16, 1), always

    def forward(self, x: Any) -> Any:
        x = torch.tanh(self.first(x))
        if self.always or self.training:
            x = ClipsInside.apply(x)  # type: ignore[no-untyped-call]
        return self.last(x)


def ranked(output: Any, label: Any) -> Any:
    """A metric whose value of a row depends on the other rows."""
    return output.squeeze(-1).argsort().argsort().float()


def normalized(*parts: Any) -> Any:
    return nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 1))


def sparse() -> Any:
    return nn.Sequential(nn.Embedding(20, 6, sparse=True), nn.Flatten(), nn.Linear(36, 1))


def functionally_sparse() -> Any:
    class Sparse(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.table, self.head = nn.Parameter(torch.randn(20, 6)), nn.Linear(36, 1)

        def forward(self, tokens: Any) -> Any:
            return self.head(functional.embedding(tokens, self.table, sparse=True).flatten(1))

    return Sparse()


REFUSED: dict[str, tuple[str, ModelFn, dict[str, Any], str]] = {
    "train_fn": ("tabular", make(mlp), {"train_fn": own_loop}, "its train_fn takes the steps"),
    "series": (
        "tabular",
        make(mlp, metrics={"median": Scattered()}),
        {},
        "its metric 'median' has no state that adds up",
    ),
    "ranked": (
        "tabular",
        make(mlp, metrics={"ranked": ranked}),
        {},
        "its metric 'ranked' does not add up over the parts",
    ),
    "batchnorm": (
        "tabular",
        make(normalized),
        {},
        "its BatchNorm1d '1' takes the statistics of a batch, which are not",
    ),
    "sum": ("tabular", make(mlp, nn.BCEWithLogitsLoss(reduction="sum")), {}, "its loss is no mean over rows"),
    "class_weights": (
        "classes",
        make(lambda: mlp(out=3), nn.CrossEntropyLoss(weight=torch.tensor([1.0, 2.0, 3.0])), metrics={}),
        {},
        "its loss has class weights, which make it no mean over rows",
    ),
    "contrastive": ("tabular", make(mlp, contrastive), {}, "its loss is no mean over rows: it is"),
    "outputs": (
        "tabular",
        make(lambda: Standardized(True)),
        {},
        "what its model gives for a row depends on the other rows",
    ),
    "training": (
        "tabular",
        make(lambda: Standardized(False)),
        {},
        "what its model gives for a row while training depends on the other rows of the batch",
    ),
    "buffer": (
        "tabular",
        make(Remembering),
        {},
        "it keeps a statistic of its batches, 'module.seen', which is not that",
    ),
    "random_input": ("tabular", make(mlp), {"input_fn": jitter}, "its input_fn draws random numbers"),
    "mixing_input": (
        "tabular",
        make(mlp),
        {"input_fn": centre},
        "its input_fn makes something else of 'features' in a part",
    ),
    "sparse": ("tokens", make(sparse), {}, "its Embedding '0' has sparse gradients"),
    "functionally_sparse": ("tokens", make(functionally_sparse), {}, "it has sparse gradients"),
    "clips_inside": ("tabular", make(Clipping), {}, "the gradient of a batch is not that of its parts"),
    "clips_in_training": (
        "tabular",
        make(lambda: Clipping(always=False)),
        {},
        "the gradient of a batch is not that of its parts",
    ),
    "slightly_contrastive": ("tabular", make(mlp, slightly_contrastive), {}, "its loss is no mean over rows: it is"),
    "spread": ("tabular", make(mlp, SpreadInTraining()), {}, "its loss is no mean over rows: it is"),
    "balanced": ("tabular", make(lambda: Gated(0.0, 0.3), balanced, metrics={}), {}, "its loss is no mean over rows"),
    "noisily_balanced": (
        "tabular",
        make(lambda: Gated(0.1), balanced, metrics={}),
        {},
        "its model gives something that is not by rows, which cannot be tried on parts",
    ),
    "squeezing": (
        "images",
        make(Squeezing, nn.NLLLoss(), metrics={}),
        {},
        "it fails with a batch of a single row, as members of a group get it now and then (IndexError: Dimension out",
    ),
    "module_hook": (
        "tabular",
        make(hooked(lambda m: m[0].register_full_backward_hook(lambda *given: None))),
        {},
        "its module has hooks for gradients",
    ),
    "parameter_hook": (
        "tabular",
        make(hooked(lambda m: m[0].weight.register_hook(lambda gradient: gradient.clamp(-1, 1)))),
        {},
        "its parameters have hooks for gradients",
    ),
}
BY_TOKEN = make(ByToken, nn.CrossEntropyLoss(), metrics={})
POOLING = make(Pooling)
ROOT = make(mlp, root)
COUNTING = make(mlp, of_labels_that_count, metrics={})
NOISY = make(mlp, optimizer=lambda parameters: Drifting(parameters, lr=0.1))
IGNORING = make(lambda: mlp(out=3), nn.CrossEntropyLoss(ignore_index=2), metrics={})
