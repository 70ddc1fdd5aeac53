"""One model of each family of timm, its smallest, without weights. Nothing here loads a framework.

Left out are only plain VGG, which torchvision has too, and what needs a package of its own.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from specimen import CLASSES, Specimen

# Behind the name the side of the image where the architecture does not allow 32.
# Told the size of their images:
SIZED = (
    "cait_xxs24_224", "coat_tiny", "convit_tiny", "deit_tiny_patch16_224", "efficientformer_l1-224",
    "efficientformerv2_s0", "efficientvit_m0", "eva02_tiny_patch14_224", "gcvit_xxtiny", "gmlp_ti16_224",
    "halonet_h1-256", "hiera_tiny_224", "levit_128", "maxvit_pico_rw_256", "mvitv2_tiny", "nest_tiny", "pit_xs_224",
    "sequencer2d_s", "swiftformer_xs", "swin_tiny_patch4_window7_224", "swinv2_cr_tiny_224",
    "swinv2_tiny_window8_256-64", "tnt_s_legacy_patch16_224", "twins_svt_small", "visformer_tiny",
    "vit_srelpos_small_patch16_224", "vit_tiny_r_s16_p8_224", "vitamin_small_224", "volo_d1_224",
    "xcit_nano_12_p8_224",
)  # fmt: skip
# Indifferent to it:
ANY_SIZE = (
    "caformer_s18", "convmixer_768_32", "cpubone_nano", "crossvit_tiny_240", "cs3darknet_focus_s", "csatv2-64",
    "davit_tiny", "densenet121", "dla46x_c", "dpn48b", "edgenext_xx_small", "efficientvim_m1", "efficientvit_b0",
    "fasternet_t0", "fastvit_t8", "focalnet_tiny_srf", "ghostnet_050", "hardcorenas_b", "hgnetv2_b0",
    "hrnet_w18_small", "iformer_t", "inception_next_atto", "inception_resnet_v2-128", "inception_v3-128",
    "inception_v4-128", "lcnet_035", "lcnetv2_small", "legacy_seresnet18", "legacy_xception", "lowformer_b0",
    "mobilenetv5_base", "mobilevit_xxs", "nasnetalarge", "nextvit_small", "pnasnet5large", "pvt_v2_b0",
    "rdnet_tiny", "regnetx_002", "repghostnet_050", "repvit_m1", "res2net50_26w_4s", "resnest14d", "resnet18",
    "resnetv2_18", "rexnet_100", "sam2_hiera_tiny", "selecsls42", "shvit_s1", "skresnet18", "starnet_s050",
    "test_byobnet", "test_convnext", "test_mambaout", "test_nfnet", "tiny_vit_5m_224", "tinynet_d", "tresnet_m",
    "vovnet39a", "xception41p",
)  # fmt: skip
# Large even at their smallest: cut to two blocks.
CUT: dict[str, dict[str, Any]] = {
    "beit_base_patch16_224": {"depth": 2, "drop_path_rate": 0.2},
    "deepseek_vit_412m-56": {"depth": 2},
    "gemma4_vit_167m": {"depth": 2},
    "naflexvit_base_patch16_gap": {"depth": 2},
    "qwen3_vit_88m": {"depth": 2},
    "samvit_base_patch16_224": {"depth": 2, "global_attn_indexes": (1,)},
    "swin_tiny_patch4_window7_224 cut": {"depths": (2, 2), "embed_dim": 24, "num_heads": (1, 2), "drop_path_rate": 0.2},
    "test_vit": {"drop_path_rate": 0.2, "drop_rate": 0.1},
}
# Options that bring in chance, or state of another kind.
VARIED: dict[str, dict[str, Any]] = {
    "resnet18 with DropBlock": {"drop_block_rate": 0.2, "drop_path_rate": 0.2, "drop_rate": 0.1},
    "test_convnext with depth": {"drop_path_rate": 0.2},
    "test_vit with patches dropped": {"patch_drop_rate": 0.5, "img_size": 32},
    "test_efficientnet with drop": {"drop_path_rate": 0.2, "drop_rate": 0.2},
}
QUICK = {
    "convit_tiny", "edgenext_xx_small", "efficientvit_b0", "mobilevit_xxs", "repghostnet_050", "starnet_s050",
    "tinynet_d", "test_byobnet", "test_mambaout", "test_nfnet", "test_vit",
    "swin_tiny_patch4_window7_224 cut", "resnet18 with DropBlock", "test_convnext with depth",
    "test_vit with patches dropped",
}  # fmt: skip


def timm_model(label: str, **options: Any) -> Callable[[Any], Any]:
    """A classifier of that name; what follows behind a space only tells it from others."""

    def model_fn(params: Any) -> Any:
        import timm
        from torch_training import of_all_heads, trained

        module = timm.create_model(label.split()[0], pretrained=False, num_classes=CLASSES, **options)
        return trained(module, params, loss=of_all_heads)

    return model_fn


def called_once(params: Any) -> Any:
    """ConViT fills a table, an attribute, at its first call: called in `model_fn` it hops, else it is refused."""
    import torch

    model = timm_model("convit_tiny", img_size=32)(params)
    model.module(torch.zeros(1, 3, 32, 32))
    return model


def _specimen(label: str, sized: bool, **options: Any) -> tuple[str, Specimen]:
    name, _, side = label.partition("-")
    size = {"img_size": int(side or 32)} if sized else {}
    make = timm_model(name, **size, **options)
    refused = ("GPSA.rel_indices", "set it in model_fn") if name == "convit_tiny" else ()
    return f"timm.{name}", Specimen(make, f"image-{side or 32}", quick=name in QUICK, refused=refused)


SPECIMENS = dict(
    [
        *(_specimen(label, sized=True) for label in SIZED),
        *(_specimen(label, sized=False) for label in ANY_SIZE),
        *(_specimen(label, sized=True, **options) for label, options in CUT.items()),
        *(_specimen(label, sized=False, **options) for label, options in VARIED.items()),
    ]
)
SPECIMENS["timm.convit_tiny called once"] = Specimen(called_once, "image-32", quick=True)
