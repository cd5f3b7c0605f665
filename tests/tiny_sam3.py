"""SAM 3's detector and tracker with random weights, saved as a hub would have them; transformers' classes need
torchvision."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from transformers import (
    CLIPTokenizer,
    Sam3Config,
    Sam3ImageProcessor,
    Sam3Model,
    Sam3Processor,
    Sam3TrackerVideoConfig,
    Sam3VideoConfig,
    Sam3VideoModel,
    Sam3VideoProcessor,
)
from transformers.models.sam2_video.video_processing_sam2_video import Sam2VideoVideoProcessor

from shared.models.card_lookup import BUNDLED

SIDE = 112
WIDTH = 128
"""Width of all parts. The tracker's memories have 64 channels, which must be fewer."""
_LAYERS = {"hidden_size": WIDTH, "num_attention_heads": 4, "intermediate_size": 64}


def _vision() -> dict[str, Any]:
    backbone = _LAYERS | {
        "model_type": "sam3_vit_model", "num_hidden_layers": 2, "image_size": SIDE, "patch_size": 14,
        "pretrain_image_size": SIDE, "window_size": 4, "global_attn_indexes": [1],
    }  # fmt: skip
    sizes = [[32, 32], [16, 16], [8, 8]]
    return {"backbone_config": backbone, "fpn_hidden_size": WIDTH, "backbone_feature_sizes": sizes}


def _detector() -> dict[str, Any]:
    ids = {"bos_token_id": 978, "eos_token_id": 979, "pad_token_id": 979}
    text = {"vocab_size": 980, "max_position_embeddings": 32, "projection_dim": WIDTH, "num_hidden_layers": 1}
    return {
        "vision_config": _vision(),
        "text_config": _LAYERS | text | ids,
        "geometry_encoder_config": _LAYERS | {"num_layers": 1},
        "detr_encoder_config": _LAYERS | {"num_layers": 1},
        "detr_decoder_config": _LAYERS | {"num_layers": 1, "num_queries": 4},
        "mask_decoder_config": {"hidden_size": WIDTH, "num_upsampling_stages": 2, "num_attention_heads": 4},
    }


def _tracker() -> Sam3TrackerVideoConfig:
    names = ("memory_attention_hidden_size", "memory_encoder_hidden_size", "mask_downsampler_embed_dim")
    return Sam3TrackerVideoConfig(
        vision_config=_vision() | {"model_type": "sam3_vision_model"},
        prompt_encoder_config={"hidden_size": WIDTH, "image_size": SIDE, "mask_input_channels": 4},
        mask_decoder_config=_LAYERS | {"mlp_dim": 32, "num_hidden_layers": 2, "iou_head_hidden_dim": 32},
        image_size=SIDE,
        memory_attention_num_layers=1,
        memory_attention_feed_forward_hidden_size=32,
        memory_attention_rope_feat_sizes=[8, 8],
        memory_encoder_output_channels=64,
        memory_fuser_embed_dim=WIDTH,
        memory_fuser_intermediate_dim=32,
        **dict.fromkeys(names, WIDTH),
    )


def tiny_sam3(folder: Path, seed: int = 0) -> Path:
    """The detector with four queries, on images of 112×112."""
    torch.manual_seed(seed)
    Sam3Model(Sam3Config(**_detector())).save_pretrained(folder)
    Sam3Processor(_images(), CLIPTokenizer.from_pretrained(BUNDLED / "clip")).save_pretrained(folder)
    return folder


def tiny_tracker(folder: Path, seed: int = 0) -> Path:
    """The detector with the tracker, which follows whatever is detected."""
    torch.manual_seed(seed)
    config = Sam3VideoConfig(
        detector_config=_detector() | {"model_type": "sam3"}, tracker_config=_tracker(), low_res_mask_size=32,
        score_threshold_detection=0.0, new_det_thresh=0.0, det_nms_thresh=0.0, hotstart_delay=0,
        hotstart_unmatch_thresh=0, hotstart_dup_thresh=0, fill_hole_area=0,
    )  # fmt: skip
    Sam3VideoModel(config).save_pretrained(folder)
    videos = Sam2VideoVideoProcessor(size={"height": SIDE, "width": SIDE})
    tokenizer = CLIPTokenizer.from_pretrained(BUNDLED / "clip")
    Sam3VideoProcessor(_images(), videos, tokenizer).save_pretrained(folder)
    return folder


def _images() -> Sam3ImageProcessor:
    return Sam3ImageProcessor(size={"height": SIDE, "width": SIDE})
