"""The models that the gateway serves, and the one behind a request's `quality`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from shared.domain.errors import InvalidRequestError
from shared.models import ModelCard, of_images


@dataclass(frozen=True)
class Models:
    """The served models of images by id, the ids behind `large` and `small`, and the model of clips."""

    cards: Mapping[str, ModelCard]
    large: str
    small: str | None = None
    video: ModelCard | None = None

    @classmethod
    def of(cls, cards: Mapping[str, ModelCard]) -> Models:
        """Return the roles of the cards of `served_cards`."""
        images = of_images(cards)
        large, *small = images
        clips = (card for name, card in cards.items() if name not in images)
        return cls(images, large, next(iter(small), None), next(clips, None))

    def choose_video(self, quality: str) -> ModelCard:
        """Return the card of the video model. Raises InvalidRequestError without one, and for another model's name."""
        if self.video is None:
            raise InvalidRequestError("modality", "must be image, because no video model is set (setting video)")
        if quality not in ("", "auto", self.video.name):
            raise InvalidRequestError("quality", f"must be auto or {self.video.name} for modality video", quality)
        return self.video

    def choose(self, quality: str) -> ModelCard:
        """Return the card behind `auto`, `large`, `small` or a model id. Raises InvalidRequestError with the known
        names."""
        roles = {"": self.large, "auto": self.large, "large": self.large, "small": self.small or quality}
        name = roles.get(quality, quality)
        if name not in self.cards:
            offered = ", ".join(dict.fromkeys(["auto", "large", *(["small"] if self.small else []), *self.cards]))
            clips = self.video is not None and name == self.video.name
            rule = "names a model of clips; these make images" if clips else "must be a model served here"
            raise InvalidRequestError("quality", f"{rule}: {offered}", quality)
        return self.cards[name]
