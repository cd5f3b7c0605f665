"""Export of the trained segmenter: a CLIPSeg folder as transformers writes it, in fp16."""

from __future__ import annotations

from pathlib import Path

from transformers import CLIPSegForImageSegmentation, CLIPTokenizer, ViTImageProcessorPil

from services.trainer.export import average_into, replace_folder
from services.trainer.segmentation.architecture import new_segmenter
from services.trainer.segmentation.examples import SIDE
from services.trainer.segmentation.training import NAME


def trained_segmenter(work: Path, models: Path) -> CLIPSegForImageSegmentation:
    """Return the run's segmenter with averaged weights; NotFoundError before the first checkpoint."""
    model = new_segmenter(models / "clip")
    average_into([model], work / f"{NAME}.pt")
    return model.eval().requires_grad_(False)


def export_segmenter(work: Path, models: Path, target: Path) -> None:
    """Write `target` with tokenizer and image processor."""

    def write(folder: Path) -> None:
        trained_segmenter(work, models).half().save_pretrained(folder, safe_serialization=True)
        CLIPTokenizer.from_pretrained(models / "clip").save_pretrained(folder)
        image_processor(SIDE).save_pretrained(folder)

    replace_folder(target, write)


def image_processor(side: int) -> ViTImageProcessorPil:
    """Return the preprocessing of CLIPSeg: resize to a square, −1…1."""
    return ViTImageProcessorPil(
        size={"height": side, "width": side}, image_mean=[0.5, 0.5, 0.5], image_std=[0.5, 0.5, 0.5]
    )
