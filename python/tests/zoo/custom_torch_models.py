"""PyTorch models that keep something where no checkpoint looks, or change themselves as they are called."""

from __future__ import annotations

import itertools
from typing import Any, ClassVar

import torch
from torch import nn

from cerebro_spark.trainer import TorchModel

F = nn.functional


def made(*middle, loss=None, optimizer=None, **options):
    module = nn.Sequential(nn.Linear(8, 4), *middle, nn.Linear(4, 1))
    make = optimizer or (lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9))
    return TorchModel(module, make(module.parameters()), loss or nn.BCEWithLogitsLoss(), **options)


def with_layer(make, **options):
    return lambda params: made(make(), **options)


class Anneal(nn.Module):
    """Counts its steps in a plain attribute."""

    def __init__(self):
        super().__init__()
        self.steps: Any = 0

    def forward(self, x):
        self.steps += self.training
        return x / (1 + self.steps)


class InPlace(Anneal):
    """The same in a tensor that is no buffer."""

    def __init__(self):
        super().__init__()
        self.steps = torch.zeros(())

    def forward(self, x):
        if self.training:
            self.steps += 1
        return x / (1 + self.steps)


class Buffered(nn.Module):
    """The same as it should be; the buffer is replaced, not filled."""

    steps: torch.Tensor

    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x):
        if self.training:
            self.steps = self.steps + 1
        return x / (1 + self.steps)


class Growing(nn.Module):
    seen: torch.Tensor

    def __init__(self):
        super().__init__()
        self.register_buffer("seen", torch.zeros(0, 4))

    def forward(self, x):
        if self.training:
            self.seen = torch.cat([self.seen, x.detach()])
        return x


class ActNorm(nn.Module):
    """Initialises itself by the first batch; the flag is a plain attribute, or a buffer."""

    def __init__(self, buffered):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(4))
        if buffered:
            self.register_buffer("initialized", torch.tensor(False))
        else:
            self.initialized = False

    def forward(self, x):
        if self.training and not self.initialized:
            with torch.no_grad():
                self.scale.copy_(1 / (x.std(0) + 1e-3))
            if isinstance(self.initialized, torch.Tensor):
                self.initialized.fill_(True)
            else:
                self.initialized = True
        return x * self.scale


class Memory(nn.Module):
    """Goes on with the hidden state of the batch before."""

    def __init__(self):
        super().__init__()
        self.hidden = None

    def forward(self, x):
        mean = x.mean(0)
        if self.hidden is not None:
            x = x + self.hidden
        self.hidden = mean.detach()
        return x


class Drawing(nn.Module):
    """Draws from a generator of its own."""

    def __init__(self, generator, draw):
        super().__init__()
        self.generator, self.draw = generator, draw

    def forward(self, x):
        return x + self.draw(self.generator) if self.training else x


class Shared(nn.Module):
    """Counts in the class, for all its instances."""

    total = 0
    by = 1

    def forward(self, x):
        Shared.total += self.training * self.by
        return x / (1 + Shared.total)


class Log(nn.Module):
    history: ClassVar[list] = []

    def forward(self, x):
        if self.training:
            self.history.append(1)
        return x / (1 + len(self.history))


class Global(nn.Module):
    """Counts in a global number."""

    def __init__(self, by):
        super().__init__()
        self.by = by

    def forward(self, x):
        global CALLS
        CALLS += self.training * self.by
        return x / (1 + CALLS)


CALLS = 0


def sharing(params):
    """A class that the other trial counts in too, but only this one up."""
    model = made(Shared())
    model.module[1].by = params.get("by", 0)
    return model


class Counter:
    """An object beside the module."""

    def __init__(self):
        self.calls = 0

    def __call__(self, x):
        self.calls += 1
        return x / self.calls


class Helped(nn.Module):
    def __init__(self):
        super().__init__()
        self.helper = {"each": [Counter()]}

    def forward(self, x):
        return self.helper["each"][0](x) if self.training else x


