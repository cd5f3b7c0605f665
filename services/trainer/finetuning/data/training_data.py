"""Batches of a data set: training batches by iteration, and the held-out batches of the validation loss."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from PIL import Image

from services.trainer.finetuning.batches import Batch, Row
from services.trainer.finetuning.data.buckets import bucket_sizes, grouped
from services.trainer.finetuning.data.images import Source
from services.trainer.finetuning.data.index import Indexed
from services.trainer.finetuning.data.order import Order, held_out, seed_of
from services.trainer.finetuning.settings import RunSettings
from shared.domain.errors import UnavailableError
from shared.domain.types import Size
from shared.models.card import ModelCard


class TrainingData:
    """Rows of an index as batches; everything random comes from the run's seed, the iteration and the row's place."""

    def __init__(self, source: Source, rows: Sequence[Indexed], settings: RunSettings, card: ModelCard) -> None:
        """Divide the rows into training and validation, and each into aspect buckets."""
        self._source, self._rows, self._settings = source, rows, settings
        kept = held_out(len(rows), settings.data.held_out, settings.seed)
        sizes = bucket_sizes(card, settings.data.resolution, settings.data.longest_ratio)
        trained = [index for index in range(len(rows)) if index not in kept]
        self.buckets = self._grouped(trained, sizes)
        self._order = Order(self.buckets, settings.batch, settings.seed)
        self._held_out = self._grouped(sorted(kept), tuple(self.buckets)) if kept else {}

    @property
    def count(self) -> int:
        """Number of images that are trained on."""
        return sum(map(len, self.buckets.values()))

    @property
    def held_out_count(self) -> int:
        return sum(map(len, self._held_out.values()))

    @property
    def batches_per_epoch(self) -> int:
        return self._order.batches_per_epoch

    def batch(self, iteration: int) -> Batch:
        """Return the batch of an iteration, counted from 0, the same on every rank."""
        size, indices = self._order.at(iteration)
        seed = self._settings.seed
        rows = []
        for position, index in enumerate(indices):
            drawn = seed_of(seed, iteration, position)
            rows.append(self._row(index, size, drawn, drop=seed_of(drawn, "caption") / 2**63))
        second = seed_of(seed, iteration, "second pass") / 2**63 < self._settings.self_conditioning
        return Batch(iteration, size, tuple(rows), len(rows), self.read, second)

    def validation(self) -> list[Batch]:
        """Return the held-out batches; their noise and timesteps are the same at every validation."""
        found = []
        for size, indices in self._held_out.items():
            for start in range(0, len(indices), self._settings.batch):
                part = indices[start : start + self._settings.batch]
                rows = [self._row(index, size, seed_of(self._settings.seed, "held-out", index)) for index in part]
                found.append(Batch(-1, size, tuple(rows), len(rows), self.read))
        return found

    def read(self, row: Row, size: Size) -> torch.Tensor:
        """Return a row's pixels, scaled and cropped at the centre: (3, height, width) float32 in −1…1.

        Raises UnavailableError for an image that was readable when the index was made.
        """
        captioned = self._rows[row.index].row
        try:
            image = self._source.image(captioned, size)
        except (OSError, SyntaxError, ValueError) as error:
            raise UnavailableError(f"data.path: {captioned.name} can no longer be read: {error}") from error
        pixels = np.asarray(_fitted(image, size))
        return torch.from_numpy(pixels.copy()).permute(2, 0, 1).float() / 127.5 - 1

    def _row(self, index: int, size: Size, seed: int, drop: float = 1.0) -> Row:
        indexed = self._rows[index]
        caption = "" if drop < self._settings.data.dropout else indexed.row.caption
        _, top, left = _scaled(indexed.size, size)
        return Row(index, caption, seed, indexed.size, (top, left))

    def _grouped(self, indices: Sequence[int], sizes: Sequence[Size]) -> dict[Size, list[int]]:
        found = grouped([self._rows[index].size for index in indices], sizes, self._settings.batch)
        return {size: [indices[place] for place in places] for size, places in found.items()}


def _scaled(image: Size, size: Size) -> tuple[Size, int, int]:
    """Return an image's size when it just covers `size`, and the top and left edge of the central crop."""
    scale = max(size.width / image.width, size.height / image.height)
    covering = Size(max(round(image.width * scale), size.width), max(round(image.height * scale), size.height))
    return covering, (covering.height - size.height) // 2, (covering.width - size.width) // 2


def _fitted(image: Image.Image, size: Size) -> Image.Image:
    covering, top, left = _scaled(Size(*image.size), size)
    if Size(*image.size) != covering:
        image = image.resize((covering.width, covering.height), Image.Resampling.LANCZOS)
    return image.crop((left, top, left + size.width, top + size.height))
