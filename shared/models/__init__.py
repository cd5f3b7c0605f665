"""Describe a model without loading it: its card, its schedule, and the hash of its weights."""

from shared.models.card import FrameRule, ModelCard, SizeRule
from shared.models.card_lookup import bundled_cards, find_card, of_images, served_card, served_cards
from shared.models.schedules import noise_level, same_noise_level
from shared.models.weights import weights_hash

__all__ = [
    "FrameRule",
    "ModelCard",
    "SizeRule",
    "bundled_cards",
    "find_card",
    "noise_level",
    "of_images",
    "same_noise_level",
    "served_card",
    "served_cards",
    "weights_hash",
]
