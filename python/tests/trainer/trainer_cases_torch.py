"""The PyTorch models that the law is checked on: one `model_fn` a case. No case may need more than a second."""

from __future__ import annotations

from typing import ClassVar

import numpy as np
import torch
from torch import nn
from trainer_data import Case

from cerebro_spark.trainer import TorchModel


def mlp(*middle, out=1):
    return nn.Sequential(nn.Linear(8, 16), nn.ReLU(), *middle, nn.Linear(16, out))


def accuracy(output, label):
    return (output.squeeze(-1) > 0) == (label > 0)


def with_optimizer(make, **options):
    def model_fn(params):
        module = mlp()
        optimizer = make(module.parameters())
        return TorchModel(module, optimizer, nn.BCEWithLogitsLoss(), {"accuracy": accuracy}, **options)

    return model_fn


def with_module(make, loss=None, rate=0.05, **options):
    def model_fn(params):
        module = make()
        optimizer = torch.optim.Adam(module.parameters(), lr=params.get("lr", rate))
        return TorchModel(module, optimizer, loss or nn.BCEWithLogitsLoss(), **options)

    return model_fn


def with_scheduler(make, by):
    def model_fn(params):
        module = mlp()
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)
        return TorchModel(module, optimizer, nn.BCEWithLogitsLoss(), lr_scheduler=make(optimizer), scheduler_step=by)

    return model_fn


class Noise(nn.Module):
    """Draws from every generator that a checkpoint carries."""

    def forward(self, x):
        if self.training:
            x = x + 0.1 * torch.randn_like(x) + 0.1 * float(np.random.normal())
        return x


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 6)
        self.lstm = nn.LSTM(6, 8, batch_first=True)
        self.head = nn.Linear(8, 1)

    def forward(self, tokens):
        return self.head(self.lstm(self.embedding(tokens))[0][:, -1])


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.embedding = nn.Embedding(20, 8)
        self.attention = nn.MultiheadAttention(8, 2, dropout=0.1, batch_first=True)
        self.head = nn.Linear(8, 1)

    def forward(self, tokens):
        x = self.embedding(tokens)
        return self.head(self.attention(x, x, x)[0].mean(1))


class Several(nn.Module):
    def __init__(self):
        super().__init__()
        self.body = nn.Linear(8, 8)
        self.click = nn.Linear(8, 1)
        self.price = nn.Linear(8, 1)

    def forward(self, wide, deep):
        x = torch.relu(self.body(torch.cat([wide, deep], 1)))
        return {"click": self.click(x).squeeze(-1), "price": self.price(x).squeeze(-1)}


def several_loss(output, label):
    click = nn.functional.binary_cross_entropy_with_logits(output["click"], label["click"])
    return click + 0.5 * nn.functional.mse_loss(output["price"], label["price"])


class Scaled(nn.Module):
    """A custom layer with a buffer that changes as it trains."""

    seen: torch.Tensor

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(16))
        self.register_buffer("seen", torch.zeros(()))

    def forward(self, x):
        if self.training:
            self.seen += len(x)
        return x * self.scale * (1 + 1e-4 * self.seen)


def focal(output, label):
    label = label.to(output.dtype).unsqueeze(-1)
    return (nn.functional.binary_cross_entropy_with_logits(output, label, reduction="none") ** 1.5).mean()


def cnn():
    return nn.Sequential(
        nn.Conv2d(1, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Dropout(0.2),
        nn.Linear(36, 3),
    )


def in_dtype(dtype):
    def model_fn(params):
        module = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)).to(dtype)
        optimizer = torch.optim.SGD(module.parameters(), lr=0.1, momentum=0.9)

        def loss(output, label):
            return nn.functional.mse_loss(output.float().squeeze(-1), label.float())

        return TorchModel(module, optimizer, loss)

    return model_fn


def cast(dtype):
    def input_fn(batch, params):
        return {**batch, "features": batch["features"].astype(dtype)}

    return input_fn


def as_bfloat16(params):
    model = in_dtype(torch.bfloat16)(params)
    model.module = nn.Sequential(ToBfloat16(), *model.module)
    return model


class ToBfloat16(nn.Module):
    def forward(self, x):
        return x.bfloat16()


def jitter(batch, params):
    return {**batch, "features": batch["features"] + np.random.normal(size=batch["features"].shape).astype("float32")}


def own_loop(model, batches, params):
    total, rows = 0.0, 0
    model.module.train()
    for batch in batches:
        output = model.module(torch.from_numpy(batch["features"])).squeeze(-1)
        loss = nn.functional.binary_cross_entropy_with_logits(output, torch.from_numpy(batch["label"]).float())
        model.optimizer.zero_grad()
        loss.backward()
        model.optimizer.step()
        total, rows = total + loss.item() * len(output), rows + len(output)
    return {"loss": total, "rows": rows}


