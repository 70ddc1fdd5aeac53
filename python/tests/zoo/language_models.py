"""Models of transformers from tiny configurations, for texts, images, sound and series. Nothing here loads a framework.

They differ in what they return (a mapping of their own class), share weights between their ends, keep caches of
rotations, work out the loss from labels inside, or throw layers away by chance.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from specimen import CLASSES, LENGTH, VOCABULARY, Specimen

# What most configurations of encoders and decoders call their sizes.
SMALL = {
    "vocab_size": VOCABULARY, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2,
    "intermediate_size": 32, "max_position_embeddings": 32, "pad_token_id": 0, "num_labels": CLASSES,
}  # fmt: skip
GROUPED = {**SMALL, "num_key_value_heads": 1, "head_dim": 8}
GPT = {"vocab_size": VOCABULARY, "n_positions": 32, "n_embd": 16, "n_layer": 2, "n_head": 2, "pad_token_id": 0}
TWO_SIDES = {
    "vocab_size": VOCABULARY, "d_model": 16, "encoder_layers": 2, "decoder_layers": 2, "encoder_attention_heads": 2,
    "decoder_attention_heads": 2, "encoder_ffn_dim": 32, "decoder_ffn_dim": 32, "max_position_embeddings": 32,
    "pad_token_id": 0, "bos_token_id": 1, "eos_token_id": 2, "decoder_start_token_id": 1, "encoder_layerdrop": 0.2,
    "decoder_layerdrop": 0.2,
}  # fmt: skip
T5 = {
    "vocab_size": VOCABULARY, "d_model": 16, "d_kv": 8, "d_ff": 32, "num_layers": 2, "num_heads": 2,
    "pad_token_id": 0, "decoder_start_token_id": 0,
}  # fmt: skip
SIGHT = {**SMALL, "image_size": 32, "patch_size": 8}
STAGES = {"num_labels": CLASSES, "depths": [1, 1], "hidden_sizes": [8, 16], "num_stages": 2}
SOUND = {
    **SMALL, "conv_dim": [8, 8], "conv_kernel": [10, 3], "conv_stride": [5, 2], "num_feat_extract_layers": 2,
    "num_conv_pos_embeddings": 8, "num_conv_pos_embedding_groups": 2, "classifier_proj_size": 8, "layerdrop": 0.2,
    "mask_time_length": 2, "mask_time_prob": 0.2,
}  # fmt: skip


def model_of(kind: str, config: dict[str, Any]) -> Any:
    """The model `kind` (BertForSequenceClassification) with its configuration (BertConfig) of these sizes."""
    import transformers

    known = getattr(transformers, kind)
    return known(known.config_class(**config))


def scored(kind: str, takes: str, **config: Any) -> Callable[[Any], Any]:
    """A classifier, inside a module that hands on its scores."""

    def model_fn(params: Any) -> Any:
        from torch_training import Scores, trained

        return trained(Scores(model_of(kind, config), takes), params)

    return model_fn


def bare(kind: str, **config: Any) -> Callable[[Any], Any]:
    """A classifier as it is: it returns its own kind of mapping, which loss and metrics look into."""

    def model_fn(params: Any) -> Any:
        from torch_training import of_logits, trained

        return trained(model_of(kind, config), params, loss=of_logits)

    return model_fn


def labels_inside(kind: str, **config: Any) -> Callable[[Any], Any]:
    """A classifier that is given the labels and returns its loss."""

    def model_fn(params: Any) -> Any:
        from torch_training import told_inside, trained

        return trained(model_of(kind, config), params, loss=told_inside)

    return model_fn


def next_word(kind: str, **config: Any) -> Callable[[Any], Any]:
    """A language model whose output layer shares the weights of its word embeddings."""

    def model_fn(params: Any) -> Any:
        from torch_training import Scores, last_scores, trained

        return trained(Scores(model_of(kind, config), "input_ids", last_scores), params)

    return model_fn


def headed(kind: str, takes: str, width: int, **config: Any) -> Callable[[Any], Any]:
    """A body without a head, under a linear one."""

    def model_fn(params: Any) -> Any:
        from torch_training import Headed, trained

        return trained(Headed(model_of(kind, config), takes, width, CLASSES), params)

    return model_fn


def pair_scored(kind: str, **config: Any) -> Callable[[Any], Any]:
    """Both sides are given by name; the scores are those of the last place."""

    def model_fn(params: Any) -> Any:
        from torch_training import PairScores, trained

        return trained(PairScores(model_of(kind, config)), params)

    return model_fn


def checkpointing(params: Any) -> Any:
    """Gradient checkpointing runs the forward pass twice, with the same dropout both times."""
    from torch_training import Scores, trained

    model = model_of("BertForSequenceClassification", SMALL)
    model.gradient_checkpointing_enable()
    return trained(Scores(model, "input_ids"), params)


def frozen_body(params: Any) -> Any:
    from torch_training import Scores, trained

    model = model_of("DistilBertForSequenceClassification", DISTIL)
    model.distilbert.requires_grad_(False)
    return trained(Scores(model, "input_ids"), params)


def lstm_head(params: Any) -> Any:
    from torch_training import RecurrentHead, trained

    return trained(RecurrentHead(model_of("BertModel", SMALL), 16, CLASSES), params)


DISTIL = {
    "vocab_size": VOCABULARY, "dim": 16, "n_layers": 2, "n_heads": 2, "hidden_dim": 32, "max_position_embeddings": 32,
    "pad_token_id": 0, "num_labels": CLASSES,
}  # fmt: skip

# Classifiers of texts by their sizes.
ENCODERS: dict[str, dict[str, Any]] = {
    "Albert": {**SMALL, "embedding_size": 8},
    "Bert": SMALL,
    "BigBird": {**SMALL, "attention_type": "original_full"},
    "Canine": {**SMALL, "num_hash_functions": 2, "num_hash_buckets": 32, "local_transformer_stride": 4},
    "ConvBert": {**SMALL, "embedding_size": 16, "conv_kernel_size": 3},
    "Data2VecText": SMALL,
    "Deberta": {**SMALL, "relative_attention": True, "pos_att_type": ["p2c", "c2p"]},
    "DebertaV2": {**SMALL, "relative_attention": True, "position_buckets": 8, "pos_att_type": ["p2c", "c2p"]},
    "DistilBert": DISTIL,
    "Electra": {**SMALL, "embedding_size": 16},
    "FNet": SMALL,
    "Funnel": {
        "vocab_size": VOCABULARY, "block_sizes": [1, 1], "d_model": 16, "n_head": 2, "d_head": 8, "d_inner": 32,
        "num_labels": CLASSES,
    },
    "IBert": SMALL,
    "LayoutLM": SMALL,
    "Longformer": {**SMALL, "attention_window": 4, "max_position_embeddings": 40},
    "MegatronBert": SMALL,
    "MobileBert": {**SMALL, "embedding_size": 16, "intra_bottleneck_size": 16, "true_hidden_size": 16},
    "ModernBert": {**SMALL, "attn_implementation": "eager", "reference_compile": False},
    "MPNet": SMALL,
    "Nystromformer": {**SMALL, "num_landmarks": 4, "segment_means_seq_len": LENGTH},
    "RemBert": {**SMALL, "input_embedding_size": 16, "output_embedding_size": 16},
    "Roberta": SMALL,
    "RoFormer": SMALL,
    "SqueezeBert": {
        **SMALL, "embedding_size": 16, "q_groups": 1, "k_groups": 1, "v_groups": 1, "post_attention_groups": 1,
        "intermediate_groups": 1, "output_groups": 1,
    },
    "XLMRoberta": SMALL,
    "XLNet": {"vocab_size": VOCABULARY, "d_model": 16, "n_layer": 2, "n_head": 2, "d_inner": 32, "num_labels": CLASSES},
    "Yoso": {**SMALL, "num_hash": 2},
}  # fmt: skip

# Language models by their sizes; most share the weights of their ends, and keep tables of rotations.
DECODERS: dict[str, dict[str, Any]] = {
    "BloomForCausalLM": {"vocab_size": VOCABULARY, "hidden_size": 16, "n_layer": 2, "n_head": 2, "pad_token_id": 0},
    "CodeGenForCausalLM": {**GPT, "n_head": 4, "rotary_dim": 4},
    "CTRLLMHeadModel": {**GPT, "dff": 32},
    "FalconForCausalLM": SMALL,
    "GemmaForCausalLM": GROUPED,
    "Gemma2ForCausalLM": {**GROUPED, "sliding_window": 4},
    "Gemma3ForCausalLM": {**GROUPED, "sliding_window": 4},
    "GPT2LMHeadModel": GPT,
    "GPTBigCodeForCausalLM": GPT,
    "GPTJForCausalLM": {**GPT, "rotary_dim": 4},
    "GPTNeoForCausalLM": {
        "vocab_size": VOCABULARY, "hidden_size": 16, "num_layers": 2, "num_heads": 2, "max_position_embeddings": 32,
        "attention_types": [[["global", "local"], 1]], "window_size": 4,
    },
    "GPTNeoXForCausalLM": SMALL,
    "GraniteForCausalLM": GROUPED,
    "LlamaForCausalLM": {**GROUPED, "tie_word_embeddings": True},
    "MambaForCausalLM": {"vocab_size": VOCABULARY, "hidden_size": 16, "num_hidden_layers": 2, "state_size": 4},
    "MistralForCausalLM": {**GROUPED, "sliding_window": 4},
    "MixtralForCausalLM": {**GROUPED, "num_local_experts": 2, "output_router_logits": True},
    "OlmoForCausalLM": GROUPED,
    "OPTForCausalLM": {
        "vocab_size": VOCABULARY, "hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "ffn_dim": 32,
        "max_position_embeddings": 32, "word_embed_proj_dim": 16, "layerdrop": 0.2,
    },
    "PhiForCausalLM": {**SMALL, "partial_rotary_factor": 0.5},
    "Phi3ForCausalLM": GROUPED,
    "Qwen2ForCausalLM": GROUPED,
    "Qwen3ForCausalLM": GROUPED,
    "RwkvForCausalLM": {
        "vocab_size": VOCABULARY, "hidden_size": 16, "num_hidden_layers": 2, "attention_hidden_size": 16,
        "intermediate_size": 32, "context_length": 32,
    },
    "StableLmForCausalLM": GROUPED,
}  # fmt: skip

# Both sides of a translator, which share one table of words.
TRANSLATORS: dict[str, dict[str, Any]] = {
    "BartForConditionalGeneration": TWO_SIDES,
    "BlenderbotForConditionalGeneration": TWO_SIDES,
    "LongT5ForConditionalGeneration": {**T5, "local_radius": 4},
    "M2M100ForConditionalGeneration": TWO_SIDES,
    "MarianMTModel": TWO_SIDES,
    "MBartForConditionalGeneration": TWO_SIDES,
    "PegasusForConditionalGeneration": TWO_SIDES,
    "T5ForConditionalGeneration": T5,
}

IMAGES: dict[str, dict[str, Any]] = {
    "BeitForImageClassification": {**SIGHT, "use_relative_position_bias": True, "drop_path_rate": 0.2},
    "ConvNextForImageClassification": {**STAGES, "drop_path_rate": 0.2},
    "ConvNextV2ForImageClassification": {**STAGES, "drop_path_rate": 0.2},
    "CvtForImageClassification": {
        "num_labels": CLASSES, "embed_dim": [8, 16, 16], "num_heads": [1, 1, 1], "depth": [1, 2, 3],
        "drop_path_rate": [0.0, 0.1, 0.2],
    },
    "DeiTForImageClassification": SIGHT,
    "Dinov2ForImageClassification": {**SIGHT, "drop_path_rate": 0.2},
    "EfficientNetForImageClassification": {"num_labels": CLASSES, "width_coefficient": 0.25, "depth_coefficient": 0.2,
                                           "hidden_dim": 320},
    "LevitForImageClassification": {"num_labels": CLASSES, "image_size": 64, "hidden_sizes": [16, 32, 48],
                                    "num_attention_heads": [1, 2, 3], "depths": [1, 1, 1], "key_dim": [8, 8, 8]},
    "MobileNetV2ForImageClassification": {"num_labels": CLASSES, "image_size": 32, "depth_multiplier": 0.35},
    "MobileViTForImageClassification": {
        "num_labels": CLASSES, "image_size": 64, "hidden_sizes": [16, 16, 16], "neck_hidden_sizes": [8, 8, 8, 8, 8, 8,
        16], "num_attention_heads": 2,
    },
    "PoolFormerForImageClassification": {"num_labels": CLASSES, "hidden_sizes": [8, 8, 16, 16], "depths": [1, 1, 1, 1],
                                         "drop_path_rate": 0.2},
    "RegNetForImageClassification": {**STAGES, "embedding_size": 8, "groups_width": 8},
    "ResNetForImageClassification": {**STAGES, "embedding_size": 8},
    "SegformerForImageClassification": {
        "num_labels": CLASSES, "depths": [1, 1, 1, 1], "hidden_sizes": [8, 8, 16, 16],
        "num_attention_heads": [1, 1, 2, 2],
    },
    "SwinForImageClassification": {
        "num_labels": CLASSES, "image_size": 32, "patch_size": 2, "embed_dim": 8, "depths": [2, 2],
        "num_heads": [1, 2], "window_size": 4, "drop_path_rate": 0.2,
    },
    "Swinv2ForImageClassification": {
        "num_labels": CLASSES, "image_size": 32, "patch_size": 2, "embed_dim": 8, "depths": [2, 2],
        "num_heads": [1, 2], "window_size": 4,
    },
    "ViTForImageClassification": SIGHT,
    "ViTMSNForImageClassification": SIGHT,
}  # fmt: skip

SOUNDS: dict[str, dict[str, Any]] = {
    "HubertForSequenceClassification": SOUND,
    "SEWForSequenceClassification": {**SOUND, "squeeze_factor": 2},
    "UniSpeechForSequenceClassification": SOUND,
    "Wav2Vec2ForSequenceClassification": SOUND,
    "WavLMForSequenceClassification": SOUND,
}

QUICK = {
    "Albert", "Bert", "DebertaV2", "DistilBert", "XLNet", "GPT2LMHeadModel", "GPTNeoXForCausalLM", "LlamaForCausalLM",
    "MambaForCausalLM", "Qwen2ForCausalLM", "BartForConditionalGeneration", "T5ForConditionalGeneration",
    "ConvNextForImageClassification", "SwinForImageClassification", "ViTForImageClassification",
    "Wav2Vec2ForSequenceClassification", "LevitForImageClassification", "RwkvForCausalLM",
}  # fmt: skip


def _side(config: dict[str, Any]) -> int:
    return max(32, int(config.get("image_size", 32)))


# Funnel keeps in an attribute how far it has pooled. RWKV divides its weights when it is evaluated, and keeps in one
# whether it has.
REFUSED = {
    "Funnel": ("FunnelAttentionStructure.pooling_mult",),
    "RwkvForCausalLM": ("RwkvModel.layers_are_rescaled", "while evaluating"),
}


def _named(name: str, make: Callable[[Any], Any], data: str) -> tuple[str, Specimen]:
    return f"transformers.{name}", Specimen(make, data, quick=name in QUICK, refused=REFUSED.get(name, ()))


SPECIMENS = dict(
    [
        *(_named(n, scored(f"{n}ForSequenceClassification", "input_ids", **c), "tokens") for n, c in ENCODERS.items()),
        *(_named(n, next_word(n, **c), "tokens") for n, c in DECODERS.items()),
        *(_named(n, pair_scored(n, **c), "pair") for n, c in TRANSLATORS.items()),
        *(_named(n, scored(n, "pixel_values", **c), f"image-{_side(c)}") for n, c in IMAGES.items()),
        *(_named(n, scored(n, "input_values", **c), "signal-400") for n, c in SOUNDS.items()),
    ]
)
SPECIMENS |= {
    "transformers.bare": Specimen(bare("BertForSequenceClassification", **SMALL), "tokens", quick=True),
    "transformers.labels_inside": Specimen(
        labels_inside("BertForSequenceClassification", **SMALL), "labelled", quick=True
    ),
    "transformers.gradient_checkpointing": Specimen(checkpointing, "tokens", quick=True),
    "transformers.frozen_body": Specimen(frozen_body, "tokens", quick=True),
    "transformers.lstm_head": Specimen(lstm_head, "tokens", quick=True),
    "transformers.headed_Bert": Specimen(headed("BertModel", "input_ids", 16, **SMALL), "tokens"),
}
