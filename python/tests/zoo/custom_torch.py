"""PyTorch models that keep something where no checkpoint looks, or change themselves: each hops, or is refused."""

from __future__ import annotations

import itertools
import random
from typing import ClassVar

import numpy as np
import torch
from law import Case
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
        self.steps = 0

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

    def __init__(self):
        super().__init__()
        self.register_buffer("steps", torch.zeros(()))

    def forward(self, x):
        if self.training:
            self.steps = self.steps + 1
        return x / (1 + self.steps)


class Growing(nn.Module):
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
    return TorchModel(whole, optimizer, lambda output, label: whole.criterion(output, label))


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
        self.state["all"]["steps"] = self.state["all"].get("steps", 0) + 1
        super().step(closure)


class Renormed(nn.Linear):
    """Keeps its weight within bounds whenever it is called, in evaluations too."""

    def forward(self, x):
        self.weight.data = torch.renorm(self.weight.data, 2, 0, 0.5)
        self.weight.data.mul_(0.999)
        return super().forward(x)


class Observer(nn.Module):
    """Learns the range of what it sees, in evaluations too."""

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


def steps(model, batches, params, after=lambda model: None):
    """A plain loop; `after` may do what it likes once a batch is done."""
    total, rows = 0.0, 0
    for batch in batches:
        output = model.module(torch.from_numpy(batch["features"])).squeeze(-1)
        loss = F.binary_cross_entropy_with_logits(output, torch.from_numpy(batch["label"]))
        model.optimizer.zero_grad()
        loss.backward()
        model.optimizer.step()
        after(model)
        total, rows = total + loss.item() * len(output), rows + len(output)
    return {"loss": total, "rows": rows}


def freezing(model, batches, params):
    if params.get("freeze"):
        model.module[0].requires_grad_(False)
    return steps(model, batches, params)


def thawing(model, batches, params):
    """Unfreezes after the first unit: the flag must hop."""
    told = steps(model, batches, params)
    if params.get("thaw"):
        model.module[0].requires_grad_(True)
    return told


def frozen_at_first(params):
    model = made()
    model.module[0].requires_grad_(False)
    return model


def changing(after):
    def train_fn(model, batches, params):
        return steps(model, batches, params, after if params.get("change") else lambda model: None)

    return train_fn


CHANGED = {"params": {"change": True}, "other": {}}


def set_rate(model):
    model.module[1].p = 0.9


def add_hook(model):
    model.module[0].register_forward_hook(lambda module, inputs, output: output * 2)


def hook_for_a_while(model):
    handle = model.module[0].register_forward_hook(lambda module, inputs, output: output * 2)
    handle.remove()


def hook_tensor(model):
    model.module[0].weight.register_hook(lambda gradient: gradient * 2)


def add_group(model):
    extra = nn.Parameter(torch.zeros(4))
    model.optimizer.add_param_group({"params": [extra]})


def add_module(model):
    model.module.append(nn.Linear(1, 1))


def swap_parameter(model):
    model.module[0].weight = nn.Parameter(model.module[0].weight.detach() * 2)


def swap_optimizer(model):
    model.optimizer = torch.optim.Adam(model.module.parameters())


def swap_loss(model):
    model.loss = nn.MSELoss()


def set_attribute(model):
    model.module.temperature = 2.0


def add_buffer(model):
    model.module[0].register_buffer("mask", torch.ones(4))


def mark_parameter(model):
    model.module[0].weight.marked = True


def same_again(model):
    """Sets things to what they are."""
    model.module[1].p = float("0.5")
    model.module[0].in_features = 8


def second_optimizer(model, batches, params):
    if not hasattr(second_optimizer, "own"):
        second_optimizer.own = torch.optim.Adam([torch.zeros(1, requires_grad=True)])
    told = steps(model, batches, params)
    own = second_optimizer.own
    own.param_groups[0]["params"][0].grad = torch.ones(1)
    own.step()
    return told


def making_own_optimizer():
    weight = torch.zeros(1, requires_grad=True)
    own = torch.optim.Adam([weight])

    def train_fn(model, batches, params):
        told = steps(model, batches, params)
        if params.get("change"):
            weight.grad = torch.ones(1)
            own.step()
        return told

    return train_fn


COUNT = 0
TABLE = {"batches": 0}
SEEN: list = []


def counting_globally(model, batches, params):
    global COUNT
    COUNT += 1
    return steps(model, batches, params)


def counting_in_table(batch, params):
    TABLE["batches"] += 1
    return batch


def logging_batches(batch, params):
    SEEN.append(len(batch["label"]))
    return batch


def augmenting(batch, params):
    return {**batch, "features": batch["features"] + OWN.normal(size=8).astype("float32")}


OWN = np.random.default_rng(0)