def accumulating(model, batches, params):
    """Steps after every fourth batch, and says nothing of what mode the module shall be in."""
    total, rows = 0.0, 0
    for number, batch in enumerate(batches, 1):
        output = model.module(torch.from_numpy(batch["features"])).squeeze(-1)
        loss = nn.functional.binary_cross_entropy_with_logits(output, torch.from_numpy(batch["label"]).float())
        loss.backward()
        if number % 4 == 0:
            model.optimizer.step()
            model.optimizer.zero_grad()
        total, rows = total + loss.item() * len(output), rows + len(output)
    return {"loss": total, "rows": rows}


class Centered(nn.Module):
    """A loss that keeps a running mean."""

    center: torch.Tensor

    def __init__(self):
        super().__init__()
        self.register_buffer("center", torch.zeros(()))

    def forward(self, output, label):
        if self.training:
            self.center.mul_(0.9).add_(0.1 * output.detach().mean())
        return ((output.squeeze(-1) - self.center - label) ** 2).mean()


class Counting(nn.Module):
    """Keeps a number of its own in PyTorch's way."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def get_extra_state(self):
        return {"count": self.count, "weights": torch.full((2,), float(self.count))}

    def set_extra_state(self, state):
        assert state["weights"].tolist() == [state["count"]] * 2
        self.count = state["count"]

    def forward(self, x):
        self.count += self.training
        return x * (1 + 1e-2 * self.count)


def with_own_loss(params):
    module = mlp()
    return TorchModel(module, torch.optim.Adam(module.parameters(), lr=0.05), Centered())


def warm_up_then_steps(optimizer):
    parts = [schedulers.LinearLR(optimizer, total_iters=8), schedulers.MultiStepLR(optimizer, [4])]
    return schedulers.SequentialLR(optimizer, parts, milestones=[8])


def two_groups(params):
    module = mlp(nn.Dropout(0.1))
    groups = [{"params": module[0].parameters(), "lr": 1e-3}, {"params": module[-1].parameters(), "weight_decay": 0.1}]
    return TorchModel(module, torch.optim.AdamW(groups, lr=0.01, amsgrad=True), nn.BCEWithLogitsLoss())


optim, schedulers = torch.optim, torch.optim.lr_scheduler

CASES = {
    "dropout": Case(with_module(lambda: mlp(nn.Dropout(0.5)))),
    "sgd_momentum": Case(with_optimizer(lambda p: optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True))),
    "adam": Case(with_optimizer(lambda p: optim.Adam(p, lr=0.01))),
    "adamw": Case(with_optimizer(lambda p: optim.AdamW(p, lr=0.01, weight_decay=0.1))),
    "adamw_groups": Case(two_groups),
    "rmsprop": Case(with_optimizer(lambda p: optim.RMSprop(p, lr=0.01, momentum=0.5, centered=True))),
    "noise": Case(with_module(lambda: mlp(Noise()))),
    "batchnorm": Case(with_module(lambda: mlp(nn.BatchNorm1d(16)))),
    "schedule_batch": Case(with_scheduler(lambda o: schedulers.ExponentialLR(o, 0.9), "batch")),
    "schedule_one_cycle": Case(with_scheduler(lambda o: schedulers.OneCycleLR(o, 0.2, total_steps=40), "batch")),
    "schedule_epoch": Case(with_scheduler(lambda o: schedulers.StepLR(o, 1, 0.1), "epoch")),
    "schedule_lambda": Case(with_scheduler(lambda o: schedulers.LambdaLR(o, lambda step: 0.9**step), "epoch")),
    "schedule_warm_up": Case(with_scheduler(warm_up_then_steps, "batch")),
    "clip_norm": Case(with_optimizer(lambda p: optim.Adam(p, lr=0.01), clip_norm=0.01)),
    "clip_value": Case(with_optimizer(lambda p: optim.SGD(p, lr=0.1), clip_value=0.001)),
    "several": Case(with_module(Several, several_loss), "several"),
    "cnn": Case(with_module(cnn, nn.CrossEntropyLoss()), "images"),
    "lstm": Case(with_module(Recurrent), "tokens"),
    "attention": Case(with_module(Attention), "tokens"),
    "custom": Case(with_module(lambda: mlp(Scaled()), focal)),
    "float16": Case(in_dtype(torch.float16), input_fn=cast("float16")),
    "bfloat16": Case(as_bfloat16),
    "mixed": Case(with_module(mlp), precision="bfloat16"),
    "weighted": Case(with_module(mlp, nn.BCEWithLogitsLoss(reduction="none")), "weighted"),
    "classes": Case(with_module(lambda: mlp(out=3), nn.CrossEntropyLoss()), "classes"),
    "onehot": Case(with_module(lambda: mlp(out=3), nn.CrossEntropyLoss()), "onehot"),
    "input_fn": Case(with_module(mlp), input_fn=jitter),
    "train_fn": Case(with_module(mlp), train_fn=own_loop),
    "train_fn_accumulating": Case(with_module(lambda: mlp(nn.Dropout(0.3))), train_fn=accumulating),
    "loss_with_buffers": Case(with_own_loss),
    "extra_state": Case(with_module(lambda: mlp(Counting()))),
    "lazy": Case(with_module(lambda: nn.Sequential(nn.LazyLinear(4), nn.ReLU(), nn.LazyLinear(1)))),
}


class Largest:
    """A metric that can only be updated: the largest output so far, with the number of updates."""

    def __init__(self):
        self.reset()

    def reset(self):
        self.largest, self.updates = torch.tensor(-1e9), 0

    def update(self, output, label):
        self.largest, self.updates = torch.maximum(self.largest, output.max().cpu()), self.updates + 1

    def compute(self):
        return self.largest


def dim_zero_sum(x):
    return x.sum(0)


class Precision:
    """A metric with torchmetrics' own marks for states that add up."""

    _defaults: ClassVar[dict] = {"hits": 0, "tries": 0}
    _reductions: ClassVar[dict] = {"hits": dim_zero_sum, "tries": dim_zero_sum}

    def __init__(self):
        self.reset()

    def reset(self):
        self.hits, self.tries = torch.tensor(0), torch.tensor(0)

    def update(self, output, label):
        chosen = output.squeeze(-1) > 0
        self.hits, self.tries = self.hits + (chosen & (label > 0)).sum(), self.tries + chosen.sum()

    def compute(self):
        return self.hits / self.tries


