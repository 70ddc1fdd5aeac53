"""PyTorch models and loops that leave something where no checkpoint looks: each hops, or is refused by name."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import torch
from custom_torch_globals import (
    ByDecorated,
    ByHelper,
    ByProperty,
    ByStaticMethod,
    InArray,
    InDefault,
    InDict,
    InDictLater,
    InGenerator,
    InLargeTensor,
    InList,
    InNamespace,
    InNested,
    InTensor,
    Steady,
    closing,
    using,
)
from custom_torch_loops import (
    CHANGED,
    Rate,
    add_buffer,
    add_group,
    add_hook,
    add_module,
    augmenting,
    averaging_at_last,
    changing,
    counted_rate,
    counting_globally,
    counting_in_table,
    eval_in_train_mode,
    eval_that_freezes,
    eval_that_trains,
    freezing,
    frozen_at_first,
    hook_for_a_while,
    hook_tensor,
    logging_batches,
    making_own_optimizer,
    mark_parameter,
    quantized,
    same_again,
    scheduled,
    schedules,
    second_optimizer,
    set_attribute,
    set_rate,
    swap_loss,
    swap_optimizer,
    swap_parameter,
    thawing,
    timm_schedule,
    with_closure,
)
from custom_torch_models import (
    ActNorm,
    Anneal,
    Buffered,
    Countdown,
    CountingLoss,
    Drawing,
    Global,
    GroupCounting,
    Growing,
    Helped,
    HelpedBySlots,
    InPlace,
    LearntLoss,
    Log,
    Memory,
    Observer,
    Recurrent,
    Renormed,
    SelfCounting,
    Shared,
    StateCounting,
    Sticky,
    closing_loss,
    learnt_loss_inside,
    made,
    new_norms,
    old_norms,
    pruned,
    sharing,
    with_layer,
)
from law import Case
from torch import nn

F = nn.functional


LBFGS = torch.optim.LBFGS
BY: dict[str, Any] = {"params": {"by": 1}}
"""Of two trials only one changes something."""

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
    "constants and caches": Case(with_layer(Steady)),
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
    "global dict": Case(using(InDict), refused=r"`InDict.forward.<global>.STATE\['step'\]`.* from 0 to \d", **BY),
    "nested global": Case(using(InNested), refused=r"STATE\['nested'\]\['rates'\]\[0\]` changed from 1.0", **BY),
    "global list": Case(using(InList), refused=r"`InList.forward.<global>.SEEN\[0\]`", **BY),
    "global tensor": Case(using(InTensor), refused=r"<global>.STEPS` changed from tensor\(0.0\)", **BY),
    "large global tensor": Case(using(InLargeTensor), refused=r"<global>.FILLED` changed from tensor of", **BY),
    "global array": Case(using(InArray), refused=r"<global>.COUNTS` changed from array", **BY),
    "global torch generator": Case(using(InGenerator), refused=r"<global>.OWN`.*is a generator that no", **BY),
    "global namespace": Case(using(InNamespace), refused=r"`SimpleNamespace.calls` changed from 0", **BY),
    "global dict, filled later": Case(using(InDictLater), refused=r"LATE` changed from 0 items to 1", **BY),
    "helper function": Case(using(ByHelper), refused="`count.<global>.N` changed from 0", **BY),
    "static method": Case(using(ByStaticMethod), refused=r"`ByStaticMethod.count.<global>.STATE\['step'\]`", **BY),
    "property": Case(using(ByProperty), refused=r"`ByProperty.rate.<global>.STATE\['step'\]`", **BY),
    "decorated method": Case(using(ByDecorated), refused=r"rate.<global>.STATE\['step'\]`", **BY),
    "default of a method": Case(using(InDefault), refused=r"`InDefault.forward.<default 0>\['n'\]`", **BY),
    "closure of a method": Case(closing, refused=r"`Closing.forward.calls` changed from 0", **BY),
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
    "averaging at last": Case(scheduled(averaging_at_last), refused="a SequentialLR with a SWALR.*LambdaLR"),
    "timm's schedule": Case(scheduled(timm_schedule), refused="CosineLRScheduler.*`epoch`"),
    "steps that need a closure": Case(lambda params: made(optimizer=LBFGS), refused="LBFGS.*`closure`.*train_fn"),
}