def eval_in_train_mode(model, batches, params):
    """Measures with batch statistics, which moves the running ones."""
    model.module.train()
    total, rows = 0.0, 0
    for batch in batches:
        output = model.module(torch.from_numpy(batch["features"])).squeeze(-1).detach()
        loss = F.binary_cross_entropy_with_logits(output, torch.from_numpy(batch["label"]))
        total, rows = total + loss.item() * len(output), rows + len(output)
    return {"loss": total, "rows": rows}


def eval_that_trains(model, batches, params):
    return steps(model, batches, params)


def eval_that_freezes(model, batches, params):
    model.module.requires_grad_(False)
    return eval_in_train_mode(model, batches, params)


def with_closure(model, batches, params):
    """A loop for optimizers that evaluate more than once a step."""
    total, rows = 0.0, 0
    for batch in batches:
        features, label = torch.from_numpy(batch["features"]), torch.from_numpy(batch["label"])

        def closure(features=features, label=label):
            model.optimizer.zero_grad()
            loss = F.binary_cross_entropy_with_logits(model.module(features).squeeze(-1), label)
            loss.backward()
            return loss.detach()

        total, rows = total + model.optimizer.step(closure).item() * len(label), rows + len(label)
    return {"loss": total, "rows": rows}


def scheduled(make):
    def model_fn(params):
        model = made()
        model.lr_scheduler = make(model.optimizer)
        return model

    return model_fn


def counted_rate():
    calls = []

    def rate(step):
        calls.append(step)
        return 1 / len(calls)

    return rate


class Rate:
    """A rate that counts its own calls: PyTorch's state of the schedule has its attributes."""

    def __init__(self):
        self.calls = 0

    def __call__(self, step):
        self.calls += 1
        return 1 / self.calls


def timm_schedule(optimizer):
    from timm.scheduler import CosineLRScheduler

    return CosineLRScheduler(optimizer, 10)


def quantized():
    from torch.ao.quantization import FakeQuantize, MovingAverageMinMaxObserver

    return FakeQuantize(observer=MovingAverageMinMaxObserver, quant_min=0, quant_max=255)


schedules = torch.optim.lr_scheduler
LBFGS = torch.optim.LBFGS

