"""SAM 3 (Carion et al. 2025, arXiv 2511.16719): masks of every instance of a phrase, by frame or tracked over a clip.

transformers' classes need torchvision."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from transformers import Sam3Model, Sam3Processor, Sam3VideoModel, Sam3VideoProcessor

from services.segmenter.models import Shares
from shared.models.word_caches import keeping_no_words
from shared.runtime.animated_png import Frames

SCORE = 0.5
"""Least score of an instance, as the tracker's configuration has by default."""


class Sam3:
    """SAM 3's detector on each frame alone."""

    def __init__(self, folder: Path, device: str = "cpu") -> None:
        self._device = device
        self._processor = Sam3Processor.from_pretrained(folder, local_files_only=True)
        keeping_no_words(self._processor.tokenizer)
        model = Sam3Model.from_pretrained(folder, dtype=torch.float32, use_safetensors=True, local_files_only=True)
        self._model = model.to(device).eval().requires_grad_(False)

    @torch.inference_mode()
    def segment(self, frames: Frames, phrases: Sequence[str]) -> Shares:
        found = np.zeros((len(phrases), *frames.shape[:3]), np.float32)
        texts = [self._processor(text=phrase, return_tensors="pt").to(self._device) for phrase in phrases]
        for at, frame in enumerate(frames):
            pixels = self._processor(images=frame, return_tensors="pt")["pixel_values"]
            seen = self._model.get_vision_features(pixels.to(self._device))
            for number, text in enumerate(texts):
                output = self._model(
                    vision_embeds=seen, input_ids=text["input_ids"], attention_mask=text["attention_mask"]
                )
                scores = output.pred_logits[0].sigmoid() * output.presence_logits[0].sigmoid()
                masks = output.pred_masks[0][scores >= SCORE]
                if len(masks):
                    shares = F.interpolate(masks[None], frame.shape[:2], mode="bilinear")[0].sigmoid()
                    found[number, at] = shares.amax(dim=0).cpu().numpy()
        return found


class Sam3Tracker:
    """SAM 3's tracker over all frames of a clip; its masks are 0 or 1."""

    def __init__(self, folder: Path, device: str = "cpu") -> None:
        self._device = device
        self._processor = Sam3VideoProcessor.from_pretrained(folder, local_files_only=True)
        keeping_no_words(self._processor.tokenizer)
        model = Sam3VideoModel.from_pretrained(folder, dtype=torch.float32, use_safetensors=True, local_files_only=True)
        self._model = model.to(device).eval().requires_grad_(False)

    @torch.inference_mode()
    def segment(self, frames: Frames, phrases: Sequence[str]) -> Shares:
        found = np.zeros((len(phrases), *frames.shape[:3]), np.float32)
        session = self._processor.init_video_session(video=frames, inference_device=self._device, dtype=torch.float32)
        self._processor.add_text_prompt(session, list(phrases))
        for output in self._model.propagate_in_video_iterator(session):
            seen = self._processor.postprocess_outputs(session, output)
            masks = dict(zip(seen["object_ids"].tolist(), seen["masks"], strict=True))
            for phrase, objects in seen["prompt_to_obj_ids"].items():
                union = torch.stack([masks[one] for one in objects]).any(dim=0).cpu().numpy()
                for number in (at for at, one in enumerate(phrases) if one == phrase):
                    found[number, output.frame_idx] = union
        return found
