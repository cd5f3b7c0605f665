"""Where models run."""

from __future__ import annotations

from shared.settings import Settings


def chosen_device(name: str) -> str:
    """What a `device` setting names, as torch takes it; `auto` is a GPU where there is one, else the CPU."""
    if name != "auto":
        return name
    import torch  # settings are read where there is no torch, too

    return "cuda" if torch.cuda.is_available() else "cpu"


def placed(settings: Settings) -> Settings:
    """The same with the device that `auto` means here: what a model's card says follows it."""
    return settings.model_copy(update={"device": chosen_device(settings.device)})
