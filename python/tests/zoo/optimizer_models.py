"""Optimizers and schedules that others wrote, each on a small network. Nothing here loads a framework."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from specimen import CLASSES, Specimen

# Of timm's optimizers one a class and variant; those that need a GPU or a package of their own are not here.
QUICK = ("adabelief", "adafactor", "adan", "lamb", "lion", "madgrad", "muon", "sgdp")
REST = (
    "adadelta", "adagrad", "adamax", "adamc", "adamp", "adamuon", "adamw", "adamwlegacy", "adanw",
    "adopt", "adoptw", "cadafactor", "cadamw", "cadan", "cadopt", "clamb", "claprop", "clion", "cmars", "cnadamw",
    "crmsproptf", "csgdw", "lambc", "laprop", "larc", "lars", "madgradw", "mars", "momentum", "nadam",
    "nadamlegacy", "nadamuon", "nesterov", "nlarc", "novograd", "radam", "rmsprop",
    "rmsproptf", "sgd", "sgdc", "sgdw",
)  # fmt: skip


def small_network() -> Any:
    import torch
    from torch import nn

    torch.set_num_threads(1)
    stem = [nn.Conv2d(3, 8, 3, stride=4), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten()]
    return nn.Sequential(*stem, nn.Linear(8 * 8 * 8, 16), nn.Dropout(0.1), nn.Linear(16, CLASSES))


def with_optimizer(name: str) -> Callable[[Any], Any]:
    def model_fn(params: Any) -> Any:
        from timm.optim import create_optimizer_v2  # type: ignore[attr-defined]
        from torch_training import trained

        module = small_network()
        optimizer = create_optimizer_v2(module, opt=name, lr=params["lr"], weight_decay=0.01)
        return trained(module, params, optimizer=optimizer)

    return model_fn


def with_schedule(name: str, **options: Any) -> Callable[[Any], Any]:
    """timm's schedules are told the epoch at each step, and so cannot be stepped as PyTorch's are."""

    def model_fn(params: Any) -> Any:
        import timm.scheduler
        import torch
        from torch_training import trained

        module = small_network()
        optimizer = torch.optim.SGD(module.parameters(), lr=params["lr"])
        scheduler = getattr(timm.scheduler, name)(optimizer, **options)
        return trained(module, params, optimizer=optimizer, scheduler=scheduler)

    return model_fn


def by_layers(params: Any) -> Any:
    """Groups of parameters by depth, as fine-tuning recipes make them."""
    import torch
    from timm.optim import param_groups_weight_decay  # type: ignore[attr-defined]
    from torch_training import trained

    module = small_network()
    groups = param_groups_weight_decay(module, 0.05)
    return trained(module, params, optimizer=torch.optim.AdamW(groups, lr=params["lr"]))


SCHEDULES: dict[str, dict[str, Any]] = {
    "CosineLRScheduler": {"t_initial": 10},
    "MultiStepLRScheduler": {"decay_t": [1, 2]},
    "PlateauLRScheduler": {},
    "PolyLRScheduler": {"t_initial": 10},
    "StepLRScheduler": {"decay_t": 1},
    "TanhLRScheduler": {"t_initial": 10},
}

SPECIMENS = {
    **{f"timm.optim.{n}": Specimen(with_optimizer(n), "image-32", quick=n in QUICK) for n in (*QUICK, *REST)},
    "timm.optim.param_groups": Specimen(by_layers, "image-32", quick=True),
    "timm.optim.lookahead": Specimen(
        with_optimizer("lookahead_radam"), "image-32", quick=True, refused=("lookahead", "_base_optimizer")
    ),
    # Their defaults hold a list that they write to, and the groups another.
    "timm.optim.radabelief": Specimen(with_optimizer("radabelief"), "image-32", refused=("defaults['buffer']",)),
    "timm.optim.radamlegacy": Specimen(with_optimizer("radamlegacy"), "image-32", refused=("defaults['buffer']",)),
    # They keep what they worked out for each parameter in an attribute.
    "timm.optim.kron": Specimen(with_optimizer("kron"), "image-32", refused=("Kron._param_exprs",)),
    "timm.optim.kronw": Specimen(with_optimizer("kronw"), "image-32", refused=("Kron._param_exprs",)),
    # Its groups hold a dtype.
    "timm.optim.adafactorbv": Specimen(with_optimizer("adafactorbv"), "image-32", refused=("momentum_dtype",)),
    "timm.optim.adahessian": Specimen(with_optimizer("adahessian"), "image-32", refused=("adahessian.py",)),
    **{
        f"timm.scheduler.{name}": Specimen(
            with_schedule(name, **options), "image-32", quick=name == "CosineLRScheduler", refused=(name,)
        )
        for name, options in SCHEDULES.items()
    },
}
