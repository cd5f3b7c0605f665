"""LangSAM's pair (FlexCache §5): Grounding DINO finds boxes for a phrase, and SAM the mask inside each box."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from transformers import GroundingDinoForObjectDetection, GroundingDinoProcessor, SamModel, SamProcessor

from services.segmenter.models import Shares
from shared.runtime.animated_png import Frames

BOX, TEXT = 0.3, 0.25
"""Least scores of a box and of the words that it stands for, as in lang-segment-anything."""


class LangSam:
    """Both models in transformers' layout. Frames are segmented one by one, as in FlexCache §5."""

    def __init__(self, detector: Path, masks: Path, device: str = "cpu") -> None:
        self._device = device
        self._boxes_in = GroundingDinoProcessor.from_pretrained(detector, local_files_only=True)
        self._masks_in = SamProcessor.from_pretrained(masks, local_files_only=True)
        detects = GroundingDinoForObjectDetection.from_pretrained(
            detector, dtype=torch.float32, use_safetensors=True, local_files_only=True
        )
        self._detects = detects.to(device).eval().requires_grad_(False)
        sam = SamModel.from_pretrained(masks, dtype=torch.float32, use_safetensors=True, local_files_only=True)
        self._sam = sam.to(device).eval().requires_grad_(False)

    @torch.inference_mode()
    def segment(self, frames: Frames, phrases: Sequence[str]) -> Shares:
        found = np.zeros((len(phrases), *frames.shape[:3]), np.float32)
        for at, frame in enumerate(frames):
            embedding: torch.Tensor | None = None
            for number, phrase in enumerate(phrases):
                boxes = self._boxes(frame, phrase)
                if len(boxes) == 0:
                    continue
                if embedding is None:  # once for all phrases
                    pixels = self._masks_in(images=frame, return_tensors="pt")["pixel_values"]
                    embedding = self._sam.get_image_embeddings(pixels.to(self._device))
                found[number, at] = self._mask(frame, boxes, embedding)
        return found

    def _boxes(self, frame: Frames, phrase: str) -> torch.Tensor:
        """Return boxes (n, 4), x0 y0 x1 y1 in pixels."""
        text = phrase.lower().strip(" .") + "."  # the detector was trained on lower case, each phrase with a full stop
        inputs = self._boxes_in(images=frame, text=text, return_tensors="pt").to(self._device)
        (found,) = self._boxes_in.post_process_grounded_object_detection(
            self._detects(**inputs), inputs["input_ids"], threshold=BOX, text_threshold=TEXT,
            target_sizes=[frame.shape[:2]],
        )  # fmt: skip
        boxes: torch.Tensor = found["boxes"]
        return boxes

    def _mask(self, frame: Frames, boxes: torch.Tensor, embedding: torch.Tensor) -> Shares:
        """Return the highest probability of all boxes' masks, (H, W)."""
        inputs = self._masks_in(images=frame, input_boxes=[boxes.cpu().tolist()], return_tensors="pt")
        given = inputs["input_boxes"].to(self._device, torch.float32)
        output = self._sam(image_embeddings=embedding, input_boxes=given, multimask_output=False)
        (logits,) = self._masks_in.image_processor.post_process_masks(
            output.pred_masks.cpu(), inputs["original_sizes"], inputs["reshaped_input_sizes"], binarize=False
        )
        found: Shares = logits.sigmoid().amax(dim=(0, 1)).numpy()
        return found
