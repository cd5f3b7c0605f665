"""Segmentation models with random weights, saved as a hub would have them: a CLIPSeg, LangSAM's pair, and SAM 3."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import (
    BertTokenizer,
    CLIPSegConfig,
    CLIPSegForImageSegmentation,
    CLIPSegProcessor,
    CLIPTokenizer,
    GroundingDinoConfig,
    GroundingDinoForObjectDetection,
    GroundingDinoImageProcessor,
    GroundingDinoProcessor,
    SamConfig,
    SamImageProcessor,
    SamModel,
    SamProcessor,
    SwinConfig,
    ViTImageProcessor,
)

from shared.models.card_lookup import BUNDLED

SIDE = 16
WORDS = [
    *("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", "a", "red", "blue", "fox", "duck", "on", "in", "the", "snow"),
    *("forest", "beach"),
]


def tiny_clipseg(folder: Path, seed: int = 0) -> Path:
    """A CLIPSeg of two layers on images of 16×16, with the tokenizer of the bundled CLIP pair."""
    torch.manual_seed(seed)
    tokenizer = CLIPTokenizer.from_pretrained(BUNDLED / "clip")
    layers = {"hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 2}
    ids = {"bos_token_id": tokenizer.bos_token_id, "eos_token_id": tokenizer.eos_token_id}
    config = CLIPSegConfig(
        text_config=layers
        | ids
        | {"vocab_size": len(tokenizer), "max_position_embeddings": 32, "pad_token_id": tokenizer.eos_token_id},
        vision_config=layers | {"image_size": SIDE, "patch_size": 4},
        projection_dim=16,
        extract_layers=[0, 1],
        reduce_dim=16,
        decoder_num_attention_heads=2,
        decoder_intermediate_size=32,
    )
    CLIPSegForImageSegmentation(config).save_pretrained(folder)
    size = {"height": SIDE, "width": SIDE}
    CLIPSegProcessor(ViTImageProcessor(size=size), tokenizer).save_pretrained(folder)
    return folder


def tiny_detector(folder: Path, seed: int = 0) -> Path:
    """A Grounding DINO with ten queries, and a tokenizer of the words in WORDS."""
    torch.manual_seed(seed)
    folder.mkdir(parents=True, exist_ok=True)
    backbone = SwinConfig(
        window_size=7, embed_dim=12, depths=[1, 1, 1, 1], num_heads=[1, 1, 1, 1], image_size=32,
        out_features=["stage2", "stage3", "stage4"], out_indices=[2, 3, 4],
    )  # fmt: skip
    text = {
        "model_type": "bert", "vocab_size": len(WORDS), "hidden_size": 8, "num_hidden_layers": 1,
        "num_attention_heads": 2, "intermediate_size": 8, "max_position_embeddings": 64,
    }  # fmt: skip
    config = GroundingDinoConfig(
        backbone_config=backbone, text_config=text, d_model=32, encoder_layers=1, decoder_layers=2,
        encoder_attention_heads=4, decoder_attention_heads=4, encoder_ffn_dim=32, decoder_ffn_dim=32, num_queries=10,
        max_text_len=64,
    )  # fmt: skip
    GroundingDinoForObjectDetection(config).save_pretrained(folder)
    tokenizer = BertTokenizer(vocab={word: number for number, word in enumerate(WORDS)})
    images = GroundingDinoImageProcessor(size={"shortest_edge": 96, "longest_edge": 128})
    GroundingDinoProcessor(images, tokenizer).save_pretrained(folder)
    return folder


def tiny_sam(folder: Path, seed: int = 0) -> Path:
    """A SAM on images of 32×32."""
    torch.manual_seed(seed)
    config = SamConfig(
        vision_config={
            "hidden_size": 32, "output_channels": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
            "image_size": 32, "patch_size": 4, "window_size": 0, "global_attn_indexes": [0], "mlp_dim": 32,
            "num_pos_feats": 16,
        },
        prompt_encoder_config={"hidden_size": 32, "image_size": 32, "patch_size": 4, "mask_input_channels": 4},
        mask_decoder_config={
            "hidden_size": 32, "mlp_dim": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
            "iou_head_hidden_dim": 16,
        },
    )  # fmt: skip
    SamModel(config).save_pretrained(folder)
    side = {"height": 32, "width": 32}
    images = SamImageProcessor(size={"longest_edge": 32}, pad_size=side, mask_size={"longest_edge": 32})
    SamProcessor(images).save_pretrained(folder)
    return folder
