"""Models of torchvision, without weights. Nothing here loads a framework."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from specimen import CLASSES, Specimen

# Of each family the smaller ones, the larger only repeat the same blocks more often; behind the name the side of the
# image where the architecture does not allow 32.
TORCHVISION = (
    "alexnet-64", "convnext_small", "convnext_tiny", "densenet121", "densenet169", "efficientnet_b0",
    "efficientnet_b1", "efficientnet_b2", "efficientnet_v2_s", "googlenet-64", "inception_v3-299", "mnasnet0_5",
    "mnasnet0_75", "mnasnet1_0", "mnasnet1_3", "mobilenet_v2", "mobilenet_v3_large", "mobilenet_v3_small",
    "regnet_x_1_6gf", "regnet_x_400mf", "regnet_x_800mf", "regnet_y_1_6gf", "regnet_y_400mf", "regnet_y_800mf",
    "resnet101", "resnet18", "resnet34", "resnet50", "resnext50_32x4d", "shufflenet_v2_x0_5", "shufflenet_v2_x1_0",
    "shufflenet_v2_x1_5", "shufflenet_v2_x2_0", "squeezenet1_0", "squeezenet1_1", "swin_s", "swin_t", "swin_v2_s",
    "swin_v2_t", "vgg11", "vgg11_bn", "wide_resnet50_2",
)  # fmt: skip
QUICK = {
    "efficientnet_b0", "googlenet-64", "mnasnet0_5", "mobilenet_v3_small", "shufflenet_v2_x0_5", "squeezenet1_1",
}  # fmt: skip


def torchvision_model(name: str, **options: Any) -> Callable[[Any], Any]:
    """A classifier; those with auxiliary heads return all of them while they train, and have no metrics.

    A metric is given one tensor or a dict of them.
    """

    def model_fn(params: Any) -> Any:
        import torchvision
        from torch_training import of_all_heads, trained

        module = torchvision.models.get_model(name, weights=None, num_classes=CLASSES, **options)
        return trained(module, params, loss=of_all_heads, measured="aux_logits" not in options)

    return model_fn


def small_vit(params: Any) -> Any:
    from torch_training import trained
    from torchvision.models import VisionTransformer

    sizes = {"num_layers": 2, "num_heads": 2, "hidden_dim": 32, "mlp_dim": 64}
    return trained(VisionTransformer(32, 8, **sizes, dropout=0.1, num_classes=CLASSES), params)


def small_maxvit(params: Any) -> Any:
    from torch_training import trained
    from torchvision.models import MaxVit

    blocks = {"block_channels": [16, 32], "block_layers": [1, 1], "head_dim": 8, "stochastic_depth_prob": 0.2}
    return trained(MaxVit((32, 32), 16, partition_size=4, **blocks, num_classes=CLASSES), params)


def _sized(label: str) -> tuple[str, int]:
    name, _, side = label.partition("-")
    return name, int(side or 32)


def _aux(name: str) -> dict[str, Any]:
    return {"aux_logits": True, "init_weights": False} if name in ("googlenet", "inception_v3") else {}


SPECIMENS = {
    **{
        f"torchvision.{name}": Specimen(torchvision_model(name, **_aux(name)), f"image-{side}", quick=label in QUICK)
        for label in TORCHVISION
        for name, side in [_sized(label)]
    },
    "torchvision.small_vit": Specimen(small_vit, "image-32", quick=True),
    "torchvision.small_maxvit": Specimen(small_maxvit, "image-32", quick=True),
}
