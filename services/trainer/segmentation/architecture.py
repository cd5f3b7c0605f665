"""Architecture of the bundled segmenter: transformers' CLIPSeg around the weights of the bundled CLIP-style pair."""

from __future__ import annotations

from pathlib import Path

import torch
from transformers import CLIPModel, CLIPSegConfig, CLIPSegForImageSegmentation

EXTRACT = (-1, 1, 3)
"""Layers of the image tower that the decoder reads, the last one first; −1 is the tower's input, which still has the
edges."""
WIDTH, INNER = 80, 256
FIRST = 0.05
"""Standard deviation of the last layer's first weights, so that no pixel is decided at first."""


def new_segmenter(pair: Path) -> CLIPSegForImageSegmentation:
    """Return a CLIPSeg with the towers of the CLIP pair in `pair` and an untrained decoder."""
    clip = CLIPModel.from_pretrained(pair, torch_dtype=torch.float32, use_safetensors=True)
    config = CLIPSegConfig(
        text_config=clip.config.text_config.to_dict() | {"model_type": "clipseg_text_model"},
        vision_config=clip.config.vision_config.to_dict() | {"model_type": "clipseg_vision_model"},
        projection_dim=clip.config.projection_dim,
        extract_layers=list(EXTRACT),
        reduce_dim=WIDTH,
        decoder_intermediate_size=INNER,
    )
    model = CLIPSegForImageSegmentation(config)
    model.clip.load_state_dict(clip.state_dict())
    decoder = model.decoder
    for layer in (*decoder.reduces, decoder.film_mul, decoder.film_add):
        layer.reset_parameters()  # transformers begins with weights of deviation 1, which learn slowly
    torch.nn.init.normal_(decoder.transposed_convolution.weight, std=FIRST)
    return model


def logits_of(
    model: CLIPSegForImageSegmentation, inputs: torch.Tensor, ids: torch.Tensor, phrases: int
) -> torch.Tensor:
    """Return logits (images, phrases, side, side) for images (N, 3, side, side) and token ids (N · phrases, length).

    Unlike the model's own forward pass, an image is encoded once for all its phrases, and gradients reach both
    towers."""
    vision = model.clip.vision_model(pixel_values=inputs, output_hidden_states=True)
    layers = [vision.hidden_states[i + 1].repeat_interleave(phrases, 0) for i in model.extract_layers]
    text = model.clip.get_text_features(input_ids=ids).pooler_output
    found = model.decoder(layers, text).logits
    return found.view(len(inputs), phrases, *found.shape[-2:])
