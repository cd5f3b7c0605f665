"""What to change in a run whose GPUs have too little memory; it differs between a pipeline and data parallel."""

from __future__ import annotations

import math

from services.trainer.finetuning.settings import RunSettings


def memory_advice(settings: RunSettings, world: int, *, pipeline: bool) -> str:
    """Return the settings that lower the memory of this run, the cheapest first, as one line."""
    images = math.ceil(settings.batch / world)
    in_pass = min(settings.ranks.micro_batch or images, images)
    found = []
    if not pipeline and in_pass > 1:
        found.append(f"ranks.micro_batch = {in_pass // 2} (now {in_pass} images in a pass)")
    if not settings.gradient_checkpointing:
        found.append("gradient_checkpointing = true")
    if pipeline:
        if settings.ranks.profile is not None:
            found.append("no ranks.profile, so that the memory of layers is measured on these GPUs")
        found.append("more ranks, with fewer layers each")
    if settings.optimizer.ema_decay:
        found.append("optimizer.ema_decay = 0 (no averaged weights)")
    if not pipeline and world > 1:
        found.append('ranks.parallel = "pipeline" (a part of the weights on each rank)')
    elsewhere = [*(["a smaller batch"] if settings.batch > world else []), *([] if settings.lora else ["[lora]"])]
    if elsewhere:
        found.append(f"in another folder {' or '.join(elsewhere)}")
    unused = "; ranks.micro_batch has no effect in a pipeline" if pipeline and settings.ranks.micro_batch else ""
    return f"set {'; or '.join(found)}{unused}" if found else "take GPUs with more memory"