CASES = {
    # What hops.
    "buffer replaced": Case(with_layer(Buffered)),
    "data-dependent with a buffer": Case(with_layer(lambda: ActNorm(True))),
    "batch norm": Case(with_layer(lambda: nn.BatchNorm1d(4))),
    "observer": Case(with_layer(Observer)),
    "fake quantization": Case(with_layer(quantized)),
    "weight changed in forward": Case(with_layer(lambda: Renormed(4, 4))),
    "old norms": Case(with_layer(old_norms)),
    "new norms": Case(with_layer(new_norms)),
    "pruned": Case(with_layer(pruned)),
    "recurrent": Case(with_layer(Recurrent)),
    "lazy": Case(with_layer(lambda: nn.LazyLinear(4))),
    "freezing": Case(lambda params: made(), train_fn=freezing, params={"freeze": True}),
    "freezing the other": Case(lambda params: made(), train_fn=freezing, other={"freeze": True}),
    "thawing": Case(frozen_at_first, train_fn=thawing, params={"thaw": True}),
    "steps in groups": Case(lambda params: made(optimizer=lambda p: GroupCounting(p, lr=0.1))),
    "hook for a while": Case(lambda params: made(), train_fn=changing(hook_for_a_while), **CHANGED),
    "set to the same": Case(with_layer(lambda: nn.Dropout(0.5)), train_fn=changing(same_again), **CHANGED),
    "evaluated in train mode": Case(with_layer(lambda: nn.BatchNorm1d(4)), eval_fn=eval_in_train_mode),
    "evaluation that trains": Case(lambda params: made(), eval_fn=eval_that_trains),
    "evaluation that freezes": Case(lambda params: made(), eval_fn=eval_that_freezes),
    "closure steps": Case(lambda params: made(optimizer=lambda p: LBFGS(p, max_iter=2)), train_fn=with_closure),
    "rate object": Case(scheduled(lambda o: schedules.LambdaLR(o, Rate()))),
    "loss inside": Case(learnt_loss_inside),
    "a log": Case(lambda params: made(), input_fn=logging_batches),
    # What is refused, by name.
    "attribute": Case(
        with_layer(Anneal), refused=r"`Anneal.steps`.* from 0 to \d while training and is no .*: use `register_buffer`"
    ),
    "tensor attribute": Case(with_layer(InPlace), refused=r"`InPlace.steps`.* from tensor\(0.0\) to tensor\(\d"),
    "growing buffer": Case(with_layer(Growing), refused=r"`Growing.seen`.*\[0, 4\].*\[\d+, 4\]"),
    "data-dependent": Case(with_layer(lambda: ActNorm(False)), refused="`ActNorm.initialized`.* from False to True"),
    "hidden state": Case(with_layer(Memory), refused="`Memory.hidden`.* from None to"),
    "own torch generator": Case(
        with_layer(lambda: Drawing(torch.Generator(), lambda g: torch.randn(4, generator=g))),
        refused="`Drawing.generator`",
    ),
    "own NumPy generator": Case(
        with_layer(lambda: Drawing(np.random.default_rng(0), lambda g: float(g.normal()))),
        refused="`Drawing.generator`",
    ),
    "own Python generator": Case(
        with_layer(lambda: Drawing(random.Random(0), lambda g: g.random())), refused="`Drawing.generator`"
    ),
    "class attribute": Case(with_layer(Shared), refused="`Shared.total`"),
    "class attribute, the other's": Case(sharing, refused="`Shared.total`", params={"by": 1}),
    "global number": Case(
        lambda params: made(Global(params.get("by", 0))), refused="`Global.forward.<global>.CALLS`", params={"by": 1}
    ),
    "class list": Case(with_layer(Log), refused=r"`Log.history\[0\]`"),
    "helper object": Case(with_layer(Helped), refused="`Counter.calls`"),
    "helper with slots": Case(with_layer(HelpedBySlots), refused="`Slotted.calls`"),
    "iterator": Case(with_layer(Countdown), refused="`Countdown.numbers`"),
    "loss attribute": Case(lambda params: made(loss=CountingLoss()), refused="`CountingLoss.calls`"),
    "loss closure": Case(closing_loss, refused=r"`loss.seen\[0\]`"),
    "loss with parameters": Case(lambda params: made(loss=LearntLoss()), refused=r"LearntLoss with parameters \(scale"),
    "metric that outlives reset": Case(lambda params: made(metrics={"best": Sticky()}), refused="`Sticky.best`"),
    "optimizer attribute": Case(
        lambda params: made(optimizer=lambda p: SelfCounting(p, lr=0.1)), refused="`SelfCounting.steps`"
    ),
    "optimizer state": Case(
        lambda params: made(optimizer=lambda p: StateCounting(p, lr=0.1)), refused="`StateCounting.state"
    ),
    "dropout's rate": Case(
        with_layer(lambda: nn.Dropout(0.5)),
        train_fn=changing(set_rate),
        refused="`Dropout.p`.* from 0.5 to 0.9",
        **CHANGED,
    ),
    "hook": Case(lambda params: made(), train_fn=changing(add_hook), refused="`Linear._forward_hooks", **CHANGED),
    "tensor hook": Case(
        lambda params: made(), train_fn=changing(hook_tensor), refused="weight._backward_hooks", **CHANGED
    ),
    "group": Case(lambda params: made(), train_fn=changing(add_group), refused=r"`SGD.param_groups\[1\]`", **CHANGED),
    "module": Case(lambda params: made(), train_fn=changing(add_module), refused="`Sequential.2`", **CHANGED),
    "parameter": Case(lambda params: made(), train_fn=changing(swap_parameter), refused="`Linear.weight`", **CHANGED),
    "optimizer": Case(lambda params: made(), train_fn=changing(swap_optimizer), refused="`optimizer`", **CHANGED),
    "loss": Case(lambda params: made(), train_fn=changing(swap_loss), refused="`loss`", **CHANGED),
    "new attribute": Case(
        lambda params: made(), train_fn=changing(set_attribute), refused="`Sequential.temperature`", **CHANGED
    ),
    "new buffer": Case(lambda params: made(), train_fn=changing(add_buffer), refused="`Linear.mask`", **CHANGED),
    "marked parameter": Case(
        lambda params: made(), train_fn=changing(mark_parameter), refused="`Linear.weight.marked`", **CHANGED
    ),
    "second optimizer": Case(lambda params: made(), train_fn=second_optimizer, refused="`second_optimizer.own|`Adam"),
    "own optimizer": Case(
        lambda params: made(),
        train_fn=making_own_optimizer(),
        refused="`Adam.param_groups",
        **CHANGED,
    ),
    "global": Case(lambda params: made(), train_fn=counting_globally, refused=r"counting_globally.<global>.COUNT"),
    "global table": Case(lambda params: made(), input_fn=counting_in_table, refused=r"TABLE\['batches'\]"),
    "global generator": Case(lambda params: made(), input_fn=augmenting, refused="OWN"),
    "rate function": Case(scheduled(lambda o: schedules.LambdaLR(o, counted_rate())), refused="rate.calls", late=True),
    "averaging schedule": Case(scheduled(lambda o: torch.optim.swa_utils.SWALR(o, 0.01)), refused="SWALR"),
    "timm's schedule": Case(scheduled(timm_schedule), refused="CosineLRScheduler.*`epoch`"),
    "steps that need a closure": Case(lambda params: made(optimizer=LBFGS), refused="LBFGS.*`closure`.*train_fn"),
}