class Slotted:
    __slots__ = ("calls",)

    def __init__(self):
        self.calls = 0

    def __call__(self, x):
        self.calls += 1
        return x


class HelpedBySlots(nn.Module):
    def __init__(self):
        super().__init__()
        self.helper = Slotted()

    def forward(self, x):
        return self.helper(x)


class Countdown(nn.Module):
    def __init__(self):
        super().__init__()
        self.numbers = itertools.count()

    def forward(self, x):
        return x / (1 + next(self.numbers)) if self.training else x


class CountingLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.calls = 0

    def forward(self, output, label):
        self.calls += self.training
        return F.binary_cross_entropy_with_logits(output.squeeze(-1), label) / (1 + self.calls)


class LearntLoss(nn.Module):
    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, output, label):
        return (self.scale * (output.squeeze(-1) - label) ** 2 + 1 / self.scale).mean()


def closing_loss(params):
    seen = []

    def loss(output, label):
        seen.append(float(output.detach().mean()))
        return F.binary_cross_entropy_with_logits(output.squeeze(-1), label)

    return made(loss=loss)


def learnt_loss_inside(params):
    model = made()
    module = nn.Sequential(*model.module)
    module.criterion = LearntLoss()
    body = module[:-1]

    class Whole(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.criterion = body, module.criterion

        def forward(self, x):
            return self.body(x)

    whole = Whole()
    optimizer = torch.optim.SGD(whole.parameters(), lr=0.1)
    return TorchModel(whole, optimizer, lambda output, label: whole.criterion(output, label))  # type: ignore[operator]


class Sticky:
    """A metric whose best value outlives `reset`."""

    def __init__(self):
        self.best, self.now = 0.0, 0.0

    def reset(self):
        self.now = 0.0

    def update(self, output, label):
        self.now = float(output.max())
        self.best = max(self.best, self.now)

    def compute(self):
        return self.best


class GroupCounting(torch.optim.SGD):
    """Counts steps in the groups, from the first on, as some optimizers do."""

    def step(self, closure=None):
        for group in self.param_groups:
            group["step"] = group.get("step", 0) + 1
            for p in group["params"]:
                p.data.add_(p.grad, alpha=-0.1 / group["step"])


class SelfCounting(torch.optim.SGD):
    def step(self, closure=None):
        self.steps = getattr(self, "steps", 0) + 1
        super().step(closure)


class StateCounting(torch.optim.SGD):
    def step(self, closure=None):
        state: Any = self.state
        state["all"]["steps"] = state["all"].get("steps", 0) + 1
        super().step(closure)


class Renormed(nn.Linear):
    """Keeps its weight within bounds whenever it is called, in evaluations too."""

    def forward(self, x):
        self.weight.data = torch.renorm(self.weight.data, 2, 0, 0.5)
        self.weight.data.mul_(0.999)
        return super().forward(x)


class Observer(nn.Module):
    """Learns the range of what it sees, in evaluations too."""

    largest: torch.Tensor

    def __init__(self):
        super().__init__()
        self.register_buffer("largest", torch.ones(()))

    def forward(self, x):
        self.largest.copy_(torch.maximum(self.largest, x.detach().abs().max()))
        return x / self.largest


def old_norms():
    # Both ways that PyTorch had before parametrizations; they say that they are old.
    import warnings

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return nn.Sequential(nn.utils.weight_norm(nn.Linear(4, 4)), nn.utils.spectral_norm(nn.Linear(4, 4)))


def new_norms():
    norms = nn.utils.parametrizations
    return nn.Sequential(norms.weight_norm(nn.Linear(4, 4)), norms.spectral_norm(nn.Linear(4, 4)))


def pruned():
    from torch.nn.utils import prune

    layer = nn.Linear(4, 4)
    prune.l1_unstructured(layer, "weight", 0.3)
    return layer


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(4, 4, num_layers=2, dropout=0.1, batch_first=True)

    def forward(self, x):
        return self.lstm(x.unsqueeze(1))[0].squeeze(1)
