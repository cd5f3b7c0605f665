"""A picture made to fit another size: a hit of mixed resolutions (MoDM caches pictures, not latents of one shape)."""

from __future__ import annotations

import numpy as np
from PIL import Image

from services.gpu_worker.rows import Pixels
from shared.types import Size


def fitted(pixels: Pixels, size: Size) -> Pixels:
    """(H, W, 3) of any size as `size`: the largest middle part of its proportions, scaled (Lanczos).

    Cut and not stretched, so that what is in the picture keeps its shape; the same size is the same picture.
    """
    height, width = pixels.shape[:2]
    if (width, height) == (size.width, size.height):
        return pixels
    scale = min(width / size.width, height / size.height)
    kept_w, kept_h = size.width * scale, size.height * scale
    left, top = (width - kept_w) / 2, (height - kept_h) / 2
    box = (left, top, left + kept_w, top + kept_h)
    whole = Image.fromarray(pixels).resize((size.width, size.height), Image.Resampling.LANCZOS, box=box)
    return np.asarray(whole, dtype=np.uint8).copy()
