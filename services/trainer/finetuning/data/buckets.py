"""Aspect buckets: the sizes that images are trained at, and the bucket of each image (pure)."""

from __future__ import annotations

import math
from collections.abc import Sequence

from shared.domain.errors import ConfigurationError
from shared.domain.types import Size
from shared.models.card import ModelCard

STEP_PX = 64
"""Pixels between the sides of neighbouring buckets, for images of 512 pixels and more, as NovelAI's and SDXL's."""


def bucket_sizes(card: ModelCard, resolution: int, longest_ratio: float) -> tuple[Size, ...]:
    """Return the sizes of a model's buckets: the card's list, or sizes of about `resolution`² pixels.

    resolution 0: the side of the card's default size. Raises ConfigurationError for a side that the model lacks.
    """
    if card.sizes.sizes:
        most = resolution**2 or math.inf
        listed = [size for size in card.sizes.sizes if _ratio(size) <= longest_ratio and _area(size) <= most]
        if not listed:
            raise ConfigurationError(f"data.resolution: the model generates {card.sizes} (got {resolution})")
        return tuple(listed)
    multiple = card.sizes.multiple_of
    side = resolution or round(math.sqrt(_area(card.default_size)) / multiple) * multiple
    if not card.sizes.allows(Size(side, side)):
        raise ConfigurationError(f"data.resolution: the model generates {card.sizes} (got {side})")
    step = max(round(min(STEP_PX, side / 8) / multiple), 1) * multiple
    found = {Size(side, side)}
    for width in range(step, int(side * math.sqrt(longest_ratio)) + 1, step):
        size = Size(width, max(round(side * side / width / step), 1) * step)
        if _ratio(size) <= longest_ratio and card.sizes.allows(size):
            found |= {size, Size(size.height, size.width)}
    return tuple(sorted(found, key=lambda size: (size.width / size.height, size.width)))


def nearest(image: Size, buckets: Sequence[Size]) -> Size:
    """Return the bucket with the nearest ratio of sides; among equal ratios the largest that needs no enlarging."""

    def worse(bucket: Size) -> tuple[float, bool, int]:
        differs = abs(math.log(bucket.width / bucket.height) - math.log(image.width / image.height))
        enlarged = bucket.width > image.width or bucket.height > image.height
        return round(differs, 6), enlarged, _area(bucket) if enlarged else -_area(bucket)

    return min(buckets, key=worse)


def grouped(images: Sequence[Size], buckets: Sequence[Size], least: int) -> dict[Size, list[int]]:
    """Return the indices of the images of each bucket.

    While a bucket has fewer than `least` images and is not the only one, its images move to the nearest others, so
    that rare shapes do not fill whole batches.
    """
    left = list(buckets)
    while True:
        found: dict[Size, list[int]] = {}
        for index, image in enumerate(images):
            found.setdefault(nearest(image, left), []).append(index)
        smallest = min(found, key=lambda size: (len(found[size]), size.width, size.height))
        if len(found) == 1 or len(found[smallest]) >= least:
            return found
        left = [size for size in left if size in found and size != smallest]


def _ratio(size: Size) -> float:
    return max(size.width, size.height) / min(size.width, size.height)


def _area(size: Size) -> int:
    return size.width * size.height