def with_numbers(params):
    module = mlp(nn.Dropout(0.2))
    optimizer = torch.optim.AdamW(module.parameters(), lr=params["lr"], weight_decay=params["decay"])
    scheduler = schedulers.ExponentialLR(optimizer, 0.5) if params.get("schedule") else None
    return TorchModel(module, optimizer, nn.BCEWithLogitsLoss(), lr_scheduler=scheduler)


def with_metrics(params):
    module = mlp(nn.BatchNorm1d(16))
    metrics = {"accuracy": accuracy, "precision": Precision(), "largest": Largest()}
    return TorchModel(module, torch.optim.Adam(module.parameters()), nn.BCEWithLogitsLoss(), metrics)


def top_two(output, label):
    return (output.topk(2).indices == label.argmax(1, keepdim=True)).any(1)


def with_class_metrics(params):
    module = mlp(out=3)
    return TorchModel(module, torch.optim.Adam(module.parameters()), nn.CrossEntropyLoss(), {"top": top_two})


def with_closure(params):
    class Times(nn.Module):
        def forward(self, x):
            return x * params["factor"]

    module = mlp(Times())
    return TorchModel(module, torch.optim.SGD(module.parameters(), lr=0.1), nn.BCEWithLogitsLoss())


def wide():
    body = [nn.Linear(8, 2000), nn.ReLU(), nn.Linear(2000, 2000), nn.ReLU(), nn.Linear(2000, 2000)]
    return nn.Sequential(*body, nn.Linear(2000, 1))


def with_failure(params):
    if params.get("raises"):
        raise RuntimeError("no such layer")
    if params.get("returns") == "module":
        return mlp()
    if params.get("returns") == "class":
        module = mlp()
        return TorchModel(module, torch.optim.Adam, nn.BCEWithLogitsLoss())
    if params.get("returns") == "plateau":
        model = with_numbers({"lr": 0.1, "decay": 0.0})
        model.lr_scheduler = schedulers.ReduceLROnPlateau(model.optimizer)
        return model
    module = nn.Sequential(nn.Linear(8, 16), nn.Linear(16, 1))
    loss = nn.MSELoss()
    return TorchModel(module, torch.optim.SGD(module.parameters(), lr=params["lr"]), loss)


class Fractions(nn.Module):
    """Makes floats of whole numbers."""

    def forward(self, x):
        return x.float() / (1 << 16)


def masks():
    return nn.Sequential(Fractions(), nn.Linear(8, 24), nn.Unflatten(1, (3, 8)))


PROBES = {
    "masks": Case(with_module(masks, nn.CrossEntropyLoss()), "masks"),
    "numbers": Case(with_numbers),
    "metrics": Case(with_metrics),
    "class_metrics": Case(with_class_metrics, "onehot"),
    "closure": Case(with_closure),
    "large": Case(with_module(wide)),
    "failure": Case(with_failure),
}
