"""Small networks with parts of PyTorch's and others' that keep more than weights. Nothing here loads a framework."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from specimen import CLASSES, Specimen


def network(middle: Callable[[], Any], side: int = 8) -> Callable[[Any], Any]:
    """A stem, what `middle` makes of 8 channels of that side, and a linear end."""

    def model_fn(params: Any) -> Any:
        from torch import nn
        from torch_training import trained

        stem = nn.Sequential(nn.Conv2d(3, 8, 4, stride=32 // side), nn.ReLU())
        end = nn.Sequential(nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(32, CLASSES))
        return trained(nn.Sequential(stem, middle(), end), params)

    return model_fn


def old_weight_norm() -> Any:
    """Keeps the weight that it works out before each call as a plain attribute."""
    from torch import nn

    return nn.utils.weight_norm(nn.Conv2d(8, 8, 3, padding=1))


def weight_norm() -> Any:
    from torch import nn

    return nn.utils.parametrizations.weight_norm(nn.Conv2d(8, 8, 3, padding=1))


def old_spectral_norm() -> Any:
    """Improves its vectors, which are buffers, each time it is called in training."""
    from torch import nn

    return nn.utils.spectral_norm(nn.Conv2d(8, 8, 3, padding=1))


def spectral_norm() -> Any:
    from torch import nn

    return nn.utils.parametrizations.spectral_norm(nn.Conv2d(8, 8, 3, padding=1))


def orthogonal() -> Any:
    from torch import nn

    return nn.Sequential(
        nn.Flatten(2), nn.utils.parametrizations.orthogonal(nn.Linear(64, 64)), nn.Unflatten(2, (8, 8))
    )


def pruned() -> Any:
    """The pruned weight is a plain attribute too, worked out from the whole one and a mask."""
    from torch import nn
    from torch.nn.utils import prune

    return prune.random_unstructured(nn.Conv2d(8, 8, 3, padding=1), "weight", 0.5)


def batch_norm_by_count() -> Any:
    """Averages over all batches so far, and so goes by a count of them."""
    from torch import nn

    return nn.BatchNorm2d(8, momentum=None)


def instance_norm() -> Any:
    from torch import nn

    return nn.InstanceNorm2d(8, affine=True, track_running_stats=True)


def split_batch_norm() -> Any:
    """timm's: the halves of a batch have statistics of their own."""
    from timm.layers import SplitBatchNorm2d  # type: ignore[attr-defined]

    return SplitBatchNorm2d(8, num_splits=2)


def evo_norm() -> Any:
    from timm.layers import EvoNorm2dB0  # type: ignore[attr-defined]

    return EvoNorm2dB0(8)


def drop_block() -> Any:
    from torch import nn
    from torchvision.ops import DropBlock2d, StochasticDepth

    return nn.Sequential(DropBlock2d(0.2, 3), StochasticDepth(0.3, "row"))


def frozen_batch_norm() -> Any:
    from torchvision.ops import FrozenBatchNorm2d

    return FrozenBatchNorm2d(8)


def lazy() -> Any:
    from torch import nn

    return nn.Sequential(nn.LazyConv2d(8, 3), nn.LazyBatchNorm2d())


def random_relu() -> Any:
    from torch import nn

    return nn.Sequential(nn.RReLU(), nn.Dropout2d(0.2), nn.FeatureAlphaDropout(0.1), nn.FractionalMaxPool2d(2, 4))


def transformer() -> Any:
    from torch import nn
    from torch_training import Turned

    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    unfold = nn.Sequential(nn.Flatten(2), Turned(), nn.TransformerEncoder(layer, 2, enable_nested_tensor=False))
    return nn.Sequential(unfold, Turned(), nn.Unflatten(2, (8, 8)))


MIDDLES: dict[str, Callable[[], Any]] = {
    "weight_norm, old": old_weight_norm,
    "weight_norm": weight_norm,
    "spectral_norm, old": old_spectral_norm,
    "spectral_norm": spectral_norm,
    "orthogonal": orthogonal,
    "pruned": pruned,
    "BatchNorm by count": batch_norm_by_count,
    "InstanceNorm": instance_norm,
    "SplitBatchNorm": split_batch_norm,
    "EvoNorm": evo_norm,
    "DropBlock": drop_block,
    "FrozenBatchNorm": frozen_batch_norm,
    "lazy": lazy,
    "random activations": random_relu,
    "TransformerEncoder": transformer,
}
SPECIMENS = {f"trap.{name}": Specimen(network(middle), "image-32", quick=True) for name, middle in MIDDLES.items()}
